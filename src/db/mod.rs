//! The embedded database: what must outlive the process.
//!
//! It knows texts under names in a few tables and nothing of what they mean:
//! whoever owns a table decides what its values say. All of it is read when it
//! is opened; after that it is only written, by one [`Writer`], in one order.
//!
//! # What is promised
//!
//! * `Ok` of [`Db::commit`] means that the changes are on disk, all of them. An
//!   error means that none of them is, now or after a restart. (One gap is left:
//!   a disk that failed to sync and then takes nothing at all until the process
//!   is killed may have the refused changes after all, whole.)
//! * Whenever the process is killed or the power fails, what was acknowledged is
//!   there, and of what was not, nothing is there in part.
//! * A file that was damaged is refused with [`OpenError`] and left as it is, or
//!   gives exactly what was acknowledged, where the damage met nothing that
//!   counts. One case is left: a damage to the very last commit of a process
//!   that was killed within `SEAL_AFTER` of it cannot be told from a power cut
//!   in the middle of that commit, and gives what was acknowledged before.
//! * One process at a time uses a state directory.
//!
//! # The file
//!
//! `state.redb` in the state directory is a redb database with a table for each
//! [`Table`] and one for its own: the number of the format, the identity of the
//! directory, and the count and the sum of the checksums of all rows. Each value
//! is led by a checksum of table, key and value. redb keeps two commit slots and
//! may fall back from one to the other; so that this never loses anything, an
//! empty commit follows the last one (the seal), and both say the same.
//!
//! A newer podmux reads what an older one wrote: each change of the format is a
//! step in [`UPGRADES`]. An older one refuses what a newer one wrote.

mod directory;
mod disk;
mod format;
mod sequence;
mod writer;

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

pub use redb::StorageBackend;

pub use self::{
    directory::{open, open_on},
    format::{UPGRADES, Upgrade},
    sequence::Sequence,
    writer::{Db, Writer},
};

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The posted pods, by `namespace/name`, and the counter of their versions. The http source's.
    Posted,
    /// The last good pods of the file, url and api sources, by `source/origin`. Theirs.
    LastGood,
    /// The numbers that the update streams have reserved, by stream. [`Sequence`]'s.
    Streams,
}

/// All rows of all tables.
pub type Tables = BTreeMap<Table, BTreeMap<String, Vec<u8>>>;

/// One change: a value under a key, or none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// In which table.
    pub table: Table,
    /// Under which key.
    pub key: String,
    /// The value; `None` erases the key.
    pub value: Option<Value>,
}

/// A value on its way to the disk: what it is made of is put together when it is
/// written, one value after the other, so that a large commit is held only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(Vec<Arc<[u8]>>);

impl Value {
    /// The value, as it will stand there.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.0.concat()
    }

    fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self(vec![bytes.into()])
    }
}

impl From<Vec<Arc<[u8]>>> for Value {
    /// The parts, one behind the other.
    fn from(parts: Vec<Arc<[u8]>>) -> Self {
        Self(parts)
    }
}

/// What an earlier run left behind, all of it verified.
#[derive(Debug, Default)]
pub struct Stored {
    /// The identity of the state directory, made when it was: a UUID.
    pub instance: String,
    /// The tables.
    pub tables: Tables,
}

/// Why the state cannot be used. The file is left as it is.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or the file cannot be used.
    #[error("cannot use the state directory: {}{}", .0.display(), mend(.1))]
    Io(PathBuf, #[source] io::Error),
    /// Another process works on the directory.
    #[error("another podmux works on the state directory {}: stop it, or give this one a directory of its own", .0.display())]
    InUse(PathBuf),
    /// What is there was never written by podmux.
    #[error("{} is not podmux's: {what}; it is left as it is: move it away, or name another state directory", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: String,
    },
    /// A newer podmux wrote it.
    #[error("{} was written by a newer podmux: format {found}, and this one knows up to {known}; run the newer one", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest format that is known.
        known: u64,
    },
    /// It was changed since it was written, or lost in part.
    #[error("{} is damaged: {detail}; it is left as it is: put back a copy of it, or move it away to begin anew", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
}

/// What to do about what the system says.
fn mend(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room there, or name another with --state-dir"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; mount it so that it can be written, or name another with --state-dir"
        }
        io::ErrorKind::PermissionDenied => {
            "; give it, with all that is in it, to the user that podmux runs as, or name another with --state-dir"
        }
        io::ErrorKind::NotADirectory => "; move away what stands there, or name another with --state-dir",
        _ => "; name another with --state-dir if it cannot be mended",
    }
}

/// Whether a disk, or a quota, is full: what is there is good, and can only not be added to.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Why a commit failed. Nothing of it is stored.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DbError {
    /// The disk, or the quota, is full.
    #[error("no space left for the state")]
    Full(#[source] Arc<io::Error>),
    /// The state could not be written.
    #[error("the state cannot be written")]
    Io(#[source] Arc<io::Error>),
    /// The database has ended.
    #[error("the database has ended")]
    Ended,
}

impl From<io::Error> for DbError {
    fn from(error: io::Error) -> Self {
        let error = Arc::new(error);
        if is_full(&error) { Self::Full(error) } else { Self::Io(error) }
    }
}
