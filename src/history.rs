//! The bounded history of updates, and those who watch it.
//!
//! The descendant of client-go's event broadcaster
//! (`apimachinery/pkg/watch/mux.go`): a watcher starts with what it missed, and
//! one that is too slow is told that it has lost the way. Nobody ever waits for
//! a watcher.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::sleep,
};

use crate::{
    clock,
    db::{DbError, Sequence},
    mux::Updates,
    pod::{PodUpdate, SequencedUpdate},
    storage::{Merged, everything},
};

/// How many readers may wait for a snapshot before the next one waits for its turn to ask.
const REQUESTS: usize = 64;
/// How long the stream rests when no numbers can be reserved for it.
const RESERVE_AGAIN: Duration = Duration::from_secs(1);

/// How much history is held: whichever is reached first.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many updates.
    pub updates: usize,
    /// How many bytes of pods, the newest update excepted. Pods that are still
    /// wanted count too, though they cost nothing more.
    pub bytes: usize,
}

impl Default for Bounds {
    /// 4,096 updates, 32 MiB.
    fn default() -> Self {
        Self { updates: 4096, bytes: 32 << 20 }
    }
}

/// The updates that are held.
#[derive(Debug)]
struct Ring {
    bounds: Bounds,
    held: VecDeque<Arc<SequencedUpdate>>,
    bytes: usize,
    /// The number of the newest update, held or of an earlier run.
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

    /// The first number from which everything is held.
    fn first(&self) -> u64 {
        self.held.front().map_or(self.last + 1, |oldest| oldest.seq)
    }

    /// The update of a number; `None` if it is still to come.
    fn get(&self, seq: u64) -> Result<Option<Arc<SequencedUpdate>>, Gone> {
        let (first, next) = (self.first(), self.last + 1);
        if seq < first || seq > next {
            return Err(Gone { asked: seq, first, next });
        }
        // The numbers of one run have no gaps, and the ring holds less than 2^32.
        Ok(self.held.get(usize::try_from(seq - first).unwrap_or(usize::MAX)).cloned())
    }
}

fn size(update: &SequencedUpdate) -> usize {
    update.update.pods.iter().map(|pod| pod.text().len()).sum()
}

/// An update that is asked for is not held any more, or never was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("update {asked} is not held: {first} is the first that is, and {next} is the next to come")]
pub struct Gone {
    /// The number that was asked for.
    pub asked: u64,
    /// The first number that is held (or the next to come, if none is).
    pub first: u64,
    /// The next number that will be given.
    pub next: u64,
}

/// What all sources want, and where in the stream that is.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The view.
    pub merged: Merged,
    /// The number of the last update that led to it.
    pub seq: u64,
}

/// The task that numbers the updates and keeps the newest of them.
#[derive(Debug)]
pub struct History {
    updates: Updates,
    sequence: Sequence,
    ring: Arc<Mutex<Ring>>,
    news: watch::Sender<u64>,
    requests: mpsc::Receiver<oneshot::Sender<Snapshot>>,
    /// Whether the stream goes on from an earlier run, of which it still has to take leave.
    resumes: bool,
    /// Whether it was said that no numbers can be reserved.
    resting: bool,
}

impl History {
    /// The history of these updates and the way to read it.
    ///
    /// If the stream goes on from an earlier run, it goes on with a SET of
    /// everything, so that whoever watched that run and goes on watching is right.
    #[must_use]
    pub fn new(updates: Updates, sequence: Sequence, bounds: Bounds) -> (Self, HistoryReader) {
        let last = sequence.last();
        let ring = Arc::new(Mutex::new(Ring { bounds, held: VecDeque::new(), bytes: 0, last }));
        let (news, seen) = watch::channel(last);
        let (ask, requests) = mpsc::channel(REQUESTS);
        let reader = HistoryReader { ring: ring.clone(), news: seen, ask };
        (Self { updates, sequence, ring, news, requests, resumes: last > 0, resting: false }, reader)
    }

    /// Follows the updates until the mux has ended. What has no number by then
    /// goes into the SET with which the next run begins.
    ///
    /// # Errors
    /// If the last number could not be stored at the end: the next run skips some.
    pub async fn run(mut self) -> Result<(), DbError> {
        let mut failed = false;
        loop {
            let ready = self.sequence.is_ready();
            tokio::select! {
                biased;
                // Whatever the disk does, readers are answered soon.
                Some(request) = self.requests.recv(), if ready || self.resting => self.answer(request),
                () = sleep(RESERVE_AGAIN), if !ready => {
                    failed = false;
                    self.rest("it takes long");
                }
                reserved = self.sequence.ready(), if !ready && !failed => match reserved {
                    Ok(()) => self.go_on(),
                    Err(error) => {
                        failed = true;
                        self.rest(&error.to_string());
                    }
                },
                () = self.updates.mux_ended(), if self.resting => return Ok(()),
                update = self.updates.next(), if ready => match update {
                    Some(update) => self.record(update),
                    None => return self.sequence.close().await,
                },
            }
        }
    }

    /// Notes, and says once, that there are no numbers.
    fn rest(&mut self, error: &str) {
        if !mem::replace(&mut self.resting, true) {
            tracing::warn!(error, "no numbers can be reserved for /updates; the stream rests until they can");
        }
    }

    fn go_on(&mut self) {
        if mem::take(&mut self.resting) {
            tracing::info!("recovered: /updates goes on");
        }
    }

    fn record(&mut self, mut update: PodUpdate) {
        if mem::take(&mut self.resumes) {
            while self.updates.try_next().is_some() {}
            update = everything(&self.updates.newest());
        }
        let Some(seq) = self.sequence.take() else { return };
        lock(&self.ring).push(SequencedUpdate { seq, time: clock::now(), update });
        self.news.send_replace(seq);
    }

    /// Brings the stream up to the newest view, and says where that is. While
    /// there are no numbers the view is ahead of the stream; whoever goes on with
    /// the stream from there hears some of it twice, which does no harm.
    fn answer(&mut self, request: oneshot::Sender<Snapshot>) {
        while self.sequence.is_ready()
            && let Some(update) = self.updates.try_next()
        {
            self.record(update);
        }
        let ready = self.sequence.is_ready();
        let merged = if ready { self.updates.newest() } else { self.updates.ahead() };
        // Whoever asked may have gone away.
        let _ = request.send(Snapshot { merged, seq: self.sequence.last() });
    }
}

/// The history from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HistoryReader {
    ring: Arc<Mutex<Ring>>,
    news: watch::Receiver<u64>,
    ask: mpsc::Sender<oneshot::Sender<Snapshot>>,
}

impl HistoryReader {
    /// The newest view, and where in the stream it is: whoever has it goes on
    /// with `seq + 1`. `None` if the history has ended. Cancel-safe.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let (request, answer) = oneshot::channel();
        self.ask.send(request).await.ok()?;
        answer.await.ok()
    }

    /// Watches the stream from a number on, which may be the next to come.
    ///
    /// # Errors
    /// If it is not held.
    pub fn watch(&self, from: u64) -> Result<Watcher, Gone> {
        lock(&self.ring).get(from)?;
        Ok(Watcher { ring: self.ring.clone(), news: self.news.clone(), next: from, first: None })
    }

    /// Watches from now on, beginning with a SET of everything. Its number is
    /// that of the last update that it includes. `None` if the history has ended.
    pub async fn watch_all(&self) -> Option<Watcher> {
        let Snapshot { merged, seq } = self.snapshot().await?;
        let first = SequencedUpdate { seq, time: clock::now(), update: everything(&merged) };
        let (ring, news) = (self.ring.clone(), self.news.clone());
        Some(Watcher { ring, news, next: seq + 1, first: Some(Arc::new(first)) })
    }
}

/// One who watches the stream at its own pace.
#[derive(Debug)]
pub struct Watcher {
    ring: Arc<Mutex<Ring>>,
    news: watch::Receiver<u64>,
    next: u64,
    first: Option<Arc<SequencedUpdate>>,
}

impl Watcher {
    /// The next update; waits if there is none yet. `None` when the history has
    /// ended and everything was told. Cancel-safe.
    ///
    /// # Errors
    /// If the watcher was so slow that the update is not held any more. It must
    /// start over: with a snapshot.
    pub async fn next(&mut self) -> Result<Option<Arc<SequencedUpdate>>, Gone> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            self.news.borrow_and_update();
            if let Some(update) = lock(&self.ring).get(self.next)? {
                self.next += 1;
                return Ok(Some(update));
            }
            if self.news.changed().await.is_err() {
                return Ok(None);
            }
        }
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    // The ring is never left half written, so a panic elsewhere has spoilt nothing.
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}
