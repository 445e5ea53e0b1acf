//! Files.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

/// The file system. Everything in it blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk(());

/// Identifies the content of a file without reading it: two equal stamps of a path mean
/// that the file was neither changed nor replaced in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The device and the inode.
    pub identity: (u64, u64),
    /// In bytes.
    pub size: u64,
    /// Seconds and nanoseconds of the last change of the content,
    pub modified: (i64, i64),
    /// and of the inode.
    pub changed: (i64, i64),
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

impl Disk {
    /// The stamp of the file at a path, after symbolic links.
    ///
    /// # Errors
    /// If the path cannot be looked up.
    pub fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        fs::metadata(path).map(|metadata| Stamp::from(&metadata))
    }

    /// Whether a path leads to a regular file. A pipe or a device may never end.
    ///
    /// # Errors
    /// If the path cannot be looked up.
    pub fn is_file(&self, path: &Path) -> io::Result<bool> {
        fs::metadata(path).map(|metadata| metadata.is_file())
    }

    /// Reads a whole file of at most `max` bytes.
    ///
    /// # Errors
    /// If it cannot be read; [`FileTooLarge`](io::ErrorKind::FileTooLarge) if it has more bytes.
    pub fn read(&self, path: &Path, max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} bytes")));
        }
        Ok(bytes)
    }
}
