//! The newest updates and the events of pods, for watchers.
//!
//! Like client-go's event broadcaster (`apimachinery/pkg/watch/mux.go`), but a watcher can
//! start with earlier updates, and a watcher that is too slow begins again. No task waits for a
//! watcher.
//!
//! The history is one journal. Each update of the stream and each event of a pod has a number of one
//! allocator, and an event's number is the pod's resourceVersion. What a runtime observes makes events, and no
//! update.

mod event;
mod reader;
mod ring;

use std::{future::pending, mem, pin::Pin, sync::Arc, time::Duration};

use imbl::{OrdMap, ordmap::DiffItem};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use self::{
    event::Seen,
    reader::{Beginning, Request},
    ring::{Step, lock},
};
pub use self::{
    event::{PodEvent, SeenPod},
    reader::{Changes, HeldChange, HistoryReader, Journal, JournalWriter, Snapshot, Watcher},
    ring::{Bounds, Change, Gone, Journaled},
};
use crate::{
    db::{DbError, Sequence},
    error_chain::chain,
    host::Host,
    mux::Updates,
    outage::Outage,
    pod::{PodKey, PodUpdate, SequencedUpdate},
    runtime::Observed,
};

/// The length of the queue of requests for snapshots.
const REQUESTS: usize = 64;
/// The delay after a failure to reserve numbers.
const RESERVE_DELAY: Duration = Duration::from_secs(1);

type Reserving = Pin<Box<dyn Future<Output = Result<(), DbError>> + Send>>;

/// A step that has no numbers yet.
#[derive(Debug)]
struct Unnumbered {
    update: Option<PodUpdate>,
    events: Vec<PodEvent>,
    /// What readers see after it.
    seen: Seen,
}

/// The task that numbers the updates and the events of pods, and keeps the newest ones.
#[derive(Debug)]
pub struct History {
    updates: Updates,
    sequence: Sequence,
    host: Host,
    journal: JournalWriter<SeenPod>,
    /// What a runtime observes; none if the agent runs no pods.
    observed: Option<watch::Receiver<Observed>>,
    /// What readers see after the last step.
    seen: Seen,
    /// The first and the last number of the events of each pod since its last write.
    versions: OrdMap<PodKey, (u64, u64)>,
    requests: mpsc::Receiver<Request>,
    /// The next step, if there are no numbers for it yet.
    unnumbered: Option<Unnumbered>,
    /// Whether there were numbers of this run. Views have the last number of the earlier runs until then, and no
    /// reader of another run may continue after that.
    has_begun: bool,
    /// The lowest number of a view that was ahead of the stream.
    ahead: Option<u64>,
    /// Watchers whose beginning has no numbers yet.
    waiting: Vec<oneshot::Sender<Beginning>>,
    /// The outage of the numbers.
    outage: Outage,
}

impl History {
    /// A history of these updates, and its reader. Each source begins with a SET, also for those
    /// that watch since before it has synced.
    pub fn new(mut updates: Updates, sequence: Sequence, bounds: Bounds) -> (Self, HistoryReader) {
        updates.restart();
        let (writer, journal) = Journal::new(bounds, sequence.clone());
        let (ask, requests) = mpsc::channel(REQUESTS);
        let reader = HistoryReader { journal, ask };
        let history = Self {
            updates,
            sequence,
            host: Host::default(),
            journal: writer,
            observed: None,
            seen: Seen::default(),
            versions: OrdMap::new(),
            requests,
            unnumbered: None,
            has_begun: false,
            ahead: None,
            waiting: Vec::new(),
            outage: Outage::default(),
        };
        (history, reader)
    }

    /// Uses this clock.
    #[must_use]
    pub fn on(self, host: Host) -> Self {
        Self { host, ..self }
    }

    /// Records what a runtime observes too.
    #[must_use]
    pub fn observing(self, observed: Option<watch::Receiver<Observed>>) -> Self {
        Self { observed, ..self }
    }

    /// Records updates and events until the mux has ended. An update that has no number by then is part
    /// of the SETs with which the next run starts.
    pub async fn run(mut self) {
        let (mut failed, mut due) = (false, None);
        let mut reserving: Option<Reserving> = None;
        loop {
            let count = self.unnumbered.as_ref().map_or(0, |step| step.events.len() as u64);
            let ready = self.sequence.is_ready_for(count);
            if ready {
                if !mem::replace(&mut self.has_begun, true) {
                    lock(&self.journal.ring).begin(self.sequence.take());
                }
                // Another task may have reserved the numbers.
                self.recovered();
                (failed, due) = (false, None);
            } else if !failed && reserving.is_none() {
                let sequence = self.sequence.clone();
                // It goes on over requests and delays: a reservation that is not awaited is lost.
                reserving = Some(Box::pin(async move { sequence.reserve_for(count).await }));
            }
            let is_waiting = self.outage.since().is_some();
            let at = if ready {
                Instant::now()
            } else {
                *due.get_or_insert_with(|| Instant::now() + RESERVE_DELAY)
            };
            tokio::select! {
                biased;
                // Requests are answered also while no number can be reserved.
                Some(request) = self.requests.recv(), if ready || is_waiting => self.answer(request),
                () = sleep_until(at), if !ready => {
                    if !failed {
                        self.waits("the database does not answer");
                    }
                    (failed, due) = (false, None);
                }
                reserved = async {
                    match &mut reserving {
                        Some(reserving) => reserving.await,
                        None => pending().await,
                    }
                } => {
                    reserving = None;
                    if let Err(error) = reserved {
                        failed = true;
                        self.waits(&chain(&error));
                    }
                }
                () = self.updates.mux_ended(), if is_waiting => return,
                has_more = self.updates.changed(), if ready => {
                    self.record_one();
                    if !has_more && self.unnumbered.is_none() {
                        return;
                    }
                }
                () = changed(self.observed.as_mut()), if ready => {
                    // Until a step has it: there may be no numbers meanwhile.
                    self.observed.iter_mut().for_each(watch::Receiver::mark_changed);
                    self.record_one();
                }
            }
        }
    }

    fn waits(&mut self, error: &str) {
        if self.outage.failed(error, self.host.clock.now()) {
            tracing::warn!(error, "history waits: no number can be reserved for /updates");
        }
    }

    fn recovered(&mut self) {
        if let Some(attempts) = self.outage.recovered() {
            tracing::info!(attempts, "history recovered: /updates continues");
        }
        self.catch_up();
        // The others come one by one, so that requests are answered in between.
        if self.unnumbered.is_some() {
            self.record_one();
        }
        // The next view is none of those that were ahead, although nothing may have changed since.
        let mut ring = lock(&self.journal.ring);
        if ring.is_ahead(ring.last()) {
            ring.note_given(self.sequence.take());
        }
        drop(ring);
        for request in mem::take(&mut self.waiting) {
            self.answer(Request::Beginning(request));
        }
    }

    /// The journal goes on: who has a view that was ahead of it begins again.
    fn catch_up(&mut self) {
        if let Some(first) = self.ahead.take() {
            self.journal.note_ahead(first);
        }
    }

    /// Records the next step, if there is one and there are numbers for it.
    fn record_one(&mut self) -> bool {
        if !self.sequence.is_ready() {
            return false;
        }
        let Some(step) = self.unnumbered.take().or_else(|| self.next_step()) else { return false };
        let is_ready = self.sequence.is_ready_for(step.events.len() as u64);
        if is_ready {
            self.record(step);
        } else {
            self.unnumbered = Some(step);
        }
        is_ready
    }

    /// The next update, and how what readers see changes with it or without one.
    fn next_step(&mut self) -> Option<Unnumbered> {
        let update = self.updates.try_next();
        let observed = self.observed.as_mut().map(|observed| observed.borrow_and_update().clone());
        let seen = Seen { pods: (**self.updates.delivered()).clone(), observed };
        let events = self.seen.events(&seen);
        if update.is_none() && events.is_empty() {
            self.seen = seen;
            return None;
        }
        Some(Unnumbered { update, events, seen })
    }

    fn record(&mut self, step: Unnumbered) {
        let Unnumbered { update, mut events, seen } = step;
        self.catch_up();
        self.seen = seen;
        let mut seq = lock(&self.journal.ring).last();
        events.sort_by_cached_key(PodEvent::written);
        for event in &mut events {
            // The pod got the first when it was posted, but a reader may have a higher one already.
            let written = event.written();
            let is_next = written > seq && self.sequence.has_given(written);
            seq = if is_next { written } else { self.sequence.take() };
            event.number = seq;
            let Some(key) = event.key().cloned() else { continue };
            let is_write = event.old.as_ref().map_or(0, SeenPod::written) != written;
            let first = self.versions.remove(&key).filter(|_| !is_write).map_or(seq, |versions| versions.0);
            if event.new.is_some() {
                self.versions.insert(key, (first, seq));
            }
        }
        if events.is_empty() {
            seq = self.sequence.take();
        }
        let time = self.host.clock.now();
        let update =
            update.map(|update| Arc::new(SequencedUpdate { seq, run: None, time, update, more: false }));
        self.journal.push(Step { seq, update, changes: events.into() });
    }

    /// Answers a request, after the stream has reached the newest view. While no number can be
    /// reserved, the view is ahead of the stream. Who continues from there begins again when there are
    /// numbers: a pod that was in the view and went meanwhile makes no change.
    fn answer(&mut self, request: Request) {
        while self.record_one() {}
        let is_ready = self.sequence.is_ready() && self.unnumbered.is_none();
        let merged = if is_ready { self.updates.newest() } else { self.updates.ahead() };
        // The reader may have gone away.
        match request {
            Request::Snapshot(given, request) => {
                let (mut seq, mut versions) =
                    (lock(&self.journal.ring).last().max(given), self.versions.clone());
                // What has changed since has no number yet. A pod in which readers see no difference keeps its number: no
                // event will come.
                for change in self.seen.pods.diff(&merged) {
                    let (key, old, new) = match change {
                        DiffItem::Add(key, new) => (key, None, new),
                        DiffItem::Update { old: (_, old), new: (key, new) } => (key, Some(old), new),
                        DiffItem::Remove(..) => continue,
                    };
                    let new = SeenPod::new(new, None);
                    if old.is_none_or(|old| !new.is_read_as(&SeenPod::new(old, None))) {
                        versions.remove(key);
                        seq = seq.max(new.written());
                    }
                }
                lock(&self.journal.ring).note_given(seq);
                let newest = || self.observed.as_ref().map(|observed| observed.borrow().clone());
                let observed = if is_ready { self.seen.observed.clone() } else { newest() };
                let shown = Seen { pods: (*merged).clone(), observed: observed.clone() };
                if !is_ready && !self.seen.events(&shown).is_empty() {
                    self.ahead.get_or_insert(seq);
                }
                drop(request.send(Snapshot { merged, observed, seq, time: self.host.clock.now(), versions }));
            }
            Request::Beginning(request) if is_ready => drop(request.send(self.beginning())),
            Request::Beginning(request) => {
                self.waiting.retain(|request| !request.is_closed());
                self.waiting.push(request);
            }
        }
    }

    /// A SET of each source whose pods are all known, and an ADD of the other pods of each. A
    /// watcher that has received the last one continues after it.
    fn beginning(&self) -> Beginning {
        let updates = self.updates.beginning();
        let (count, time) = (updates.len() as u64, self.host.clock.now());
        let first = self.sequence.take_some(count.max(1));
        let last = first + count.max(1) - 1;
        lock(&self.journal.ring).note_beginning(first, last);
        let numbered =
            |(seq, update)| Arc::new(SequencedUpdate { seq, run: None, time, update, more: false });
        ((first..).zip(updates).map(numbered).collect(), last)
    }
}

/// Waits until a value has changed; for ever if there is none, or its sender is gone.
pub(crate) async fn changed<T>(value: Option<&mut watch::Receiver<T>>) {
    if let Some(value) = value
        && value.changed().await.is_ok()
    {
        return;
    }
    pending::<()>().await;
}
