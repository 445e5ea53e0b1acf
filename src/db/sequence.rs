//! The numbers of an update stream, which continue after a restart.

use std::{collections::BTreeMap, str};

use super::{
    error::DbError,
    table::{Change, Stored, Table},
    writer::Db,
};

/// The numbers that are reserved at once: the most that an unclean stop skips.
const BLOCK: u64 = 10_000;

/// The numbers of one stream, from 1 on.
///
/// They are reserved durably in blocks before they are used, so that no number is given to two
/// updates. After a clean stop ([`close`](Self::close)) they continue without a gap, after an
/// unclean one with a gap of a block at most.
#[derive(Debug)]
pub struct Sequence {
    stream: String,
    db: Option<Db>,
    last: u64,
    reserved: u64,
}

impl Sequence {
    /// Numbers that start at 1 in each run.
    pub fn fleeting() -> Self {
        Self::fleeting_after(0)
    }

    /// Numbers of one run that start after this one.
    pub fn fleeting_after(last: u64) -> Self {
        Self { stream: String::new(), db: None, last, reserved: u64::MAX }
    }

    /// Numbers that continue where the stream of this name stopped.
    pub fn durable(stream: &str, db: Db, stored: &Stored) -> Self {
        let none = BTreeMap::new();
        let streams = stored.tables.get(&Table::Streams).unwrap_or(&none);
        let text = streams.get(stream).and_then(|value| str::from_utf8(value).ok());
        let last = text.and_then(|text| text.parse().ok()).unwrap_or(0);
        Self { stream: stream.to_owned(), db: Some(db), last, reserved: last }
    }

    /// The last number, or 0.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Reserves numbers, if needed, so that [`take`](Self::take) returns one. Cancel-safe.
    ///
    /// # Errors
    /// If a block cannot be reserved.
    pub async fn ready(&mut self) -> Result<(), DbError> {
        if self.last == self.reserved {
            let reserved = self.last + BLOCK;
            self.note(reserved).await?;
            self.reserved = reserved;
        }
        Ok(())
    }

    /// Whether [`take`](Self::take) returns a number.
    pub fn is_ready(&self) -> bool {
        self.last < self.reserved
    }

    /// The next number. `None` if it is not reserved: see [`ready`](Self::ready).
    pub fn take(&mut self) -> Option<u64> {
        self.is_ready().then(|| {
            self.last += 1;
            self.last
        })
    }

    /// Releases the unused numbers, so that no number is skipped.
    ///
    /// # Errors
    /// If that cannot be stored: the next run then starts with a gap.
    pub async fn close(mut self) -> Result<(), DbError> {
        self.reserved = self.last;
        self.note(self.last).await
    }

    async fn note(&self, number: u64) -> Result<(), DbError> {
        let Some(db) = &self.db else { return Ok(()) };
        let (table, key) = (Table::Streams, self.stream.clone());
        db.commit(vec![Change { table, key, value: Some(number.to_string().into_bytes().into()) }]).await
    }
}
