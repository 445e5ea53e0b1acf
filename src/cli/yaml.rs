//! JSON values as YAML for people, such that every reader of YAML 1.1 or 1.2 gets the same value back.
//!
//! It looks as kubectl's output does: block style, two spaces a level, the items
//! of a list under their key without further indentation.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// The words that YAML 1.1 takes for something else than a text, in lower case.
const WORDS: [&str; 11] = ["~", "null", "y", "n", "yes", "no", "on", "off", "true", "false", "<<"];

/// A value as one YAML document, with a newline at its end.
///
/// A key must be shorter than 1,024 characters, as every key of an API object
/// is: YAML allows no longer ones in this form.
#[must_use]
pub fn document(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => map(&mut out, fields, 0, ""),
        Value::Array(items) if !items.is_empty() => list(&mut out, items, 0, ""),
        scalar => {
            leaf(&mut out, scalar, 2);
        }
    }
    out
}

/// The fields of a map, each on a line that begins with so many spaces, but
/// the first with `first`: what stands before it on its line is written already.
fn map(out: &mut String, fields: &Map<String, Value>, indent: usize, first: &str) {
    for (index, (key, value)) in fields.iter().enumerate() {
        begin(out, index, indent, first);
        text(out, key);
        out.push(':');
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                out.push('\n');
                map(out, fields, indent + 2, &" ".repeat(indent + 2));
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                list(out, items, indent, &" ".repeat(indent));
            }
            scalar => {
                out.push(' ');
                leaf(out, scalar, indent + 2);
            }
        }
    }
}

/// The items of a list, with the same meaning of `first`.
fn list(out: &mut String, items: &[Value], indent: usize, first: &str) {
    for (index, item) in items.iter().enumerate() {
        begin(out, index, indent, first);
        out.push_str("- ");
        match item {
            Value::Object(fields) if !fields.is_empty() => map(out, fields, indent + 2, ""),
            Value::Array(items) if !items.is_empty() => list(out, items, indent + 2, ""),
            scalar => leaf(out, scalar, indent + 2),
        }
    }
}

fn begin(out: &mut String, index: usize, indent: usize, first: &str) {
    if index == 0 {
        out.push_str(first);
    } else {
        out.extend(std::iter::repeat_n(' ', indent));
    }
}

/// A value without further lines of fields or items, and the end of its line.
fn leaf(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(_) => out.push_str("{}"),
        Value::Array(_) => out.push_str("[]"),
        Value::String(value) if is_literal(value) => return literal(out, value, indent),
        Value::String(value) => text(out, value),
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            let _ = write!(out, "{value}");
        }
    }
    out.push('\n');
}

/// A text on one line: plain if nobody can misread it, else in quotes.
fn text(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
    } else {
        quoted(out, text);
    }
}

/// Whether a text needs no quotes. Where in doubt it does.
fn is_plain(text: &str) -> bool {
    let mut characters = text.chars();
    let Some(first) = characters.next() else { return false };
    let begins = match first {
        // A dash that begins an item is followed by a space, one that separates documents by two more.
        '-' => text.len() > 1 && !text.starts_with("---") && !text.starts_with("- "),
        '/' | '.' | '_' | '(' | '$' | '^' | '+' | ';' => true,
        first => first.is_alphanumeric(),
    };
    let holds = characters.all(|character| match character {
        ' '..='~' => true,
        other => other.is_alphanumeric(),
    });
    begins
        && holds
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && !text.starts_with("...")
        && !WORDS.contains(&&*text.to_lowercase())
        && !is_numeric(text)
}

/// Whether some reader may take a text for a number, a time of day in base 60 or a date.
fn is_numeric(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(&*unsigned.to_lowercase(), ".inf" | ".nan") {
        return true;
    }
    let digits = match unsigned.get(..2) {
        Some("0x" | "0X") => {
            return unsigned[2..].chars().all(|digit| digit.is_ascii_hexdigit() || digit == '_');
        }
        Some("0o" | "0O" | "0b" | "0B") => &unsigned[2..],
        _ => unsigned,
    };
    digits.chars().all(|character| character.is_ascii_digit() || "_.:,+-eETtZz ".contains(character))
        && digits.chars().any(|character| character.is_ascii_digit())
}

/// A text in double quotes, where everything can be written.
fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            ' '..='~' => out.push(character),
            other if other.is_alphanumeric() => out.push(other),
            other => {
                let _ = match u32::from(other) {
                    code @ 0..=0xff => write!(out, "\\x{code:02x}"),
                    code @ 0..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push('"');
}

/// Whether a text of several lines can stand as it is: nothing in it is
/// invisible, and its indentation cannot be mistaken for YAML's.
fn is_literal(text: &str) -> bool {
    let visible = |character: char| matches!(character, ' '..='~') || character.is_alphanumeric();
    let lines = || text.lines().filter(|line| !line.is_empty());
    text.contains('\n')
        && text.chars().all(|character| character == '\n' || visible(character))
        && lines().all(|line| !line.trim().is_empty())
        && lines().next().is_some_and(|line| !line.starts_with(' '))
}

/// A text of several lines, line by line.
fn literal(out: &mut String, text: &str, indent: usize) {
    out.push_str(match text.strip_suffix('\n') {
        None => "|-\n",
        Some(rest) if rest.ends_with('\n') => "|+\n",
        Some(_) => "|\n",
    });
    for line in text.lines() {
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', indent));
            out.push_str(line);
        }
        out.push('\n');
    }
}
