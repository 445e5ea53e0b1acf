//! Opening the database on a file that is not changed before it is verified.

use std::{
    io,
    panic::{self, AssertUnwindSafe},
};

use redb::{Builder, Database};

use super::{file::DatabaseFile, format::Flaw};

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
    match opened {
        Ok((database, read)) => {
            let Err(error) = file.release() else { return Ok((Ok(database), read)) };
            // redb writes when it is closed. That must not reach the disk either.
            file.hold();
            drop(database);
            file.discard();
            Ok((Err(error), read))
        }
        Err(flaw) => {
            file.discard();
            Err(flaw)
        }
    }
}
