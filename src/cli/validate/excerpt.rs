//! The faulty lines of a manifest, cut to the width of a terminal, and the columns of their carets.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthChar as _;

use crate::pod::Problem;

/// The longest part of a line that is shown.
const MAX_WIDTH: usize = 400;
/// The part of a line that fits beside a line number, at least.
const MIN_WIDTH: usize = 8;
/// What stands for a tab.
const TAB: &str = "    ";
/// What stands for the part of a line that is cut.
const CUT: char = '…';

/// A part of a line, with a caret below it.
#[derive(Debug)]
pub(super) struct Excerpt {
    /// What is shown of the line. It has no control characters.
    pub(super) text: String,
    /// The number of columns before the caret.
    pub(super) indent: usize,
    /// The width of the line number beside it; none if the terminal is too narrow for one.
    pub(super) gutter: Option<usize>,
}

/// The faulty line of each problem of a text, for a terminal of this width.
///
/// The problems are in the order of the text, so that it is walked through once.
pub(super) fn excerpts(text: &[u8], problems: &[Problem], width: usize) -> Vec<Option<Excerpt>> {
    if problems.iter().all(|problem| problem.position.is_none()) {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(text);
    let mut cursor = Cursor::new(text.strip_prefix('\u{feff}').unwrap_or(&text));
    let of = |problem: &Problem| {
        let (line, column) = problem.position?;
        cursor.seek(line, column).then(|| cursor.excerpt(width))
    };
    problems.iter().map(of).collect()
}

/// A place in a text.
struct Cursor<'t> {
    text: &'t str,
    line: u32,
    column: u32,
    /// The line's first byte, and the byte after its last one.
    begin: usize,
    end: usize,
    at: usize,
}

impl<'t> Cursor<'t> {
    fn new(text: &'t str) -> Self {
        let end = text.find('\n').unwrap_or(text.len());
        Self { text, line: 1, column: 1, begin: 0, end, at: 0 }
    }

    /// Goes to a place. Returns false if the text has no such line.
    fn seek(&mut self, line: u32, column: u32) -> bool {
        if (line, column) < (self.line, self.column) {
            *self = Self::new(self.text);
        }
        while self.line < line {
            if self.end == self.text.len() {
                return false;
            }
            self.begin = self.end + 1;
            self.end = self.text[self.begin..].find('\n').map_or(self.text.len(), |end| self.begin + end);
            (self.line, self.column, self.at) = (self.line + 1, 1, self.begin);
        }
        for character in self.text[self.at..self.end].chars() {
            if self.column == column {
                break;
            }
            self.column += 1;
            self.at += character.len_utf8();
        }
        true
    }

    fn excerpt(&self, width: usize) -> Excerpt {
        let digits = self.line.to_string().len();
        // "12 | " is beside the line.
        let beside = width.saturating_sub(digits + 3);
        let (gutter, room) = if beside < MIN_WIDTH { (None, width.max(3)) } else { (Some(digits), beside) };
        let line = &self.text[self.begin..self.end];
        let (before, after) = line.split_at(self.at - self.begin);
        let (text, indent) = cut(before, after.strip_suffix('\r').unwrap_or(after), room.min(MAX_WIDTH));
        Excerpt { text, indent, gutter }
    }
}

/// What is shown of a line around the place between its parts, and the column of that place.
fn cut(before: &str, after: &str, room: usize) -> (String, usize) {
    // A character needs no column at the least: then it is not shown without end.
    let most = 2 * room;
    let cells = |character| (shown(character), shown_width(character));
    let left: Vec<_> = before.chars().rev().take(most).map(cells).collect();
    let right: Vec<_> = after.chars().take(most).map(cells).collect();
    let sum = |cells: &[(String, usize)]| cells.iter().map(|(_, width)| width).sum::<usize>();
    let (left_width, right_width) = (sum(&left), sum(&right));
    // The caret itself needs a column, also behind the line.
    let right_room = right_width.clamp(1, (room / 3).max(1)).max(room.saturating_sub(left_width));
    let (left, left_is_cut) = fitting(&left, left.len() == most, room - right_room.min(room));
    let (right, right_is_cut) = fitting(&right, right.len() == most, right_room);
    let mut text = String::new();
    text.extend(left_is_cut.then_some(CUT));
    text.extend(left.iter().rev().map(|(shown, _)| shown.as_str()));
    let indent = usize::from(left_is_cut) + sum(left);
    text.extend(right.iter().map(|(shown, _)| shown.as_str()));
    text.extend(right_is_cut.then_some(CUT));
    (text, indent)
}

/// The cells that fit into some columns, with one column for the mark that others are cut, and whether some are.
fn fitting(cells: &[(String, usize)], is_cut: bool, room: usize) -> (&[(String, usize)], bool) {
    let total: usize = cells.iter().map(|(_, width)| width).sum();
    if !is_cut && total <= room {
        return (cells, false);
    }
    let mut used = 1;
    let count = cells.iter().take_while(|(_, width)| {
        used += width;
        used <= room
    });
    (&cells[..count.count()], true)
}

/// A character as a terminal may receive it.
fn shown(character: char) -> String {
    match character {
        '\t' => TAB.to_owned(),
        character => visible(character).to_string(),
    }
}

fn shown_width(character: char) -> usize {
    if character == '\t' { TAB.len() } else { visible(character).width().unwrap_or(1) }
}

/// A character, or what stands for one that would change more of the terminal than its own place.
fn visible(character: char) -> char {
    match character {
        '\0'..='\u{1f}' => char::from_u32(0x2400 + u32::from(character)).unwrap_or('\u{fffd}'),
        '\u{7f}' => '\u{2421}',
        // Controls of 8 bits, marks that change the direction of the text, and marks without a width.
        '\u{80}'..='\u{9f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => '\u{fffd}',
        character => character,
    }
}

/// A text on one line without characters that change more of the terminal than their own place.
pub(super) fn sanitized(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if visible(character) == character {
            line.push(character);
        } else {
            let _ = write!(line, "{}", character.escape_default());
        }
    }
    line
}
