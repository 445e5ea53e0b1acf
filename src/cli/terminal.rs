//! Output for terminals: styles, error lines and progress.

use std::{
    fmt,
    io::{self, Write as _},
    os::fd::AsFd,
};

use rustix::termios::tcgetwinsize;

pub(super) use crate::escaped::Escaped;
use crate::{
    grouped::{counted, grouped},
    settings::Environment,
    telemetry::takes_escapes,
};

/// The width that is used if a terminal does not tell its own.
const USUAL_WIDTH: usize = 80;

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

/// How many columns a terminal has: what it tells, what the variable `COLUMNS` says, or 80.
pub(super) fn width(stream: impl AsFd, environment: &Environment) -> usize {
    let told = tcgetwinsize(stream).map_or(0, |size| usize::from(size.ws_col));
    let variable = || environment.get("COLUMNS")?.parse().ok();
    [Some(told), variable()].into_iter().flatten().find(|width| *width > 0).unwrap_or(USUAL_WIDTH)
}

/// A counter of processed manifests on standard error.
pub(super) struct ProgressLine {
    total: usize,
    /// The width of the terminal, if the counter is shown.
    width: Option<usize>,
}

impl ProgressLine {
    /// A counter up to `total`. It is shown only on a terminal that can erase a line.
    pub(super) fn new(total: usize, wanted: bool, environment: &Environment) -> Self {
        let is_shown = wanted && takes_escapes(&io::stderr(), environment);
        Self { total, width: is_shown.then(|| width(io::stderr(), environment)) }
    }

    /// Shows how many manifests are done.
    pub(super) fn show(&self, done: usize) {
        let Some(width) = self.width else { return };
        let line = format!("{} of {}", grouped(done), counted(self.total, "manifest"));
        // A line that wraps could not be erased.
        let line = &line[..line.len().min(width.saturating_sub(1))];
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
    }

    /// Erases the line.
    pub(super) fn clear(&self) {
        if self.width.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
