//! The content of the file: tables, a checksum for each value, their sum, and the number of the format.

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
];

/// The number of the format after a list of steps.
pub(super) fn number(upgrades: &[Upgrade]) -> u64 {
    1 + upgrades.len() as u64
}

/// The database's own table, with the rows below.
const META: &str = "meta";
const FORMAT: &str = "format";
const INSTANCE: &str = "instance";
const TOTALS: &str = "totals";

/// The size of the checksum at the beginning of each value.
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

/// The number of rows and the sum of their checksums. They reveal lost and foreign rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    rows: u64,
    sum: u64,
}

impl Totals {
    fn add(&mut self, checksum: u64) {
        self.rows = self.rows.wrapping_add(1);
        self.sum = self.sum.wrapping_add(checksum);
    }

    fn subtract(&mut self, checksum: u64) {
        self.rows = self.rows.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(checksum);
    }

    fn to_bytes(self) -> Vec<u8> {
        [self.rows.to_le_bytes(), self.sum.to_le_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (rows, sum) = bytes.split_first_chunk()?;
        Some(Self { rows: u64::from_le_bytes(*rows), sum: u64::from_le_bytes(sum.try_into().ok()?) })
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
    pub(super) totals: Totals,
}

/// Writes the first rows of a new database.
pub(super) fn create(database: &Database, instance: &str, format: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    for table in Table::ALL {
        transaction.open_table(Definition::new(table.name()))?;
    }
    set_meta(&transaction, INSTANCE, instance.as_bytes())?;
    set_meta(&transaction, FORMAT, format.to_string().as_bytes())?;
    set_meta(&transaction, TOTALS, &Totals::default().to_bytes())?;
    Ok(transaction.commit()?)
}

/// Reads and verifies everything.
pub(super) fn read(database: &Database, known: u64) -> Result<Contents, Flaw> {
    let meta = read_table(database, META)?
        .ok_or_else(|| Flaw::Foreign("it belongs to another program".to_owned()))?;
    let meta = |name: &str| {
        let value = meta.get(name).map(|(_, value)| value.clone());
        value.ok_or_else(|| Flaw::Damaged(format!("its {name} is missing")))
    };
    let text = |name: &str| String::from_utf8(meta(name)?).map_err(|_| wrong_checksum(META, name));
    let format: u64 = text(FORMAT)?
        .parse()
        .ok()
        .filter(|format| *format > 0)
        .ok_or_else(|| wrong_checksum(META, FORMAT))?;
    if format > known {
        return Err(Flaw::Newer(format, known));
    }
    let totals = Totals::from_bytes(&meta(TOTALS)?).ok_or_else(|| wrong_checksum(META, TOTALS))?;
    let (mut tables, mut found) = (Tables::new(), Totals::default());
    for table in Table::ALL {
        let rows = read_table(database, table.name())?.unwrap_or_default();
        let value = |(key, (checksum, value))| {
            found.add(checksum);
            (key, value)
        };
        tables.insert(table, rows.into_iter().map(value).collect());
    }
    if found != totals {
        return Err(Flaw::Damaged("rows are missing or were added".to_owned()));
    }
    Ok(Contents { stored: Stored { instance: text(INSTANCE)?, tables }, format, totals })
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

/// The totals that are stored in the file.
pub(super) fn totals(database: &Database) -> Result<Option<Totals>, redb::Error> {
    let table = database.begin_read()?.open_table(Definition::new(META))?;
    let value = table.get(TOTALS.as_bytes())?;
    Ok(value.and_then(|value| Totals::from_bytes(value.value().get(CHECKSUM..)?)))
}

/// Writes changes and the new totals in one transaction.
pub(super) fn write<'a>(
    database: &Database,
    totals: &mut Totals,
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
            let before = match &change.value {
                Some(value) => {
                    let (sum, value) = with_checksum(change.table.name(), &change.key, &value.bytes());
                    totals.add(sum);
                    table.insert(key, &*value)?
                }
                None => table.remove(key)?,
            };
            if let Some(checksum) = before.and_then(|before| before.value().first_chunk().copied()) {
                totals.subtract(u64::from_le_bytes(checksum));
            }
        }
    }
    set_meta(&transaction, TOTALS, &totals.to_bytes())?;
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
    let mut table = transaction.open_table(Definition::new(META))?;
    table.insert(name.as_bytes(), &*with_checksum(META, name, value).1)?;
    Ok(())
}

/// The rows of a table: the checksum and the value of each key.
type Rows = BTreeMap<String, (u64, Vec<u8>)>;

/// The rows of a table. `None` if the table does not exist.
fn read_table(database: &Database, name: &str) -> Result<Option<Rows>, Flaw> {
    let table = match database.begin_read()?.open_table(Definition::new(name)) {
        Ok(table) => table,
        Err(TableError::Storage(error)) => return Err(error.into()),
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(Flaw::Foreign(error.to_string())),
    };
    let mut rows = BTreeMap::new();
    for row in table.iter()? {
        let (key, value) = row?;
        let key = str::from_utf8(key.value()).map_err(|_| wrong_checksum(name, "a key"))?;
        let (sum, value) = value.value().split_first_chunk().ok_or_else(|| wrong_checksum(name, key))?;
        let sum = u64::from_le_bytes(*sum);
        if sum != checksum(name, key, value) {
            return Err(wrong_checksum(name, key));
        }
        rows.insert(key.to_owned(), (sum, value.to_owned()));
    }
    Ok(Some(rows))
}

fn wrong_checksum(table: &str, key: &str) -> Flaw {
    Flaw::Damaged(format!("{key} in {table} has a wrong checksum"))
}

/// The checksum of a value, and the value with the checksum before it.
fn with_checksum(table: &str, key: &str, value: &[u8]) -> (u64, Vec<u8>) {
    let checksum = checksum(table, key, value);
    (checksum, [&checksum.to_le_bytes(), value].concat())
}

fn checksum(table: &str, key: &str, value: &[u8]) -> u64 {
    let mut digest = Sha256::new();
    for part in [table.as_bytes(), key.as_bytes(), value] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let digest: [u8; 32] = digest.finalize().into();
    digest.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}
