//! Opening a state directory: who may, what is in there, and whether it is whole.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    panic::{self, AssertUnwindSafe},
    path::Path,
};

use redb::{Builder, Database, StorageBackend};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use uuid::Uuid;

use super::{
    Db, OpenError, Stored, Writer,
    disk::{Disk, PlainFile},
    format::{self, Contents, Flaw, UPGRADES, Upgrade, io_error},
    is_full,
};

/// The database.
const STATE: &str = "state.redb";
/// The same while it is made. What a process that was killed left there is written over.
const NEW: &str = "state.redb.new";
/// Locked by whoever uses the directory. It has no content.
const LOCK: &str = "lock";

/// What a redb database begins with.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
/// Memory for pages. Everything is read once, and a commit touches few of them.
const CACHE_BYTES: usize = 4 << 20;

/// Opens a state directory, or makes it: it belongs to this process from now on.
///
/// Everything in it is verified; until it is, and unless it is, nothing is
/// written. The directory is made with mode 0700 and the files in it with 0600.
/// It blocks, and reads everything that is stored.
///
/// # Errors
/// If it cannot be used, is in use, or what is there is not whole or not
/// podmux's. Then it is left as it is.
pub fn open(directory: &Path) -> Result<(Db, Writer, Stored), OpenError> {
    match DirBuilder::new().recursive(true).mode(0o700).create(directory) {
        Ok(()) => {}
        Err(_) if directory.exists() => {
            return Err(OpenError::Io(directory.to_owned(), io::ErrorKind::NotADirectory.into()));
        }
        Err(error) => return Err(OpenError::Io(directory.to_owned(), error)),
    }
    let lock = lock(directory)?;
    let path = directory.join(STATE);
    match fs::metadata(&path) {
        Ok(metadata) if !metadata.is_file() => return Err(foreign(&path, "it is no file")),
        Ok(metadata) if metadata.len() == 0 => return Err(foreign(&path, "it is empty")),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(directory, &path)?,
        Err(error) => return Err(OpenError::Io(path, error)),
    }
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = file.map_err(|error| OpenError::Io(path.clone(), error))?;
    let (db, mut writer, stored) = open_on(PlainFile::new(file), &path, UPGRADES)?;
    writer.keep(lock);
    Ok((db, writer, stored))
}

/// Opens a database that is not in a directory of its own: on a double of a
/// disk, or with other steps of upgrading than [`UPGRADES`]. One without a byte
/// is made anew. The path is for messages.
///
/// # Errors
/// If what is there cannot be read, is not whole or not podmux's. Then it is left as it is.
pub fn open_on(
    file: impl StorageBackend,
    path: &Path,
    upgrades: &[Upgrade],
) -> Result<(Db, Writer, Stored), OpenError> {
    let failed = |error| OpenError::Io(path.to_owned(), error);
    let known = format::number(upgrades);
    let disk = Disk::new(file).map_err(failed)?;
    if disk.len().map_err(failed)? == 0 {
        create(&disk, known).map_err(failed)?;
    }
    let mut magic = [0; MAGIC.len()];
    match disk.read(0, &mut magic) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(failed(error)),
        _ if magic != MAGIC => return Err(foreign(path, "it is no database")),
        _ => {}
    }
    let contents = verified(&disk, |database| format::read(database, known));
    let (database, mut contents) = contents.map_err(|flaw| refusal(path, known, flaw))?;
    let database = match database {
        Ok(database) => {
            if contents.format < known {
                let changes = format::upgrade(&mut contents, upgrades);
                let written = format::write(&database, &mut contents.totals, &changes, Some(known));
                written.map_err(|error| failed(io_error(error)))?;
            }
            Ok(database)
        }
        // A node whose disk is full has its pods all the same. Nothing can be
        // added to them until there is room, and then all goes on.
        Err(error) if is_full(&error) && contents.format == known => Err(error),
        Err(error) => return Err(failed(error)),
    };
    let Contents { stored, totals, .. } = contents;
    let (db, writer) = Writer::new(path.to_owned(), disk, database, totals);
    Ok((db, writer, stored))
}

/// Opens the database on a disk and reads what there is to read. Whatever is
/// written meanwhile reaches the disk only when all of it was well. If it does
/// not get there, there is what was read, and no database: the file is as if
/// the process had been killed just then.
///
/// redb promises an error for a damaged file; should it panic after all, that
/// is one too.
pub(super) fn verified<T>(
    disk: &Disk,
    read: impl FnOnce(&Database) -> Result<T, Flaw>,
) -> Result<(io::Result<Database>, T), Flaw> {
    disk.hold();
    let opened = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
        let database = builder.create_with_backend(disk.clone())?;
        let read = read(&database)?;
        Ok((database, read))
    }));
    let opened = opened.unwrap_or_else(|_| Err(Flaw::Damaged("it has no sound structure".to_owned())));
    match opened {
        Ok((database, read)) => {
            let Err(error) = disk.release() else { return Ok((Ok(database), read)) };
            // What it writes when it is closed belongs behind what did not get there.
            disk.hold();
            drop(database);
            disk.discard();
            Ok((Err(error), read))
        }
        Err(flaw) => {
            disk.discard();
            Err(flaw)
        }
    }
}

/// The process that has the directory.
fn lock(directory: &Path) -> Result<File, OpenError> {
    let failed = |error| OpenError::Io(directory.to_owned(), error);
    let file = private().truncate(false).open(directory.join(LOCK)).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse(directory.to_owned())),
        Err(error) => Err(failed(error.into())),
    }
}

/// Makes the database under another name, so that a file of its own name is always whole.
fn make(directory: &Path, path: &Path) -> Result<(), OpenError> {
    let made = || {
        let new = directory.join(NEW);
        let file = private().truncate(true).open(&new)?;
        create(&Disk::new(PlainFile::new(file))?, format::number(UPGRADES))?;
        File::open(&new)?.sync_all()?;
        fs::rename(&new, path)?;
        File::open(directory)?.sync_all()
    };
    made().map_err(|error| OpenError::Io(directory.to_owned(), error))
}

fn create(disk: &Disk, format: u64) -> io::Result<()> {
    let database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(disk.clone());
    let database = database.map_err(|error| io_error(error.into()))?;
    format::create(&database, &Uuid::new_v4().to_string(), format).map_err(io_error)?;
    database.close().map_err(|error| io_error(error.into()))
}

/// For files that are nobody else's business.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    options
}

fn foreign(path: &Path, what: &str) -> OpenError {
    OpenError::Foreign { path: path.to_owned(), what: what.to_owned() }
}

fn refusal(path: &Path, known: u64, flaw: Flaw) -> OpenError {
    let path = path.to_owned();
    match flaw {
        Flaw::Foreign(what) => OpenError::Foreign { path, what },
        Flaw::Newer(found) => OpenError::Newer { path, found, known },
        Flaw::Damaged(detail) => OpenError::Damaged { path, detail },
        Flaw::Storage(error) => match *error {
            redb::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                OpenError::Damaged { path, detail: "it ends too early".to_owned() }
            }
            redb::Error::Io(error) if error.kind() != io::ErrorKind::InvalidData => {
                OpenError::Io(path, error)
            }
            error => OpenError::Damaged { path, detail: error.to_string() },
        },
    }
}
