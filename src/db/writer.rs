//! The one writer. Commits that wait at the same time share one write to the disk.

use std::{
    error::Error,
    io,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel},
    },
    time::Duration,
};

use redb::Database;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};
use tracing::{debug, info, warn};

use super::{
    error::DbError,
    file::{DatabaseFile, open_verified},
    format::{self, io_error},
    table::{Change, Value},
};
use crate::{
    host::{Cancelled, Clock, Disk, OpenFile, Threads},
    outage::Outage,
};

/// The most commits in the queue. A further one waits for a free place.
const MAX_WAITING: usize = 1_000;
/// The most commits in one write to the disk. An answer waits for one such write and the write
/// before it at most.
const MAX_TOGETHER: usize = 256;
/// The bytes after which no further commit joins a write to the disk.
const MAX_BYTES_TOGETHER: usize = 1 << 20;
/// The delay of the seal after the last commit.
const SEAL_AFTER: Duration = Duration::from_millis(50);
/// The interval of retries after a failure while there are no commits.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Changes and the way to answer.
#[derive(Debug)]
struct Commit {
    changes: Vec<Change>,
    done: oneshot::Sender<Result<(), DbError>>,
    _place: OwnedSemaphorePermit,
}

/// Commits changes through the [`Writer`]. Cheap to clone. When the last one is dropped, the writer ends.
#[derive(Clone, Debug)]
pub struct Db {
    commits: SyncSender<Commit>,
    places: Arc<Semaphore>,
    /// Wakes a writer without a thread.
    sent: Arc<Notify>,
}

impl Db {
    /// Makes changes durable, all or none. `Ok` means that they are on disk.
    ///
    /// Commits happen in the order of the calls. Those that wait at the same time share one
    /// write to the disk.
    ///
    /// # Cancel safety
    /// Once polled the changes may be made durable even if the future is dropped.
    ///
    /// # Errors
    /// If they could not be made durable; then none of them is.
    pub async fn commit(&self, changes: Vec<Change>) -> Result<(), DbError> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| DbError::Ended)?;
        let (done, result) = oneshot::channel();
        // The queue has as many places as there are permits, so it is not full.
        self.commits.try_send(Commit { changes, done, _place: place }).map_err(|_| DbError::Ended)?;
        self.sent.notify_one();
        let ended =
            |_| DbError::Uncertain(Arc::new(io::Error::other("the database ended during the commit")));
        result.await.map_err(ended)?
    }

    /// The number of commits without an answer.
    pub fn waiting(&self) -> usize {
        MAX_WAITING - self.places.available_permits()
    }
}

/// Writes commits in their order. [`run`](Self::run) it on a thread of its own; commits wait
/// until then.
#[derive(Debug)]
pub struct Writer {
    clock: Clock,
    path: PathBuf,
    file: DatabaseFile,
    /// `None` after a failure, until it is opened again.
    database: Option<Database>,
    /// Whether both of redb's commit slots have the same content.
    sealed: bool,
    outage: Outage,
    commits: Receiver<Commit>,
    places: Arc<Semaphore>,
    sent: Arc<Notify>,
    lock: Option<Box<dyn OpenFile>>,
    /// Where the path leads to, and to which file.
    place: Option<(Disk, (u64, u64))>,
}

impl Writer {
    /// A writer. Without its database it starts as after a failure.
    pub(super) fn new(
        clock: Clock,
        path: PathBuf,
        file: DatabaseFile,
        database: io::Result<Database>,
    ) -> (Db, Self) {
        let (sender, commits) = sync_channel(MAX_WAITING);
        let places = Arc::new(Semaphore::new(MAX_WAITING));
        let sent = Arc::new(Notify::new());
        let db = Db { commits: sender, places: places.clone(), sent: sent.clone() };
        let outage = Outage::default();
        let mut writer = Self {
            clock,
            path,
            file,
            database: None,
            sealed: true,
            outage,
            commits,
            places,
            sent,
            lock: None,
            place: None,
        };
        match database {
            Ok(database) => writer.database = Some(database),
            Err(error) => writer.log(Some(error.to_string())),
        }
        (db, writer)
    }

    /// Keeps the directory's lock until the writer is dropped, and writes only while this file is at its path.
    pub(super) fn keep(&mut self, lock: Box<dyn OpenFile>, disk: Disk, identity: (u64, u64)) {
        (self.lock, self.place) = (Some(lock), Some((disk, identity)));
    }

    /// Fails if the file was removed or replaced: the next start would not find what is written to it.
    fn check_place(&self) -> io::Result<()> {
        let Some((disk, identity)) = &self.place else { return Ok(()) };
        match disk.stamp(&self.path) {
            Ok(found) if found.identity == *identity => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Err(io::Error::other("it was removed or replaced while it was used; restart podmux")),
        }
    }

    /// Writes until every [`Db`] is dropped and all commits are written, and closes the
    /// database, on a thread of its own.
    ///
    /// A failure concerns only the commits of one write: the next one opens the database
    /// again.
    ///
    /// # Errors
    /// If the writer panicked, or the runtime is shutting down.
    pub async fn run_on(self, threads: &Threads) -> Result<(), Cancelled> {
        if threads.is_inline() {
            self.run_inline(threads).await;
            return Ok(());
        }
        threads.blocking(|| self.run()).await
    }

    /// The same as [`run`](Self::run) on the calling task.
    async fn run_inline(mut self, threads: &Threads) {
        loop {
            match self.commits.try_recv() {
                Ok(commit) => {
                    threads.take_time().await;
                    self.commit(commit);
                }
                Err(TryRecvError::Disconnected) => return self.close(),
                Err(TryRecvError::Empty) => {
                    let idle = if self.sealed { RETRY_AFTER } else { SEAL_AFTER };
                    if timeout(idle, self.sent.notified()).await.is_err() {
                        self.maintain();
                    }
                }
            }
        }
    }

    /// The same as [`run_on`](Self::run_on) on this thread. It blocks.
    pub fn run(mut self) {
        loop {
            let next = match (&self.database, self.sealed) {
                (None, _) => self.commits.recv_timeout(RETRY_AFTER),
                (Some(_), false) => self.commits.recv_timeout(SEAL_AFTER),
                (Some(_), true) => self.commits.recv().map_err(RecvTimeoutError::from),
            };
            match next {
                Ok(commit) => self.commit(commit),
                Err(RecvTimeoutError::Timeout) => self.maintain(),
                Err(RecvTimeoutError::Disconnected) => return self.close(),
            }
        }
    }

    /// Writes a commit together with the waiting ones.
    fn commit(&mut self, first: Commit) {
        let mut bytes = first.size();
        let mut group = vec![first];
        while group.len() < MAX_TOGETHER && bytes < MAX_BYTES_TOGETHER {
            let Ok(next) = self.commits.try_recv() else { break };
            bytes += next.size();
            group.push(next);
        }
        let written = self.write(group.iter().flat_map(|commit| &commit.changes));
        self.log(written.as_ref().err().and_then(Error::source).map(ToString::to_string));
        for commit in group {
            // The caller may have gone away.
            let _ = commit.done.send(written.clone());
        }
    }

    fn write<'a>(&mut self, changes: impl Iterator<Item = &'a Change>) -> Result<(), DbError> {
        self.check_place()?;
        let database = self.opened()?;
        let before = self.file.synced();
        self.sealed = false;
        match format::write(&database, changes, None) {
            Ok(()) => {
                self.database = Some(database);
                Ok(())
            }
            // redb may return an error after the commit has become durable. After a failure it does
            // nothing until it is opened again.
            Err(_) if self.file.synced() != before => Ok(()),
            Err(error) => {
                drop(database);
                let error = io_error(error);
                // If that fails, the next write tries it first.
                match self.file.restore() {
                    Ok(()) => Err(error.into()),
                    Err(_) => Err(DbError::Uncertain(Arc::new(error))),
                }
            }
        }
    }

    /// The database, opened again after a failure.
    fn opened(&mut self) -> io::Result<Database> {
        if let Some(database) = self.database.take() {
            return Ok(database);
        }
        self.file.restore()?;
        let (database, ()) = open_verified(&self.file, |_| Ok(()))?;
        let database = database?;
        // Opening ends with an empty commit.
        self.sealed = true;
        Ok(database)
    }

    /// Seals the file, or opens it again, while there are no commits.
    fn maintain(&mut self) {
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
            warn!(%path, %error, "database not closed cleanly, no acknowledged commit is lost");
        }
    }

    fn log(&mut self, error: Option<String>) {
        let path = self.path.display();
        match error {
            Some(error) if self.outage.failed(&error, self.clock.now()) => {
                warn!(%path, %error, "database write failed");
            }
            Some(error) => debug!(%path, %error, "database write failed"),
            None if self.outage.recovered().is_some() => info!(%path, "database write recovered"),
            None => {}
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.places.close();
        while let Ok(commit) = self.commits.try_recv() {
            // The caller may have gone away.
            let _ = commit.done.send(Err(DbError::Ended));
        }
    }
}

impl Commit {
    fn size(&self) -> usize {
        let value = |change: &Change| change.value.as_ref().map_or(0, Value::len);
        self.changes.iter().map(|change| change.key.len() + value(change)).sum()
    }
}
