//! Output for terminals: styles, error lines and progress.

use std::{
    fmt,
    io::{self, IsTerminal as _, Write as _},
};

pub(super) use crate::escaped::Escaped;

pub(super) const BOLD: &str = "1";
pub(super) const CYAN: &str = "36";
pub(super) const GREEN: &str = "32";
/// For failures.
pub(super) const RED: &str = "31";
/// For warnings.
pub(super) const YELLOW: &str = "1;33";

/// A text in a style, if colours are on.
pub(super) fn styled(colour: bool, style: &str, text: &str) -> String {
    if colour && !style.is_empty() { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A text with its control characters escaped, but not the ends of its lines and its tabs.
pub(super) fn lines(text: &str) -> String {
    let pieces = text.split_inclusive(['\n', '\t']).map(|piece| {
        let end = piece.strip_suffix(['\n', '\t']).unwrap_or(piece).len();
        format!("{}{}", Escaped(&piece[..end]), &piece[end..])
    });
    pieces.collect()
}

/// Prints a line on standard error. A closed standard error is ignored.
pub(super) fn print_error(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A counter of processed manifests on standard error.
pub(super) struct ProgressLine {
    total: usize,
    is_shown: bool,
}

impl ProgressLine {
    /// A counter up to `total`. It is shown only on a terminal.
    pub(super) fn new(total: usize, wanted: bool) -> Self {
        Self { total, is_shown: wanted && io::stderr().is_terminal() }
    }

    /// Shows how many manifests are done.
    pub(super) fn show(&self, done: usize) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K{done} of {} manifests", self.total);
        }
    }

    /// Erases the line.
    pub(super) fn clear(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
