//! The newest updates, for watchers.
//!
//! Like client-go's event broadcaster (`apimachinery/pkg/watch/mux.go`), but a watcher can
//! start with earlier updates, and a watcher that is too slow begins again. No task waits for a
//! watcher.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use imbl::{OrdMap, ordmap::DiffItem};
use jiff::Timestamp;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use crate::{
    db::Sequence,
    error_chain::chain,
    host::Host,
    mux::Updates,
    outage::Outage,
    pod::{Op, PodKey, PodUpdate, SequencedUpdate, SourceName},
    storage::Merged,
};

/// The length of the queue of requests for snapshots.
const REQUESTS: usize = 64;
/// How many beginnings are remembered in whose middle no watcher can continue.
const UNFINISHED: usize = 1024;
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
    /// The number after which the history begins.
    floor: u64,
    /// The numbers in beginnings of watchers after which no watcher can continue: those of all SETs
    /// and ADDs but the last, from the first to the last of them.
    unfinished: VecDeque<(u64, u64)>,
    /// Nor can one continue after a lower number: it may be one of those, forgotten since.
    forgotten: u64,
}

impl Ring {
    fn push(&mut self, update: SequencedUpdate) {
        self.bytes += size(&update);
        self.held.push_back(Arc::new(update));
        let too_much = |ring: &Self| ring.held.len() > ring.bounds.updates || ring.bytes > ring.bounds.bytes;
        while too_much(self)
            && self.held.len() > 1
            && let Some(oldest) = self.held.pop_front()
        {
            self.bytes -= size(&oldest);
            self.rise(oldest.seq);
        }
    }

    /// Notes numbers after which no watcher can continue.
    fn note_unfinished(&mut self, first: u64, last: u64) {
        self.unfinished.push_back((first, last));
        if self.unfinished.len() > UNFINISHED
            && let Some((_, last)) = self.unfinished.pop_front()
        {
            self.forgotten = last + 1;
        }
    }

    fn rise(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        while self.unfinished.front().is_some_and(|(_, last)| *last < floor) {
            self.unfinished.pop_front();
        }
    }

    /// The number after which the next update comes: that of the newest one, if nothing is higher.
    fn last(&self) -> u64 {
        self.held.back().map_or(self.floor, |newest| newest.seq).max(self.forgotten)
    }

    /// The first update after a number; `None` if there is none yet.
    fn after(&self, seq: u64) -> Result<Option<Arc<SequencedUpdate>>, Gone> {
        if seq < self.floor {
            return Err(Gone);
        }
        let index = self.held.partition_point(|update| update.seq <= seq);
        Ok(self.held.get(index).cloned())
    }
}

fn size(update: &SequencedUpdate) -> usize {
    update.update.pods.iter().map(|pod| pod.text().len()).sum()
}

/// The history does not hold the requested update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the history does not hold the update")]
pub struct Gone;

/// The merged view and its position in the stream.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The view.
    pub merged: Merged,
    /// Its position: no later update has this number or a lower one.
    pub seq: u64,
    /// When the snapshot was taken.
    pub time: Timestamp,
    /// The number of the last update of each pod.
    versions: OrdMap<PodKey, u64>,
}

impl Snapshot {
    /// The number of the last update of a pod. It is that of the view if the update has no number yet.
    pub fn version(&self, key: &PodKey) -> u64 {
        self.versions.get(key).copied().unwrap_or(self.seq)
    }
}

/// The first updates of a watcher, and the number after which it continues.
type Beginning = (VecDeque<Arc<SequencedUpdate>>, u64);

/// A request of a reader.
#[derive(Debug)]
enum Request {
    /// The view and its position.
    Snapshot(oneshot::Sender<Snapshot>),
    /// The beginning of a stream.
    Beginning(oneshot::Sender<Beginning>),
}

/// The task that numbers the updates and keeps the newest ones.
#[derive(Debug)]
pub struct History {
    updates: Updates,
    sequence: Sequence,
    host: Host,
    ring: Arc<Mutex<Ring>>,
    /// The number of the last update of each pod.
    versions: OrdMap<PodKey, u64>,
    /// The view of the last snapshot.
    shown: Merged,
    /// The highest number in it that was no update: a posted pod bears that of its last write.
    written: u64,
    news: watch::Sender<()>,
    requests: mpsc::Receiver<Request>,
    /// The next update, if there is no number for it yet.
    unnumbered: Option<PodUpdate>,
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
        let ring = Ring {
            bounds,
            held: VecDeque::new(),
            bytes: 0,
            floor: sequence.last(),
            unfinished: VecDeque::new(),
            forgotten: 0,
        };
        let ring = Arc::new(Mutex::new(ring));
        let (news, seen) = watch::channel(());
        let (ask, requests) = mpsc::channel(REQUESTS);
        let reader = HistoryReader { ring: ring.clone(), news: seen, ask, sequence: sequence.clone() };
        let history = Self {
            updates,
            sequence,
            host: Host::default(),
            ring,
            versions: OrdMap::new(),
            shown: Merged::new(&[]),
            written: 0,
            news,
            requests,
            unnumbered: None,
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

    /// Records updates until the mux has ended. An update that has no number by then is part
    /// of the SETs with which the next run starts.
    pub async fn run(mut self) {
        let (mut failed, mut due) = (false, None);
        let sequence = self.sequence.clone();
        loop {
            let ready = self.sequence.is_ready();
            if ready {
                // Another task may have reserved the numbers.
                self.recovered();
                (failed, due) = (false, None);
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
                reserved = sequence.reserve(), if !ready && !failed => if let Err(error) = reserved {
                    failed = true;
                    self.waits(&chain(&error));
                },
                () = self.updates.mux_ended(), if is_waiting => return,
                update = self.updates.next(), if ready => match update {
                    Some(update) => {
                        self.unnumbered = Some(update);
                        self.record_all();
                    }
                    None => return,
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
        self.record_all();
        for request in std::mem::take(&mut self.waiting) {
            self.answer(Request::Beginning(request));
        }
    }

    /// Records what there is, as far as there are numbers.
    fn record_all(&mut self) {
        while self.sequence.is_ready()
            && let Some(update) = self.unnumbered.take().or_else(|| self.updates.try_next())
        {
            self.record(update);
        }
    }

    fn record(&mut self, update: PodUpdate) {
        let (seq, time) = (self.sequence.take(), self.host.clock.now());
        self.note_versions(&update, seq);
        lock(&self.ring).push(SequencedUpdate { seq, run: None, time, update, more: false });
        self.news.send_replace(());
    }

    fn note_versions(&mut self, update: &PodUpdate, seq: u64) {
        for pod in update.pods.iter() {
            match update.op {
                Op::Remove => drop(self.versions.remove(pod.key())),
                _ => drop(self.versions.insert(pod.key().clone(), seq)),
            }
        }
        if update.op == Op::Set {
            // It removes pods, too.
            let newest = self.updates.newest();
            let versions = self.versions.iter().filter(|(key, _)| newest.contains_key(*key));
            self.versions = versions.map(|(key, seq)| (key.clone(), *seq)).collect();
        }
    }

    /// The position of a view, which no version in it exceeds. O(differences to the last one).
    fn position(&mut self, merged: &Merged) -> u64 {
        for change in self.shown.diff(merged) {
            if let DiffItem::Add(_, new) | DiffItem::Update { new: (_, new), .. } = change
                && new.source() == SourceName::Http
            {
                self.written = self.written.max(new.pod().resource_version().unwrap_or_default());
            }
        }
        self.shown = merged.clone();
        lock(&self.ring).last().max(self.written)
    }

    /// Answers a request, after the stream has reached the newest view. While no number can be
    /// reserved, the view is ahead of the stream: a watcher that continues from there receives some
    /// changes twice, which is harmless.
    fn answer(&mut self, request: Request) {
        self.record_all();
        let is_ready = self.sequence.is_ready() && self.unnumbered.is_none();
        let merged = if is_ready { self.updates.newest() } else { self.updates.ahead() };
        // The reader may have gone away.
        match request {
            Request::Snapshot(request) => {
                let (seq, mut versions) = (self.position(&merged), self.versions.clone());
                // What has changed since has no number yet.
                for change in self.updates.delivered().diff(&merged) {
                    if let DiffItem::Update { new: (key, _), .. } = change {
                        versions.remove(key);
                    }
                }
                drop(request.send(Snapshot { merged, seq, time: self.host.clock.now(), versions }));
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
        if count > 1 {
            lock(&self.ring).note_unfinished(first, first + count - 2);
        }
        let numbered =
            |(seq, update)| Arc::new(SequencedUpdate { seq, run: None, time, update, more: false });
        ((first..).zip(updates).map(numbered).collect(), first + count.max(1) - 1)
    }
}

/// Reads a [`History`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HistoryReader {
    ring: Arc<Mutex<Ring>>,
    news: watch::Receiver<()>,
    ask: mpsc::Sender<Request>,
    sequence: Sequence,
}

impl HistoryReader {
    /// The id of the run.
    pub fn run(&self) -> &Arc<str> {
        self.sequence.run()
    }

    /// The newest view and its position; the stream continues with `seq + 1`. `None` if the
    /// history has ended. Cancel-safe.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let (request, answer) = oneshot::channel();
        self.ask.send(Request::Snapshot(request)).await.ok()?;
        answer.await.ok()
    }

    /// Watches the stream from a number on: that of an update, or the one after it.
    ///
    /// # Errors
    /// If this run has not given out the number before, or the history no longer holds the updates
    /// after it, or it is one in the middle of a beginning.
    pub fn watch(&self, from: u64) -> Result<Watcher, Gone> {
        let after = from.checked_sub(1).ok_or(Gone)?;
        let ring = lock(&self.ring);
        let is_unfinished = |(first, last): &(u64, u64)| (*first..=*last).contains(&after);
        if !self.sequence.has_given(after)
            || after < ring.forgotten
            || ring.unfinished.iter().any(is_unfinished)
        {
            return Err(Gone);
        }
        ring.after(after)?;
        drop(ring);
        Ok(Watcher { reader: self.clone(), after, first: VecDeque::new() })
    }

    /// Watches from now on, starting with a SET for each source, as soon as it has synced. `None` if
    /// the history has ended, or has no numbers.
    pub async fn watch_all(&self) -> Option<Watcher> {
        let (request, answer) = oneshot::channel();
        self.ask.send(Request::Beginning(request)).await.ok()?;
        let (first, after) = answer.await.ok()?;
        Some(Watcher { reader: self.clone(), after, first })
    }
}

/// Reads the stream at its own pace.
#[derive(Debug)]
pub struct Watcher {
    reader: HistoryReader,
    /// The number after which it continues.
    after: u64,
    /// The rest of its beginning.
    first: VecDeque<Arc<SequencedUpdate>>,
}

impl Watcher {
    /// The next update; waits if there is none yet. `None` after the last update of a history
    /// that has ended. A watcher that is too slow receives a beginning again, instead of the
    /// updates that it has missed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Arc<SequencedUpdate>> {
        loop {
            if let Some(update) = self.first.pop_front() {
                return Some(update);
            }
            self.reader.news.borrow_and_update();
            let next = lock(&self.reader.ring).after(self.after);
            match next {
                Ok(Some(update)) => {
                    self.after = update.seq;
                    return Some(update);
                }
                Ok(None) => self.reader.news.changed().await.ok()?,
                Err(Gone) => *self = self.reader.clone().watch_all().await?,
            }
        }
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    // A panic under the lock leaves the ring consistent.
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}
