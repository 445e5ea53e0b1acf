//! Why a command fails: the exit code and the error.

use std::{fmt, io};

use super::status::Status;
use crate::client::ClientError;

/// Where a pod may be that was not found.
pub(super) const ELSEWHERE: &str = "podmux: podmux get pods -A shows the pods of all namespaces; the name of a pod from \
                                    a file or a URL ends with that of its node";

/// Why the exit code is not 0, and the error that is printed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The command was refused before it began: exit code 2.
    Refused(anyhow::Error),
    /// The command failed while it ran: exit code 1.
    Failed(anyhow::Error),
    /// The server answered with an error: exit code 1.
    Server(Status),
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
            Self::Failed(_) | Self::Server(_) => 1,
        }
    }

    /// The error number of the system call that failed, if one did.
    pub(super) fn errno(&self) -> Option<i32> {
        let (Self::Refused(error) | Self::Failed(error)) = self else { return None };
        error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
    }

    /// Whether the server does not have the object.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Server(status) if status.is_not_found())
    }

    /// Whether the same request would fail again, however often it is sent.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            // Too slow, too many, and a number that is not held.
            Self::Server(status) => {
                (400..500).contains(&status.code) && !matches!(status.code, 408 | 410 | 429)
            }
            Self::Failed(error) => matches!(
                error.downcast_ref(),
                Some(
                    ClientError::Certificate(..)
                        | ClientError::UnknownCa(..)
                        | ClientError::ClientCertificate(..)
                        | ClientError::Tls(..)
                        | ClientError::TooLarge(..)
                )
            ),
        }
    }

    /// Prints an error of the server, after which the command continues. Another failure ends it.
    pub(super) fn print_server_error(self, context: Option<&str>) -> Result<(), Self> {
        let Self::Server(status) = self else { return Err(self) };
        status.print(context);
        Ok(())
    }
}

impl fmt::Display for Failure {
    /// The error with its causes, on one line; an error of the server as kubectl prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) | Self::Failed(error) => {
                let is_unknown = matches!(error.downcast_ref(), Some(ClientError::UnknownCa(..)));
                write!(f, "{}{}", one_line(error), if is_unknown { " with --ca-file" } else { "" })
            }
            Self::Server(status) => f.write_str(&status.to_lines(None)),
        }
    }
}

/// An error with its causes, on one line.
pub(super) fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
