//! The file under the database: held back until it is verified, and put back when a write fails.

use std::{
    fmt,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redb::StorageBackend;
use rustix::fs::{FallocateFlags, fallocate};

/// How much of the file's beginning names what is committed: redb's header and its two slots.
const HEAD: usize = 320;

/// A file or what stands in for it.
///
/// While it is held, nothing is written: what redb writes when it opens a file
/// (it repairs, it notes that it is in use) is kept in memory until the file
/// has been verified. A damaged file is thus left as it is.
///
/// It remembers the head of the file as it was last synced. A commit whose sync
/// failed may be complete in the page cache and lost on the disk; with the old
/// head it is gone in both, for redb never writes over what the last commit needs.
#[derive(Clone)]
pub(super) struct Disk {
    file: Arc<dyn StorageBackend>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// What is held back, in order.
    held: Option<Vec<Deed>>,
    /// The head as it is in the file, and as it was when the file was last synced.
    head: Head,
    synced: Head,
}

type Head = Option<[u8; HEAD]>;

/// What is done to a file.
enum Deed {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
}

impl Disk {
    pub(super) fn new(file: impl StorageBackend) -> io::Result<Self> {
        let mut state = State::default();
        if file.len()? >= HEAD as u64 {
            let mut head = [0; HEAD];
            file.read(0, &mut head)?;
            (state.head, state.synced) = (Some(head), Some(head));
        }
        Ok(Self { file: Arc::new(file), state: Arc::new(Mutex::new(state)) })
    }

    /// Holds back what is written from now on.
    pub(super) fn hold(&self) {
        self.state().held = Some(Vec::new());
    }

    /// Forgets what was held back.
    pub(super) fn discard(&self) {
        self.state().held = None;
    }

    /// Does what was held back, in the same order.
    pub(super) fn release(&self) -> io::Result<()> {
        let mut state = self.state();
        for deed in state.held.take().unwrap_or_default() {
            match deed {
                Deed::Write(offset, bytes) => state.write(&*self.file, offset, &bytes)?,
                Deed::SetLen(len) => self.file.set_len(len)?,
                Deed::Sync => state.sync(&*self.file)?,
            }
        }
        Ok(())
    }

    /// The head that is on disk for certain. It changes when a commit has
    /// become durable, and only then.
    pub(super) fn synced(&self) -> Head {
        self.state().synced
    }

    /// Takes back what was written since the last sync that went well, as far as it counts.
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
        // Nothing that is done under the lock leaves the state half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, file: &dyn StorageBackend, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset > 0 {
            return file.write(offset, bytes);
        }
        // What a write that fails leaves behind is not what was synced.
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

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        let state = self.state();
        let mut len = self.file.len()?;
        for deed in state.held.iter().flatten() {
            match deed {
                Deed::SetLen(set) => len = *set,
                Deed::Write(offset, bytes) => len = len.max(offset + bytes.len() as u64),
                Deed::Sync => {}
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
        // The file as far as it goes, then what was done to it since.
        let there = self.file.len()?.saturating_sub(offset).min(out.len() as u64);
        let there = usize::try_from(there).unwrap_or(out.len());
        self.file.read(offset, &mut out[..there])?;
        let mut end = there;
        for deed in held {
            match deed {
                Deed::SetLen(len) => {
                    let len =
                        usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
                    out[end.min(len)..len.max(end)].fill(0);
                    end = len;
                }
                Deed::Write(at, bytes) => end = end.max(overlay(offset, out, *at, bytes)),
                Deed::Sync => {}
            }
        }
        if end < out.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match &mut self.state().held {
            Some(held) => held.push(Deed::SetLen(len)),
            None => self.file.set_len(len)?,
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        match &mut state.held {
            Some(held) => held.push(Deed::Sync),
            None => state.sync(&*self.file)?,
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        match &mut state.held {
            Some(held) => held.push(Deed::Write(offset, data.to_vec())),
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

impl fmt::Debug for Disk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Disk").field("file", &self.file).finish_non_exhaustive()
    }
}

/// How much room is kept for the file to grow into, in bytes. A full disk is
/// mostly filled by others: with this the agent still reserves numbers for its
/// streams and keeps small changes. redb grows a small file by a quarter of a
/// MiB, and a commit gives back the pages of the one before.
const SPARE: u64 = 1 << 20;

/// A plain file, whose blocks are all there before they are written to, and some more.
#[derive(Debug)]
pub(super) struct PlainFile(File);

impl PlainFile {
    pub(super) fn new(file: File) -> Self {
        let file = Self(file);
        file.keep_spare();
        file
    }

    /// Takes the room from the file system, as far as it has any and knows how.
    fn keep_spare(&self) {
        if let Ok(meta) = self.0.metadata() {
            let _ = fallocate(&self.0, FallocateFlags::KEEP_SIZE, 0, meta.len() + SPARE);
        }
    }
}

impl StorageBackend for PlainFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)?;
        self.keep_spare();
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}
