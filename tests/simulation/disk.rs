//! A file system in memory, with crashes: what was not synced is lost in whole or in part.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{self, ErrorKind, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use podmux::host::{Attributes, FileKind, FileSystem, Open, OpenFile, Stamp};
use rustix::io::Errno;

use crate::support::random::Random;

/// A disk writes this many bytes at once or not at all.
const SECTOR: usize = 512;

/// What fails.
#[expect(clippy::struct_excessive_bools, reason = "each fault is there or not")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Nothing can grow.
    pub full: bool,
    /// Every write and every sync fails.
    pub broken: bool,
    /// Every sync fails.
    pub no_sync: bool,
    /// The process is killed before the next sync, or while that fails.
    pub kills: bool,
    /// One in so many writes and syncs fails.
    pub fails_once_in: Option<usize>,
    /// The manifests cannot be read.
    pub unreadable: bool,
}

/// What a directory had: each file with its content, and each directory.
pub type Saved = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// The file system. Clones are the same one.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<Files>>);

#[derive(Debug)]
struct Files {
    nodes: BTreeMap<PathBuf, Node>,
    /// The names as of the last sync of their directories.
    durable_names: BTreeMap<PathBuf, u64>,
    contents: BTreeMap<u64, Content>,
    faults: DiskFaults,
    /// The process that uses it: the files of earlier ones are closed.
    process: u64,
    last: u64,
    rng: Random,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    Directory,
    File(u64),
}

#[derive(Clone, Debug, Default)]
struct Content {
    /// What the page cache has.
    now: Vec<u8>,
    /// What the disk has for certain.
    durable: Vec<u8>,
    /// The writes since the last sync.
    pending: Vec<Write>,
    changed: u64,
    locked_by: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
enum Write {
    At(u64, Vec<u8>),
    Len(u64),
}

impl DiskFaults {
    /// Whether a write fails.
    fn fails(&self, rng: &mut Random) -> bool {
        self.broken || self.fails_once_in.is_some_and(|times| rng.once_in(times))
    }

    /// Whether what is stored may not be readable, or not be stored.
    pub fn concerns_the_state(&self) -> bool {
        self.full || self.broken || self.no_sync || self.fails_once_in.is_some()
    }
}

impl Write {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Len(len) => bytes.resize(usize::try_from(*len).unwrap(), 0),
            Self::At(offset, written) => {
                let at = usize::try_from(*offset).unwrap();
                bytes.resize(bytes.len().max(at + written.len()), 0);
                bytes[at..at + written.len()].copy_from_slice(written);
            }
        }
    }

    /// The part of it that reaches the disk when the power fails.
    fn torn(&self, rng: &mut Random) -> Option<Self> {
        match (rng.below(3), self) {
            (0, _) => None,
            (1, Self::At(offset, bytes)) if bytes.len() > SECTOR => {
                let sectors = rng.below(bytes.len() / SECTOR);
                Some(Self::At(*offset, bytes[..sectors * SECTOR].to_vec()))
            }
            _ => Some(self.clone()),
        }
    }
}

impl SimDisk {
    pub fn new(rng: Random) -> Self {
        let nodes = ["/", "/manifests", "/run"].map(|path| (PathBuf::from(path), Node::Directory));
        Self(Arc::new(Mutex::new(Files {
            nodes: nodes.into(),
            durable_names: BTreeMap::new(),
            contents: BTreeMap::new(),
            faults: DiskFaults::default(),
            process: 0,
            last: 0,
            rng,
        })))
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap()
    }

    pub fn faults(&self) -> DiskFaults {
        self.files().faults
    }

    pub fn set_faults(&self, change: impl FnOnce(&mut DiskFaults)) {
        change(&mut self.files().faults);
    }

    /// Replaces a file in one step, as another program that also syncs it.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let files = &mut *self.files();
        let id = files.next();
        let content =
            Content { now: bytes.to_vec(), durable: bytes.to_vec(), changed: id, ..Content::default() };
        files.contents.insert(id, content);
        files.nodes.insert(path.into(), Node::File(id));
        files.durable_names.insert(path.into(), id);
    }

    /// Overwrites a file in its place, as an editor that never closes it.
    pub fn overwrite(&self, path: &str, bytes: &[u8]) {
        let files = &mut *self.files();
        let Some(Node::File(id)) = files.nodes.get(Path::new(path)).copied() else { return };
        let changed = files.next();
        let content = files.contents.get_mut(&id).unwrap();
        (content.now, content.durable, content.changed) = (bytes.to_vec(), bytes.to_vec(), changed);
    }

    pub fn remove(&self, path: &str) {
        let files = &mut *self.files();
        files.nodes.remove(Path::new(path));
        files.durable_names.remove(Path::new(path));
    }

    /// A copy of the files of a directory.
    pub fn saved(&self, directory: &str) -> Saved {
        let files = self.files();
        let inside = files.nodes.iter().filter(|(path, _)| path.starts_with(directory));
        let copied = inside.map(|(path, node)| match node {
            Node::Directory => (path.clone(), None),
            Node::File(id) => (path.clone(), Some(files.contents[id].now.clone())),
        });
        copied.collect()
    }

    /// Makes a directory what it was.
    pub fn put_back(&self, directory: &str, saved: Saved) {
        {
            let Files { nodes, durable_names, .. } = &mut *self.files();
            nodes.retain(|path, _| !path.starts_with(directory));
            durable_names.retain(|path, _| !path.starts_with(directory));
        }
        for (path, content) in saved {
            match content {
                Some(bytes) => self.put(path.to_str().unwrap(), &bytes),
                None => drop(self.files().nodes.insert(path, Node::Directory)),
            }
        }
    }

    /// The process is killed: its files are closed, and the page cache stays.
    pub fn kill(&self) {
        let files = &mut *self.files();
        files.process += 1;
        files.contents.values_mut().for_each(|content| content.locked_by = None);
    }

    /// The power fails: of each unsynced write a part reaches the disk, or nothing.
    pub fn power_cut(&self) {
        self.kill();
        let Files { nodes, durable_names, contents, rng, .. } = &mut *self.files();
        for content in contents.values_mut() {
            let mut bytes = content.durable.clone();
            for write in content.pending.drain(..) {
                if let Some(write) = write.torn(rng) {
                    write.apply(&mut bytes);
                }
            }
            (content.now, content.durable) = (bytes.clone(), bytes);
        }
        nodes.retain(|path, _| !path.starts_with("/run") || path == Path::new("/run"));
        // A name that was not synced may be there or not.
        nodes.retain(|path, node| match node {
            Node::Directory => true,
            Node::File(id) => durable_names.get(path) == Some(id) || rng.once_in(2),
        });
        for (path, id) in durable_names {
            nodes.entry(path.clone()).or_insert(Node::File(*id));
        }
    }
}

impl Files {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn find(&self, path: &Path) -> io::Result<Node> {
        if self.faults.unreadable && path.starts_with("/manifests") {
            return Err(Errno::IO.into());
        }
        self.nodes.get(path).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn attributes(&self, path: &Path, node: Node) -> Attributes {
        let (kind, id, size, changed) = match node {
            Node::Directory => {
                // It changes with the names in it.
                let names = self.nodes.iter().filter(|(name, _)| name.parent() == Some(path));
                let ids = names.map(|(_, node)| if let Node::File(id) = node { *id } else { 0 });
                (FileKind::Directory, 0, 0, ids.max().unwrap_or_default())
            }
            Node::File(id) => {
                let content = &self.contents[&id];
                (FileKind::File, id, content.now.len() as u64, content.changed)
            }
        };
        let time = (i64::try_from(changed).unwrap(), 0);
        let stamp = Stamp { identity: (1, id), size, modified: time, changed: time };
        // The directories are those of the beginning.
        let born = (kind == FileKind::Directory).then_some(SystemTime::UNIX_EPOCH + Duration::from_nanos(1));
        Attributes { kind, stamp, names: 1, born, owner: 0, mode: 0o700 }
    }

    fn may_write(&self, grows: bool) -> io::Result<()> {
        match self.faults {
            DiskFaults { broken: true, .. } => Err(Errno::IO.into()),
            DiskFaults { full: true, .. } if grows => Err(Errno::NOSPC.into()),
            _ => Ok(()),
        }
    }
}

impl FileSystem for SimDisk {
    fn attributes(&self, path: &Path, _follow: bool) -> io::Result<Attributes> {
        let files = self.files();
        Ok(files.attributes(path, files.find(path)?))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        let files = self.files();
        match files.find(directory)? {
            Node::File(_) => Err(ErrorKind::NotADirectory.into()),
            Node::Directory => {
                let children = files.nodes.keys().filter(|path| path.parent() == Some(directory));
                Ok(children.filter_map(|path| Some(path.file_name()?.to_owned())).collect())
            }
        }
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        self.files().find(path).map(|_| path.to_owned())
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.files().find(path)?;
        Err(ErrorKind::InvalidInput.into())
    }

    fn open(&self, path: &Path, open: Open) -> io::Result<Box<dyn OpenFile>> {
        let files = &mut *self.files();
        let node = match files.find(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && open == Open::Create => {
                files.may_write(true)?;
                let id = files.next();
                files.contents.insert(id, Content { changed: id, ..Content::default() });
                files.nodes.insert(path.to_owned(), Node::File(id));
                Node::File(id)
            }
            found => found?,
        };
        let (process, handle) = (files.process, files.next());
        Ok(Box::new(SimFile { disk: self.clone(), path: path.to_owned(), node, process, handle, at: 0 }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let files = &mut *self.files();
        for part in path.ancestors() {
            match files.nodes.get(part) {
                Some(Node::Directory) => {}
                Some(Node::File(_)) => return Err(ErrorKind::AlreadyExists.into()),
                None => {
                    files.may_write(true)?;
                    files.nodes.insert(part.to_owned(), Node::Directory);
                }
            }
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let files = &mut *self.files();
        files.may_write(false)?;
        let node = files.find(from)?;
        files.nodes.remove(from);
        files.nodes.insert(to.to_owned(), node);
        Ok(())
    }
}

/// An open file of a process.
#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    path: PathBuf,
    node: Node,
    process: u64,
    handle: u64,
    at: usize,
}

impl SimFile {
    fn with<T>(
        &self,
        work: impl FnOnce(&mut Content, DiskFaults, &mut Random) -> io::Result<T>,
    ) -> io::Result<T> {
        let files = &mut *self.disk.files();
        if self.process != files.process {
            return Err(io::Error::other("the process was killed"));
        }
        let Node::File(id) = self.node else { return Err(ErrorKind::IsADirectory.into()) };
        work(files.contents.get_mut(&id).unwrap(), files.faults, &mut files.rng)
    }

    fn write(&self, write: Write) -> io::Result<()> {
        self.with(|content, faults, rng| {
            let end = match &write {
                Write::Len(len) => *len,
                Write::At(offset, bytes) => offset + bytes.len() as u64,
            };
            if faults.fails(rng) {
                return Err(Errno::IO.into());
            }
            if faults.full && end > content.now.len() as u64 {
                return Err(Errno::NOSPC.into());
            }
            write.apply(&mut content.now);
            content.pending.push(write);
            Ok(())
        })?;
        let files = &mut *self.disk.files();
        let changed = files.next();
        if let Node::File(id) = self.node {
            files.contents.get_mut(&id).unwrap().changed = changed;
        }
        Ok(())
    }
}

impl Read for SimFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let at = self.at;
        let count = self.with(|content, _, _| {
            let rest = &content.now[at.min(content.now.len())..];
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        })?;
        self.at += count;
        Ok(count)
    }
}

impl OpenFile for SimFile {
    fn attributes(&self) -> io::Result<Attributes> {
        let files = self.disk.files();
        Ok(files.attributes(&self.path, self.node))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.with(|content, _, _| {
            let at = usize::try_from(offset).unwrap();
            let Some(found) = content.now.get(at..at + bytes.len()) else {
                return Err(ErrorKind::UnexpectedEof.into());
            };
            bytes.copy_from_slice(found);
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(Write::At(offset, bytes.to_vec()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.write(Write::Len(len))
    }

    fn reserve(&self, _len: u64) -> io::Result<()> {
        self.with(|_, faults, _| match faults {
            DiskFaults { broken: true, .. } => Err(Errno::IO.into()),
            DiskFaults { full: true, .. } => Err(Errno::NOSPC.into()),
            _ => Ok(()),
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.with(|content, faults, rng| {
            if !faults.no_sync && !faults.kills && !faults.fails(rng) {
                // What an earlier sync has failed to write is not written by this one.
                content.pending.drain(..).for_each(|write| write.apply(&mut content.durable));
                return Ok(());
            }
            if faults.kills && rng.once_in(2) {
                return Err(Errno::IO.into());
            }
            // Linux drops what it could not write, and the page cache keeps it.
            let mut bytes = std::mem::take(&mut content.durable);
            for write in content.pending.drain(..).filter_map(|write| write.torn(rng)) {
                write.apply(&mut bytes);
            }
            content.durable = bytes;
            Err(Errno::IO.into())
        });
        if self.disk.faults().kills {
            self.disk.set_faults(|faults| faults.kills = false);
            self.disk.kill();
        }
        synced
    }

    fn sync_all(&self) -> io::Result<()> {
        if self.node != Node::Directory {
            return self.sync_data();
        }
        let Files { nodes, durable_names, faults, rng, .. } = &mut *self.disk.files();
        if faults.no_sync || faults.fails(rng) {
            return Err(Errno::IO.into());
        }
        durable_names.retain(|path, _| path.parent() != Some(&self.path));
        for (path, node) in nodes.iter().filter(|(path, _)| path.parent() == Some(&self.path)) {
            if let Node::File(id) = node {
                durable_names.insert(path.clone(), *id);
            }
        }
        Ok(())
    }

    fn drop_cache(&self) -> io::Result<()> {
        self.with(|content, _, _| {
            let len = content.now.len();
            content.now.clone_from(&content.durable);
            content.pending.iter().for_each(|write| write.apply(&mut content.now));
            // The length is not cached with the content.
            content.now.resize(len, 0);
            Ok(())
        })
    }

    fn lock(&self) -> io::Result<()> {
        self.with(|content, _, _| match content.locked_by {
            Some(by) if by != (self.process, self.handle) => Err(ErrorKind::WouldBlock.into()),
            _ => {
                content.locked_by = Some((self.process, self.handle));
                Ok(())
            }
        })
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let Ok(mut files) = self.disk.0.lock() else { return };
        if let Node::File(id) = self.node
            && let Some(content) = files.contents.get_mut(&id)
            && content.locked_by == Some((self.process, self.handle))
        {
            content.locked_by = None;
        }
    }
}
