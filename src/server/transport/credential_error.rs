//! Why the token or the certificates cannot be used.

use std::{io, path::PathBuf};

/// The maximal size of a file, in bytes.
pub(super) const MAX_FILE: u64 = 1024 * 1024;

/// Why the token or the certificates are invalid. It never has text of a file.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// A file cannot be read.
    #[error("cannot read the {what} {} (does it exist, and may podmux read it?)", path.display())]
    Unreadable {
        /// The purpose of the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A file that the agent makes cannot be written.
    #[error("cannot write {} (may podmux write its state directory?)", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A file has invalid content.
    #[error("{what} {}: {problem}", path.display())]
    Unusable {
        /// The purpose of the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong and what is needed.
        problem: String,
    },
}
