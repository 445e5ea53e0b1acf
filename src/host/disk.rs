//! The file system.

use std::{
    ffi::OsString,
    fmt::Debug,
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io::{self, Read},
    os::unix::fs::{
        DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread::sleep,
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{Advice, FallocateFlags, FlockOperation, OFlags, fadvise, fallocate, flock},
    io::Errno,
    process::geteuid,
};

/// A lock of another process is waited for a second. A child of an agent that was killed has the agent's locks until
/// it has become the program that it starts.
const LOCK_ATTEMPTS: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// What the system shows for a user that it cannot name: outside a user namespace, or on a server that replaces users.
/// Such a directory may be this process's own.
const UNKNOWN_USER: u32 = 65534;
/// In the mode of a directory: every user may write to it. With the sticky bit, too, they may make a file before podmux
/// does.
const WORLD_WRITABLE: u32 = 0o002;

/// The file system. All of it blocks. Cheap to clone; the default is the real one.
#[derive(Clone, Debug)]
pub struct Disk(Arc<dyn FileSystem>);

/// What a [`Disk`] stands on: the real file system or a simulated one.
///
/// Watches are not part of it: the kernel reports on its own files only. A source that
/// watches must scan instead where [`has_watches`](Self::has_watches) is false.
#[allow(clippy::missing_errors_doc, reason = "each method fails as the system call does")]
pub trait FileSystem: Debug + Send + Sync + 'static {
    /// The attributes of the file at a path: of a symbolic link's target if `follow`.
    fn attributes(&self, path: &Path, follow: bool) -> io::Result<Attributes>;
    /// The names in a directory without `.` and `..`, in any order.
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>>;
    /// The absolute path without symbolic links.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf>;
    /// The target of a symbolic link.
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;
    /// Opens a file.
    fn open(&self, path: &Path, open: Open) -> io::Result<Box<dyn OpenFile>>;
    /// Makes a directory and its missing parents with mode 0700. It may exist.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Renames a file. A file that has the new name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Whether inotify can watch this file system.
    fn has_watches(&self) -> bool {
        false
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// For reading. Opening a fifo waits for its writer.
    Read,
    /// For reading, without waiting: a fifo has no content, a socket is an error.
    ReadAtOnce,
    /// For reading and writing.
    Write,
    /// For reading and writing; a missing file is created with mode 0600.
    Create,
}

/// An open file. Dropping it closes it and unlocks it.
#[allow(clippy::missing_errors_doc, reason = "each method fails as the system call does")]
pub trait OpenFile: Read + Debug + Send + Sync {
    /// Its attributes.
    fn attributes(&self) -> io::Result<Attributes>;
    /// Reads bytes from an offset until the buffer is full.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Writes all bytes at an offset.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Truncates the file or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves blocks for the first `len` bytes without changing the length of the file.
    fn reserve(&self, len: u64) -> io::Result<()>;
    /// Makes the content durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes the content and all attributes durable; of a directory, the names in it.
    fn sync_all(&self) -> io::Result<()>;
    /// Drops what is cached of the content, except for what still waits to be written: reads
    /// return what the disk has, and no longer what a failed sync has not written.
    fn drop_cache(&self) -> io::Result<()>;
    /// Locks the file for this process. [`WouldBlock`](io::ErrorKind::WouldBlock) if another
    /// one keeps it locked for a second.
    fn lock(&self) -> io::Result<()>;
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character or block device.
    Device,
}

/// The attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What it is.
    pub kind: FileKind,
    /// Identifies its content.
    pub stamp: Stamp,
    /// How many names (hard links) it has.
    pub names: u64,
    /// When it was created, if the file system knows.
    pub born: Option<SystemTime>,
    /// The user that it belongs to.
    pub owner: u32,
    /// Its permissions.
    pub mode: u32,
}

/// Identifies the content of a file without reading it: two equal stamps of a path mean
/// that the file was neither changed nor replaced in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The device and the inode.
    pub identity: (u64, u64),
    /// In bytes.
    pub size: u64,
    /// When the content was last changed: seconds and nanoseconds.
    pub modified: (i64, i64),
    /// When the inode was last changed.
    pub changed: (i64, i64),
}

impl Disk {
    /// A disk with a file system.
    pub fn on(files: impl FileSystem) -> Self {
        Self(Arc::new(files))
    }

    /// The stamp of the file at a path, after symbolic links.
    ///
    /// # Errors
    /// If the path cannot be looked up.
    pub fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        Ok(self.attributes(path, true)?.stamp)
    }

    /// Whether a path leads to a regular file. A pipe or a device may never end.
    ///
    /// # Errors
    /// If the path cannot be looked up.
    pub fn is_file(&self, path: &Path) -> io::Result<bool> {
        Ok(self.attributes(path, true)?.kind == FileKind::File)
    }

    /// Checks that no user can make or replace the files of a directory, except its owner, root and its group.
    ///
    /// # Errors
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) if another one can, or if it cannot be looked up.
    pub fn check_private(&self, directory: &Path) -> io::Result<()> {
        let Attributes { owner, mode, .. } = self.attributes(directory, true)?;
        let problem = if ![geteuid().as_raw(), 0, UNKNOWN_USER].contains(&owner) {
            format!("it belongs to the user {owner}: run podmux as that user, or name another directory")
        } else if mode & WORLD_WRITABLE != 0 {
            "every user may write to it: forbid that with chmod o-w".to_owned()
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
    }

    /// Reads a whole file of at most `max` bytes.
    ///
    /// # Errors
    /// If it cannot be read; [`FileTooLarge`](io::ErrorKind::FileTooLarge) if it has more bytes.
    pub fn read(&self, path: &Path, max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path, Open::Read)?.take(max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} bytes")));
        }
        Ok(bytes)
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::on(RealFileSystem)
    }
}

impl std::ops::Deref for Disk {
    type Target = dyn FileSystem;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// The file system of the machine.
#[derive(Debug)]
struct RealFileSystem;

impl FileSystem for RealFileSystem {
    fn attributes(&self, path: &Path, follow: bool) -> io::Result<Attributes> {
        let metadata = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
        Ok(Attributes::from(&metadata?))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    fn open(&self, path: &Path, open: Open) -> io::Result<Box<dyn OpenFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        match open {
            Open::Read => {}
            Open::ReadAtOnce => {
                let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
                options.custom_flags(flags.bits().cast_signed());
            }
            Open::Write => drop(options.write(true)),
            Open::Create => drop(options.write(true).create(true).mode(0o600)),
        }
        Ok(Box::new(options.open(path)?))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn has_watches(&self) -> bool {
        true
    }
}

impl OpenFile for File {
    fn attributes(&self) -> io::Result<Attributes> {
        Ok(Attributes::from(&self.metadata()?))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        Ok(fallocate(self, FallocateFlags::KEEP_SIZE, 0, len)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn drop_cache(&self) -> io::Result<()> {
        Ok(fadvise(self, 0, None, Advice::DontNeed)?)
    }

    fn lock(&self) -> io::Result<()> {
        for _ in 0..LOCK_ATTEMPTS {
            match flock(self, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => sleep(LOCK_PAUSE),
                locked => return Ok(locked?),
            }
        }
        Err(Errno::WOULDBLOCK.into())
    }
}

impl From<&Metadata> for Attributes {
    fn from(metadata: &Metadata) -> Self {
        let kind = metadata.file_type();
        let kind = match () {
            () if kind.is_file() => FileKind::File,
            () if kind.is_dir() => FileKind::Directory,
            () if kind.is_symlink() => FileKind::Link,
            () if kind.is_fifo() => FileKind::Fifo,
            () if kind.is_socket() => FileKind::Socket,
            () => FileKind::Device,
        };
        let born = metadata.created().ok();
        let (stamp, names) = (Stamp::from(metadata), metadata.nlink());
        Self { kind, stamp, names, born, owner: metadata.uid(), mode: metadata.mode() }
    }
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            identity: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
