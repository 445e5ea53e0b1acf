//! What may reach a terminal: colours where somebody sees them, text from outside without its control characters.

use std::{fmt, io::IsTerminal};

use crate::settings::Environment;

/// Whether what is written there may have colours: only on a terminal, and not
/// if the person who looks at it said no (<https://no-color.org>).
pub(super) fn colours(stream: &impl IsTerminal, environment: &Environment) -> bool {
    let plain = environment.get("NO_COLOR").is_some_and(|value| !value.is_empty())
        || environment.get("TERM").is_some_and(|term| term == "dumb");
    !plain && stream.is_terminal()
}

/// Bold.
pub(super) const BOLD: &str = "1";
/// What went wrong.
pub(super) const RED: &str = "31";
/// What deserves a look.
pub(super) const YELLOW: &str = "1;33";

/// A text in a style, or as it is.
pub(super) fn styled(colour: bool, style: &str, text: &str) -> String {
    if colour && !style.is_empty() { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Text from outside as it may reach a terminal: on one line, control characters escaped.
pub(super) struct Shown<'a>(pub(super) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if character.is_control() {
                write!(f, "{}", character.escape_default())?;
            } else {
                write!(f, "{character}")?;
            }
        }
        Ok(())
    }
}
