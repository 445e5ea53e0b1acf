//! The one writer: what waits at the same time becomes one commit.

use std::{
    fs::File,
    io,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::Duration,
};

use redb::Database;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::{info, warn};

use super::{
    Change, DbError, Value,
    directory::verified,
    disk::Disk,
    format::{self, Flaw, Totals, io_error},
};

/// How many commits wait at most; more wait outside.
const MAX_WAITING: usize = 1_000;
/// How many commits share one write to the disk at most, and how many bytes:
/// nobody's answer waits for more than that and the write before it. A single
/// larger one is still written at once.
const MAX_TOGETHER: usize = 256;
const MAX_BYTES_TOGETHER: usize = 1 << 20;
/// How long after the last commit the seal follows, if no other does.
const SEAL_AFTER: Duration = Duration::from_millis(50);
/// How often a disk that failed is tried again when nobody wants it.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A batch of changes and who waits for it.
#[derive(Debug)]
struct Commit {
    changes: Vec<Change>,
    done: oneshot::Sender<Result<(), DbError>>,
    _room: OwnedSemaphorePermit,
}

/// The way to the writer. Cheap to clone; when the last one is dropped, the writer ends.
#[derive(Clone, Debug)]
pub struct Db {
    commits: SyncSender<Commit>,
    room: Arc<Semaphore>,
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
        let room = self.room.clone().acquire_owned().await.map_err(|_| DbError::Ended)?;
        let (done, wait) = oneshot::channel();
        // Whoever has room is never refused because there is none.
        self.commits.try_send(Commit { changes, done, _room: room }).map_err(|_| DbError::Ended)?;
        wait.await.map_err(|_| DbError::Ended)?
    }

    /// How many commits have no answer yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        MAX_WAITING - self.room.available_permits()
    }
}

/// Writes what is committed, in one order. [`run`](Self::run) it on a thread of
/// its own; until then nobody gets an answer.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    disk: Disk,
    /// `None` after a failure, until it could be opened again.
    database: Option<Database>,
    totals: Totals,
    /// Whether both of redb's slots say the same.
    sealed: bool,
    /// Whether the last commit failed.
    failing: bool,
    commits: Receiver<Commit>,
    room: Arc<Semaphore>,
    lock: Option<File>,
}

impl Writer {
    /// A writer that may begin without its database, as after a failure.
    pub(super) fn new(
        path: PathBuf,
        disk: Disk,
        database: io::Result<Database>,
        totals: Totals,
    ) -> (Db, Self) {
        let (sender, commits) = sync_channel(MAX_WAITING);
        let room = Arc::new(Semaphore::new(MAX_WAITING));
        let db = Db { commits: sender, room: room.clone() };
        let (database, error) = match database {
            Ok(database) => (Some(database), None),
            Err(error) => (None, Some(error)),
        };
        let mut writer =
            Self { path, disk, database, totals, sealed: true, failing: false, commits, room, lock: None };
        if let Some(error) = error {
            writer.tell(Some(&error));
        }
        (db, writer)
    }

    /// Keeps the directory's lock for as long as the writer lives.
    pub(super) fn keep(&mut self, lock: File) {
        self.lock = Some(lock);
    }

    /// Writes until every [`Db`] is gone and all is written, and closes the
    /// database. It blocks: give it a thread.
    ///
    /// A failure refuses the commits that it met and none after it: the next
    /// one opens the database anew.
    pub fn run(mut self) {
        loop {
            let next = match (&self.database, self.sealed) {
                (None, _) => self.commits.recv_timeout(RETRY_AFTER),
                (Some(_), false) => self.commits.recv_timeout(SEAL_AFTER),
                (Some(_), true) => self.commits.recv().map_err(RecvTimeoutError::from),
            };
            match next {
                Ok(commit) => self.commit(commit),
                Err(RecvTimeoutError::Timeout) => self.tend(),
                Err(RecvTimeoutError::Disconnected) => return self.close(),
            }
        }
    }

    /// Writes a commit together with what waits behind it.
    fn commit(&mut self, first: Commit) {
        let mut bytes = first.size();
        let mut group = vec![first];
        while group.len() < MAX_TOGETHER && bytes < MAX_BYTES_TOGETHER {
            let Ok(next) = self.commits.try_recv() else { break };
            bytes += next.size();
            group.push(next);
        }
        let written = self.write(group.iter().flat_map(|commit| &commit.changes));
        self.tell(written.as_ref().err());
        let answer = written.map_err(DbError::from);
        for commit in group {
            // Whoever waits no longer does not want to know.
            let _ = commit.done.send(answer.clone());
        }
    }

    fn write<'a>(&mut self, changes: impl Iterator<Item = &'a Change>) -> io::Result<()> {
        let database = self.opened()?;
        let (before, mut totals) = (self.disk.synced(), self.totals);
        self.sealed = false;
        let written = format::write(&database, &mut totals, changes, None);
        // An error may also come from what redb does when the commit is durable.
        if written.is_ok() || self.disk.synced() != before {
            self.totals = totals;
        }
        match written {
            Ok(()) => {
                self.database = Some(database);
                Ok(())
            }
            // redb does nothing more after a failure until it is opened again.
            Err(_) if self.disk.synced() != before => Ok(()),
            Err(error) => {
                drop(database);
                // If not even that is possible, it is tried again before anything else is done.
                let _ = self.disk.restore();
                Err(io_error(error))
            }
        }
    }

    /// The database, opened anew if it had failed.
    fn opened(&mut self) -> io::Result<Database> {
        if let Some(database) = self.database.take() {
            return Ok(database);
        }
        self.disk.restore()?;
        let opened = verified(&self.disk, |database| Ok(format::totals(database)?));
        match opened.map_err(Flaw::into_io)? {
            (database, Some(totals)) if totals == self.totals => {
                let database = database?;
                // Opening ends with a commit that says the same as the one before.
                self.sealed = true;
                Ok(database)
            }
            _ => Err(io::Error::other("what is on the disk is not what was written last")),
        }
    }

    /// What is done when nobody waits.
    fn tend(&mut self) {
        let Ok(database) = self.opened() else { return };
        if !self.sealed && format::seal(&database).is_err() {
            return;
        }
        self.sealed = true;
        self.database = Some(database);
    }

    fn close(&mut self) {
        let closed =
            self.opened().and_then(|database| database.close().map_err(|error| io_error(error.into())));
        if let Err(error) = closed {
            let path = self.path.display();
            warn!(%path, %error, "the state was not closed cleanly; nothing that was acknowledged is lost");
        }
    }

    /// Loud, then quiet, then "recovered".
    fn tell(&mut self, error: Option<&io::Error>) {
        let path = self.path.display();
        match error {
            Some(error) if !self.failing => warn!(%path, %error, "{path} cannot be written"),
            None if self.failing => info!(%path, "recovered: {path} can be written"),
            _ => {}
        }
        self.failing = error.is_some();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.room.close();
    }
}

impl Commit {
    fn size(&self) -> usize {
        let value = |change: &Change| change.value.as_ref().map_or(0, Value::len);
        self.changes.iter().map(|change| change.key.len() + value(change)).sum()
    }
}
