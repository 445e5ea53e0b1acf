//! The updates of a consumer: the difference between its delivered view and the merged view.

use std::{
    cmp::{Ordering, Reverse},
    collections::BTreeMap,
    ops::Deref,
    sync::Arc,
};

use imbl::{OrdMap, ordmap::DiffItem};

use super::{Merged, SourceState};
use crate::pod::{Entry, Op, Pod, PodKey, PodUpdate, SourceName, UpdateSource, classify};

/// The notification mode of a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notify {
    /// ADD, UPDATE, DELETE, REMOVE and RECONCILE, each with the pods concerned.
    #[default]
    Incremental,
    /// One SET with all pods on any change, including a source's first sync and a
    /// change of a status.
    Snapshot,
    /// SET when pods are added or removed and when a source first syncs; UPDATE,
    /// DELETE and RECONCILE for other changes.
    SnapshotAndUpdates,
}

/// The delivered view: what a replay of a consumer's updates gives. O(1) to clone.
#[derive(Clone, Debug, Default)]
pub struct Delivered {
    pods: OrdMap<PodKey, Entry>,
    /// By source: whether its first sync has been delivered.
    synced: [bool; SourceName::ALL.len()],
}

/// The pods that were delivered and not removed, by key.
impl Deref for Delivered {
    type Target = OrdMap<PodKey, Entry>;

    fn deref(&self) -> &Self::Target {
        &self.pods
    }
}

impl Delivered {
    /// Records that the next update of a batch that leads to `goal` was delivered, as
    /// [`updates`] returned it.
    ///
    /// If a newer view is published in the middle of a batch, the next batch then starts
    /// from what was delivered. O(pods × log n).
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
            (Op::Set, _) => self.synced = goal.synced,
            (Op::Add | Op::Update | Op::Delete, UpdateSource::One(source)) => {
                self.synced[source as usize] = goal.synced[source as usize];
            }
            _ => {}
        }
    }
}

/// The updates from the delivered view of a consumer to the merged view, in the order of
/// delivery, and the delivered view after all of them.
///
/// There is never an ADD of a delivered pod, nor an UPDATE, DELETE or REMOVE of another
/// one. A source that is not synced causes no REMOVE, because the merged view
/// keeps its pods (see [`PodStorage`](super::PodStorage)). In a snapshot mode there are
/// no updates until every configured source is synced or restored.
///
/// O(differences × log n).
pub fn updates(delivered: &Delivered, merged: &Merged, notify: Notify) -> (Delivered, Vec<PodUpdate>) {
    if notify != Notify::Incremental && !merged.is_complete() {
        return (delivered.clone(), Vec::new());
    }
    let mut goal = Delivered { pods: (**merged).clone(), synced: delivered.synced };
    let mut batch = Batch::default();
    for change in delivered.diff(merged) {
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
        if !delivered.synced[source as usize] && merged.state(source) == Some(SourceState::Synced) {
            goal.synced[source as usize] = true;
            batch.first_sync(source);
        }
    }
    let updates = batch.into_updates(&goal, notify);
    (goal, updates)
}

fn same_life(old: &Entry, new: &Entry) -> bool {
    old.source() == new.source() && old.incarnation() == new.incarnation()
}

/// The differences between two views, in the order of delivery.
#[derive(Default)]
struct Batch {
    pods: BTreeMap<(Op, SourceName), Vec<Arc<Pod>>>,
    /// The empty ADDs of sources whose first sync adds, updates and deletes nothing.
    empty: Vec<PodUpdate>,
    has_first_sync: bool,
}

impl Batch {
    fn push(&mut self, op: Op, entry: &Entry) {
        self.pods.entry((op, entry.source())).or_default().push(entry.pod().clone());
    }

    fn first_sync(&mut self, source: SourceName) {
        self.has_first_sync = true;
        if ![Op::Add, Op::Update, Op::Delete].iter().any(|op| self.pods.contains_key(&(*op, source))) {
            self.empty.push(PodUpdate { op: Op::Add, source: UpdateSource::One(source), pods: Arc::new([]) });
        }
    }

    fn into_updates(self, goal: &Delivered, notify: Notify) -> Vec<PodUpdate> {
        if self.pods.is_empty() && !self.has_first_sync {
            return Vec::new();
        }
        let needs_set =
            self.has_first_sync || self.pods.keys().any(|(op, _)| matches!(op, Op::Add | Op::Remove));
        match notify {
            Notify::Incremental => self.incremental(),
            Notify::Snapshot => vec![set(&goal.pods)],
            Notify::SnapshotAndUpdates => {
                let rest = self.incremental().into_iter();
                let rest = rest.filter(|update| !matches!(update.op, Op::Add | Op::Remove));
                needs_set.then(|| set(&goal.pods)).into_iter().chain(rest).collect()
            }
        }
    }

    /// REMOVE, ADD, UPDATE, DELETE, then the empty ADDs, then RECONCILE.
    fn incremental(self) -> Vec<PodUpdate> {
        let mut updates: Vec<PodUpdate> = self
            .pods
            .into_iter()
            .map(|((op, source), pods)| PodUpdate {
                op,
                source: UpdateSource::One(source),
                pods: in_order(op, pods),
            })
            .collect();
        let reconciles = updates.partition_point(|update| update.op < Op::Reconcile);
        updates.splice(reconciles..reconciles, self.empty);
        updates
    }
}

/// All pods of the merged view as one SET.
pub fn everything(merged: &Merged) -> PodUpdate {
    set(merged)
}

fn set(pods: &OrdMap<PodKey, Entry>) -> PodUpdate {
    let pods = pods.values().map(|entry| entry.pod().clone()).collect();
    PodUpdate { op: Op::Set, source: UpdateSource::All, pods: in_order(Op::Set, pods) }
}

/// Sorts pods, which are given by key, in the order of [`PodUpdate::pods`]. The sort is
/// stable, so that pods of equal importance stay sorted by key.
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
