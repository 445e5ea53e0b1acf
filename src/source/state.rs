//! The state directory as the sources see it: open, or not yet.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::SourceFailing;
use crate::db::{Db, Stored};

/// An open state: the database, and the rows of an earlier run that no source has taken yet.
#[derive(Debug)]
pub struct State {
    /// Saves changes.
    pub db: Db,
    /// Each source takes its own rows.
    pub stored: Mutex<Stored>,
}

/// The state, or why it cannot be opened. It does not change any more once it is open.
pub type StateWatch = watch::Receiver<Result<Arc<State>, SourceFailing>>;
