//! The numbers of all update streams and of `metadata.resourceVersion`.

use std::{
    collections::BTreeMap,
    str,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::Mutex;

use super::{
    error::DbError,
    table::{Change, Stored, Table},
    writer::Db,
};

/// The numbers that are reserved at once: so few that the ceiling is behind the clock again at the
/// next start. If a copy of the state is put back later, the clock is ahead of all numbers.
const BLOCK: u64 = 100_000;
/// Fewer free numbers than this are not enough: several tasks take some at the same time.
const MARGIN: u64 = 10_000;
/// The key of the highest number that may be in use. Older versions have a key for each stream.
const CEILING: &str = "ceiling";

/// The one allocator of numbers, which never repeat. Cheap to clone.
///
/// It starts at the clock in microseconds or, if that is higher, where the state records that the
/// numbers of earlier runs end: blocks of them are reserved durably before they are used. Numbers
/// may be skipped. If state and clock both go back, numbers repeat; the id of the run identifies
/// them.
#[derive(Clone, Debug)]
pub struct Sequence(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    run: Arc<str>,
    last: AtomicU64,
    /// The number after which it started.
    start: u64,
    /// The highest number that may be used.
    ceiling: AtomicU64,
    db: OnceLock<Db>,
    /// The numbers between these two are of earlier runs, whose state was attached. The last of those is not between
    /// them if this run had no numbers before: its views have that one then.
    skipped: OnceLock<(u64, u64)>,
    reserving: Mutex<()>,
}

impl Sequence {
    /// Numbers of a run with this id, without state, from this time on.
    pub fn new(run: &str, now: Timestamp) -> Self {
        Self::after(run, u64::try_from(now.as_microsecond()).unwrap_or_default())
    }

    /// Numbers of a run with this id, without state, after this one.
    pub fn after(run: &str, last: u64) -> Self {
        Self(Arc::new(Shared {
            run: run.into(),
            last: AtomicU64::new(last),
            start: last,
            ceiling: AtomicU64::new(u64::MAX),
            db: OnceLock::new(),
            skipped: OnceLock::new(),
            reserving: Mutex::default(),
        }))
    }

    /// Continues after the numbers of earlier runs, which end at `last` or where this state says.
    /// From now on numbers are reserved in the state. A further call only raises the numbers.
    pub fn attach(&self, db: Db, stored: &Stored, last: u64) {
        let none = BTreeMap::new();
        let rows = stored.tables.get(&Table::Streams).unwrap_or(&none).values();
        let numbers = rows.filter_map(|value| str::from_utf8(value).ok()?.parse().ok());
        let end = numbers.fold(last, u64::max);
        // First: from now on a reservation is above the stored ceiling.
        let before = self.0.last.fetch_max(end, Ordering::SeqCst);
        if self.0.db.set(db).is_ok() {
            self.0.ceiling.store(0, Ordering::SeqCst);
            let is_late = before != self.0.start;
            // It is set once, as the database is.
            let _ = self.0.skipped.set((before, end + u64::from(is_late)));
        }
    }

    /// Whether this run has given out a number, or may have.
    pub fn has_given(&self, number: u64) -> bool {
        let is_skipped = |(before, end): &(u64, u64)| *before < number && number < *end;
        number <= self.last() && !self.0.skipped.get().is_some_and(is_skipped)
    }

    /// How far the last number is ahead of the clock, if that is at most what is reserved at once: what an
    /// agent waits for before it gives out numbers, so that the clock tells them from those of the next run.
    pub fn ahead_of(&self, now: Timestamp) -> Duration {
        let ahead = self.last().saturating_sub(u64::try_from(now.as_microsecond()).unwrap_or_default());
        // Otherwise the clock was set back.
        if ahead <= BLOCK { Duration::from_micros(ahead) } else { Duration::ZERO }
    }

    /// The id of the run: random, and part of no number.
    pub fn run(&self) -> &Arc<str> {
        &self.0.run
    }

    /// The last number that was taken, of this run or an earlier one.
    pub fn last(&self) -> u64 {
        self.0.last.load(Ordering::SeqCst)
    }

    /// Takes the next number. It may be used if [`is_ready`](Self::is_ready) was true before, or
    /// when [`reserve`](Self::reserve) has succeeded after.
    pub fn take(&self) -> u64 {
        self.take_some(1)
    }

    /// Takes several numbers in a row, and returns the first.
    pub fn take_some(&self, count: u64) -> u64 {
        self.0.last.fetch_add(count, Ordering::SeqCst) + 1
    }

    /// Whether enough numbers are reserved.
    pub fn is_ready(&self) -> bool {
        self.is_ready_for(0)
    }

    /// Whether enough numbers are reserved for a task that takes this many at once.
    pub fn is_ready_for(&self, count: u64) -> bool {
        self.last().saturating_add(MARGIN + count) <= self.0.ceiling.load(Ordering::SeqCst)
    }

    /// Reserves numbers, if needed: those that were taken, and the next ones. Cancel-safe.
    ///
    /// # Errors
    /// If a block cannot be stored.
    pub async fn reserve(&self) -> Result<(), DbError> {
        self.reserve_for(0).await
    }

    /// Reserves numbers for a task that takes this many at once, if needed. Cancel-safe.
    ///
    /// # Errors
    /// If a block cannot be stored.
    pub async fn reserve_for(&self, count: u64) -> Result<(), DbError> {
        if self.is_ready_for(count) {
            return Ok(());
        }
        let _alone = self.0.reserving.lock().await;
        let Some(db) = self.0.db.get().filter(|_| !self.is_ready_for(count)) else { return Ok(()) };
        let ceiling = self.last().saturating_add(BLOCK + count);
        let (table, value) = (Table::Streams, ceiling.to_string().into_bytes());
        db.commit(vec![Change { table, key: CEILING.to_owned(), value: Some(value.into()) }]).await?;
        self.0.ceiling.store(ceiling, Ordering::SeqCst);
        Ok(())
    }
}
