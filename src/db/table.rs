//! Tables, values and changes.

use std::{collections::BTreeMap, sync::Arc};

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The posted pods, by `namespace/name`, and the counter of their versions. The http source's.
    Posted,
    /// The last-known-good pods of the file, url and api sources, by `source/origin`. Theirs.
    LastGood,
    /// The highest reserved number; older versions have a key for each stream. [`Sequence`](super::Sequence)'s.
    Streams,
    /// The pods that the exec runtime has started or may have started, by `namespace/name/UID`. Its ledger.
    Runs,
}

/// All rows of all tables.
pub type Tables = BTreeMap<Table, BTreeMap<String, Vec<u8>>>;

/// One change: sets or removes the value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: String,
    /// The value; `None` removes the key.
    pub value: Option<Value>,
}

/// A value that is not written yet. Its parts are concatenated when it is written, one value
/// after the other, so that a large commit is in memory only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(Vec<Arc<[u8]>>);

impl Value {
    /// The value as it is stored.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.concat()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self(vec![bytes.into()])
    }
}

impl From<Vec<Arc<[u8]>>> for Value {
    /// The concatenation of parts.
    fn from(parts: Vec<Arc<[u8]>>) -> Self {
        Self(parts)
    }
}

/// The verified content of a database.
#[derive(Debug, Default)]
pub struct Stored {
    /// The identity of the state directory: a UUID, made with it.
    pub instance: String,
    /// The tables.
    pub tables: Tables,
}
