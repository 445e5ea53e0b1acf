//! Readers of the history: of the whole view, of the update stream, and of the changes of objects.

use std::{
    collections::VecDeque,
    ops::Deref,
    sync::{Arc, Mutex},
};

use imbl::OrdMap;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    event::SeenPod,
    ring::{Bounds, Change, Gone, Journaled, Ring, Step, lock},
};
use crate::{
    db::Sequence,
    pod::{Entry, PodKey, SequencedUpdate},
    runtime::Observed,
    storage::Merged,
};

/// The merged view and its position in the stream.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The view.
    pub merged: Merged,
    /// What a runtime observes of its pods; none if the agent runs no pods.
    pub observed: Option<Observed>,
    /// Its position: no later update or event has this number or a lower one.
    pub seq: u64,
    /// When the snapshot was taken.
    pub time: Timestamp,
    /// The first and the last number of the events of each pod since its last write.
    pub(super) versions: OrdMap<PodKey, (u64, u64)>,
}

impl Snapshot {
    /// The first and the last number of the events of a pod since its last write, of which the last is its
    /// resourceVersion; none if it has no number yet.
    pub fn versions(&self, key: &PodKey) -> Option<(u64, u64)> {
        self.versions.get(key).copied()
    }

    /// A pod of the view with what is observed of it.
    pub fn seen(&self, entry: &Entry) -> SeenPod {
        SeenPod::new(entry, self.observed.as_ref())
    }
}

/// The first updates of a watcher, and the number after which it continues.
pub(super) type Beginning = (VecDeque<Arc<SequencedUpdate>>, u64);

/// A request of a reader.
#[derive(Debug)]
pub(super) enum Request {
    /// The view and its position.
    /// At a position that is not before this number.
    Snapshot(u64, oneshot::Sender<Snapshot>),
    /// The beginning of a stream.
    Beginning(oneshot::Sender<Beginning>),
}

/// The newest changes of objects, for readers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Journal<O> {
    ring: Arc<Mutex<Ring<O>>>,
    news: watch::Receiver<()>,
    sequence: Sequence,
}

/// Writes a [`Journal`].
#[derive(Debug)]
pub struct JournalWriter<O> {
    pub(super) ring: Arc<Mutex<Ring<O>>>,
    news: watch::Sender<()>,
}

impl<O: Journaled> JournalWriter<O> {
    /// Records changes, which are sorted by number.
    pub fn record(&self, changes: Vec<Change<O>>) {
        if let Some(last) = changes.last() {
            self.push(Step { seq: last.number, update: None, changes: changes.into() });
        }
    }

    /// See [`Ring::note_ahead`].
    pub(super) fn note_ahead(&self, first: u64) {
        lock(&self.ring).note_ahead(first);
        self.news.send_replace(());
    }

    pub(super) fn push(&self, step: Step<O>) {
        lock(&self.ring).push(step);
        self.news.send_replace(());
    }
}

impl<O: Journaled> Journal<O> {
    /// An empty journal, and its writer. The numbers of all changes are of this allocator.
    pub fn new(bounds: Bounds, sequence: Sequence) -> (JournalWriter<O>, Self) {
        let ring = Arc::new(Mutex::new(Ring::new(bounds, sequence.last())));
        let (news, seen) = watch::channel(());
        (JournalWriter { ring: ring.clone(), news }, Self { ring, news: seen, sequence })
    }

    /// The id of the run.
    pub fn run(&self) -> &Arc<str> {
        self.sequence.run()
    }

    /// The highest number that a reader may have.
    pub fn last(&self) -> u64 {
        lock(&self.ring).last()
    }

    /// Watches the changes of all objects after a number.
    ///
    /// # Errors
    /// If this run has not given out the number, or the journal no longer holds the changes after it, or it is one of a
    /// view that was ahead of the journal.
    pub fn changes(&self, after: u64) -> Result<Changes<O>, Gone> {
        Ok(Changes { cursor: self.after(after)? })
    }

    fn after(&self, after: u64) -> Result<Cursor<O>, Gone> {
        if !self.sequence.has_given(after) {
            return Err(Gone);
        }
        let ring = lock(&self.ring);
        ring.after(after)?;
        if ring.is_ahead(after) {
            return Err(Gone);
        }
        drop(ring);
        Ok(Cursor { journal: self.clone(), after, may_be_ahead: true })
    }
}

/// Reads a [`History`](super::History). Cheap to clone.
#[derive(Clone, Debug)]
pub struct HistoryReader {
    pub(super) journal: Journal<SeenPod>,
    pub(super) ask: mpsc::Sender<Request>,
}

impl Deref for HistoryReader {
    type Target = Journal<SeenPod>;

    fn deref(&self) -> &Journal<SeenPod> {
        &self.journal
    }
}

impl HistoryReader {
    /// The newest view and its position; the stream continues with `seq + 1`. `None` if the
    /// history has ended. Cancel-safe.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        self.snapshot_after(0).await
    }

    /// The same. Its position is not before a number that clients have, although nothing that they see may have it: that
    /// of a write whose pod another source hides. The view that was merged for it must be published. Cancel-safe.
    pub async fn snapshot_after(&self, given: u64) -> Option<Snapshot> {
        let (request, answer) = oneshot::channel();
        self.ask.send(Request::Snapshot(given, request)).await.ok()?;
        answer.await.ok()
    }

    /// Whether the history has ended: a stream that begins now has no updates to come.
    pub fn has_ended(&self) -> bool {
        self.ask.is_closed()
    }

    /// The updates that are held, the newest first.
    pub fn held(&self) -> Vec<Arc<SequencedUpdate>> {
        lock(&self.ring).held().rev().filter_map(|step| step.update.clone()).collect()
    }

    /// Watches the stream from a number on: that of an update, or the one after it.
    ///
    /// # Errors
    /// If this run has not given out the number before, or the history no longer holds the updates
    /// after it, or it is one in the middle of a beginning or of a list that was ahead of the history.
    pub fn watch(&self, from: u64) -> Result<Watcher, Gone> {
        let after = from.checked_sub(1).ok_or(Gone)?;
        let cursor = self.after(after)?;
        if lock(&self.ring).is_unfinished(after) {
            return Err(Gone);
        }
        Ok(Watcher { history: self.clone(), cursor, first: VecDeque::new() })
    }

    /// Watches from now on, starting with a SET for each source, as soon as it has synced. `None` if
    /// the history has ended, or has no numbers.
    pub async fn watch_all(&self) -> Option<Watcher> {
        let (request, answer) = oneshot::channel();
        self.ask.send(Request::Beginning(request)).await.ok()?;
        let (first, after) = answer.await.ok()?;
        let cursor = Cursor { journal: self.journal.clone(), after, may_be_ahead: false };
        Some(Watcher { history: self.clone(), cursor, first })
    }
}

/// A place in a journal.
#[derive(Debug)]
struct Cursor<O> {
    journal: Journal<O>,
    /// The number after which it continues.
    after: u64,
    /// Whether its reader may have begun with a view that was ahead of the journal.
    may_be_ahead: bool,
}

impl<O: Journaled> Cursor<O> {
    /// The step with the next number; waits if there is none yet. `None` at the end of a journal whose writer is
    /// gone. Cancel-safe.
    async fn next(&mut self) -> Result<Option<Arc<Step<O>>>, Gone> {
        loop {
            self.journal.news.borrow_and_update();
            {
                let ring = lock(&self.journal.ring);
                if self.may_be_ahead && ring.is_ahead(self.after) {
                    return Err(Gone);
                }
                if let Some(step) = ring.after(self.after)?.cloned() {
                    return Ok(Some(step));
                }
            }
            if self.journal.news.changed().await.is_err() {
                return Ok(None);
            }
        }
    }
}

/// Reads the stream at its own pace.
#[derive(Debug)]
pub struct Watcher {
    history: HistoryReader,
    cursor: Cursor<SeenPod>,
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
            match self.cursor.next().await {
                Ok(step) => {
                    let step = step?;
                    (self.cursor.after, self.cursor.may_be_ahead) = (step.seq, false);
                    if step.update.is_some() {
                        return step.update.clone();
                    }
                }
                Err(Gone) => *self = self.history.clone().watch_all().await?,
            }
        }
    }
}

/// Reads the changes of all objects at its own pace.
#[derive(Debug)]
pub struct Changes<O> {
    cursor: Cursor<O>,
}

impl<O: Journaled> Changes<O> {
    /// The number after which it continues.
    pub fn position(&self) -> u64 {
        self.cursor.after
    }

    /// The next change; waits if there is none yet. `None` after the last change of a journal whose writer is gone.
    /// Cancel-safe.
    ///
    /// # Errors
    /// If the watcher is too slow: the journal no longer holds its next change.
    pub async fn next(&mut self) -> Result<Option<HeldChange<O>>, Gone> {
        loop {
            let Some(step) = self.cursor.next().await? else { return Ok(None) };
            let index = step.changes.partition_point(|change| change.number <= self.cursor.after);
            if let Some(change) = step.changes.get(index) {
                self.cursor.after = change.number;
                return Ok(Some(HeldChange { step, index }));
            }
            self.cursor.after = step.seq;
        }
    }
}

/// A change of an object.
#[derive(Clone, Debug)]
pub struct HeldChange<O> {
    step: Arc<Step<O>>,
    index: usize,
}

impl<O> Deref for HeldChange<O> {
    type Target = Change<O>;

    fn deref(&self) -> &Change<O> {
        &self.step.changes[self.index]
    }
}
