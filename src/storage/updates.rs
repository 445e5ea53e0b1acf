//! The updates of a consumer: the difference between its delivered view and the merged view.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet},
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
///
/// The default is that of a consumer that holds nothing: its stream begins with ADDs.
#[derive(Clone, Debug, Default)]
pub struct Delivered {
    pods: OrdMap<PodKey, Entry>,
    /// By source: whether all its pods were delivered once.
    begun: [bool; SourceName::ALL.len()],
    /// Whether each source begins with a SET.
    begins_with_sets: bool,
}

/// The pods that were delivered and not removed, by key.
impl Deref for Delivered {
    type Target = OrdMap<PodKey, Entry>;

    fn deref(&self) -> &Self::Target {
        &self.pods
    }
}

impl Delivered {
    /// That of a consumer that may hold pods of an earlier stream: each source begins with a SET,
    /// which tells it what to discard. A source that is not configured has an empty one. A source
    /// begins when it has synced; the pods of a restored one come as ADDs before.
    pub fn unknown() -> Self {
        Self { begins_with_sets: true, ..Self::default() }
    }

    /// Records that the next update of a batch that leads to `goal` was delivered, as
    /// [`updates`] returned it.
    ///
    /// If a newer view is published in the middle of a batch, the next batch then starts
    /// from what was delivered. O(pods × log n).
    pub fn advance(&mut self, update: &PodUpdate, goal: &Self) {
        match (update.op, update.source) {
            (Op::Set, UpdateSource::All) => self.pods = goal.pods.clone(),
            (Op::Set, UpdateSource::One(source)) => {
                let others = self.pods.iter().filter(|(_, entry)| entry.source() != source);
                self.pods = others.map(|(key, entry)| (key.clone(), entry.clone())).collect();
                self.store(update, goal);
            }
            (Op::Remove, _) => update.pods.iter().for_each(|pod| drop(self.pods.remove(pod.key()))),
            _ => self.store(update, goal),
        }
        match (update.op, update.source) {
            (Op::Set, UpdateSource::All) => self.begun = goal.begun,
            (Op::Set | Op::Add | Op::Update | Op::Delete, UpdateSource::One(source)) => {
                self.begun[source as usize] = goal.begun[source as usize];
            }
            _ => {}
        }
    }

    /// How many pods differ from the merged view. O(differences × log n).
    pub fn differences(&self, merged: &Merged) -> usize {
        let differs = |change: &DiffItem<'_, '_, PodKey, Entry>| match change {
            DiffItem::Update { old: (_, old), new: (_, new) } => {
                !same_life(old, new) || classify(old.pod(), new.pod()).is_some()
            }
            _ => true,
        };
        self.diff(merged).filter(differs).count()
    }

    fn store(&mut self, update: &PodUpdate, goal: &Self) {
        for pod in update.pods.iter() {
            if let Some(entry) = goal.pods.get(pod.key()) {
                self.pods.insert(pod.key().clone(), entry.clone());
            }
        }
    }
}

/// The updates from the delivered view of a consumer to the merged view, in the order of
/// delivery, and the delivered view after all of them.
///
/// There is never an ADD of a delivered pod, nor an UPDATE, DELETE or REMOVE of another
/// one. A source that is not synced causes no REMOVE, because the merged view
/// keeps its pods (see [`PodStorage`](super::PodStorage)).
///
/// In a snapshot mode a SET has all pods, once every configured source has synced. Until then each
/// source that has synced has SETs of its own, and the pods of a restored one come as in the
/// incremental mode.
///
/// O(differences × log n); a SET is O(pods).
pub fn updates(delivered: &Delivered, merged: &Merged, notify: Notify) -> (Delivered, Vec<PodUpdate>) {
    let mut goal = Delivered { pods: (**merged).clone(), ..delivered.clone() };
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
        let begins =
            merged.state(source).map_or(delivered.begins_with_sets, |state| state == SourceState::Synced);
        if begins && !delivered.begun[source as usize] {
            goal.begun[source as usize] = true;
            batch.begins.insert(source);
        }
    }
    let is_snapshot = notify != Notify::Incremental && merged.is_complete();
    let updates = if is_snapshot { batch.snapshot(&goal, notify) } else { batch.by_source(&goal, notify) };
    (goal, updates)
}

fn same_life(old: &Entry, new: &Entry) -> bool {
    old.source() == new.source()
        && old.incarnation() == new.incarnation()
        && old.pod().uid() == new.pod().uid()
}

/// The differences between two views, in the order of delivery.
#[derive(Default)]
struct Batch {
    pods: BTreeMap<(Op, SourceName), Vec<Arc<Pod>>>,
    /// The sources all of whose pods are known for the first time.
    begins: BTreeSet<SourceName>,
}

impl Batch {
    fn push(&mut self, op: Op, entry: &Entry) {
        self.pods.entry((op, entry.source())).or_default().push(entry.pod().clone());
    }

    fn has(&self, ops: &[Op], source: SourceName) -> bool {
        ops.iter().any(|op| self.pods.contains_key(&(*op, source)))
    }

    /// One SET with all pods, if needed; in the mixed mode also the updates of pods that stay.
    fn snapshot(mut self, goal: &Delivered, notify: Notify) -> Vec<PodUpdate> {
        let is_mixed = notify == Notify::SnapshotAndUpdates;
        let moves = |op: &Op| matches!(op, Op::Add | Op::Remove);
        let needs_set = !self.begins.is_empty() || self.pods.keys().any(|(op, _)| !is_mixed || moves(op));
        self.pods.retain(|(op, _), _| is_mixed && !moves(op));
        let all = || {
            let mut entries: Vec<&Entry> = goal.pods.values().collect();
            entries.sort_by(|a, b| importance(a.pod(), b.pod()));
            let sources = entries.iter().map(|entry| entry.source()).collect();
            let pods = entries.iter().map(|entry| entry.pod().clone()).collect();
            PodUpdate { op: Op::Set, source: UpdateSource::All, pods, sources }
        };
        needs_set.then(all).into_iter().chain(self.in_order(BTreeSet::new())).collect()
    }

    /// The SETs of the sources that need one, and the other updates of each source.
    fn by_source(mut self, goal: &Delivered, notify: Notify) -> Vec<PodUpdate> {
        let needs_set = |source: &SourceName| match notify {
            Notify::Incremental => goal.begins_with_sets && self.begins.contains(source),
            _ if !goal.begun[*source as usize] => false,
            Notify::Snapshot => self.begins.contains(source) || self.has(&Op::ALL, *source),
            Notify::SnapshotAndUpdates => {
                self.begins.contains(source) || self.has(&[Op::Add, Op::Remove], *source)
            }
        };
        let sets: Vec<SourceName> = SourceName::ALL.into_iter().filter(needs_set).collect();
        for source in &sets {
            self.replace_by_set(*source, goal, notify);
        }
        let empty = self.begins.iter().copied().filter(|source| !sets.contains(source));
        let empty = empty.filter(|source| !self.has(&[Op::Add, Op::Update, Op::Delete], *source)).collect();
        self.in_order(empty)
    }

    /// Replaces what the SET of a source includes.
    fn replace_by_set(&mut self, source: SourceName, goal: &Delivered, notify: Notify) {
        let is_mixed = notify == Notify::SnapshotAndUpdates && !self.begins.contains(&source);
        self.pods.retain(|(op, of), pods| {
            if *of != source {
                return true;
            }
            match op {
                // A name that moves to another source is removed first.
                Op::Remove => pods.retain(|pod| goal.pods.contains_key(pod.key())),
                Op::Update | Op::Delete | Op::Reconcile if is_mixed => {}
                _ => pods.clear(),
            }
            !pods.is_empty()
        });
        let own = goal.pods.values().filter(|entry| entry.source() == source);
        self.pods.insert((Op::Set, source), own.map(|entry| entry.pod().clone()).collect());
    }

    /// REMOVE, SET, ADD, UPDATE, DELETE, then the empty ADDs of these sources, then RECONCILE.
    fn in_order(self, empty: BTreeSet<SourceName>) -> Vec<PodUpdate> {
        let update = |op, source, pods| {
            let (source, pods) = (UpdateSource::One(source), in_order(op, pods));
            PodUpdate { op, source, pods, sources: Arc::default() }
        };
        let mut updates: Vec<PodUpdate> =
            self.pods.into_iter().map(|((op, source), pods)| update(op, source, pods)).collect();
        let reconciles = updates.partition_point(|update| update.op < Op::Reconcile);
        let empty = empty.into_iter().map(|source| update(Op::Add, source, Vec::new()));
        updates.splice(reconciles..reconciles, empty);
        updates
    }
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
