//! Random histories of all four sources, compared with a simple model.
//!
//! `PODMUX_HISTORIES` is their number (2,000 if it is not set). The model has no persistent
//! maps, digests or incarnations: it keeps plain maps of plain structs, resolves
//! every claim again after each listing, and predicts every update of every consumer in
//! its order.

use std::collections::{BTreeMap, BTreeSet};

use podmux::{
    pod::{ListingBuilder, Op, Origin, Pod, PodUpdate, Prepared, SourceName},
    storage::{Delivered, Notify, PodStorage, SourceState, updates},
};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};

/// A pod of the model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Plain {
    name: u8,
    /// 0 means no UID.
    uid: u8,
    priority: i32,
    /// Not compared, but decides the order of an ADD.
    creation: u8,
    /// Absent, empty, or one label, which are all different.
    labels: u8,
    status: u8,
    terminating: bool,
}

impl Plain {
    fn key(&self) -> String {
        format!("n/p{}", self.name)
    }

    fn prepared(&self) -> Prepared {
        let mut metadata = json!({"name": format!("p{}", self.name), "namespace": "n"});
        if self.uid > 0 {
            metadata["uid"] = json!(format!("u{}", self.uid));
        }
        if self.creation > 0 {
            metadata["creationTimestamp"] = json!(format!("2026-01-0{}T00:00:00Z", self.creation));
        }
        match self.labels {
            0 => {}
            1 => metadata["labels"] = json!({}),
            _ => metadata["labels"] = json!({"a": "b"}),
        }
        if self.terminating {
            metadata["deletionTimestamp"] = json!("2026-02-01T00:00:00Z");
            metadata["deletionGracePeriodSeconds"] = json!(30);
        }
        let pod = json!({
            "metadata": metadata,
            "spec": {"priority": self.priority},
            "status": {"phase": format!("s{}", self.status)},
        });
        Prepared::from_value(pod).unwrap()
    }

    fn compared(&self) -> (i32, u8, bool) {
        (self.priority, self.labels, self.terminating)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put { source: usize, origin: u8, pods: Vec<Plain> },
    Remove { source: usize, origin: u8 },
    Push { source: usize, restored: bool },
    Wake { consumer: usize, take: usize },
}

fn plain() -> impl Strategy<Value = Plain> {
    (0..5u8, 0..5u8, 0..3i32, 0..3u8, 0..3u8, 0..2u8, proptest::bool::weighted(0.2)).prop_map(
        |(name, uid, priority, creation, labels, status, terminating)| Plain {
            name,
            uid,
            priority,
            creation,
            labels,
            status,
            terminating,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let source = 0..SourceName::ALL.len();
    prop_oneof![
        5 => (source.clone(), 0..3u8, vec(plain(), 0..4))
            .prop_map(|(source, origin, pods)| Step::Put { source, origin, pods }),
        1 => (source.clone(), 0..3u8).prop_map(|(source, origin)| Step::Remove { source, origin }),
        6 => (source, proptest::bool::weighted(0.25))
            .prop_map(|(source, restored)| Step::Push { source, restored }),
        3 => (0..CONSUMERS.len(), 0..8usize).prop_map(|(consumer, take)| Step::Wake { consumer, take }),
    ]
}

/// The modes of the consumers. The first consumer reads each update at once.
const CONSUMERS: [Consumer; 7] = [
    (Notify::Incremental, false),
    (Notify::Incremental, false),
    (Notify::Snapshot, false),
    (Notify::SnapshotAndUpdates, false),
    (Notify::Incremental, true),
    (Notify::Snapshot, true),
    (Notify::SnapshotAndUpdates, true),
];

/// The mode of a consumer, and whether its sources begin with SETs.
type Consumer = (Notify, bool);

/// A pod in a listing or view of the model.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    source: usize,
    life: u64,
    pod: Plain,
}

/// The pods of a listing or view, by the number in their name.
type View = BTreeMap<u8, Held>;

/// A source of the model: the pods that it found, and those that it published.
#[derive(Default)]
struct ModelSource {
    found: BTreeMap<u8, Vec<Plain>>,
    handed_out: View,
    lives: u64,
    /// The listing in the merge.
    effective: View,
    state: Option<bool>,
}

impl ModelSource {
    /// The listing that the source would publish now.
    fn listing(&mut self, source: usize) -> View {
        let mut uids = BTreeSet::new();
        let mut listing = View::new();
        for pod in self.found.values().flatten() {
            let free = !listing.contains_key(&pod.name) && (pod.uid == 0 || !uids.contains(&pod.uid));
            if !free {
                continue;
            }
            uids.insert(pod.uid);
            let before = self.handed_out.get(&pod.name).filter(|held| held.pod.uid == pod.uid);
            let life = before.map_or_else(
                || {
                    self.lives += 1;
                    self.lives
                },
                |held| held.life,
            );
            listing.insert(pod.name, Held { source, life, pod: pod.clone() });
        }
        self.handed_out = listing.clone();
        listing
    }
}

const API: usize = 3;

#[derive(Default)]
struct Model {
    sources: [ModelSource; 4],
    merged: View,
    /// Restored claims that were in conflict on arrival, or lost later.
    weak: BTreeMap<(usize, u8), u64>,
    clock: u64,
}

impl Model {
    fn live(&self, source: usize) -> bool {
        self.sources[source].state == Some(true)
    }

    /// Applies a listing: a live one replaces the previous one, a restored one is added to it.
    fn take(&mut self, source: usize, listing: View, restored: bool) {
        self.clock += 1;
        if !restored {
            self.sources[source].effective = listing;
            self.sources[source].state = Some(true);
            self.weak.retain(|(of, _), _| *of != source);
            return;
        }
        if self.live(source) {
            return;
        }
        self.sources[source].state = Some(false);
        for (name, held) in listing {
            let known = self.sources[source].effective.get(&name);
            if known.is_some_and(|old| old.life != held.life) {
                continue;
            }
            let others = self.sources.iter().flat_map(|source| source.effective.values());
            let against = |other: &Held| {
                (other.source, other.pod.name) != (source, name)
                    && (other.pod.name == name || (held.pod.uid > 0 && other.pod.uid == held.pod.uid))
            };
            if known.is_none() && others.into_iter().any(against) {
                self.weak.insert((source, name), self.clock);
            }
            self.sources[source].effective.insert(name, held);
        }
    }

    /// Resolves all claims.
    fn merge(&mut self) {
        let mut alive: Vec<(u64, Held)> = Vec::new();
        for held in self.sources.iter().flat_map(|source| source.effective.values()) {
            let weakness = self.weak.get(&(held.source, held.pod.name)).copied().unwrap_or(0);
            alive.push((weakness, held.clone()));
        }
        let holders = loop {
            let holders = owners(alive.clone());
            let mut beaten = Vec::new();
            for (index, (weakness, held)) in alive.iter().enumerate() {
                let wants_the_same = |holder: &&(u64, Held)| {
                    holder.1.pod.name == held.pod.name
                        || (held.pod.uid > 0 && holder.1.pod.uid == held.pod.uid)
                };
                let strongest = holders.values().filter(wants_the_same).map(|holder| holder.0).max();
                let won = holders.get(&held.pod.name).is_some_and(|holder| holder.1 == *held);
                if !won && !self.live(held.source) && *weakness <= strongest.unwrap_or(0) {
                    beaten.push(index);
                }
            }
            if beaten.is_empty() {
                break holders;
            }
            self.clock += 1;
            for index in beaten {
                let (weakness, held) = &mut alive[index];
                *weakness = self.clock;
                self.weak.insert((held.source, held.pod.name), self.clock);
            }
        };
        self.merged = holders.into_iter().map(|(name, claim)| (name, claim.1)).collect();
    }
}

/// The owner of each name, among claims with their weakness.
fn owners(mut alive: Vec<(u64, Held)>) -> BTreeMap<u8, (u64, Held)> {
    loop {
        let mut holders: BTreeMap<u8, (u64, Held)> = BTreeMap::new();
        for claim in &alive {
            let best = holders.entry(claim.1.pod.name).or_insert_with(|| claim.clone());
            if (claim.0, claim.1.source) < (best.0, best.1.source) {
                *best = claim.clone();
            }
        }
        let rank =
            |(weakness, held): &(u64, Held)| (*weakness, held.source != API, held.source, held.pod.name);
        let better = |one: &(u64, Held), other: &(u64, Held)| {
            one.1.pod.uid == other.1.pod.uid && rank(one) < rank(other)
        };
        let dead: Vec<Held> = holders
            .values()
            .filter(|claim| claim.1.pod.uid > 0 && holders.values().any(|other| better(other, claim)))
            .map(|claim| claim.1.clone())
            .collect();
        if dead.is_empty() {
            return holders;
        }
        alive.retain(|claim| !dead.contains(&claim.1));
    }
}

/// A predicted update: operation, source, pods in order.
type Predicted = (Op, String, Vec<Plain>);

/// A consumer of the model.
#[derive(Default)]
struct ModelConsumer {
    delivered: View,
    seen: BTreeSet<usize>,
}

impl ModelConsumer {
    /// The differences, by operation and source.
    fn differences(&self, model: &Model) -> BTreeMap<(Op, usize), Vec<Plain>> {
        let mut received: BTreeMap<(Op, usize), Vec<Plain>> = BTreeMap::new();
        let mut say = |op, held: &Held| received.entry((op, held.source)).or_default().push(held.pod.clone());
        for name in 0..=u8::MAX {
            match (self.delivered.get(&name), model.merged.get(&name)) {
                (Some(old), Some(new)) if (old.source, old.life) == (new.source, new.life) => {
                    let (before, after) = (&old.pod, &new.pod);
                    if before.compared() != after.compared() {
                        say(if after.terminating { Op::Delete } else { Op::Update }, new);
                    } else if before.status != after.status {
                        say(Op::Reconcile, new);
                    }
                }
                (old, new) => {
                    if let Some(old) = old {
                        say(Op::Remove, old);
                    }
                    if let Some(new) = new {
                        say(Op::Add, new);
                    }
                }
            }
        }
        received
    }

    fn predict(&self, model: &Model, (notify, begins_with_sets): Consumer) -> Vec<Predicted> {
        let mut received = self.differences(model);
        let begins = |source: usize| model.live(source) && !self.seen.contains(&source);
        let in_turn = |received: &BTreeMap<(Op, usize), Vec<Plain>>| {
            let mut list: Vec<Predicted> = Vec::new();
            for op in [Op::Remove, Op::Set, Op::Add, Op::Update, Op::Delete] {
                list.extend(pick(received, op));
            }
            for source in (0..4).filter(|source| begins(*source)) {
                let says = |op: &Op| received.contains_key(&(*op, source));
                if ![Op::Set, Op::Add, Op::Update, Op::Delete].iter().any(says) {
                    list.push((Op::Add, SourceName::ALL[source].to_string(), Vec::new()));
                }
            }
            list.extend(pick(received, Op::Reconcile));
            list
        };
        if notify != Notify::Incremental && (0..4).all(|source| model.live(source)) {
            let mut list = in_turn(&received);
            let mut pods: Vec<Plain> = model.merged.values().map(|held| held.pod.clone()).collect();
            pods.sort_by_key(importance);
            let everything = (Op::Set, "*".to_owned(), pods);
            if notify == Notify::Snapshot {
                return list.first().map(|_| everything).into_iter().collect();
            }
            let moved = list.iter().any(|received| matches!(received.0, Op::Add | Op::Remove));
            let first = (0..4).any(begins);
            list.retain(|received| !matches!(received.0, Op::Add | Op::Remove));
            return (moved || first).then_some(everything).into_iter().chain(list).collect();
        }
        for source in 0..4 {
            let says = |ops: &[Op]| ops.iter().any(|op| received.contains_key(&(*op, source)));
            let (moved, changed) =
                (says(&[Op::Add, Op::Remove]), says(&[Op::Update, Op::Delete, Op::Reconcile]));
            let has_set = match notify {
                Notify::Incremental => begins(source) && begins_with_sets,
                Notify::Snapshot => begins(source) || (model.live(source) && (moved || changed)),
                Notify::SnapshotAndUpdates => begins(source) || (model.live(source) && moved),
            };
            if !has_set {
                continue;
            }
            // The set says everything about its pods, but for names that others have now.
            let is_wanted = |pod: &Plain| model.merged.values().any(|held| held.pod.key() == pod.key());
            if let Some(pods) = received.get_mut(&(Op::Remove, source)) {
                pods.retain(is_wanted);
            }
            received.remove(&(Op::Add, source));
            if begins(source) || notify == Notify::Snapshot {
                for op in [Op::Update, Op::Delete, Op::Reconcile] {
                    received.remove(&(op, source));
                }
            }
            let own = model.merged.values().filter(|held| held.source == source);
            received.insert((Op::Set, source), own.map(|held| held.pod.clone()).collect());
        }
        received.retain(|(op, _), pods| *op == Op::Set || !pods.is_empty());
        in_turn(&received)
    }
}

fn importance(pod: &Plain) -> (i32, u8, String) {
    (-pod.priority, pod.creation, pod.key())
}

fn pick(received: &BTreeMap<(Op, usize), Vec<Plain>>, op: Op) -> Vec<Predicted> {
    let mut list = Vec::new();
    for ((of, source), pods) in received {
        if *of != op {
            continue;
        }
        let mut pods = pods.clone();
        match op {
            Op::Add | Op::Set => pods.sort_by_key(importance),
            Op::Remove | Op::Delete => pods.sort_by_key(|pod| std::cmp::Reverse(importance(pod))),
            _ => pods.sort_by_key(Plain::key),
        }
        list.push((op, SourceName::ALL[*source].to_string(), pods));
    }
    list
}

/// A consumer that replays updates from an empty map, and checks each.
#[derive(Default)]
struct Replay {
    pods: BTreeMap<String, Value>,
    /// The source that each pod was last received from.
    sources: BTreeMap<String, String>,
}

impl Replay {
    fn replay(&mut self, update: &PodUpdate) {
        for pod in update.pods.iter() {
            let known = self.pods.contains_key(pod.key().as_str());
            match update.op {
                Op::Add => assert!(!known, "ADD of a delivered pod: {}", pod.key()),
                Op::Set => {}
                op => assert!(known, "{op} of a pod that was not delivered: {}", pod.key()),
            }
        }
        if update.op == Op::Set {
            let source = update.source.as_str();
            self.sources.retain(|_, of| source != "*" && of != source);
            self.pods.retain(|key, _| self.sources.contains_key(key));
        }
        for (index, pod) in update.pods.iter().enumerate() {
            let key = pod.key().to_string();
            if update.op == Op::Remove {
                self.pods.remove(&key);
                self.sources.remove(&key);
            } else {
                let own = update.sources.get(index).map_or(update.source.as_str(), |source| source.as_str());
                self.pods.insert(key.clone(), compared(pod));
                self.sources.insert(key, own.to_owned());
            }
        }
    }
}

/// The parts of a pod that are compared.
fn compared(pod: &Pod) -> Value {
    let pod: Value = serde_json::from_slice(pod.text()).unwrap();
    let metadata = &pod["metadata"];
    let (uid, labels, deletion) = (&metadata["uid"], &metadata["labels"], &metadata["deletionTimestamp"]);
    json!([pod["spec"], pod["status"], uid, labels, deletion, metadata["deletionGracePeriodSeconds"]])
}

/// A consumer at the beginning, with its model.
fn consumer((_, begins_with_sets): Consumer) -> (Delivered, Replay, ModelConsumer) {
    let delivered = if begins_with_sets { Delivered::unknown() } else { Delivered::default() };
    (delivered, Replay::default(), ModelConsumer::default())
}

/// The code under test and its model.
struct World {
    model: Model,
    builders: [ListingBuilder; 4],
    storage: PodStorage,
    consumers: Vec<(Delivered, Replay, ModelConsumer)>,
}

impl World {
    fn new() -> Self {
        Self {
            model: Model::default(),
            builders: SourceName::ALL.map(ListingBuilder::new),
            storage: PodStorage::new(&SourceName::ALL),
            consumers: CONSUMERS.map(consumer).into(),
        }
    }

    fn take(&mut self, step: Step) {
        let now = jiff::Timestamp::UNIX_EPOCH;
        match step {
            Step::Put { source, origin, pods } => {
                let prepared = pods.iter().map(Plain::prepared).collect();
                self.builders[source].put(&Origin::from(&*origin.to_string()), prepared, now);
                self.model.sources[source].found.insert(origin, pods);
            }
            Step::Remove { source, origin } => {
                self.builders[source].remove(&Origin::from(&*origin.to_string()));
                self.model.sources[source].found.remove(&origin);
            }
            Step::Push { source, restored } => {
                let builder = &mut self.builders[source];
                let listing = if restored { builder.restored_listing() } else { builder.listing() };
                let _rejections_have_their_own_test = self.storage.apply(&listing);
                let listing = self.model.sources[source].listing(source);
                self.model.take(source, listing, restored);
                self.model.merge();
                self.compare_views();
                self.wake(0, usize::MAX);
            }
            Step::Wake { consumer, take } => self.wake(consumer, take),
        }
    }

    fn compare_views(&self) {
        let ours: Vec<(String, usize)> = self
            .storage
            .merged()
            .iter()
            .map(|(key, entry)| (key.to_string(), entry.source() as usize))
            .collect();
        let models: Vec<(String, usize)> =
            self.model.merged.values().map(|held| (held.pod.key(), held.source)).collect();
        assert_eq!(ours, models, "the owners of the names");
        for source in SourceName::ALL {
            let state = match self.model.sources[source as usize].state {
                None => SourceState::Waiting,
                Some(false) => SourceState::Restored,
                Some(true) => SourceState::Synced,
            };
            assert_eq!(self.storage.merged().state(source), Some(state));
        }
    }

    /// A consumer compares the views and receives some of the updates.
    fn wake(&mut self, consumer: usize, take: usize) {
        let mode @ (notify, _) = CONSUMERS[consumer];
        let (delivered, replay, plain) = &mut self.consumers[consumer];
        let (goal, messages) = updates(delivered, self.storage.merged(), notify);
        let received: Vec<_> = messages.iter().map(summary).collect();
        let predicted = plain.predict(&self.model, mode);
        assert_same(&received, &predicted);
        if consumer == 0 {
            check_removals(&self.model, &messages);
        }
        for update in messages.iter().take(take) {
            replay.replay(update);
            delivered.advance(update, &goal);
            plain.advance(update, &self.model);
        }
        if take >= messages.len() {
            *delivered = goal;
            plain.catch_up(&self.model);
            let wanted: BTreeMap<String, Value> =
                delivered.iter().map(|(key, entry)| (key.to_string(), compared(entry.pod()))).collect();
            assert_eq!(replay.pods, wanted, "the replay and the delivered view");
            let view = self.storage.merged().iter();
            let view: BTreeMap<String, Value> =
                view.map(|(key, entry)| (key.to_string(), compared(entry.pod()))).collect();
            assert_eq!(replay.pods, view, "the replay and the merged view");
        }
    }
}

impl ModelConsumer {
    /// Records that one update on the way to the model's view was delivered.
    fn advance(&mut self, update: &PodUpdate, model: &Model) {
        if (update.op, update.source.as_str()) == (Op::Set, "*") {
            self.catch_up(model);
            return;
        }
        let source = SourceName::ALL.iter().position(|name| name.as_str() == update.source.as_str()).unwrap();
        if matches!(update.op, Op::Set | Op::Add | Op::Update | Op::Delete) && model.live(source) {
            self.seen.insert(source);
        }
        if update.op == Op::Set {
            self.delivered.retain(|_, held| held.source != source);
        }
        for pod in update.pods.iter() {
            let name = pod.key().name()[1..].parse().unwrap();
            if update.op == Op::Remove {
                self.delivered.remove(&name);
            } else {
                self.delivered.insert(name, model.merged[&name].clone());
            }
        }
    }

    fn catch_up(&mut self, model: &Model) {
        self.delivered = model.merged.clone();
        self.seen.extend((0..4).filter(|source| model.live(*source)));
    }
}

/// Checks that a pod is removed by its own source, once that is synced, or because a synced
/// source owns its name or UID now. (Only for a consumer that reads each update at
/// once: for another one the reason may have gone again.)
fn check_removals(model: &Model, messages: &[PodUpdate]) {
    for update in messages.iter().filter(|update| update.op == Op::Remove) {
        for pod in update.pods.iter() {
            let own = SourceName::ALL.iter().position(|name| name.as_str() == update.source.as_str());
            let taken = model.merged.values().any(|held| {
                let name_or_uid = held.pod.key() == pod.key().as_str()
                    || (held.pod.uid > 0 && format!("u{}", held.pod.uid) == **pod.uid());
                model.live(held.source) && name_or_uid
            });
            assert!(
                model.live(own.unwrap()) || taken,
                "{} of {} was removed on the word of a source that was not seen",
                pod.key(),
                update.source
            );
        }
    }
}

fn summary(update: &PodUpdate) -> (Op, String, Vec<String>) {
    let pods = update.pods.iter().map(|pod| format!("{}/{}", pod.key(), pod.uid())).collect();
    (update.op, update.source.to_string(), pods)
}

fn assert_same(ours: &[(Op, String, Vec<String>)], predicted: &[Predicted]) {
    let uid = |pod: &Plain| if pod.uid > 0 { format!("u{}", pod.uid) } else { String::new() };
    let predicted: Vec<(Op, String, Vec<String>)> = predicted
        .iter()
        .map(|(op, source, pods)| {
            let pods = pods.iter().map(|pod| format!("{}/{}", pod.key(), uid(pod))).collect();
            (*op, source.clone(), pods)
        })
        .collect();
    assert_eq!(ours, predicted, "the updates");
}

#[test]
fn random_histories_give_the_updates_of_a_simple_model() {
    let cases = std::env::var("PODMUX_HISTORIES").map_or(2_000, |number| number.parse().unwrap());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let run = TestRunner::new(config).run(&vec(step(), 1..60), |steps| {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        (0..CONSUMERS.len()).for_each(|consumer| world.wake(consumer, usize::MAX));
        Ok(())
    });
    if let Err(failure) = run {
        panic!("{failure}");
    }
    println!("{cases} histories");
}
