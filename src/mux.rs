//! The sources' channels, the one loop that owns `PodStorage`, and the consumers' `Updates`.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    pod::{Listing, PodUpdate, SourceName},
    storage::Merged,
};

/// How a consumer wants to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notify {
    /// ADD, UPDATE, DELETE, REMOVE and RECONCILE, each with the pods concerned.
    #[default]
    Incremental,
    /// One SET with everything on any change.
    Snapshot,
    /// SET when something was added or removed, UPDATE, DELETE and RECONCILE for the rest.
    SnapshotAndUpdates,
}

/// The handle by which sources and consumers reach the mux. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Mux {}

impl Mux {
    /// A mux for these sources, and the loop that must be run for it to turn.
    #[must_use]
    pub fn new(_sources: &[SourceName]) -> (Self, MuxLoop) {
        unimplemented!()
    }

    /// The channel of a source: one for each, so that no source speaks in
    /// another's name. `None` if the source is not configured or its channel is taken.
    #[must_use]
    pub fn channel(&self, _source: SourceName) -> Option<SourceChannel> {
        unimplemented!()
    }

    /// A consumer's own ordered channel of updates. It starts from nothing.
    #[must_use]
    pub fn updates(&self, _notify: Notify) -> Updates {
        unimplemented!()
    }

    /// The merged view, for readers.
    #[must_use]
    pub fn merged(&self) -> watch::Receiver<Merged> {
        unimplemented!()
    }
}

/// The one loop that owns `PodStorage`.
#[derive(Debug)]
pub struct MuxLoop {}

impl MuxLoop {
    /// Merges every listing at once, until every source's channel is dropped or
    /// `stop` is cancelled; what was pushed before is merged first.
    pub async fn run(self, _stop: CancellationToken) {
        unimplemented!()
    }
}

/// A source's channel into the mux: one slot in which the latest listing wins.
#[derive(Debug)]
pub struct SourceChannel {}

impl SourceChannel {
    /// Whose channel it is.
    #[must_use]
    pub fn source(&self) -> SourceName {
        unimplemented!()
    }

    /// Hands a listing over. Never waits; a listing that nobody has looked at
    /// yet is replaced, and nothing is lost, for a listing is everything.
    ///
    /// # Panics
    /// If the listing is another source's.
    pub fn push(&self, _listing: Listing) {
        unimplemented!()
    }

    /// Waits until everything pushed so far has been merged and published.
    /// Returns false if the mux has ended before that. Cancel-safe.
    pub async fn merged(&self) -> bool {
        unimplemented!()
    }
}

/// A consumer's ordered channel of updates.
#[derive(Debug)]
pub struct Updates {}

impl Updates {
    /// The next update; waits if there is nothing new. `None` when the mux has
    /// ended and everything has been told.
    ///
    /// Cancel-safe: an update is either returned or still to come.
    pub async fn next(&mut self) -> Option<PodUpdate> {
        unimplemented!()
    }
}
