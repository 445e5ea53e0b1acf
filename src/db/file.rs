//! The file of the database: not written before it is verified, and restored after a failed write.

use std::{
    io,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redb::{Builder, Database, StorageBackend};

use super::error::{Flaw, is_full};
use crate::host::OpenFile;

/// The size of redb's header and its two commit slots.
const HEAD: usize = 320;

/// The file of the database.
///
/// While it is held, nothing is written: redb's writes when it opens a file (repairs, the mark
/// that it is in use) are kept in memory until the file is verified. So a damaged file is left
/// as it is.
///
/// It remembers the head of the file as of the last sync. A commit whose sync failed may be
/// complete in the page cache and lost on the disk. With the old head it is gone in both, since
/// redb never overwrites what the last commit needs.
#[derive(Clone, Debug)]
pub(super) struct DatabaseFile {
    file: Arc<dyn StorageBackend>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The operations that are held back, in order.
    held: Option<Vec<Operation>>,
    /// The head in the file.
    head: Head,
    /// The head as of the last sync.
    synced: Head,
}

type Head = Option<[u8; HEAD]>;

/// A change of the file.
#[derive(Debug)]
enum Operation {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
}

impl DatabaseFile {
    pub(super) fn new(file: impl StorageBackend) -> io::Result<Self> {
        let mut state = State::default();
        if file.len()? >= HEAD as u64 {
            let mut head = [0; HEAD];
            file.read(0, &mut head)?;
            (state.head, state.synced) = (Some(head), Some(head));
        }
        Ok(Self { file: Arc::new(file), state: Arc::new(Mutex::new(state)) })
    }

    /// Holds back writes from now on. Drops those that were held back before.
    pub(super) fn hold(&self) {
        self.state().held = Some(Vec::new());
    }

    /// Performs the writes that were held back, in the same order.
    ///
    /// The length is set first. If the sync of a longer file has failed, in this process or an
    /// earlier one, the page cache may have the new length and the disk never get it (on a file
    /// system without a journal). redb makes its layout of the length that it reads.
    pub(super) fn release(&self) -> io::Result<()> {
        let mut state = self.state();
        self.file.set_len(self.file.len()?)?;
        for operation in state.held.take().unwrap_or_default() {
            match operation {
                Operation::Write(offset, bytes) => state.write(&*self.file, offset, &bytes)?,
                Operation::SetLen(len) => self.file.set_len(len)?,
                Operation::Sync => state.sync(&*self.file)?,
            }
        }
        Ok(())
    }

    /// The head as of the last sync. It changes exactly when a commit becomes durable.
    pub(super) fn synced(&self) -> Head {
        self.state().synced
    }

    /// Undoes a commit that was written since the last successful sync.
    pub(super) fn restore(&self) -> io::Result<()> {
        let mut state = self.state();
        match state.synced {
            Some(head) if state.head != state.synced => {
                state.write(&*self.file, 0, &head)?;
                state.sync(&*self.file)
            }
            _ => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic under the lock leaves the state inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, file: &dyn StorageBackend, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset > 0 {
            return file.write(offset, bytes);
        }
        // A failed write may leave anything.
        self.head = None;
        file.write(offset, bytes)?;
        self.head = bytes.first_chunk().copied();
        Ok(())
    }

    fn sync(&mut self, file: &dyn StorageBackend) -> io::Result<()> {
        let head = self.head.take();
        file.sync_data()?;
        self.head = head;
        self.synced = head.or(self.synced);
        Ok(())
    }
}

impl StorageBackend for DatabaseFile {
    fn len(&self) -> io::Result<u64> {
        let state = self.state();
        let mut len = self.file.len()?;
        for operation in state.held.iter().flatten() {
            match operation {
                Operation::SetLen(set) => len = *set,
                Operation::Write(offset, bytes) => len = len.max(offset + bytes.len() as u64),
                Operation::Sync => {}
            }
        }
        Ok(len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let Some(held) = &state.held else {
            drop(state);
            return self.file.read(offset, out);
        };
        // First the file, then the operations on it.
        let there = self.file.len()?.saturating_sub(offset).min(out.len() as u64);
        let there = usize::try_from(there).unwrap_or(out.len());
        self.file.read(offset, &mut out[..there])?;
        let mut end = there;
        for operation in held {
            match operation {
                Operation::SetLen(len) => {
                    let len =
                        usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
                    out[end.min(len)..len.max(end)].fill(0);
                    end = len;
                }
                Operation::Write(at, bytes) => end = end.max(overlay(offset, out, *at, bytes)),
                Operation::Sync => {}
            }
        }
        if end < out.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match &mut self.state().held {
            Some(held) => held.push(Operation::SetLen(len)),
            None => self.file.set_len(len)?,
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        match &mut state.held {
            Some(held) => held.push(Operation::Sync),
            None => state.sync(&*self.file)?,
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        match &mut state.held {
            Some(held) => held.push(Operation::Write(offset, data.to_vec())),
            None => state.write(&*self.file, offset, data)?,
        }
        Ok(())
    }
}

/// Lays bytes that were written at `at` over those that were read from `offset`
/// on. Returns where they end in there.
fn overlay(offset: u64, out: &mut [u8], at: u64, bytes: &[u8]) -> usize {
    let from = offset.max(at);
    let to = (offset + out.len() as u64).min(at + bytes.len() as u64);
    if from >= to {
        return 0;
    }
    let place = |position: u64, start: u64| usize::try_from(position - start).unwrap_or(usize::MAX);
    out[place(from, offset)..place(to, offset)].copy_from_slice(&bytes[place(from, at)..place(to, at)]);
    place(to, offset)
}

/// The space, in bytes, that is reserved for the file to grow. Other programs fill a disk more
/// often than podmux: with this reserve it still numbers its streams and stores small changes.
/// redb grows a small file by a quarter of a MiB, and a commit frees the pages of the one before.
const RESERVE: u64 = 1 << 20;

/// A file of a [`Disk`](crate::host::Disk). All its blocks, and some more, are reserved before
/// they are written.
///
/// After a failed sync nothing of it is cached. Linux keeps what it could not write, and never
/// writes it: a later process would take it for durable. ext4 also forgets what must become of the
/// blocks: what is written to them next would be zeros after a reboot.
#[derive(Debug)]
pub(super) struct ReservedFile(Box<dyn OpenFile>);

impl ReservedFile {
    /// # Errors
    /// If the cache cannot be dropped.
    pub(super) fn new(file: Box<dyn OpenFile>) -> io::Result<Self> {
        // An earlier process may have been killed before it knew that its sync had failed. What it
        // had not begun to sync is synced while the database is opened.
        file.drop_cache()?;
        let file = Self(file);
        if let Ok(len) = file.len() {
            file.reserve(len);
        }
        Ok(file)
    }

    fn reserve(&self, len: u64) {
        // Not every file system can reserve.
        let _ = self.0.reserve(len + RESERVE);
    }
}

impl StorageBackend for ReservedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.attributes()?.stamp.size)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // Without blocks redb would use the new part for what fits into the old one.
        if len > self.len()?
            && let Err(error) = self.0.reserve(len)
            && is_full(&error)
        {
            return Err(error);
        }
        self.0.set_len(len)?;
        self.reserve(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data().or_else(|error| self.0.drop_cache().and(Err(error)))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }
}

/// The page cache. Everything is read once, and a commit touches few pages.
pub(super) const CACHE_BYTES: usize = 4 << 20;

/// Opens the database and reads it. Writes in the meantime reach the disk only if reading
/// succeeds. If they cannot be written then, the content is returned without a database, and
/// the file is as if the process had been killed before.
///
/// redb returns errors for damaged files. A panic of redb counts as one.
pub(super) fn open_verified<T>(
    file: &DatabaseFile,
    read: impl FnOnce(&Database) -> Result<T, Flaw>,
) -> Result<(io::Result<Database>, T), Flaw> {
    file.hold();
    let opened = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
        let database = builder.create_with_backend(file.clone())?;
        let read = read(&database)?;
        Ok((database, read))
    }));
    let opened = opened.unwrap_or_else(|_| Err(Flaw::Damaged("its structure is invalid".to_owned())));
    let (database, read) = opened?;
    let Err(error) = file.release() else { return Ok((Ok(database), read)) };
    // redb writes when it is closed. That must not reach the disk either. It may also read what the
    // failed sync has lost.
    file.hold();
    let _ = panic::catch_unwind(AssertUnwindSafe(|| drop(database)));
    Ok((Err(error), read))
}
