//! Why a command fails: the exit code and the error.

use std::{fmt, io};

/// Why the exit code is not 0, and the error that is printed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The command was refused before it began: exit code 2.
    Refused(anyhow::Error),
    /// The command failed while it ran: exit code 1.
    Failed(anyhow::Error),
}

impl Failure {
    /// A failure with exit code 2.
    pub(super) fn refused<E: Into<anyhow::Error>>(error: E) -> Self {
        Self::Refused(error.into())
    }

    /// A failure with exit code 1.
    pub(super) fn failed<E: Into<anyhow::Error>>(error: E) -> Self {
        Self::Failed(error.into())
    }

    /// The exit code.
    pub(super) const fn code(&self) -> u8 {
        match self {
            Self::Refused(_) => 2,
            Self::Failed(_) => 1,
        }
    }

    /// The error number of the system call that failed, if one did.
    pub(super) fn errno(&self) -> Option<i32> {
        let (Self::Refused(error) | Self::Failed(error)) = self;
        error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
    }
}

impl fmt::Display for Failure {
    /// The error with its causes, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(error) | Self::Failed(error)) = self;
        f.write_str(&one_line(error))
    }
}

/// An error with its causes, on one line.
pub(super) fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
