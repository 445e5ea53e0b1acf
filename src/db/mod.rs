//! The embedded database: what must outlive the process.
//!
//! It knows texts under names in a few tables and nothing of what they mean:
//! whoever owns a table decides what its values say.

mod sequence;

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

use tokio::sync::{mpsc, oneshot};

pub use self::sequence::Sequence;

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The posted pods, by `namespace/name`, and the counter of their versions. The http source's.
    Posted,
    /// The last good pods of the file and url sources, by `source/origin`. Theirs.
    Good,
    /// The numbers that the update streams have reserved, by stream. [`Sequence`]'s.
    Streams,
}

/// One change: a value under a key, or none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// In which table.
    pub table: Table,
    /// Under which key.
    pub key: String,
    /// The value; `None` erases the key.
    pub value: Option<Vec<u8>>,
}

/// What an earlier run left behind, all of it verified.
#[derive(Debug, Default)]
pub struct Stored {
    /// The identity of the state directory, made when it was: a UUID.
    pub instance: String,
    /// The tables.
    pub tables: BTreeMap<Table, BTreeMap<String, Vec<u8>>>,
}

/// Why the state cannot be used. The file is left as it is.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or the file cannot be used.
    #[error("cannot use the state directory {}", .0.display())]
    Io(PathBuf, #[source] io::Error),
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

/// A batch of changes and who waits for it.
#[derive(Debug)]
struct Commit {
    changes: Vec<Change>,
    done: oneshot::Sender<Result<(), DbError>>,
}

/// The way to the writer. Cheap to clone; when the last one is dropped, the writer ends.
#[derive(Clone, Debug)]
pub struct Db {
    commits: mpsc::Sender<Commit>,
}

impl Db {
    /// Makes these changes durable, all or none. `Ok` means that they are on disk.
    ///
    /// Commits happen in the order of the calls; those that wait at the same
    /// time share one write to the disk.
    ///
    /// # Cancel safety
    /// Once polled the changes may be made durable even if the future is dropped.
    ///
    /// # Errors
    /// If they could not be made durable; then none of them is.
    pub async fn commit(&self, changes: Vec<Change>) -> Result<(), DbError> {
        let (done, wait) = oneshot::channel();
        self.commits.send(Commit { changes, done }).await.map_err(|_| DbError::Ended)?;
        wait.await.map_err(|_| DbError::Ended)?
    }
}
