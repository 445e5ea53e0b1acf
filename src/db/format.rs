//! The content of the file: tables, and the number of the format.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
};

use redb::{
    Database, ReadableDatabase as _, ReadableTable as _, TableDefinition, TableError, WriteTransaction,
};
use sha2::{Digest as _, Sha256};

use super::{
    error::Flaw,
    table::{Change, Stored, Table, Tables},
};

/// One step from a format to the next: returns the changes of the stored tables.
pub type Upgrade = fn(&Tables) -> Vec<Change>;

/// The upgrade steps. The first leads from format 1 to format 2, and so on. All steps that a
/// file needs are one commit, when it is opened. A release that changes the meaning of a value
/// adds a step at the end and never changes an earlier one.
pub const UPGRADES: &[Upgrade] = &[
    // Format 2 has the table `runs`: to an older version its rows would look like damage.
    |_| Vec::new(),
    // Before format 3 each value began with a checksum. redb has one for every page.
    |tables| {
        let rows =
            tables.iter().flat_map(|(table, rows)| rows.iter().map(|(key, value)| (*table, key, value)));
        let without = |value: &[u8]| value.get(CHECKSUM..).unwrap_or_default().to_vec().into();
        rows.map(|(table, key, value)| Change { table, key: key.clone(), value: Some(without(value)) })
            .collect()
    },
];

/// The number of the format after a list of steps.
pub(super) fn number(upgrades: &[Upgrade]) -> u64 {
    1 + upgrades.len() as u64
}

/// The database's own table, with the rows below. Its values begin with a checksum, so that older
/// versions, which verify it, reject a newer format by name.
const META: &str = "meta";
const FORMAT: &str = "format";
const INSTANCE: &str = "instance";

/// The size of that checksum.
const CHECKSUM: usize = 8;

type Definition<'a> = TableDefinition<'a, &'static [u8], &'static [u8]>;

impl Table {
    pub(super) const ALL: [Self; 4] = [Self::Posted, Self::LastGood, Self::Streams, Self::Runs];

    /// The table's name in the file.
    const fn name(self) -> &'static str {
        match self {
            Self::Posted => "posted",
            Self::LastGood => "good",
            Self::Streams => "streams",
            Self::Runs => "runs",
        }
    }
}

/// The error of the disk, if it is one.
pub(super) fn io_error(error: redb::Error) -> io::Error {
    match error {
        redb::Error::Io(error) => error,
        error => io::Error::other(error),
    }
}

/// The content of a file.
pub(super) struct Contents {
    pub(super) stored: Stored,
    pub(super) format: u64,
}

/// Writes the first rows of a new database.
pub(super) fn create(database: &Database, instance: &str, format: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    for table in Table::ALL {
        transaction.open_table(Definition::new(table.name()))?;
    }
    set_meta(&transaction, INSTANCE, instance.as_bytes())?;
    set_meta(&transaction, FORMAT, format.to_string().as_bytes())?;
    Ok(transaction.commit()?)
}

/// Reads everything. redb has verified it.
pub(super) fn read(database: &Database, known: u64) -> Result<Contents, Flaw> {
    let meta = read_table(database, META)?
        .ok_or_else(|| Flaw::Foreign("it belongs to another program".to_owned()))?;
    let meta = |name: &str| {
        let value = meta.get(name).and_then(|value| value.get(CHECKSUM..)).map(<[u8]>::to_vec);
        value.and_then(|value| String::from_utf8(value).ok()).ok_or_else(|| invalid(META, name))
    };
    let format: u64 =
        meta(FORMAT)?.parse().ok().filter(|format| *format > 0).ok_or_else(|| invalid(META, FORMAT))?;
    if format > known {
        return Err(Flaw::Newer(format, known));
    }
    let mut tables = Tables::new();
    for table in Table::ALL {
        tables.insert(table, read_table(database, table.name())?.unwrap_or_default());
    }
    Ok(Contents { stored: Stored { instance: meta(INSTANCE)?, tables }, format })
}

/// Applies the steps from the format of the content to the newest. Returns their changes.
pub(super) fn upgrade(contents: &mut Contents, upgrades: &[Upgrade]) -> Vec<Change> {
    let done = usize::try_from(contents.format - 1).unwrap_or(usize::MAX);
    let mut changes = Vec::new();
    for step in upgrades.iter().skip(done) {
        for change in step(&contents.stored.tables) {
            let table = contents.stored.tables.entry(change.table).or_default();
            match &change.value {
                Some(value) => table.insert(change.key.clone(), value.bytes()),
                None => table.remove(&change.key),
            };
            changes.push(change);
        }
    }
    contents.format = number(upgrades);
    changes
}

/// Writes changes in one transaction.
pub(super) fn write<'a>(
    database: &Database,
    changes: impl IntoIterator<Item = &'a Change>,
    format: Option<u64>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut tables = BTreeMap::new();
        for change in changes {
            let table = match tables.entry(change.table) {
                Entry::Occupied(opened) => opened.into_mut(),
                Entry::Vacant(not_yet) => {
                    not_yet.insert(transaction.open_table(Definition::new(change.table.name()))?)
                }
            };
            let key = change.key.as_bytes();
            match &change.value {
                Some(value) => table.insert(key, &*value.bytes())?,
                None => table.remove(key)?,
            };
        }
    }
    if let Some(format) = format {
        set_meta(&transaction, FORMAT, format.to_string().as_bytes())?;
    }
    Ok(transaction.commit()?)
}

/// An empty commit.
pub(super) fn seal(database: &Database) -> Result<(), redb::Error> {
    Ok(database.begin_write()?.commit()?)
}

fn set_meta(transaction: &WriteTransaction, name: &str, value: &[u8]) -> Result<(), redb::Error> {
    let mut digest = Sha256::new();
    for part in [META.as_bytes(), name.as_bytes(), value] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let value = [&digest.finalize()[..CHECKSUM], value].concat();
    let mut table = transaction.open_table(Definition::new(META))?;
    table.insert(name.as_bytes(), &*value)?;
    Ok(())
}

/// The rows of a table. `None` if the table does not exist.
fn read_table(database: &Database, name: &str) -> Result<Option<BTreeMap<String, Vec<u8>>>, Flaw> {
    let table = match database.begin_read()?.open_table(Definition::new(name)) {
        Ok(table) => table,
        Err(TableError::Storage(error)) => return Err(error.into()),
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(Flaw::Foreign(error.to_string())),
    };
    let mut rows = BTreeMap::new();
    for row in table.iter()? {
        let (key, value) = row?;
        let key = str::from_utf8(key.value()).map_err(|_| invalid(name, "a key"))?;
        rows.insert(key.to_owned(), value.value().to_owned());
    }
    Ok(Some(rows))
}

fn invalid(table: &str, key: &str) -> Flaw {
    Flaw::Damaged(format!("{key} in {table} is missing or invalid"))
}
