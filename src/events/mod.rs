//! The `v1.Event`s that the agent reports of pods and of its node: what is rejected, restored, started, stopped and
//! failing.
//!
//! One task compares what the agent publishes with what it has published before. Events are held in memory alone: after
//! a restart they begin again.

mod event;
mod facts;
mod log;
mod port_conflicts;

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::future::select_all;
use imbl::OrdMap;
use jiff::Timestamp;
use tokio::{sync::watch, time::sleep};

pub use self::{
    event::{Event, Fact, Involved},
    facts::{Published, facts},
    log::{EventLog, MAX_BYTES, MAX_EVENTS},
};
use crate::{
    db::Sequence,
    history::{Bounds, Journal, JournalWriter, changed},
    host::Host,
    pod::{NodeName, PodKey, SourceName},
    runtime::{Observed, WorkersStatus},
    source::SourceStatus,
    storage::Merged,
};

/// How many changes of events a watcher can be behind, and their size.
const BOUNDS: Bounds = Bounds { updates: 1000, bytes: 2 << 20 };
/// The delay after a failure to reserve numbers.
const RESERVE_DELAY: Duration = Duration::from_secs(1);

/// The held events, and their position.
#[derive(Clone, Debug, Default)]
pub struct HeldEvents {
    /// By namespace and name.
    pub by_key: OrdMap<PodKey, Arc<Event>>,
    /// No later change has this number or a lower one.
    pub seq: u64,
}

/// Reads the events. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EventReader {
    held: watch::Receiver<HeldEvents>,
    journal: Journal<Arc<Event>>,
}

impl EventReader {
    /// The held events. O(1).
    pub fn held(&self) -> HeldEvents {
        self.held.borrow().clone()
    }

    /// The changes of events.
    pub fn journal(&self) -> &Journal<Arc<Event>> {
        &self.journal
    }
}

/// The task that records events.
#[derive(Debug)]
pub struct Events {
    node: NodeName,
    merged: watch::Receiver<Merged>,
    sources: Vec<(SourceName, watch::Receiver<SourceStatus>)>,
    observed: Option<watch::Receiver<Observed>>,
    workers: Option<watch::Receiver<WorkersStatus>>,
    sequence: Sequence,
    host: Host,
    start: Timestamp,
    log: EventLog,
    held: watch::Sender<HeldEvents>,
    journal: JournalWriter<Arc<Event>>,
}

impl Events {
    /// The events of this node, and their reader. Their numbers are of this allocator.
    pub fn new(
        node: NodeName,
        merged: watch::Receiver<Merged>,
        sources: Vec<(SourceName, watch::Receiver<SourceStatus>)>,
        sequence: Sequence,
        host: Host,
    ) -> (Self, EventReader) {
        let (journal, reader) = Journal::new(BOUNDS, sequence.clone());
        let held = watch::Sender::new(HeldEvents { seq: reader.last(), ..HeldEvents::default() });
        let reader = EventReader { held: held.subscribe(), journal: reader };
        let (observed, workers, log, start) = (None, None, EventLog::default(), host.clock.now());
        (Self { node, merged, sources, observed, workers, sequence, host, start, log, held, journal }, reader)
    }

    /// Records what a runtime observes and what its workers do too.
    #[must_use]
    pub fn observing(
        self,
        observed: Option<watch::Receiver<Observed>>,
        workers: Option<watch::Receiver<WorkersStatus>>,
    ) -> Self {
        Self { observed, workers, ..self }
    }

    /// Records events until the mux has ended.
    pub async fn run(mut self) {
        let mut merged = self.merged.clone();
        let mut ended = pin!(async move { while merged.changed().await.is_ok() {} });
        let mut before = Published::default();
        loop {
            let after = self.published();
            // The clock may be set back.
            self.start = self.start.min(self.host.clock.now());
            let facts = facts(&self.node, self.start, &before, &after);
            before = after;
            tokio::select! {
                () = &mut ended => return,
                () = self.record(facts) => {}
            }
            tokio::select! {
                () = &mut ended => return,
                () = self.changed() => {}
            }
        }
    }

    fn published(&mut self) -> Published {
        let workers = self.workers.as_mut().map(|workers| workers.borrow_and_update().pods.clone());
        let failing = |(name, status): &mut (SourceName, watch::Receiver<SourceStatus>)| {
            (*name, status.borrow_and_update().failing.clone())
        };
        Published {
            workers: workers.unwrap_or_default(),
            observed: self.observed.as_mut().map(|all| all.borrow_and_update().clone()).unwrap_or_default(),
            failing: self.sources.iter_mut().map(failing).collect(),
            merged: self.merged.borrow_and_update().clone(),
        }
    }

    async fn record(&mut self, facts: Vec<Fact>) {
        if facts.is_empty() {
            return;
        }
        // Each fact can be reported, and replace an older event.
        let count = 2 * facts.len() as u64;
        while !self.sequence.is_ready_for(count) {
            // The history logs the error: its numbers are of the same allocator.
            if self.sequence.reserve_for(count).await.is_err() {
                sleep(RESERVE_DELAY).await;
            }
        }
        let now = self.host.clock.now();
        let record = |fact| self.log.record(&self.node, fact, now, || self.sequence.take());
        let changes: Vec<_> = facts.into_iter().flat_map(record).collect();
        let Some(seq) = changes.last().map(|change| change.number) else { return };
        self.journal.record(changes);
        self.held.send_replace(HeldEvents { by_key: self.log.held().clone(), seq });
    }

    /// Waits until something that is published has changed.
    async fn changed(&mut self) {
        let mut all: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> =
            vec![Box::pin(changed(Some(&mut self.merged)))];
        all.push(Box::pin(changed(self.observed.as_mut())));
        all.push(Box::pin(changed(self.workers.as_mut())));
        all.extend(self.sources.iter_mut().map(|(_, status)| Box::pin(changed(Some(status))) as _));
        select_all(all).await;
    }
}
