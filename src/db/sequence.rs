//! The numbers of an update stream, which go on where an earlier run stopped.

use std::{collections::BTreeMap, str};

use super::{Change, Db, DbError, Stored, Table};

/// How many numbers are reserved at once: the most that an unclean stop skips.
const BLOCK: u64 = 10_000;

/// The numbers of one stream, from 1 on.
///
/// They are reserved durably in blocks before they are used, so none ever names
/// two updates. After a clean stop ([`close`](Self::close)) they go on without
/// a gap; after an unclean one they skip forward, by a block at most.
#[derive(Debug)]
pub struct Sequence {
    stream: String,
    db: Option<Db>,
    last: u64,
    reserved: u64,
}

impl Sequence {
    /// Numbers that begin at 1 in each run.
    #[must_use]
    pub fn fleeting() -> Self {
        Self { stream: String::new(), db: None, last: 0, reserved: u64::MAX }
    }

    /// Numbers that go on where the stream of this name stopped.
    #[must_use]
    pub fn durable(stream: &str, db: Db, stored: &Stored) -> Self {
        let none = BTreeMap::new();
        let streams = stored.tables.get(&Table::Streams).unwrap_or(&none);
        let text = streams.get(stream).and_then(|value| str::from_utf8(value).ok());
        let last = text.and_then(|text| text.parse().ok()).unwrap_or(0);
        Self { stream: stream.to_owned(), db: Some(db), last, reserved: last }
    }

    /// The last number that was given, or 0.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Makes sure that [`take`](Self::take) has a number to give. Cancel-safe.
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

    /// Whether [`take`](Self::take) has a number to give.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.last < self.reserved
    }

    /// The next number. `None` if none is reserved: see [`ready`](Self::ready).
    pub fn take(&mut self) -> Option<u64> {
        self.is_ready().then(|| {
            self.last += 1;
            self.last
        })
    }

    /// Gives back what was reserved and not used. Nothing is skipped then.
    ///
    /// # Errors
    /// If that cannot be stored; the next run skips forward.
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
