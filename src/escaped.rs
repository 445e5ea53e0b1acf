//! Texts of others without the control characters with which they could command a terminal.

use std::{borrow::Cow, fmt};

/// Whether a character turns the direction of writing.
pub(crate) fn turns(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Displays a text on one line: its control characters, and those that turn the direction of writing,
/// are escaped.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                _ if turns(character) => write!(f, "{}", character.escape_unicode())?,
                _ if character.is_control() => write!(f, "{}", character.escape_default())?,
                _ => write!(f, "{character}")?,
            }
        }
        Ok(())
    }
}

/// JSON or YAML for a terminal. Their serializers escape the control characters of ASCII, but not DEL, U+0080 to
/// U+009F, which begin commands, too, and those that turn the direction of writing. In their strings `\u009b` is the
/// same character.
pub(crate) fn for_a_terminal(document: &[u8]) -> Cow<'_, [u8]> {
    if !document.iter().any(|byte| matches!(*byte, 0x7f | 0xc2 | 0xe2)) {
        return document.into();
    }
    let mut safe = Vec::with_capacity(document.len());
    let mut rest = document;
    while let [first, ..] = rest {
        // In UTF-8, with the number of bytes.
        let (control, length) = match rest {
            [0x7f, ..] => (0x7f, 1),
            [0xc2, second @ 0x80..=0x9f, ..] => (u32::from(*second), 2),
            [0xe2, 0x80, third @ 0xaa..=0xae, ..] => (0x2000 | u32::from(third & 0x3f), 3),
            [0xe2, 0x81, third @ 0xa6..=0xa9, ..] => (0x2040 | u32::from(third & 0x3f), 3),
            _ => (0, 1),
        };
        match control {
            0 => safe.push(*first),
            number => safe.extend(format!("\\u{number:04x}").into_bytes()),
        }
        rest = &rest[length..];
    }
    safe.into()
}
