//! The newest steps of a journal, within bounds.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::pod::SequencedUpdate;

/// How many beginnings are remembered in whose middle no watcher can continue.
const UNFINISHED: usize = 1024;

/// The limits of the history; the oldest steps are dropped when one is exceeded.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The number of updates, and of changes that are no update.
    pub updates: usize,
    /// The size of their pods in bytes. The newest step may exceed it. Pods of the merged
    /// view count too, although they share its memory.
    pub bytes: usize,
}

impl Default for Bounds {
    /// 4,096 updates, 32 MiB.
    fn default() -> Self {
        Self { updates: 4096, bytes: 32 << 20 }
    }
}

/// An object whose changes a journal holds.
pub trait Journaled: Clone + Send + Sync + 'static {
    /// Its size in bytes.
    fn size(&self) -> usize;
}

/// A change of what is read of an object. An object that is replaced by another one of its name has two: it goes,
/// and the other one comes.
#[derive(Clone, Debug)]
pub struct Change<O> {
    /// The number of the change, which is the object's resourceVersion from now on.
    pub number: u64,
    /// The object before; none if it is new.
    pub old: Option<O>,
    /// The object after; none if it is gone.
    pub new: Option<O>,
}

/// One step of a journal: an update of the stream, and what it changes for readers. One of them
/// may be missing: what is observed makes no update.
#[derive(Debug)]
pub(super) struct Step<O> {
    /// The last number of the step, which is that of the update.
    pub(super) seq: u64,
    pub(super) update: Option<Arc<SequencedUpdate>>,
    /// By number.
    pub(super) changes: Box<[Change<O>]>,
}

impl<O: Journaled> Step<O> {
    fn size(&self) -> usize {
        let updated = self.update.iter().flat_map(|update| update.update.pods.iter());
        let updated: usize = updated.map(|pod| pod.text().len()).sum();
        let objects = self.changes.iter().flat_map(|change| change.old.iter().chain(&change.new));
        updated.max(objects.map(O::size).sum())
    }
}

/// The history does not hold the requested number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the history does not hold the update")]
pub struct Gone;

/// The steps of a journal.
#[derive(Debug)]
pub(super) struct Ring<O> {
    bounds: Bounds,
    held: VecDeque<Arc<Step<O>>>,
    bytes: usize,
    /// The number after which the history begins.
    floor: u64,
    /// The highest number that a reader may have: all later steps have higher ones.
    last: u64,
    /// The numbers in beginnings of watchers after which no watcher can continue: those of all SETs
    /// and ADDs but the last, from the first to the last of them.
    unfinished: VecDeque<(u64, u64)>,
    /// The first and the last number of views that were ahead of the journal: no reader continues after them,
    /// since what has changed twice in between makes no change.
    ahead: Option<(u64, u64)>,
    /// Nor can one continue after a lower number: it may be one of those, forgotten since.
    forgotten: u64,
}

impl<O: Journaled> Ring<O> {
    /// An empty history after a number.
    pub(super) fn new(bounds: Bounds, floor: u64) -> Self {
        let (held, unfinished) = (VecDeque::new(), VecDeque::new());
        Self { bounds, held, bytes: 0, floor, last: floor, unfinished, ahead: None, forgotten: 0 }
    }

    pub(super) fn push(&mut self, step: Step<O>) {
        self.bytes += step.size();
        self.last = step.seq;
        self.held.push_back(Arc::new(step));
        let too_much = |ring: &Self| ring.held.len() > ring.bounds.updates || ring.bytes > ring.bounds.bytes;
        while too_much(self)
            && self.held.len() > 1
            && let Some(oldest) = self.held.pop_front()
        {
            self.bytes -= oldest.size();
            self.rise(oldest.seq);
        }
    }

    /// Notes the numbers of a beginning, which has at least one update. No watcher can continue after one of
    /// them but the last.
    pub(super) fn note_beginning(&mut self, first: u64, last: u64) {
        self.note_given(last);
        if first == last {
            return;
        }
        self.unfinished.push_back((first, last - 1));
        if self.unfinished.len() > UNFINISHED
            && let Some((_, last)) = self.unfinished.pop_front()
        {
            self.forgotten = last + 1;
        }
    }

    /// Begins after a number that no run before has given to a reader.
    pub(super) fn begin(&mut self, number: u64) {
        self.note_given(number);
        self.rise(number);
    }

    /// Notes that a reader has this number.
    pub(super) fn note_given(&mut self, number: u64) {
        self.last = self.last.max(number);
    }

    /// Notes that readers were given views with this number or a higher one which were ahead of the journal.
    pub(super) fn note_ahead(&mut self, first: u64) {
        if let Some((_, last)) = self.ahead.replace((first, self.last)) {
            self.rise(last + 1);
        }
    }

    /// Whether a view with this number was ahead of the journal.
    pub(super) fn is_ahead(&self, number: u64) -> bool {
        self.ahead.is_some_and(|(first, last)| (first..=last).contains(&number))
    }

    fn rise(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        while self.unfinished.front().is_some_and(|(_, last)| *last < floor) {
            self.unfinished.pop_front();
        }
    }

    /// The steps that are held, in their order.
    pub(super) fn held(&self) -> impl DoubleEndedIterator<Item = &Arc<Step<O>>> {
        self.held.iter()
    }

    /// The highest number that a reader may have.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Whether a watcher of the updates cannot continue after a number, because it is in the middle of a
    /// beginning.
    pub(super) fn is_unfinished(&self, number: u64) -> bool {
        let is_in = |(first, last): &(u64, u64)| (*first..=*last).contains(&number);
        number < self.forgotten || self.unfinished.iter().any(is_in)
    }

    /// The first step that ends after a number; `None` if there is none yet.
    pub(super) fn after(&self, number: u64) -> Result<Option<&Arc<Step<O>>>, Gone> {
        if number < self.floor {
            return Err(Gone);
        }
        Ok(self.held.get(self.held.partition_point(|step| step.seq <= number)))
    }
}

pub(super) fn lock<O>(ring: &Mutex<Ring<O>>) -> MutexGuard<'_, Ring<O>> {
    // A panic under the lock leaves the ring consistent.
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}
