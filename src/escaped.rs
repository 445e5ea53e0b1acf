//! Texts of others without the control characters with which they could command a terminal.

use std::{borrow::Cow, fmt};

/// Displays a text on one line: its control characters, and those that turn the direction of writing,
/// are escaped.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    write!(f, "{}", character.escape_unicode())?;
                }
                _ if character.is_control() => write!(f, "{}", character.escape_default())?,
                _ => write!(f, "{character}")?,
            }
        }
        Ok(())
    }
}

/// JSON or YAML for a terminal. Their serializers escape the control characters of ASCII, but not DEL and
/// U+0080 to U+009F, which begin commands, too. In their strings `\u009b` is the same character.
pub(crate) fn for_a_terminal(document: &[u8]) -> Cow<'_, [u8]> {
    /// The first byte of these characters in UTF-8; the second one is their number.
    const FIRST: u8 = 0xc2;
    if !document.iter().any(|byte| matches!(*byte, 0x7f | FIRST)) {
        return document.into();
    }
    let mut safe = Vec::with_capacity(document.len());
    let mut rest = document;
    while let [first, after @ ..] = rest {
        rest = after;
        let control = match (*first, after) {
            (0x7f, _) => Some(0x7f),
            (FIRST, [second @ 0x80..=0x9f, after @ ..]) => {
                rest = after;
                Some(*second)
            }
            _ => None,
        };
        match control {
            Some(number) => safe.extend(format!("\\u{number:04x}").into_bytes()),
            None => safe.push(*first),
        }
    }
    safe.into()
}
