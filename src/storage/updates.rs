//! Where every operation is born: the difference between what a consumer was told and what is wanted.

use std::{
    cmp::{Ordering, Reverse},
    collections::BTreeMap,
    sync::Arc,
};

use imbl::{OrdMap, ordmap::DiffItem};

use super::{Merged, SourceState};
use crate::pod::{Entry, Op, Pod, PodKey, PodUpdate, SourceName, UpdateSource, classify};

/// How a consumer wants to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notify {
    /// ADD, UPDATE, DELETE, REMOVE and RECONCILE, each with the pods concerned.
    #[default]
    Incremental,
    /// One SET with everything on any change, a source's first sight and a
    /// change of status included.
    Snapshot,
    /// SET when something was added or removed or a source first seen; UPDATE,
    /// DELETE and RECONCILE for the rest.
    SnapshotAndUpdates,
}

/// What a consumer has been told: the view that a replay of its updates gives.
/// O(1) to clone.
#[derive(Clone, Debug, Default)]
pub struct Delivered {
    pods: OrdMap<PodKey, Entry>,
    /// By source: whether its first sight has been told.
    seen: [bool; SourceName::ALL.len()],
}

impl Delivered {
    /// How many pods the consumer knows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether the consumer knows no pod.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The pod that the consumer knows under a key.
    #[must_use]
    pub fn get(&self, key: &PodKey) -> Option<&Entry> {
        self.pods.get(key)
    }

    /// The pods that the consumer knows, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&PodKey, &Entry)> {
        self.pods.iter()
    }

    /// Takes note that one update on the way to `goal` was handed over: the
    /// first of those that are still to come, as [`updates`] gave them.
    ///
    /// So a consumer that is told of a newer view in the middle of a batch goes
    /// on from where it is. O(pods × log n).
    pub fn advance(&mut self, update: &PodUpdate, goal: &Self) {
        match update.op {
            Op::Set => self.pods = goal.pods.clone(),
            Op::Remove => update.pods.iter().for_each(|pod| drop(self.pods.remove(pod.key()))),
            Op::Add | Op::Update | Op::Delete | Op::Reconcile => {
                for pod in update.pods.iter() {
                    if let Some(entry) = goal.pods.get(pod.key()) {
                        self.pods.insert(pod.key().clone(), entry.clone());
                    }
                }
            }
        }
        match (update.op, update.source) {
            (Op::Set, _) => self.seen = goal.seen,
            (Op::Add | Op::Update | Op::Delete, UpdateSource::One(source)) => {
                self.seen[source as usize] = goal.seen[source as usize];
            }
            _ => {}
        }
    }
}

/// The updates that lead a consumer from what it was told to the merged view,
/// in the order of delivery, and what it has been told once it has them all.
///
/// Never an ADD of a known pod, nor an UPDATE, DELETE or REMOVE of an unknown
/// one. Nor is a pod removed on the word of a source that has not been seen: the
/// merged view does not lose it (see [`PodStorage`](super::PodStorage)). A
/// snapshot mode gives nothing before every configured source has been seen or
/// restored.
///
/// O(differences × log n).
#[must_use]
pub fn updates(told: &Delivered, merged: &Merged, notify: Notify) -> (Delivered, Vec<PodUpdate>) {
    if notify != Notify::Incremental && !merged.is_complete() {
        return (told.clone(), Vec::new());
    }
    let mut goal = Delivered { pods: merged.pods().clone(), seen: told.seen };
    let mut batch = Batch::default();
    for change in told.pods.diff(merged.pods()) {
        match change {
            DiffItem::Add(_, new) => batch.push(Op::Add, new),
            DiffItem::Update { old: (_, old), new: (_, new) } if same_life(old, new) => {
                if let Some(op) = classify(old.pod(), new.pod()) {
                    batch.push(op, new);
                }
            }
            DiffItem::Update { old: (_, old), new: (_, new) } => {
                batch.push(Op::Remove, old);
                batch.push(Op::Add, new);
            }
            DiffItem::Remove(_, old) => batch.push(Op::Remove, old),
        }
    }
    for source in SourceName::ALL {
        if !told.seen[source as usize] && merged.state(source) == Some(SourceState::Synced) {
            goal.seen[source as usize] = true;
            batch.first_sight(source);
        }
    }
    let messages = batch.into_updates(&goal, notify);
    (goal, messages)
}

fn same_life(old: &Entry, new: &Entry) -> bool {
    old.source() == new.source() && old.incarnation() == new.incarnation()
}

/// The differences found, in the order of delivery.
#[derive(Default)]
struct Batch {
    pods: BTreeMap<(Op, SourceName), Vec<Arc<Pod>>>,
    /// Sources seen for the first time with nothing to add, update or delete.
    empty: Vec<PodUpdate>,
    first: bool,
}

impl Batch {
    fn push(&mut self, op: Op, entry: &Entry) {
        self.pods.entry((op, entry.source())).or_default().push(entry.pod().clone());
    }

    fn first_sight(&mut self, source: SourceName) {
        self.first = true;
        if ![Op::Add, Op::Update, Op::Delete].iter().any(|op| self.pods.contains_key(&(*op, source))) {
            self.empty.push(PodUpdate { op: Op::Add, source: UpdateSource::One(source), pods: Arc::new([]) });
        }
    }

    fn into_updates(self, goal: &Delivered, notify: Notify) -> Vec<PodUpdate> {
        if self.pods.is_empty() && !self.first {
            return Vec::new();
        }
        let moved = self.first || self.pods.keys().any(|(op, _)| matches!(op, Op::Add | Op::Remove));
        match notify {
            Notify::Incremental => self.incremental(),
            Notify::Snapshot => vec![set(goal)],
            Notify::SnapshotAndUpdates => {
                let rest = self.incremental().into_iter();
                let rest = rest.filter(|update| !matches!(update.op, Op::Add | Op::Remove));
                moved.then(|| set(goal)).into_iter().chain(rest).collect()
            }
        }
    }

    /// REMOVE, ADD, UPDATE, DELETE, then the empty ADDs, then RECONCILE.
    fn incremental(self) -> Vec<PodUpdate> {
        let mut messages: Vec<PodUpdate> = self
            .pods
            .into_iter()
            .map(|((op, source), pods)| PodUpdate {
                op,
                source: UpdateSource::One(source),
                pods: in_order(op, pods),
            })
            .collect();
        let reconciles = messages.partition_point(|update| update.op < Op::Reconcile);
        messages.splice(reconciles..reconciles, self.empty);
        messages
    }
}

fn set(goal: &Delivered) -> PodUpdate {
    all(&goal.pods)
}

/// Everything that is wanted, as one SET.
#[must_use]
pub fn everything(merged: &Merged) -> PodUpdate {
    all(merged.pods())
}

fn all(pods: &OrdMap<PodKey, Entry>) -> PodUpdate {
    let pods = pods.values().map(|entry| entry.pod().clone()).collect();
    PodUpdate { op: Op::Set, source: UpdateSource::All, pods: in_order(Op::Set, pods) }
}

/// Puts pods, given by key, in the order in which a consumer should take them.
/// The sort is stable, so those that are equal stay by key.
fn in_order(op: Op, mut pods: Vec<Arc<Pod>>) -> Arc<[Arc<Pod>]> {
    match op {
        Op::Add | Op::Set => pods.sort_by(|a, b| importance(a, b)),
        Op::Remove | Op::Delete => {
            pods.sort_by(|a, b| importance(a, b));
            pods.reverse();
        }
        Op::Update | Op::Reconcile => {}
    }
    pods.into()
}

/// Higher priority first, then the older one.
fn importance(a: &Pod, b: &Pod) -> Ordering {
    let rank = |pod: &Pod| Reverse(pod.priority());
    rank(a).cmp(&rank(b)).then_with(|| a.creation_timestamp().cmp(&b.creation_timestamp()))
}
