//! Tables on the screen: columns that fit into its width.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style},
    text::Span,
};

use super::model::Tone;

/// The space between two columns.
const SPACE: u16 = 2;

/// A column of a table.
pub(super) struct Column {
    pub(super) title: String,
    /// The least width if the column can be cut; none if it needs all of its width.
    pub(super) least: Option<u16>,
    /// The columns with the highest rank are left out first; rank 0 stays.
    pub(super) rank: u8,
}

impl Column {
    pub(super) fn new(title: &str, least: Option<u16>, rank: u8) -> Self {
        Self { title: title.to_owned(), least, rank }
    }
}

/// A field of a table.
pub(super) type Field = (String, Tone);

/// Draws the names of the columns and below them rows, one of which may be selected.
pub(super) fn table(
    columns: &[Column],
    rows: &[Vec<Field>],
    selected: Option<usize>,
    has_colours: bool,
    area: Rect,
    buffer: &mut Buffer,
) {
    let natural = |at: usize| {
        let fields = rows.iter().map(|row| width(&row[at].0));
        fields.chain([width(&columns[at].title)]).max().unwrap_or_default()
    };
    let natural: Vec<u16> = (0..columns.len()).map(natural).collect();
    let widths = fit(columns, &natural, area.width);
    let header: Vec<Field> = columns.iter().map(|column| (column.title.clone(), Tone::Plain)).collect();
    for (y, row) in (area.top()..area.bottom()).zip([&header].into_iter().chain(rows)) {
        let mut x = area.left();
        for ((text, tone), width) in row.iter().zip(&widths).filter(|(_, width)| **width > 0) {
            buffer.set_stringn(x, y, cut(text, *width), usize::from(*width), style(*tone, has_colours));
            x = x.saturating_add(width + SPACE);
        }
        let line = Rect { y, height: 1, ..area };
        let is_selected =
            selected.is_some_and(|selected| y == area.y + 1 + u16::try_from(selected).unwrap_or(u16::MAX));
        if y == area.y {
            buffer.set_style(line, Modifier::BOLD);
        } else if is_selected {
            buffer.set_style(line, Modifier::REVERSED);
        }
    }
}

/// The widths of the columns, 0 for those that are left out.
fn fit(columns: &[Column], natural: &[u16], width: u16) -> Vec<u16> {
    let ranks = columns.iter().map(|column| column.rank).max().unwrap_or_default();
    let least = |at: usize| columns[at].least.map_or(natural[at], |least| least.min(natural[at]));
    for rank in (0..=ranks).rev() {
        let kept: Vec<usize> = (0..columns.len()).filter(|at| columns[*at].rank <= rank).collect();
        let spaces = SPACE * u16::try_from(kept.len().saturating_sub(1)).unwrap_or(u16::MAX);
        let needed: u16 = kept.iter().fold(spaces, |sum, at| sum.saturating_add(least(*at)));
        if needed > width && rank > 0 {
            continue;
        }
        let mut rest = width.saturating_sub(needed);
        let mut widths = vec![0; columns.len()];
        for at in kept {
            let more = rest.min(natural[at] - least(at));
            widths[at] = (least(at) + more).min(width);
            rest -= more;
        }
        return widths;
    }
    vec![0; columns.len()]
}

/// The width of a text on the screen.
pub(super) fn width(text: &str) -> u16 {
    u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX)
}

/// A text in this width, with a mark if it is cut.
pub(super) fn cut(text: &str, most: u16) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut rest = most.saturating_sub(1);
    for character in text.chars() {
        let Some(left) = rest.checked_sub(width(character.encode_utf8(&mut [0; 4]))) else { break };
        rest = left;
        shown.push(character);
    }
    // The width is 0 only if nothing is shown.
    shown.push_str(if most > 0 { "…" } else { "" });
    shown
}

/// How a tone looks. Without colours, emphasis alone shows it.
pub(super) fn style(tone: Tone, has_colours: bool) -> Style {
    let style = Style::new();
    match (tone, has_colours) {
        (Tone::Plain, _) | (Tone::Good | Tone::Warning, false) => style,
        (Tone::Bad, false) => style.add_modifier(Modifier::BOLD),
        (Tone::Dim, _) => style.add_modifier(Modifier::DIM),
        (Tone::Good, true) => style.fg(Color::Green),
        (Tone::Warning, true) => style.fg(Color::Yellow),
        (Tone::Bad, true) => style.fg(Color::Red),
    }
}
