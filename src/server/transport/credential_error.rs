//! Why the token or the certificates cannot be used.

use std::{io, path::PathBuf};

/// The maximal size of a file, in bytes.
pub(super) const MAX_FILE: u64 = 1024 * 1024;

/// Why the token or the certificates are invalid. It never has text of a file.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// This file, with what it is for, cannot be read.
    #[error("cannot read the {0} {path} (does it exist, and may podmux read it?)", path = .1.display())]
    Unreadable(&'static str, PathBuf, #[source] io::Error),
    /// A file cannot be made in the state directory.
    #[error("cannot write {} (may podmux write its state directory?)", .0.display())]
    Unwritable(PathBuf, #[source] io::Error),
    /// This file, with what it is for, has a problem.
    #[error("{0} {path}: {2}", path = .1.display())]
    Unusable(&'static str, PathBuf, String),
}
