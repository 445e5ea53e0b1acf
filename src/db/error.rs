//! Why the state directory cannot be opened or written.

use std::{io, path::PathBuf, sync::Arc};

/// Why the state cannot be opened. The file is left as it is.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or the file cannot be used.
    #[error("cannot use the state directory: {}{}", .0.display(), hint(.1))]
    Io(PathBuf, #[source] io::Error),
    /// Another process uses the directory.
    #[error("another podmux uses the state directory {}; stop it, or name another with --state-dir", .0.display())]
    InUse(PathBuf),
    /// The content of the file cannot be used.
    #[error("{path} {1}", path = .0.display())]
    Unusable(PathBuf, Flaw),
}

/// What is wrong with the content of the file.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// It was never written by podmux. What it is instead.
    #[error(
        "is not a podmux database: {0}; it is left as it is: move it away, or name another directory with --state-dir"
    )]
    Foreign(String),
    /// A newer podmux wrote it. Its format, and the newest supported one.
    #[error("was written by a newer podmux: format {0}, this one supports up to {1}; run the newer one")]
    Newer(u64, u64),
    /// It was changed since it was written, or part of it was lost. What is wrong with it.
    #[error(
        "is damaged: {0}; it is left as it is: restore a copy of it, or move it away to start with an empty state"
    )]
    Damaged(String),
    /// It cannot be read or written.
    #[error(transparent)]
    Io(io::Error),
}

impl<E: Into<redb::Error>> From<E> for Flaw {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Damaged("it is truncated".to_owned())
            }
            redb::Error::Io(error) if error.kind() != io::ErrorKind::InvalidData => Self::Io(error),
            error => Self::Damaged(error.to_string()),
        }
    }
}

impl From<Flaw> for io::Error {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::Io(error) => error,
            flaw => Self::other(flaw),
        }
    }
}

impl OpenError {
    /// Whether only a change of the settings can help. Everything else may be repaired while the
    /// agent runs.
    pub fn is_final(&self) -> bool {
        use io::ErrorKind::{NotADirectory, PermissionDenied};
        match self {
            Self::InUse(_) | Self::Unusable(_, Flaw::Newer(..)) => true,
            Self::Io(_, error) => matches!(error.kind(), PermissionDenied | NotADirectory),
            Self::Unusable(..) => false,
        }
    }
}

/// What to do about an error of the system.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space, or name another with --state-dir"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; mount it writable, or name another with --state-dir",
        // It says so itself.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => "",
        io::ErrorKind::PermissionDenied => {
            "; give it and its content to the user that podmux runs as, or name another with --state-dir"
        }
        io::ErrorKind::NotADirectory => "; move that file away, or name another with --state-dir",
        _ => "; name another with --state-dir if it cannot be repaired",
    }
}

/// Whether the disk or a quota is full, or the file may not be larger. The content is valid then, and cannot grow.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Why a commit failed. Nothing of it is stored, unless it is [`Uncertain`](Self::Uncertain).
#[derive(Clone, Debug, thiserror::Error)]
pub enum DbError {
    /// The disk or the quota is full.
    #[error("no space left for the state")]
    Full(#[source] Arc<io::Error>),
    /// The state could not be written.
    #[error("the state cannot be written")]
    Io(#[source] Arc<io::Error>),
    /// The state could not be written, nor what was written before restored: the commit may be
    /// in effect after a crash.
    #[error("the state cannot be written, nor restored")]
    Uncertain(#[source] Arc<io::Error>),
    /// The database is closed.
    #[error("the database is closed")]
    Ended,
}

impl DbError {
    /// Whether the disk or the quota is full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(_)) || matches!(self, Self::Uncertain(error) if is_full(error))
    }
}

impl From<io::Error> for DbError {
    fn from(error: io::Error) -> Self {
        let error = Arc::new(error);
        if is_full(&error) { Self::Full(error) } else { Self::Io(error) }
    }
}
