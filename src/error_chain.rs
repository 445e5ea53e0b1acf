//! An error with its causes on one line, for log lines and responses.

use std::{error::Error, fmt::Write as _};

/// The error and its causes, each after a colon.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to memory cannot fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
