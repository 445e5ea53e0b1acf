//! Draws `podmux top`: what is known of the agent, as the user wants to see it.

use jiff::Timestamp;
use ratatui::{Frame, buffer::Buffer, layout::Rect, style::Modifier};

use super::{
    columns::{Column, Field, cut, style, table, width},
    model::{Model, Pod, Tone},
    view::{self, View},
};
use crate::{age::age, grouped::counted};

/// The least height for the updates below the pods.
const WITH_UPDATES: u16 = 14;
/// The least height for the sources above the pods.
const WITH_SOURCES: u16 = 11;
/// The least height for the keys in the last line.
const WITH_KEYS: u16 = 4;

/// The keys of the list, the most important first.
const KEYS: &str = "q quit  / filter  s sort  r reverse  Up/Down move  Enter open";
/// The keys of an open pod.
const KEYS_OF_OPEN: &str = "Esc back  q quit  Up/Down scroll";

/// Draws everything. A scroll beyond the end of an open pod is corrected.
pub fn draw(model: &Model, view: &mut View, now: Timestamp, frame: &mut Frame<'_>) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    let (mut top, mut bottom) = (area.top(), area.bottom());
    let line = |y: u16| Rect { y, height: 1, ..area }.intersection(area);
    if let Some((why, since)) = &model.lost {
        let text = format!("connection lost {} ago: {why}; reconnecting", age(Some(*since), now));
        write(&text, Tone::Bad, view, line(top), buffer);
        buffer.set_style(line(top), Modifier::REVERSED);
        top += 1;
    }
    if area.height >= WITH_KEYS {
        bottom -= 1;
        write(&last_line(view), Tone::Dim, view, line(bottom), buffer);
    }
    if let Some(name) = &view.open {
        let (namespace, name) = name.clone();
        let rest = Rect { y: top, height: bottom.saturating_sub(top), ..area };
        return open(&format!("pod {namespace}/{name}"), model, view, rest.intersection(area), buffer);
    }
    let pods = view.pods(model);
    view.settle(&pods);
    write(&title(model, view, pods.len(), now), Tone::Plain, view, line(top), buffer);
    top += 1;
    if area.height >= WITH_SOURCES {
        let height = u16::try_from(model.sources.len()).unwrap_or(u16::MAX).min(area.height / 4) + 1;
        sources(model, view, now, Rect { y: top, height, ..area }.intersection(area), buffer);
        top += height + 1;
    }
    if area.height >= WITH_UPDATES {
        let height = area.height / 4 + 1;
        bottom -= height;
        updates(model, view, now, Rect { y: bottom, height, ..area }.intersection(area), buffer);
        bottom -= 1;
    }
    let rest = Rect { y: top, height: bottom.saturating_sub(top), ..area };
    list(&pods, view, now, rest.intersection(area), buffer);
}

fn title(model: &Model, view: &View, shown: usize, now: Timestamp) -> String {
    let all = model.pods.len();
    let part = if shown == all { String::new() } else { format!("{shown} of ") };
    let pods = part + &counted(all, "pod");
    let filter = if view.filter.is_empty() { String::new() } else { format!("   filter {}", view.filter) };
    let rate = model.changes.per_second(now);
    format!("podmux top   {pods}   {rate:.1} changes/s{filter}")
}

fn last_line(view: &View) -> String {
    if view.is_typing {
        return format!("filter: {}_   Enter keep  Esc remove", view.filter);
    }
    if view.open.is_some() { KEYS_OF_OPEN } else { KEYS }.to_owned()
}

fn write(text: &str, tone: Tone, view: &View, area: Rect, buffer: &mut Buffer) {
    if !area.is_empty() {
        let (text, style) = (cut(text, area.width), style(tone, view.has_colours));
        buffer.set_stringn(area.x, area.y, text, usize::from(area.width), style);
    }
}

fn sources(model: &Model, view: &View, now: Timestamp, area: Rect, buffer: &mut Buffer) {
    let columns = [
        Column::new("SOURCE", None, 0),
        Column::new("STATE", Some(10), 0),
        Column::new("PODS", None, 1),
        Column::new("PROBLEMS", None, 2),
        Column::new("READ", None, 3),
        Column::new("CHANGES/S", None, 4),
        Column::new("TARGET", Some(10), 5),
    ];
    let rows = model.sources.iter().take(usize::from(area.height)).map(|source| -> Vec<Field> {
        let rate = model.of_source.get(&source.name).map_or(0.0, |rate| rate.per_second(now));
        let is_failing = source.tone == Tone::Bad;
        vec![
            (source.name.clone(), Tone::Plain),
            (source.state.clone(), source.tone),
            (source.pods.to_string(), Tone::Plain),
            (source.problems.to_string(), if source.problems > 0 { Tone::Warning } else { Tone::Plain }),
            (source.success.map(|read| age(Some(read), now)).unwrap_or_default(), Tone::Plain),
            (format!("{rate:.1}"), Tone::Plain),
            (source.target.clone(), if is_failing { Tone::Bad } else { Tone::Plain }),
        ]
    });
    table(&columns, &rows.collect::<Vec<_>>(), None, view.has_colours, area, buffer);
}

fn list(pods: &[&Pod], view: &View, now: Timestamp, area: Rect, buffer: &mut Buffer) {
    let column = |title: &str, sort: view::Column, least: Option<u16>, rank: u8| {
        let mark = match (view.sort == sort, view.is_reversed) {
            (false, _) => "",
            (true, false) => "^",
            (true, true) => "v",
        };
        Column::new(&format!("{title}{mark}"), least, rank)
    };
    let columns = [
        Column::new("NAMESPACE", Some(9), 2),
        column("NAME", view::Column::Name, Some(8), 0),
        column("READY", view::Column::Ready, None, 3),
        column("STATUS", view::Column::Status, Some(16), 1),
        column("RESTARTS", view::Column::Restarts, None, 5),
        column("AGE", view::Column::Age, None, 4),
        column("SOURCE", view::Column::Source, None, 6),
    ];
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    let selected = view.selected(pods);
    // Whole pages: a step inside of one changes two lines only.
    let first = selected - selected % height;
    let rows = pods.iter().skip(first).take(height).map(|pod| -> Vec<Field> {
        let texts = [
            pod.key.0.clone(),
            pod.key.1.clone(),
            pod.ready.clone(),
            pod.status.clone(),
            pod.restarts.to_string(),
            age(pod.created, now),
            pod.source.clone(),
        ];
        let tones = (0..).map(|at| if at == 3 { pod.tone } else { Tone::Plain });
        texts.into_iter().zip(tones).collect()
    });
    let rows: Vec<Vec<Field>> = rows.collect();
    let selected = (!rows.is_empty()).then_some(selected - first);
    table(&columns, &rows, selected, view.has_colours, area, buffer);
    if rows.is_empty() && area.height > 1 {
        let text = if view.filter.is_empty() { "No pods" } else { "No pod has the text of the filter" };
        write(text, Tone::Dim, view, Rect { y: area.y + 1, height: 1, ..area }, buffer);
    }
}

fn updates(model: &Model, view: &View, now: Timestamp, area: Rect, buffer: &mut Buffer) {
    let columns = [
        Column::new("UPDATE", None, 0),
        Column::new("OP", None, 0),
        Column::new("SOURCE", None, 1),
        Column::new("PODS", Some(10), 2),
    ];
    let rows = view.updates(model).take(usize::from(area.height)).map(|update| -> Vec<Field> {
        vec![
            (format!("{} ago", age(update.time, now)), Tone::Plain),
            (update.op.clone(), update.tone()),
            (update.source.clone(), Tone::Plain),
            (update.pods.clone(), Tone::Plain),
        ]
    });
    table(&columns, &rows.collect::<Vec<_>>(), None, view.has_colours, area, buffer);
}

/// Draws the open pod: its labels and texts, which are wrapped.
fn open(title: &str, model: &Model, view: &mut View, area: Rect, buffer: &mut Buffer) {
    let opened = model.opened.as_ref().filter(|(key, ..)| Some(key) == view.open.as_ref());
    let state = match opened {
        None => "   reading",
        Some((.., true)) => "   the pod is gone",
        Some(_) => "",
    };
    let first = Rect { height: 1, ..area }.intersection(area);
    write(&format!("{title}{state}"), Tone::Plain, view, first, buffer);
    buffer.set_style(first, Modifier::BOLD);
    let lines = opened.map(|(_, lines, _)| &**lines).unwrap_or_default();
    // On a narrow screen the labels are cut.
    let label = lines.iter().map(|(label, _)| width(label)).max().unwrap_or_default().min(area.width / 3);
    let indent = label + 2;
    let wide = usize::from(area.width.saturating_sub(indent)).max(1);
    let mut wrapped: Vec<(&str, String)> = Vec::new();
    for (label, text) in lines {
        let parts = wrap(text, wide);
        wrapped.extend(
            parts.into_iter().enumerate().map(|(at, part)| (if at == 0 { &**label } else { "" }, part)),
        );
    }
    let height = usize::from(area.height.saturating_sub(1));
    view.scroll = view.scroll.min(wrapped.len().saturating_sub(height));
    for (y, (name, text)) in (area.y.saturating_add(1)..area.bottom()).zip(wrapped.iter().skip(view.scroll)) {
        let line = Rect { y, height: 1, ..area };
        write(name, Tone::Dim, view, Rect { width: label, ..line }, buffer);
        let rest =
            Rect { x: area.x.saturating_add(indent), width: area.width.saturating_sub(indent), ..line };
        write(text, Tone::Plain, view, rest, buffer);
    }
}

/// A text in lines of this many characters, cut at spaces where there are some.
fn wrap(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut length = 0;
    for word in text.split(' ') {
        let characters: Vec<char> = word.chars().collect();
        for (at, part) in characters.chunks(most).enumerate() {
            let space = usize::from(at == 0 && length > 0);
            if length + space + part.len() > most {
                lines.push(String::new());
                length = 0;
            }
            let line = lines.len() - 1;
            if at == 0 && length > 0 {
                lines[line].push(' ');
                length += 1;
            }
            lines[line].extend(part);
            length += part.len();
        }
    }
    lines
}
