//! Opening a state directory: the lock, the database file, and its verification.

use std::{io, path::Path};

use redb::{Builder, StorageBackend};

use super::{
    error::{Flaw, OpenError, is_full},
    file::{CACHE_BYTES, DatabaseFile, ReservedFile, open_verified},
    format::{self, UPGRADES, Upgrade, io_error},
    table::Stored,
    writer::{Db, Writer},
};
use crate::host::{Disk, FileKind, Host, Open, OpenFile};

/// The database.
const STATE: &str = "state.redb";
/// The database while it is created. A file that a killed process left is overwritten.
const NEW: &str = "state.redb.new";
/// Locked by the process that uses the directory, like the database itself. It is empty. It keeps
/// versions of podmux apart that lock only this file.
const LOCK: &str = "lock";

/// The first bytes of a redb database.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// Opens a state directory or creates it, and locks it for this process.
///
/// Everything in it is verified, and nothing is written before that. The directory is created
/// with mode 0700 and its files with 0600. It blocks and reads the whole database.
///
/// # Errors
/// If it cannot be used, is in use, is damaged or was not written by podmux. It is left as it
/// is then.
pub fn open(host: &Host, directory: &Path) -> Result<(Db, Writer, Stored), OpenError> {
    let disk = &host.disk;
    create_dir(disk, directory)?;
    let path = directory.join(STATE);
    let failed = |path: &Path, error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::InUse(directory.to_owned()),
        _ => OpenError::Io(path.to_owned(), error),
    };
    let lock = open_locked(disk, &directory.join(LOCK), Open::Create);
    let lock = lock.map_err(|error| failed(directory, error))?;
    match disk.attributes(&path, true) {
        Ok(found) if found.kind != FileKind::File => return Err(foreign(&path, "it is not a file")),
        Ok(found) if found.stamp.size == 0 => return Err(foreign(&path, "it is empty")),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_file(host, directory, &path).map_err(|error| failed(directory, error))?;
        }
        Err(error) => return Err(OpenError::Io(path, error)),
    }
    let file = open_locked(disk, &path, Open::Write).map_err(|error| failed(&path, error))?;
    let found = file.attributes().map_err(|error| failed(&path, error))?;
    let file = ReservedFile::new(file).map_err(|error| failed(&path, error))?;
    let (db, mut writer, stored) = open_on(host, file, &path, UPGRADES)?;
    writer.keep(lock, disk.clone(), found.stamp.identity);
    Ok((db, writer, stored))
}

/// Opens a database outside a state directory: on a test double of a disk, or with other upgrade
/// steps than [`UPGRADES`]. An empty file becomes a new database. The path is for messages.
///
/// # Errors
/// If it cannot be read, is damaged or was not written by podmux. It is left as it is then.
pub fn open_on(
    host: &Host,
    file: impl StorageBackend,
    path: &Path,
    upgrades: &[Upgrade],
) -> Result<(Db, Writer, Stored), OpenError> {
    let failed = |error| OpenError::Io(path.to_owned(), error);
    let known = format::number(upgrades);
    let file = DatabaseFile::new(file).map_err(failed)?;
    if file.len().map_err(failed)? == 0 {
        create(host, &file, known).map_err(failed)?;
    }
    let mut magic = [0; MAGIC.len()];
    match file.read(0, &mut magic) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(failed(error)),
        _ if magic != MAGIC => return Err(foreign(path, "it is not a database")),
        _ => {}
    }
    let contents = open_verified(&file, |database| format::read(database, known));
    let (database, mut contents) = contents.map_err(|flaw| match flaw {
        Flaw::Io(error) => failed(error),
        flaw => OpenError::Unusable(path.to_owned(), flaw),
    })?;
    let database = match database {
        Ok(database) => {
            if contents.format < known {
                let changes = format::upgrade(&mut contents, upgrades);
                let written = format::write(&database, &changes, Some(known));
                written.map_err(|error| failed(io_error(error)))?;
            }
            Ok(database)
        }
        // A node with a full disk still restores its pods. Commits fail until there is space.
        Err(error) if is_full(&error) && contents.format == known => Err(error),
        Err(error) => return Err(failed(error)),
    };
    let (db, writer) = Writer::new(host.clock.clone(), path.to_owned(), file, database);
    Ok((db, writer, contents.stored))
}

/// Creates the directory and its missing parents, and makes their names durable.
fn create_dir(disk: &Disk, directory: &Path) -> Result<(), OpenError> {
    let failed = |error| OpenError::Io(directory.to_owned(), error);
    let missing =
        |path: &&Path| matches!(disk.stamp(path), Err(error) if error.kind() == io::ErrorKind::NotFound);
    let missing: Vec<&Path> = directory.ancestors().take_while(missing).collect();
    match disk.create_dir(directory) {
        Ok(()) => {}
        // "File exists": what is there is no directory, or cannot be reached.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = disk.stamp(directory).and(Err(io::ErrorKind::NotADirectory.into()));
            return found.map_err(failed);
        }
        Err(error) => return Err(failed(error)),
    }
    for parent in missing.into_iter().filter_map(Path::parent) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        disk.open(parent, Open::Read).and_then(|parent| parent.sync_all()).map_err(failed)?;
    }
    disk.check_private(directory).map_err(failed)
}

/// Opens a file and locks it for this process. The lock ends with the process at the latest.
///
/// The lock is on the file itself, and the file is the one at the path: another process that opens
/// the path finds the lock.
fn open_locked(disk: &Disk, path: &Path, how: Open) -> io::Result<Box<dyn OpenFile>> {
    let file = disk.open(path, how)?;
    file.lock()?;
    if file.attributes()?.stamp.identity == disk.stamp(path)?.identity {
        Ok(file)
    } else {
        // It was replaced in between: by another agent, which uses the new one.
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// Creates the database under another name, so that a file with its name is always complete.
fn create_file(host: &Host, directory: &Path, path: &Path) -> io::Result<()> {
    let (disk, new) = (&host.disk, directory.join(NEW));
    let file = open_locked(disk, &new, Open::Create)?;
    if disk.stamp(path).is_ok() {
        // Another agent was faster. It may use the file already.
        return Err(io::ErrorKind::WouldBlock.into());
    }
    file.set_len(0)?;
    let content = ReservedFile::new(disk.open(&new, Open::Write)?)?;
    create(host, &DatabaseFile::new(content)?, format::number(UPGRADES))?;
    file.sync_all()?;
    disk.rename(&new, path)?;
    disk.open(directory, Open::Read)?.sync_all()
}

fn create(host: &Host, file: &DatabaseFile, format: u64) -> io::Result<()> {
    let database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(file.clone());
    let database = database.map_err(|error| io_error(error.into()))?;
    format::create(&database, &host.random.uuid().to_string(), format).map_err(io_error)?;
    database.close().map_err(|error| io_error(error.into()))
}

fn foreign(path: &Path, what: &str) -> OpenError {
    OpenError::Unusable(path.to_owned(), Flaw::Foreign(what.to_owned()))
}
