//! Readers of the history: of the whole view, of the update stream, and of the events of pods.

use std::{
    collections::VecDeque,
    ops::Deref,
    sync::{Arc, Mutex},
};

use imbl::OrdMap;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    event::{PodEvent, SeenPod},
    ring::{Gone, Ring, Step, lock},
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
    /// The number of the last event of each pod.
    pub(super) versions: OrdMap<PodKey, u64>,
}

impl Snapshot {
    /// The number of the last event of a pod, its resourceVersion; none if the event has no number yet.
    pub fn version(&self, key: &PodKey) -> Option<u64> {
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
    Snapshot(oneshot::Sender<Snapshot>),
    /// The beginning of a stream.
    Beginning(oneshot::Sender<Beginning>),
}

/// Reads a [`History`](super::History). Cheap to clone.
#[derive(Clone, Debug)]
pub struct HistoryReader {
    pub(super) ring: Arc<Mutex<Ring>>,
    pub(super) news: watch::Receiver<()>,
    pub(super) ask: mpsc::Sender<Request>,
    pub(super) sequence: Sequence,
}

impl HistoryReader {
    /// The id of the run.
    pub fn run(&self) -> &Arc<str> {
        self.sequence.run()
    }

    /// The highest number that a reader may have.
    pub fn last(&self) -> u64 {
        lock(&self.ring).last()
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
        let cursor = self.after(after)?;
        if lock(&self.ring).is_unfinished(after) {
            return Err(Gone);
        }
        Ok(Watcher { cursor, first: VecDeque::new() })
    }

    /// Watches from now on, starting with a SET for each source, as soon as it has synced. `None` if
    /// the history has ended, or has no numbers.
    pub async fn watch_all(&self) -> Option<Watcher> {
        let (request, answer) = oneshot::channel();
        self.ask.send(Request::Beginning(request)).await.ok()?;
        let (first, after) = answer.await.ok()?;
        Some(Watcher { cursor: Cursor { reader: self.clone(), after }, first })
    }

    /// Watches the events of all pods after a number.
    ///
    /// # Errors
    /// If this run has not given out the number, or the history no longer holds the events after it.
    pub fn events(&self, after: u64) -> Result<EventWatcher, Gone> {
        Ok(EventWatcher { cursor: self.after(after)? })
    }

    fn after(&self, after: u64) -> Result<Cursor, Gone> {
        if !self.sequence.has_given(after) {
            return Err(Gone);
        }
        lock(&self.ring).after(after)?;
        Ok(Cursor { reader: self.clone(), after })
    }
}

/// A place in the history.
#[derive(Clone, Debug)]
struct Cursor {
    reader: HistoryReader,
    /// The number after which it continues.
    after: u64,
}

impl Cursor {
    /// The step with the next number; waits if there is none yet. `None` at the end of a history that has
    /// ended. Cancel-safe.
    async fn next(&mut self) -> Result<Option<Arc<Step>>, Gone> {
        loop {
            self.reader.news.borrow_and_update();
            if let Some(step) = lock(&self.reader.ring).after(self.after)?.cloned() {
                return Ok(Some(step));
            }
            if self.reader.news.changed().await.is_err() {
                return Ok(None);
            }
        }
    }
}

/// Reads the stream at its own pace.
#[derive(Debug)]
pub struct Watcher {
    cursor: Cursor,
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
                    self.cursor.after = step.seq;
                    if step.update.is_some() {
                        return step.update.clone();
                    }
                }
                Err(Gone) => *self = self.cursor.reader.clone().watch_all().await?,
            }
        }
    }
}

/// Reads the events of all pods at its own pace.
#[derive(Debug)]
pub struct EventWatcher {
    cursor: Cursor,
}

impl EventWatcher {
    /// The number after which it continues.
    pub fn position(&self) -> u64 {
        self.cursor.after
    }

    /// The next event; waits if there is none yet. `None` after the last event of a history that has ended.
    /// Cancel-safe.
    ///
    /// # Errors
    /// If the watcher is too slow: the history no longer holds its next event.
    pub async fn next(&mut self) -> Result<Option<HeldEvent>, Gone> {
        loop {
            let Some(step) = self.cursor.next().await? else { return Ok(None) };
            let index = step.events.partition_point(|event| event.number <= self.cursor.after);
            if let Some(event) = step.events.get(index) {
                self.cursor.after = event.number;
                return Ok(Some(HeldEvent { step, index }));
            }
            self.cursor.after = step.seq;
        }
    }
}

/// An event of a pod.
#[derive(Clone, Debug)]
pub struct HeldEvent {
    step: Arc<Step>,
    index: usize,
}

impl Deref for HeldEvent {
    type Target = PodEvent;

    fn deref(&self) -> &PodEvent {
        &self.step.events[self.index]
    }
}
