//! A database in a directory or on a disk that can fail.

use std::{
    collections::BTreeMap,
    io, mem,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use podmux::{
    db::{self, Change, Db, OpenError, StorageBackend, Stored, Table, Tables, UPGRADES, Upgrade},
    host::Host,
    pod::NodeName,
    source::{self, StateWatch, http},
};
use tempfile::TempDir;
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
};

use super::files::soon;

/// A database that stores nothing until its writer runs, so that no number can be reserved, in a directory.
pub fn idle() -> (TempDir, Db, db::Writer, Stored) {
    let dir = tempfile::tempdir().unwrap();
    let (db, writer, stored) = db::open(&Host::default(), &dir.path().join("state")).unwrap();
    (dir, db, writer, stored)
}

/// An open database.
pub struct State {
    pub db: Db,
    pub stored: Stored,
    writer: JoinHandle<()>,
}

impl State {
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        db::open(&Host::default(), directory).map(Self::start)
    }

    pub fn open_on(disk: &Disk) -> Result<Self, OpenError> {
        Self::open_with(disk, UPGRADES)
    }

    pub fn open_with(disk: &Disk, upgrades: &[Upgrade]) -> Result<Self, OpenError> {
        db::open_on(&Host::default(), disk.clone(), Path::new("disk"), upgrades).map(Self::start)
    }

    fn start((db, writer, stored): (Db, db::Writer, Stored)) -> Self {
        Self { db, stored, writer: spawn_blocking(|| writer.run()) }
    }

    /// Commits one value.
    pub async fn put(&self, table: Table, key: &str, value: impl Into<Vec<u8>>) {
        soon(self.db.commit(vec![set(table, key, value)])).await.unwrap();
    }

    /// What sources see of it. Its rows are taken.
    pub fn watch(&mut self, node: &NodeName) -> StateWatch {
        let mut stored = mem::take(&mut self.stored);
        let posted = http::load(&mut stored, node).unwrap();
        watch::channel(Ok(Arc::new(source::State::new(self.db.clone(), posted, stored)))).1
    }

    /// The rows of a table when the database was opened, as `key=value …`.
    pub fn rows(&self, table: Table) -> String {
        let rows = self.stored.tables[&table].iter();
        let rows = rows.map(|(key, value)| format!("{key}={}", String::from_utf8_lossy(value)));
        rows.collect::<Vec<_>>().join(" ")
    }

    /// Closes the database cleanly.
    pub async fn close(self) {
        drop(self.db);
        soon(self.writer).await.unwrap();
    }
}

pub fn set(table: Table, key: &str, value: impl Into<Vec<u8>>) -> Change {
    Change { table, key: key.to_owned(), value: Some(value.into().into()) }
}

pub fn erase(table: Table, key: &str) -> Change {
    Change { table, key: key.to_owned(), value: None }
}

/// Applies a commit to a model.
pub fn apply(tables: &mut Tables, changes: &[Change]) {
    for Change { table, key, value } in changes {
        let rows = tables.entry(*table).or_default();
        match value {
            Some(value) => rows.insert(key.clone(), value.bytes()),
            None => rows.remove(key),
        };
    }
}

/// No rows in any table.
pub fn no_rows() -> Tables {
    [Table::Posted, Table::LastGood, Table::Streams, Table::Runs].map(|table| (table, BTreeMap::new())).into()
}

/// Random numbers with a fixed seed (`SplitMix64`).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % below as u64).unwrap()
    }

    pub fn bytes(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = u8::try_from(self.roll(256)).unwrap();
        }
    }

    /// A commit of a few changes to rows of all sizes.
    pub fn changes(&mut self) -> Vec<Change> {
        let count = 1 + self.roll(7);
        let change = |_| {
            let table = [Table::Posted, Table::LastGood, Table::Streams][self.roll(3)];
            let key = format!("default/pod-{}", self.roll(60));
            let mut value = vec![0; [20, 300, 2_500, 9_000][self.roll(4)]];
            self.bytes(&mut value);
            if self.roll(4) == 0 { erase(table, &key) } else { set(table, &key, value) }
        };
        (0..count).map(change).collect()
    }
}

/// A disk in memory that can fail. It outlives its database.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<Platter>>);

#[derive(Debug, Default)]
pub struct Platter {
    /// The page cache, which is read.
    pub bytes: Vec<u8>,
    /// The content after a power cut.
    pub synced: Vec<u8>,
    pub writes: usize,
    pub syncs: usize,
    pub resizes: usize,
    pub fault: Option<Fault>,
    /// Whether the last operation failed.
    pub failed: bool,
    /// The length on the disk, if a failed sync has lost the one that the page cache has. Only a later `set_len` or a
    /// write beyond it makes the file longer.
    lost: Option<usize>,
    /// The contents before each sync, if they are recorded.
    pub cuts: Option<Vec<Cut>>,
}

/// The contents before a sync. After a power cut some of the later writes are on the disk.
#[derive(Clone, Debug)]
pub struct Cut {
    pub synced: Vec<u8>,
    pub bytes: Vec<u8>,
}

/// A fault of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The operation that fails,
    pub operation: Operation,
    /// after so many of them,
    pub from: usize,
    /// so many times.
    pub times: usize,
    /// The error: `libc`'s number.
    pub errno: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Sync,
    Resize,
    /// Any but a read.
    Any,
}

pub const EIO: i32 = 5;
pub const ENOSPC: i32 = 28;
pub const EFBIG: i32 = 27;

impl Disk {
    pub fn with(bytes: Vec<u8>) -> Self {
        let platter = Platter { synced: bytes.clone(), bytes, ..Platter::default() };
        Self(Arc::new(Mutex::new(platter)))
    }

    pub fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }

    /// A copy of the content.
    pub fn bytes(&self) -> Vec<u8> {
        self.platter().bytes.clone()
    }
}

impl Platter {
    fn fail(&mut self, operation: Operation) -> io::Result<()> {
        match operation {
            Operation::Write => self.writes += 1,
            Operation::Sync => self.syncs += 1,
            Operation::Resize => self.resizes += 1,
            Operation::Read | Operation::Any => {}
        }
        self.failed = false;
        match &mut self.fault {
            Some(fault) if fault.operation != operation && fault.operation != Operation::Any => {}
            Some(fault) if fault.from > 0 => fault.from -= 1,
            Some(fault) if fault.times > 0 => {
                fault.times -= 1;
                self.failed = true;
                return Err(io::Error::from_raw_os_error(fault.errno));
            }
            _ => {}
        }
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.platter().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let mut platter = self.platter();
        if platter.fault.is_some_and(|fault| fault.operation == Operation::Read) {
            platter.fail(Operation::Read)?;
        }
        let there = offset.checked_add(out.len()).and_then(|end| platter.bytes.get(offset..end));
        out.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platter = self.platter();
        platter.fail(Operation::Resize)?;
        platter.bytes.resize(usize::try_from(len).unwrap(), 0);
        platter.lost = None;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.platter();
        if platter.cuts.is_some() {
            let cut = Cut { synced: platter.synced.clone(), bytes: platter.bytes.clone() };
            platter.cuts.get_or_insert_default().push(cut);
        }
        if let Err(error) = platter.fail(Operation::Sync) {
            platter.lost = Some(platter.synced.len());
            return Err(error);
        }
        let len = platter.lost.unwrap_or(usize::MAX).min(platter.bytes.len());
        platter.synced = platter.bytes[..len].to_vec();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.platter();
        let offset = usize::try_from(offset).unwrap();
        let end = offset + data.len();
        if platter.bytes.len() < end {
            platter.bytes.resize(end, 0);
        }
        platter.lost = platter.lost.map(|len| len.max(end));
        let failed = platter.fail(Operation::Write);
        // A failed write may have written a part.
        let written = if failed.is_ok() { data.len() } else { data.len() / 2 };
        platter.bytes[offset..offset + written].copy_from_slice(&data[..written]);
        failed
    }
}
