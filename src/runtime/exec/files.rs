//! The files of a pod: what its program reads, which is also the lock of its calls, and what it prints.
//!
//! They are in a directory that a reboot empties, so they are of this boot, also if the state directory is
//! lost or is replaced by a copy: then they say what may run.
//!
//! A directory for each `namespace/name` has these files for each UID. The lock is a `flock` of the open
//! file that the program has as its standard input. The processes that the program starts inherit it, so
//! it is free when the last of them has ended or closed its standard input, whether the agent still runs
//! or not.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use super::run_id::RunId;
use crate::{host::Disk, pod::Digest};

/// The longest name or UID that is a part of a file's name as it is. A file's name has 255 bytes at most, and
/// two of these parts.
const LONGEST: usize = 120;
const STDIN: &str = "stdin";
/// The row of the ledger.
const RUN: &str = "run";
/// A row that is being written.
const NEW: &str = "new";
const OUTPUT: &str = "output";

/// The files of one pod.
#[derive(Clone, Debug)]
pub(super) struct PodFiles {
    /// That of its `namespace/name`.
    pub(super) directory: PathBuf,
    stdin: PathBuf,
    run: PathBuf,
    /// What its last call has printed.
    pub(super) output: PathBuf,
}

/// The result of an attempt to lock.
#[derive(Debug)]
pub(super) enum Locked {
    /// The standard input of the next call. It is locked until the last copy of this is closed.
    Yes(File),
    /// A process of an earlier call has this file open.
    No(PathBuf),
}

impl PodFiles {
    pub(super) fn new(directory: &Path, id: &RunId) -> Self {
        let [namespace, name, uid] = [id.key.namespace(), id.key.name(), &id.uid].map(part);
        let directory = directory.join(format!("{namespace}_{name}"));
        let at = |kind| directory.join(format!("{uid}.{kind}"));
        Self { stdin: at(STDIN), run: at(RUN), output: at(OUTPUT), directory }
    }

    /// Locks the pod if no process of an earlier call runs, also of another UID of its name. It blocks.
    pub(super) fn try_lock(&self, disk: &Disk) -> io::Result<Locked> {
        disk.create_dir(&self.directory)?;
        for path in paths(&self.directory, STDIN)? {
            if path != self.stdin && !is_free(&path)? {
                return Ok(Locked::No(path));
            }
        }
        open_private(&self.stdin)?;
        // The program gets another open file than the one that is written: it can only read.
        let stdin = File::open(&self.stdin)?;
        Ok(if try_flock(&stdin)? { Locked::Yes(stdin) } else { Locked::No(self.stdin.clone()) })
    }

    /// Writes what the program reads. The lock is held. It blocks.
    pub(super) fn write_stdin(&self, pod: &[u8]) -> io::Result<()> {
        let file = open_private(&self.stdin)?;
        // Not truncated first: a full disk keeps what it has.
        file.write_all_at(pod, 0)?;
        file.set_len(pod.len() as u64)
    }

    /// Whether this row of the ledger is in a file. It blocks.
    pub(super) fn has_run(&self, row: &[u8]) -> bool {
        fs::read(&self.run).is_ok_and(|written| written == row)
    }

    /// Writes the row of the ledger. A crash leaves it as it was or as it is. It blocks.
    pub(super) fn write_run(&self, disk: &Disk, row: &[u8]) -> io::Result<()> {
        disk.create_dir(&self.directory)?;
        let new = self.run.with_extension(NEW);
        let file = open_private(&new)?;
        let written = file.set_len(0).and_then(|()| file.write_all_at(row, 0));
        let written = written.and_then(|()| fs::rename(&new, &self.run));
        // On a full disk it would keep the room that is missing.
        written.inspect_err(|_| drop(fs::remove_file(&new)))
    }

    /// An empty file for what the program prints. It blocks.
    pub(super) fn create_output(&self) -> io::Result<File> {
        let file = open_private(&self.output)?;
        file.set_len(0)?;
        Ok(file)
    }

    /// Removes the files. Those that a process has open stay: another process must still find its lock.
    /// Returns whether none has. It blocks.
    pub(super) fn discard(&self) -> io::Result<bool> {
        match fs::remove_file(&self.run) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let is_free = discard(&self.stdin);
        // It may have files of another UID.
        let _ = fs::remove_dir(&self.directory);
        Ok(is_free)
    }
}

/// The rows of the ledger that are in files, with their paths. It blocks.
pub(super) fn rows(directory: &Path) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut rows = Vec::new();
    for key in keys(directory)? {
        for path in paths(&key, RUN)? {
            rows.push((path.clone(), fs::read(path)?));
        }
    }
    Ok(rows)
}

/// The directories of all names.
fn keys(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        keys => keys?.map(|key| Ok(key?.path())).collect(),
    }
}

/// Removes the files of all pods but these, if no process has them open. It blocks.
pub(super) fn sweep(directory: &Path, kept: &[RunId]) -> io::Result<()> {
    let kept: BTreeSet<PathBuf> = kept.iter().map(|id| PodFiles::new(directory, id).stdin).collect();
    for key in keys(directory)? {
        for path in paths(&key, STDIN)? {
            if !kept.contains(&path) {
                discard(&path);
            }
        }
        // Those of an earlier boot, if no reboot has emptied the directory.
        for path in paths(&key, RUN)? {
            if !kept.contains(&path.with_extension(STDIN)) {
                fs::remove_file(path)?;
            }
        }
        // Those that a crash cut off.
        for path in paths(&key, NEW)? {
            fs::remove_file(path)?;
        }
        // It may have files that are kept.
        let _ = fs::remove_dir(key);
    }
    Ok(())
}

/// Removes the files of a UID, unless a process has them open. Returns whether none has.
fn discard(stdin: &Path) -> bool {
    let is_free = is_free(stdin).is_ok_and(|is_free| is_free);
    if is_free {
        // What cannot be removed now is removed at the next start.
        let _ = fs::remove_file(stdin.with_extension(OUTPUT));
        let _ = fs::remove_file(stdin);
    }
    is_free
}

/// Whether no process has the lock.
fn is_free(path: &Path) -> io::Result<bool> {
    match File::open(path) {
        Ok(file) => try_flock(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

fn try_flock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        locked => Ok(locked.map(|()| true)?),
    }
}

fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// The files of a kind in a directory.
fn paths(directory: &Path, kind: &str) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == kind) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// A text as a part of a file's name: itself if it can be one, else its digest.
fn part(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_usable =
        !text.starts_with('.') && (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_plain);
    if is_usable { text.to_owned() } else { format!("={}", Digest::of(&[text.as_bytes()])) }
}
