//! Texts in warnings as Go writes them.

use std::fmt::Write as _;

/// The most characters of a value in a warning. An API server cuts a longer warning too.
const MAX_VALUE: usize = 4_096;

/// A text in quotes as Go's `%q` writes it, cut if it is long.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    let shown = cut(text);
    for c in shown.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if is_printable(c) => quoted.push(c),
            // Writing to memory cannot fail.
            c if c.is_ascii() => drop(write!(quoted, "\\x{:02x}", u32::from(c))),
            c if u32::from(c) < 0x1_0000 => drop(write!(quoted, "\\u{:04x}", u32::from(c))),
            c => drop(write!(quoted, "\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push_str(if shown.len() < text.len() { "…\"" } else { "\"" });
    quoted
}

/// The beginning of a text.
pub(super) fn cut(text: &str) -> &str {
    text.char_indices().nth(MAX_VALUE).map_or(text, |(end, _)| &text[..end])
}

/// Whether a character is printable in Go's sense.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return c == ' ' || c.is_ascii_graphic();
    }
    // Rust escapes a combining character only at the beginning.
    let mut escaped = ['a', c].iter().collect::<String>().escape_debug().collect::<Vec<char>>().into_iter();
    escaped.nth(1) == Some(c)
}
