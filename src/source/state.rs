//! The state directory as the sources see it: open, or not yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{SourceFailing, http::set::Set};
use crate::db::{Db, Stored};

/// An open state: the database, and what an earlier run has stored.
#[derive(Debug)]
pub struct State {
    /// Saves changes.
    pub db: Db,
    /// The posted pods.
    pub posted: Set,
    stored: Mutex<Stored>,
}

/// The state, or why it cannot be opened. It does not change any more once it is open.
pub type StateWatch = watch::Receiver<Result<Arc<State>, SourceFailing>>;

impl State {
    /// An open state.
    pub fn new(db: Db, posted: Set, stored: Stored) -> Self {
        Self { db, posted, stored: Mutex::new(stored) }
    }

    /// The rows that no source has taken yet.
    pub fn stored(&self) -> MutexGuard<'_, Stored> {
        // No panic under the lock leaves the rows inconsistent.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
