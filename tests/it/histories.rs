//! Random histories over all four sources, against a model that rebuilds everything.
//!
//! `PODMUX_HISTORIES` says how many (2,000 if it is not set). The model knows
//! nothing of persistent maps, digests or incarnations: it keeps plain maps of
//! plain structs, decides every claim anew after each listing, and predicts
//! every update that every consumer must be given, in its order.

use std::collections::{BTreeMap, BTreeSet};

use podmux::{
    pod::{ListingBuilder, Op, Origin, Pod, PodUpdate, Prepared, SourceName},
    storage::{Delivered, Notify, PodStorage, SourceState, updates},
};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};

/// A pod as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Plain {
    name: u8,
    /// 0 is no UID.
    uid: u8,
    priority: i32,
    /// Not compared, but orders an ADD.
    creation: u8,
    /// Absent, empty, or one label: all different.
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

/// The modes of the consumers. The first one never sleeps.
const CONSUMERS: [Notify; 4] =
    [Notify::Incremental, Notify::Incremental, Notify::Snapshot, Notify::SnapshotAndUpdates];

/// One pod in the model's listing or view.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    source: usize,
    life: u64,
    pod: Plain,
}

/// The pods of a listing or a view, by the number in their name.
type View = BTreeMap<u8, Held>;

/// A source as the model sees it: what it found, and what it handed out.
#[derive(Default)]
struct ModelSource {
    found: BTreeMap<u8, Vec<Plain>>,
    handed_out: View,
    lives: u64,
    /// What the merge has of it.
    effective: View,
    state: Option<bool>,
}

impl ModelSource {
    /// The listing as the source would push it now.
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
    /// Restored claims that were stood against when they came, or lost since.
    weak: BTreeMap<(usize, u8), u64>,
    clock: u64,
}

impl Model {
    fn live(&self, source: usize) -> bool {
        self.sources[source].state == Some(true)
    }

    /// Takes a listing: a live one in place of what the source has, a restored one over it.
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

    /// Decides everything anew.
    fn merge(&mut self) {
        let mut alive: Vec<(u64, Held)> = Vec::new();
        for held in self.sources.iter().flat_map(|source| source.effective.values()) {
            let weakness = self.weak.get(&(held.source, held.pod.name)).copied().unwrap_or(0);
            alive.push((weakness, held.clone()));
        }
        let holders = loop {
            let holders = contest(alive.clone());
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

/// Who holds which name, among claims with their weakness.
fn contest(mut alive: Vec<(u64, Held)>) -> BTreeMap<u8, (u64, Held)> {
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

/// What a consumer is predicted to hear: operation, source, pods in order.
type Heard = (Op, String, Vec<Plain>);

/// A consumer as the model sees it.
#[derive(Default)]
struct ModelConsumer {
    told: View,
    seen: BTreeSet<usize>,
}

impl ModelConsumer {
    fn predict(&self, model: &Model, notify: Notify) -> Vec<Heard> {
        if notify != Notify::Incremental && model.sources.iter().any(|source| source.state.is_none()) {
            return Vec::new();
        }
        let mut heard: BTreeMap<(Op, usize), Vec<Plain>> = BTreeMap::new();
        let mut say = |op, held: &Held| heard.entry((op, held.source)).or_default().push(held.pod.clone());
        for name in 0..=u8::MAX {
            match (self.told.get(&name), model.merged.get(&name)) {
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
        let mut first = false;
        let mut list: Vec<Heard> = Vec::new();
        for op in [Op::Remove, Op::Add, Op::Update, Op::Delete] {
            list.extend(pick(&heard, op));
        }
        for source in 0..4 {
            if model.live(source) && !self.seen.contains(&source) {
                first = true;
                if ![Op::Add, Op::Update, Op::Delete].iter().any(|op| heard.contains_key(&(*op, source))) {
                    list.push((Op::Add, SourceName::ALL[source].to_string(), Vec::new()));
                }
            }
        }
        list.extend(pick(&heard, Op::Reconcile));
        let everything = || {
            let mut pods: Vec<Plain> = model.merged.values().map(|held| held.pod.clone()).collect();
            pods.sort_by_key(importance);
            (Op::Set, "*".to_owned(), pods)
        };
        let moved = first || list.iter().any(|heard| matches!(heard.0, Op::Add | Op::Remove));
        match notify {
            Notify::Incremental => list,
            Notify::Snapshot => list.first().map(|_| everything()).into_iter().collect(),
            Notify::SnapshotAndUpdates => {
                list.retain(|heard| !matches!(heard.0, Op::Add | Op::Remove));
                moved.then(everything).into_iter().chain(list).collect()
            }
        }
    }
}

fn importance(pod: &Plain) -> (i32, u8, String) {
    (-pod.priority, pod.creation, pod.key())
}

fn pick(heard: &BTreeMap<(Op, usize), Vec<Plain>>, op: Op) -> Vec<Heard> {
    let mut list = Vec::new();
    for ((of, source), pods) in heard {
        if *of != op {
            continue;
        }
        let mut pods = pods.clone();
        match op {
            Op::Add => pods.sort_by_key(importance),
            Op::Remove | Op::Delete => pods.sort_by_key(|pod| std::cmp::Reverse(importance(pod))),
            _ => pods.sort_by_key(Plain::key),
        }
        list.push((op, SourceName::ALL[*source].to_string(), pods));
    }
    list
}

/// A consumer that replays what it hears from an empty map, and trusts nothing.
#[derive(Default)]
struct Replay {
    pods: BTreeMap<String, Value>,
}

impl Replay {
    fn hear(&mut self, update: &PodUpdate) {
        for pod in update.pods.iter() {
            let known = self.pods.contains_key(pod.key().as_str());
            match update.op {
                Op::Add => assert!(!known, "ADD of the known pod {}", pod.key()),
                Op::Set => {}
                op => assert!(known, "{op} of the unknown pod {}", pod.key()),
            }
        }
        match update.op {
            Op::Remove => update.pods.iter().for_each(|pod| drop(self.pods.remove(pod.key().as_str()))),
            op => {
                if op == Op::Set {
                    self.pods.clear();
                }
                let pods = update.pods.iter().map(|pod| (pod.key().to_string(), compared(pod)));
                self.pods.extend(pods);
            }
        }
    }
}

/// All of a pod that makes an update or a RECONCILE.
fn compared(pod: &Pod) -> Value {
    let pod: Value = serde_json::from_slice(pod.text()).unwrap();
    let metadata = &pod["metadata"];
    let (uid, labels, deletion) = (&metadata["uid"], &metadata["labels"], &metadata["deletionTimestamp"]);
    json!([pod["spec"], pod["status"], uid, labels, deletion, metadata["deletionGracePeriodSeconds"]])
}

/// Everything under test, with its model beside it.
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
            consumers: CONSUMERS.map(|_| <(Delivered, Replay, ModelConsumer)>::default()).into(),
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
        assert_eq!(ours, models, "who holds which name");
        for source in SourceName::ALL {
            let state = match self.model.sources[source as usize].state {
                None => SourceState::Waiting,
                Some(false) => SourceState::Restored,
                Some(true) => SourceState::Synced,
            };
            assert_eq!(self.storage.merged().state(source), Some(state));
        }
    }

    /// A consumer asks for what is new, and takes some of it before it looks away.
    fn wake(&mut self, consumer: usize, take: usize) {
        let notify = CONSUMERS[consumer];
        let (told, replay, plain) = &mut self.consumers[consumer];
        let (goal, messages) = updates(told, self.storage.merged(), notify);
        let heard: Vec<_> = messages.iter().map(hear).collect();
        let predicted = plain.predict(&self.model, notify);
        assert_same(&heard, &predicted);
        if consumer == 0 {
            check_removals(&self.model, &messages);
        }
        for update in messages.iter().take(take) {
            replay.hear(update);
            told.advance(update, &goal);
            plain.advance(update, &self.model);
        }
        if take >= messages.len() {
            *told = goal;
            plain.catch_up(&self.model, notify);
            let wanted: BTreeMap<String, Value> =
                told.iter().map(|(key, entry)| (key.to_string(), compared(entry.pod()))).collect();
            assert_eq!(replay.pods, wanted, "the replay and what was told");
            if notify == Notify::Incremental || self.storage.merged().is_complete() {
                let view = self.storage.merged().iter();
                let view: BTreeMap<String, Value> =
                    view.map(|(key, entry)| (key.to_string(), compared(entry.pod()))).collect();
                assert_eq!(replay.pods, view, "the replay and the merged view");
            }
        }
    }
}

impl ModelConsumer {
    /// It was handed one update on the way to the model's view.
    fn advance(&mut self, update: &PodUpdate, model: &Model) {
        if update.op == Op::Set {
            self.catch_up(model, Notify::Incremental);
            return;
        }
        let source = SourceName::ALL.iter().position(|name| name.as_str() == update.source.as_str()).unwrap();
        if matches!(update.op, Op::Add | Op::Update | Op::Delete) && model.live(source) {
            self.seen.insert(source);
        }
        for pod in update.pods.iter() {
            let name = pod.key().name()[1..].parse().unwrap();
            if update.op == Op::Remove {
                self.told.remove(&name);
            } else {
                self.told.insert(name, model.merged[&name].clone());
            }
        }
    }

    fn catch_up(&mut self, model: &Model, notify: Notify) {
        if notify == Notify::Incremental || model.sources.iter().all(|source| source.state.is_some()) {
            self.told = model.merged.clone();
            self.seen.extend((0..4).filter(|source| model.live(*source)));
        }
    }
}

/// A pod is removed by its source once that was seen, or because a source that
/// was seen took its name or UID. (Only a consumer that never sleeps can be
/// shown the reason: for another one it may have come and gone.)
fn check_removals(model: &Model, messages: &[PodUpdate]) {
    for update in messages.iter().filter(|update| update.op == Op::Remove) {
        for pod in update.pods.iter() {
            let own = SourceName::ALL.iter().position(|name| name.as_str() == update.source.as_str());
            let taken = model.merged.values().any(|held| {
                let name_or_uid = held.pod.key() == pod.key().as_str()
                    || (held.pod.uid > 0 && format!("u{}", held.pod.uid) == pod.uid().as_str());
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

fn hear(update: &PodUpdate) -> (Op, String, Vec<String>) {
    let pods = update.pods.iter().map(|pod| format!("{}/{}", pod.key(), pod.uid())).collect();
    (update.op, update.source.to_string(), pods)
}

fn assert_same(ours: &[(Op, String, Vec<String>)], predicted: &[Heard]) {
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
fn random_histories_never_differ_from_a_model_that_rebuilds_everything() {
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
