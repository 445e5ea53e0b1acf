//! The newest updates, for watchers.
//!
//! Like client-go's event broadcaster (`apimachinery/pkg/watch/mux.go`), but a watcher can
//! start with earlier updates, and a watcher that is too slow receives an error. No task
//! waits for a watcher.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::sleep,
};

use crate::{
    db::{DbError, Sequence},
    error_chain::chain,
    host::Host,
    mux::Updates,
    outage::Outage,
    pod::{PodUpdate, SequencedUpdate},
    storage::{Merged, everything},
};

/// The length of the queue of requests for snapshots.
const REQUESTS: usize = 64;
/// The delay after a failure to reserve numbers.
const RESERVE_DELAY: Duration = Duration::from_secs(1);

/// The limits of the history; the oldest updates are dropped when one is exceeded.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The number of updates.
    pub updates: usize,
    /// The size of their pods in bytes. The newest update may exceed it. Pods of the merged
    /// view count too, although they share its memory.
    pub bytes: usize,
}

impl Default for Bounds {
    /// 4,096 updates, 32 MiB.
    fn default() -> Self {
        Self { updates: 4096, bytes: 32 << 20 }
    }
}

/// The updates of the history.
#[derive(Debug)]
struct Ring {
    bounds: Bounds,
    held: VecDeque<Arc<SequencedUpdate>>,
    bytes: usize,
    /// The number of the newest update, perhaps of an earlier run.
    last: u64,
}

impl Ring {
    fn push(&mut self, update: SequencedUpdate) {
        self.last = update.seq;
        self.bytes += size(&update);
        self.held.push_back(Arc::new(update));
        let too_much = |ring: &Self| ring.held.len() > ring.bounds.updates || ring.bytes > ring.bounds.bytes;
        while too_much(self) && self.held.len() > 1 {
            let oldest = self.held.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| size(&oldest));
        }
    }

    /// The number of the oldest update, or the next number if there is none.
    fn first(&self) -> u64 {
        self.held.front().map_or(self.last + 1, |oldest| oldest.seq)
    }

    /// The update of a number; `None` if it is the next number.
    fn get(&self, seq: u64) -> Result<Option<Arc<SequencedUpdate>>, Gone> {
        let (first, next) = (self.first(), self.last + 1);
        if seq < first || seq > next {
            return Err(Gone { asked: seq, first, next });
        }
        // The numbers of one run have no gaps.
        Ok(self.held.get(usize::try_from(seq - first).unwrap_or(usize::MAX)).cloned())
    }
}

fn size(update: &SequencedUpdate) -> usize {
    update.update.pods.iter().map(|pod| pod.text().len()).sum()
}

/// The requested update is not in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("update {asked} is not in the history: its first update is {first}, the next one will be {next}")]
pub struct Gone {
    /// The requested number.
    pub asked: u64,
    /// The number of the oldest update (the next number if there is none).
    pub first: u64,
    /// The number of the next update.
    pub next: u64,
}

/// The merged view and its position in the stream.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The view.
    pub merged: Merged,
    /// The number of the last update that led to it.
    pub seq: u64,
    /// When the snapshot was taken.
    pub time: Timestamp,
}

/// The task that numbers the updates and keeps the newest ones.
#[derive(Debug)]
pub struct History {
    updates: Updates,
    sequence: Sequence,
    host: Host,
    ring: Arc<Mutex<Ring>>,
    news: watch::Sender<u64>,
    requests: mpsc::Receiver<oneshot::Sender<Snapshot>>,
    /// Whether the first update must be a SET, because an earlier run has used the stream.
    resumes: bool,
    /// The outage of the numbers.
    outage: Outage,
}

impl History {
    /// A history of these updates, and its reader.
    ///
    /// If an earlier run has used the stream, it continues with a SET of all pods, so that a
    /// watcher of that run can continue.
    pub fn new(updates: Updates, sequence: Sequence, bounds: Bounds) -> (Self, HistoryReader) {
        let last = sequence.last();
        let ring = Arc::new(Mutex::new(Ring { bounds, held: VecDeque::new(), bytes: 0, last }));
        let (news, seen) = watch::channel(last);
        let (ask, requests) = mpsc::channel(REQUESTS);
        let reader = HistoryReader { ring: ring.clone(), news: seen, ask };
        let (host, outage) = (Host::default(), Outage::default());
        (Self { updates, sequence, host, ring, news, requests, resumes: last > 0, outage }, reader)
    }

    /// Uses this clock.
    #[must_use]
    pub fn on(self, host: Host) -> Self {
        Self { host, ..self }
    }

    /// Records updates until the mux has ended. An update that has no number by then is part
    /// of the SET with which the next run starts.
    ///
    /// # Errors
    /// If the last number cannot be stored: the next run skips some.
    pub async fn run(mut self) -> Result<(), DbError> {
        let mut failed = false;
        loop {
            let (ready, is_waiting) = (self.sequence.is_ready(), self.outage.since().is_some());
            tokio::select! {
                biased;
                // Requests are answered also while no number can be reserved.
                Some(request) = self.requests.recv(), if ready || is_waiting => self.answer(request),
                () = sleep(RESERVE_DELAY), if !ready => {
                    failed = false;
                    self.waits("the database does not answer");
                }
                reserved = self.sequence.ready(), if !ready && !failed => match reserved {
                    Ok(()) => self.recovered(),
                    Err(error) => {
                        failed = true;
                        self.waits(&chain(&error));
                    }
                },
                () = self.updates.mux_ended(), if is_waiting => return Ok(()),
                update = self.updates.next(), if ready => match update {
                    Some(update) => self.record(update),
                    None => return self.sequence.close().await,
                },
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
    }

    fn record(&mut self, mut update: PodUpdate) {
        if mem::take(&mut self.resumes) {
            while self.updates.try_next().is_some() {}
            update = everything(&self.updates.newest());
        }
        let Some(seq) = self.sequence.take() else { return };
        lock(&self.ring).push(SequencedUpdate { seq, time: self.host.clock.now(), update });
        self.news.send_replace(seq);
    }

    /// Answers with a snapshot, after the stream has reached the newest view. While no number
    /// can be reserved, the view is ahead of the stream: a watcher that continues from there
    /// receives some changes twice, which is harmless.
    fn answer(&mut self, request: oneshot::Sender<Snapshot>) {
        while self.sequence.is_ready()
            && let Some(update) = self.updates.try_next()
        {
            self.record(update);
        }
        let ready = self.sequence.is_ready();
        let merged = if ready { self.updates.newest() } else { self.updates.ahead() };
        // The reader may have gone away.
        let _ = request.send(Snapshot { merged, seq: self.sequence.last(), time: self.host.clock.now() });
    }
}

/// Reads a [`History`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HistoryReader {
    ring: Arc<Mutex<Ring>>,
    news: watch::Receiver<u64>,
    ask: mpsc::Sender<oneshot::Sender<Snapshot>>,
}

impl HistoryReader {
    /// The newest view and its position; the stream continues with `seq + 1`. `None` if the
    /// history has ended. Cancel-safe.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let (request, answer) = oneshot::channel();
        self.ask.send(request).await.ok()?;
        answer.await.ok()
    }

    /// Watches the stream from a number on, which may be the next one.
    ///
    /// # Errors
    /// If that update is not in the history.
    pub fn watch(&self, from: u64) -> Result<Watcher, Gone> {
        lock(&self.ring).get(from)?;
        Ok(Watcher { reader: self.clone(), next: from, first: None })
    }

    /// Watches from now on, starting with a SET of all pods, whose number is that of the last
    /// update that it includes. `None` if the history has ended.
    pub async fn watch_all(&self) -> Option<Watcher> {
        let Snapshot { merged, seq, time } = self.snapshot().await?;
        let first = SequencedUpdate { seq, time, update: everything(&merged) };
        Some(Watcher { reader: self.clone(), next: seq + 1, first: Some(Arc::new(first)) })
    }
}

/// Reads the stream at its own pace.
#[derive(Debug)]
pub struct Watcher {
    reader: HistoryReader,
    next: u64,
    first: Option<Arc<SequencedUpdate>>,
}

impl Watcher {
    /// The next update; waits if there is none yet. `None` after the last update of a history
    /// that has ended. Cancel-safe.
    ///
    /// # Errors
    /// If the watcher was too slow and the update has been dropped: it must start again with a
    /// snapshot.
    pub async fn next(&mut self) -> Result<Option<Arc<SequencedUpdate>>, Gone> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            self.reader.news.borrow_and_update();
            if let Some(update) = lock(&self.reader.ring).get(self.next)? {
                self.next += 1;
                return Ok(Some(update));
            }
            if self.reader.news.changed().await.is_err() {
                return Ok(None);
            }
        }
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    // A panic under the lock leaves the ring consistent.
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}
