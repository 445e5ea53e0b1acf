//! The pod workers with a runtime in memory that is slow, fails and hangs, and a clock that is paused.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podmux::{
    host::{Host, Random as Randomness},
    mux::{Mux, SourceChannel},
    pod::{Entry, Listing, ListingBuilder, Op, Origin, Pod, PodKey, Prepared, SourceName, Uid},
    runtime::{
        Activity, ActualPod, Decision, Gone, KillPod, Observed, ObservedPod, PodRuntime, PodWorkers,
        RuntimeError, SyncPod, Wait, WorkersStatus, decide, observe, runtime_hash,
    },
    storage::{Merged, PodStorage, SourceState},
};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};
use tokio::{
    runtime::Builder,
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::support::{random::Random, script::pod};

/// A runtime in memory. It checks the protocol of each call.
#[derive(Clone)]
struct Machine(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Notify,
    /// Counts what happens.
    events: watch::Sender<u64>,
    follows_updates: bool,
}

struct State {
    pods: BTreeMap<(PodKey, Uid), ActualPod>,
    busy: BTreeSet<PodKey>,
    most_busy: usize,
    /// `SYNC name#uid=hash`, `KILL name#uid`, with the time.
    calls: Vec<(Instant, String)>,
    lists: usize,
    view: watch::Receiver<Merged>,
    /// The names of the pods whose sync fails.
    failing: BTreeSet<String>,
    /// The names of the pods whose sync fails before it has an effect.
    refused: BTreeSet<String>,
    /// The names of the pods whose calls last for two hours.
    hanging: BTreeSet<String>,
    lists_fail: bool,
    /// Whether what runs otherwise than wanted is killed first.
    replaces: bool,
    /// Whether kills mostly wait.
    kills_wait: bool,
    /// How many pods ran as a whole when that were fewest.
    fewest: usize,
    kills: Vec<KillPod>,
    delay: Duration,
    /// If it is there, calls last for a random time and fail at random.
    chaos: Option<Random>,
    /// The digest of each pod as it was given last, by a sync that succeeded.
    given: BTreeMap<(PodKey, Uid), String>,
    /// The last status of each pod that is killed.
    last: BTreeMap<Uid, Arc<Value>>,
}

/// A call on a key that ends or is cut off.
struct Busy<'a>(&'a Machine, PodKey);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state().busy.remove(&self.1);
        self.0.0.events.send_modify(|events| *events += 1);
    }
}

impl Machine {
    fn new(view: watch::Receiver<Merged>) -> Self {
        Self::with(view, false)
    }

    fn with(view: watch::Receiver<Merged>, follows_updates: bool) -> Self {
        let state = State {
            pods: BTreeMap::new(),
            busy: BTreeSet::new(),
            most_busy: 0,
            calls: Vec::new(),
            lists: 0,
            view,
            failing: BTreeSet::new(),
            refused: BTreeSet::new(),
            hanging: BTreeSet::new(),
            lists_fail: false,
            replaces: false,
            kills_wait: false,
            fewest: 0,
            kills: Vec::new(),
            delay: Duration::ZERO,
            chaos: None,
            given: BTreeMap::new(),
            last: BTreeMap::new(),
        };
        let (changed, events) = (Notify::new(), watch::Sender::new(0));
        Self(Arc::new(Shared { state: Mutex::new(state), changed, events, follows_updates }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A failed assertion of the protocol is seen in the end of the workers.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod that runs already: `name#uid`.
    fn runs(&self, text: &str, source: SourceName) {
        let pod = published(text);
        let actual = actual(&pod, source);
        self.state().pods.insert((pod.key().clone(), pod.uid().clone()), actual);
    }

    /// `name#uid` of what runs, in order; `?` if it is partial.
    fn running(&self) -> String {
        let text = |pod: &ActualPod| {
            format!("{}#{}{}", pod.key.name(), pod.uid, if pod.is_complete { "" } else { "?" })
        };
        self.state().pods.values().map(text).collect::<Vec<_>>().join(" ")
    }

    fn calls(&self) -> Vec<String> {
        self.state().calls.drain(..).map(|call| call.1).collect()
    }

    /// How many pods run as a whole. Those that are being killed do not count.
    fn complete(&self) -> usize {
        let state = self.state();
        let is_up = |pod: &&ActualPod| pod.is_complete && !state.busy.contains(&pod.key);
        state.pods.values().filter(is_up).count()
    }

    fn count(&self) {
        let now = self.complete();
        let mut state = self.state();
        state.fewest = state.fewest.min(now);
    }

    fn vanish(&self, name: &str) {
        self.state().pods.retain(|(key, _), _| key.name() != name);
        self.0.changed.notify_one();
    }

    /// One of its containers has ended.
    fn breaks(&self, name: &str) {
        let mut state = self.state();
        let pods = state.pods.iter_mut().filter(|((key, _), _)| key.name() == name);
        pods.for_each(|(_, pod)| pod.is_complete = false);
        self.0.changed.notify_one();
    }

    /// Waits until something that has happened or happens fits, for a day of paused time at most.
    async fn until(&self, fits: impl Fn(&Self) -> bool) {
        let mut events = self.0.events.subscribe();
        let waiting = events.wait_for(|_| fits(self));
        timeout(Duration::from_hours(24), waiting).await.expect("it does not happen").unwrap();
    }

    fn begin(&self, key: &PodKey, call: String) -> (Busy<'_>, Duration, bool) {
        let mut state = self.state();
        assert!(state.busy.insert(key.clone()), "two calls at once: {call}");
        state.most_busy = state.most_busy.max(state.busy.len());
        state.calls.push((Instant::now(), call));
        let mut delay = state.delay;
        if state.hanging.contains(key.name()) {
            delay = Duration::from_hours(2);
        }
        let mut fails = state.failing.contains(key.name());
        if let Some(random) = &mut state.chaos {
            delay = Duration::from_millis(*random.pick(&[0, 0, 1, 10, 500, 40_000, 200_000]));
            fails |= random.once_in(4);
        }
        drop(state);
        self.0.events.send_modify(|events| *events += 1);
        (Busy(self, key.clone()), delay, fails)
    }
}

impl PodRuntime for Machine {
    async fn list(&self) -> Result<Vec<ActualPod>, RuntimeError> {
        let (early, is_late, delay, fails) = {
            let mut state = self.state();
            state.lists += 1;
            let early: Vec<ActualPod> = state.pods.values().cloned().collect();
            let fails = state.lists_fail;
            match &mut state.chaos {
                Some(random) => (
                    early,
                    random.once_in(2),
                    *random.pick(&[0, 1, 700, 100_000]),
                    fails || random.once_in(4),
                ),
                None => (early, true, 0, fails),
            }
        };
        sleep(Duration::from_millis(delay)).await;
        if fails {
            return Err(RuntimeError::new("Unavailable", "no route to host"));
        }
        Ok(if is_late { self.state().pods.values().cloned().collect() } else { early })
    }

    async fn sync(&self, sync: &SyncPod) -> Result<(), RuntimeError> {
        let (key, uid) = (sync.pod.key(), sync.pod.uid());
        let (_busy, delay, fails) = self.begin(key, format!("{} {}#{uid}", sync.op, key.name()));
        assert_eq!(sync.pod.deletion_timestamp(), None);
        {
            let state = &mut *self.state();
            let is_known = is_known(&state.view.borrow(), sync.source);
            let pods = &mut state.pods;
            let others = pods.iter().any(|(at, pod)| at.0 == *key && (at.1 != *uid || !pod.is_ours));
            assert!(!others, "two pods of the name {key}");
            let elsewhere = pods.iter().any(|(at, pod)| at.0 != *key && at.1 == *uid && pod.is_ours);
            assert!(!elsewhere || uid.is_empty(), "two pods of the UID {uid}");
            let actual = ActualPod { is_complete: false, ..actual(&sync.pod, sync.source) };
            assert_eq!(actual.hash, sync.hash);
            let absent = pods
                .get(&(key.clone(), uid.clone()))
                .is_none_or(|pod| !pod.is_complete && (&pod.hash, pod.source) == (&sync.hash, sync.source));
            assert!(absent || is_known, "changed for a source that is not known: {sync:?}");
            let fails_early = state.chaos.as_mut().is_some_and(|random| fails && random.once_in(2));
            if fails_early || state.refused.contains(key.name()) {
                return Err(RuntimeError::new("Busy", "the last call has not ended"));
            }
            pods.insert((key.clone(), uid.clone()), actual);
        }
        sleep(delay).await;
        if fails {
            return Err(RuntimeError::new("ErrImagePull", "no such image"));
        }
        // It may have vanished meanwhile.
        if let Some(pod) = self.state().pods.get_mut(&(key.clone(), uid.clone())) {
            pod.is_complete = true;
        }
        self.state().given.insert((key.clone(), uid.clone()), sync.pod.digest().to_string());
        self.0.events.send_modify(|events| *events += 1);
        Ok(())
    }

    async fn kill(&self, kill: &KillPod) -> Result<(), RuntimeError> {
        let (key, uid) = (&kill.actual.key, &kill.actual.uid);
        let (_busy, delay, fails) = self.begin(key, format!("KILL {}#{uid}", key.name()));
        {
            let mut state = self.state();
            state.kills.push(kill.clone());
            let view = state.view.borrow().clone();
            let is_known = is_known(&view, kill.actual.source);
            assert!(is_known, "killed, although its source is not known: {kill:?}");
            let entry = view.get(key).filter(|entry| entry.pod().uid() == uid);
            let is_outdated = |entry: &Entry| {
                let (actual, hash) = (&kill.actual, runtime_hash(entry.pod()));
                state.replaces && (*actual.hash != *hash || actual.source != entry.source())
            };
            let may_go = |entry: &Entry| !entry.pod().is_to_run() || is_outdated(entry);
            assert!(entry.is_none_or(may_go), "it is wanted");
            assert!(kill.actual.is_ours);
        }
        self.count();
        sleep(delay).await;
        if fails {
            return Err(RuntimeError::new("FailedKillPod", "device is busy"));
        }
        self.state().pods.remove(&(key.clone(), uid.clone()));
        self.count();
        self.0.events.send_modify(|events| *events += 1);
        Ok(())
    }

    async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn status(&self, uid: &Uid) -> Option<Arc<Value>> {
        self.state().last.get(uid).cloned()
    }

    fn follows_updates(&self) -> bool {
        self.0.follows_updates
    }

    fn replaces_pods(&self) -> bool {
        self.state().replaces
    }

    fn kills_wait(&self) -> bool {
        self.state().kills_wait
    }
}

fn is_known(view: &Merged, source: SourceName) -> bool {
    view.state(source).is_none_or(|state| state == SourceState::Synced)
}

fn published(text: &str) -> Pod {
    pod(text).published_by(SourceName::File, jiff::Timestamp::UNIX_EPOCH)
}

fn actual(pod: &Pod, source: SourceName) -> ActualPod {
    let (key, uid, hash) = (pod.key().clone(), pod.uid().clone(), runtime_hash(pod).into());
    ActualPod { key, uid, hash, source, is_ours: true, is_complete: true, started: None, status: None }
}

/// The sources, and the workers of one run of the agent.
struct Agent {
    mux: Mux,
    channels: BTreeMap<SourceName, SourceChannel>,
    stop: CancellationToken,
    workers: JoinHandle<()>,
    status: watch::Receiver<WorkersStatus>,
    gone: watch::Receiver<Gone>,
    observed: watch::Receiver<Observed>,
}

use SourceName::{Api, File};

impl Agent {
    /// An agent with the file and the api source, whose workers have listed the runtime.
    async fn start() -> (Self, Machine) {
        Self::start_with(|workers| workers, |_| ()).await
    }

    async fn start_with(
        tune: impl FnOnce(PodWorkers<Machine>) -> PodWorkers<Machine>,
        prepare: impl FnOnce(&Machine),
    ) -> (Self, Machine) {
        let (mux, merging) = Mux::new(&[File, Api]);
        tokio::spawn(merging.run());
        let machine = Machine::new(mux.merged());
        prepare(&machine);
        let mut agent = Self::run(mux, &machine, tune);
        agent.status.wait_for(|status| status.is_listed || status.list_failing.is_some()).await.unwrap();
        (agent, machine)
    }

    fn run(
        mux: Mux,
        machine: &Machine,
        tune: impl FnOnce(PodWorkers<Machine>) -> PodWorkers<Machine>,
    ) -> Self {
        let host = Host { random: Randomness::seeded(1), ..Host::default() };
        let workers = tune(PodWorkers::new(machine.clone(), mux.merged()).on(host));
        let (status, gone, observed) = (workers.status(), workers.gone(), workers.observed());
        let stop = CancellationToken::new();
        let workers = tokio::spawn(workers.run(stop.clone()));
        let channels = [File, Api].map(|source| (source, mux.channel(source).unwrap())).into();
        Self { mux, channels, stop, workers, status, gone, observed }
    }

    /// Publishes the listing of a source.
    async fn publish(&self, listing: Listing) {
        let channel = &self.channels[&listing.source()];
        channel.publish(listing);
        assert!(channel.merged().await);
    }

    async fn want(&self, source: SourceName, pods: &str) {
        self.publish(listing(source, pods).listing()).await;
    }

    /// Waits until this is observed, for a day of paused time at most.
    async fn shows(&mut self, fits: impl Fn(&str) -> bool) {
        let waiting = self.observed.wait_for(|all| fits(&shown(all)));
        let is_observed = timeout(Duration::from_hours(24), waiting).await.is_ok();
        assert!(is_observed, "not observed:\n{}", shown(&self.observed.borrow()));
    }

    async fn restore(&self, source: SourceName, pods: &str) {
        self.publish(listing(source, pods).restored_listing()).await;
    }
}

fn listing(source: SourceName, pods: &str) -> ListingBuilder {
    let mut builder = ListingBuilder::new(source);
    let pods = pods.split_whitespace().map(pod).collect();
    builder.put(&Origin::from("test"), pods, jiff::Timestamp::UNIX_EPOCH);
    builder
}

/// Lets everything that can happen within an hour happen.
async fn quiet() {
    sleep(Duration::from_hours(1)).await;
}

/// What is decided about the pod `p`: the view after these listings, and what runs.
fn decided(
    listings: &[(&str, SourceName, &str)],
    running: &[ActualPod],
    changed: Option<Op>,
    replaces_pods: bool,
) -> String {
    let mut storage = PodStorage::new(&[File, SourceName::Http, Api]);
    for (kind, source, pods) in listings {
        let mut builder = listing(*source, pods);
        let _ =
            storage.apply(&if *kind == "restored" { builder.restored_listing() } else { builder.listing() });
    }
    let entry = storage.merged().get(&PodKey::new("default", "p"));
    let hash = entry.map(|entry| runtime_hash(entry.pod()));
    match decide(entry.zip(hash.as_deref()), storage.merged(), running, changed, replaces_pods) {
        Decision::Sync(entry, op) => format!("{op} {}", entry.pod().uid()),
        Decision::Kill(pod) => format!("KILL {}", pod.uid),
        Decision::Wait(wait) => format!("{wait:?}"),
        Decision::Nothing => String::new(),
    }
}

#[test]
fn decisions() {
    let runs = |text: &str, source| actual(&published(text), source);
    let part = |text: &str, source| ActualPod { is_complete: false, ..runs(text, source) };
    let foreign = |text: &str| ActualPod { is_ours: false, ..runs(text, File) };
    let synced = |source, pods| ("synced", source, pods);
    let restored = |source, pods| ("restored", source, pods);
    for (listings, running, expected) in [
        (vec![], vec![], ""),
        (vec![synced(File, "p#1")], vec![], "ADD 1"),
        (vec![synced(File, "p#1")], vec![runs("p#1", File)], ""),
        (vec![synced(File, "p#1=i:2")], vec![runs("p#1", File)], "UPDATE 1"),
        (vec![synced(File, "p#1")], vec![part("p#1", File)], "UPDATE 1"),
        // A source that is not known keeps its pods; http has not published, url is not configured.
        (vec![synced(File, "")], vec![runs("p#1", File)], "KILL 1"),
        (vec![synced(File, "")], vec![runs("p#1", SourceName::Http)], ""),
        (vec![synced(File, "")], vec![runs("p#1", SourceName::Url)], "KILL 1"),
        (vec![restored(File, "")], vec![runs("p#1", File)], ""),
        // A restored source only creates what is absent.
        (vec![restored(File, "p#1")], vec![], "ADD 1"),
        (vec![restored(File, "p#1=i:2")], vec![runs("p#1", File)], ""),
        (vec![restored(File, "p#1=i:2")], vec![part("p#1", File)], ""),
        (vec![restored(File, "p#1")], vec![part("p#1", File)], "UPDATE 1"),
        (vec![restored(File, "p#2")], vec![runs("p#1", File)], "Source(File)"),
        (vec![restored(File, "p#1!")], vec![runs("p#1", File)], ""),
        (vec![restored(File, "p#1!")], vec![], ""),
        // A restored source takes no name from a pod that its own source still wants.
        (vec![restored(File, "p#2"), synced(Api, "p#1")], vec![runs("p#1", Api)], "Source(Api)"),
        (vec![restored(File, "p#2"), synced(Api, "")], vec![runs("p#1", Api)], "KILL 1"),
        // A new UID, and a name that another source takes over.
        (vec![synced(File, "p#2")], vec![runs("p#1", File)], "KILL 1"),
        (vec![synced(File, "p#2")], vec![runs("p#1", File), runs("p#2", File)], "KILL 1"),
        (vec![synced(File, "p#2")], vec![runs("p#1", Api)], "Source(Api)"),
        (vec![synced(File, "p#2"), restored(Api, "")], vec![runs("p#1", Api)], "Source(Api)"),
        (vec![synced(File, "p#2"), synced(Api, "p#1")], vec![runs("p#1", Api)], "KILL 1"),
        // The same UID of another source.
        (vec![synced(File, "p#1")], vec![runs("p#1", Api)], "Source(Api)"),
        (vec![synced(File, "p#1"), synced(Api, "")], vec![runs("p#1", Api)], "UPDATE 1"),
        // Being deleted.
        (vec![synced(File, "p#1!")], vec![], ""),
        (vec![synced(File, "p#1!")], vec![runs("p#1", File)], "KILL 1"),
        (vec![synced(File, "p#2!")], vec![runs("p#1", File)], "KILL 1"),
        (vec![synced(File, "p#1!")], vec![runs("p#1", Api)], ""),
        // For another operating system.
        (vec![synced(File, "p#1~linux")], vec![], "ADD 1"),
        (vec![synced(File, "p#1~windows")], vec![], "OtherSystem"),
        (vec![synced(File, "p#1~windows!")], vec![], ""),
        (vec![synced(File, "p#1~windows")], vec![runs("p#1", File)], "KILL 1"),
        (vec![restored(File, "p#1~windows")], vec![runs("p#1", File)], "Source(File)"),
        // It has ended for its API server.
        (vec![synced(Api, "p#1%Succeeded")], vec![], ""),
        (vec![synced(Api, "p#1%Failed")], vec![runs("p#1", Api)], "KILL 1"),
        (vec![restored(Api, "p#1%Failed")], vec![runs("p#1", Api)], ""),
        (vec![synced(Api, "p#1%Failed")], vec![foreign("p#1")], ""),
        // Another instance.
        (vec![synced(File, "")], vec![foreign("p#1")], ""),
        (vec![synced(File, "p#1")], vec![foreign("p#1")], "OtherInstance"),
        (vec![synced(File, "p#2")], vec![foreign("p#1"), runs("p#1", File)], "KILL 1"),
    ] {
        assert_eq!(decided(&listings, &running, None, false), expected, "{listings:?} {running:?}");
    }
    let changed = |listing, op| decided(&[listing], &[runs("p#1", File)], Some(op), false);
    assert_eq!(changed(synced(File, "p#1+a:b"), Op::Update), "UPDATE 1");
    assert_eq!(changed(synced(File, "p#1%Running"), Op::Reconcile), "RECONCILE 1");
    assert_eq!(changed(synced(File, "p#1=i:2"), Op::Reconcile), "UPDATE 1");
    assert_eq!(changed(restored(File, "p#1+a:b"), Op::Update), "");
    assert_eq!(changed(synced(File, "p#1!"), Op::Update), "KILL 1");
}

#[test]
fn decisions_for_a_runtime_that_replaces_pods() {
    let runs = |text: &str, source| actual(&published(text), source);
    let part = |text: &str, source| ActualPod { is_complete: false, ..runs(text, source) };
    let synced = |source, pods| ("synced", source, pods);
    let restored = |source, pods| ("restored", source, pods);
    for (listings, running, expected) in [
        (vec![synced(File, "p#1=i:2")], runs("p#1", File), "KILL 1"),
        (vec![synced(File, "p#1=i:2")], part("p#1", File), "KILL 1"),
        (vec![synced(File, "p#1")], part("p#1", File), "UPDATE 1"),
        (vec![restored(File, "p#1=i:2")], runs("p#1", File), ""),
        (vec![synced(File, "p#1"), synced(Api, "")], runs("p#1", Api), "KILL 1"),
        (vec![synced(File, "p#1")], runs("p#1", Api), "Source(Api)"),
    ] {
        assert_eq!(
            decided(&listings, slice::from_ref(&running), None, true),
            expected,
            "{listings:?} {running:?}"
        );
    }
}

#[test]
fn the_runtime_hash_covers_what_a_runtime_uses() {
    let hash = |spec: &str, metadata: &str| {
        let text = format!(
            r#"{{"metadata": {{"name": "p", "uid": "1"{metadata}}}, "spec": {{"containers": [{{"name": "c"}}]{spec}}}}}"#
        );
        let prepared = podmux::pod::Prepared::from_json(text.as_bytes()).unwrap();
        runtime_hash(&prepared.published_by(Api, jiff::Timestamp::UNIX_EPOCH))
    };
    let plain = hash("", "");
    // A release that changes this value restarts every pod.
    expect_test::expect!["a5e025df8997b7ebca8439bc4ad061b8"].assert_eq(&plain);
    for metadata in [
        r#", "labels": {"a": "b"}"#,
        r#", "annotations": {"a": "b"}"#,
        r#", "resourceVersion": "7""#,
        r#", "deletionTimestamp": "2026-01-01T00:00:00Z""#,
    ] {
        assert_eq!(hash("", metadata), plain, "{metadata}");
    }
    for spec in
        [r#", "tolerations": [{"key": "a"}]"#, r#", "priority": 7"#, r#", "nodeSelector": {"a": "b"}"#]
    {
        assert_eq!(hash(spec, ""), plain, "{spec}");
    }
    for spec in [r#", "hostNetwork": true"#, r#", "\"\\é": 1"#, r#", "\"\\é": 2"#, r#", "nodeName": "n""#] {
        assert_ne!(hash(spec, ""), plain, "{spec}");
    }
    assert_ne!(hash(r#", "\"\\é": 1"#, ""), hash(r#", "\"\\é": 2"#, ""));
    let [first, more, other] = [r#""localhost/a""#, r#""localhost/a", "a": "b""#, r#""localhost/b""#]
        .map(|value| {
            format!(r#", "annotations": {{"container.apparmor.security.beta.kubernetes.io/c": {value}}}"#)
        })
        .map(|metadata| hash("", &metadata));
    assert!(first == more && first != plain && first != other);
}

#[tokio::test(start_paused = true)]
async fn what_is_wanted_is_started_changed_and_killed() {
    let (agent, machine) = Agent::start().await;
    agent.want(File, "a b#1").await;
    agent.want(Api, "c").await;
    machine.until(|machine| machine.running() == "a#a-uid b#1 c#c-uid").await;
    machine.calls();
    agent.want(File, "a=i:2 b#1+label:x@annotation:x").await;
    quiet().await;
    assert_eq!(machine.calls(), ["UPDATE a#a-uid"]);
    agent.want(File, "b#2").await;
    quiet().await;
    assert_eq!(machine.calls(), ["KILL a#a-uid", "KILL b#1", "ADD b#2"]);
    assert_eq!(machine.running(), "b#2 c#c-uid");
    assert!(agent.status.borrow().pods.is_empty());
}

/// As `Prepared::from_json` makes them.
#[tokio::test(start_paused = true)]
async fn pods_without_a_uid_run_beside_each_other() {
    let (agent, machine) = Agent::start().await;
    agent.want(File, "a# b# c#").await;
    machine.until(|machine| machine.running() == "a# b# c#").await;
    agent.want(File, "b#").await;
    machine.until(|machine| machine.running() == "b#").await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_killed_before_its_source_has_synced() {
    let (agent, machine) = Agent::start_with(
        |workers| workers,
        |machine| {
            machine.runs("old", File);
            machine.runs("same", Api);
            machine.runs("orphan", Api);
            machine.runs("url", SourceName::Url);
        },
    )
    .await;
    quiet().await;
    assert_eq!(machine.calls(), ["KILL url#url-uid"], "only the url source is not configured");
    agent.restore(Api, "same=i:2 new").await;
    agent.want(File, "new2").await;
    quiet().await;
    assert_eq!(machine.running(), "new#new-uid new2#new2-uid orphan#orphan-uid same#same-uid");
    agent.want(Api, "same new").await;
    quiet().await;
    assert_eq!(machine.running(), "new#new-uid new2#new2-uid same#same-uid");
    assert_eq!(machine.calls().iter().filter(|call| call.contains("same")).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_taken_over_when_its_first_source_has_synced() {
    let (agent, machine) = Agent::start_with(|workers| workers, |machine| machine.runs("a#1", Api)).await;
    agent.want(File, "a#2").await;
    quiet().await;
    let progress = agent.status.borrow().pods[&PodKey::new("default", "a")].clone();
    assert_eq!((&*progress.uid, progress.activity), ("2", Activity::Waiting(Wait::Source(Api))));
    assert_eq!(machine.running(), "a#1");
    agent.want(Api, "a#1").await;
    machine.until(|machine| machine.running() == "a#2").await;
    assert_eq!(machine.calls(), ["KILL a#1", "ADD a#2"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_being_deleted_is_killed_within_its_grace_and_never_started() {
    let (mut agent, machine) = Agent::start().await;
    agent.want(Api, "a b!!").await;
    machine.until(|machine| machine.running() == "a#a-uid").await;
    let key = PodKey::new("default", "a");
    machine.state().delay = Duration::from_secs(20);
    agent.want(Api, "a! b!!").await;
    machine.until(|machine| !machine.state().kills.is_empty()).await;
    assert!(!agent.gone.borrow().contains_key(&key));
    let gone = agent.gone.wait_for(|gone| gone.contains_key(&key)).await.unwrap().clone();
    assert_eq!(
        gone.iter().map(|(key, uid)| format!("{key} {uid}")).collect::<Vec<_>>().join(" "),
        "default/a a-uid default/b b-uid"
    );
    assert_eq!(machine.running(), "");
    let kill = machine.state().kills[0].clone();
    assert_eq!(kill.grace, Some(Duration::from_secs(30)));
    assert!(kill.pod.unwrap().deletion_timestamp().is_some());
    quiet().await;
    assert_eq!(machine.calls(), ["ADD a#a-uid", "KILL a#a-uid"]);
    agent.want(Api, "").await;
    agent.gone.wait_for(Gone::is_empty).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_status_with_which_a_kill_ends_stays_as_long_as_the_pod_is_in_the_view() {
    let (agent, machine) = Agent::start().await;
    agent.want(Api, "a").await;
    machine.until(|machine| machine.running() == "a#a-uid").await;
    let ended = json!({"phase": "Running", "containerStatuses": [
        {"name": "c", "ready": false, "restartCount": 3, "state": {"terminated": {"exitCode": 3}}},
    ]});
    machine.state().last.insert("a-uid".into(), Arc::new(ended.clone()));
    agent.want(Api, "a!").await;
    machine.until(|machine| machine.running().is_empty()).await;
    quiet().await;
    let status = agent.observed.borrow()[&PodKey::new("default", "a")].status.clone();
    assert_eq!(
        (&status["phase"], &status["containerStatuses"]),
        (&json!("Failed"), &ended["containerStatuses"])
    );
    agent.want(Api, "").await;
    quiet().await;
    assert!(agent.observed.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_for_its_api_server_is_stopped_and_never_started() {
    for follows_updates in [false, true] {
        let (mux, merging) = Mux::new(&[File, Api]);
        tokio::spawn(merging.run());
        let machine = Machine::with(mux.merged(), follows_updates);
        let mut agent = Agent::run(mux, &machine, |workers| workers);
        agent.status.wait_for(|status| status.is_listed).await.unwrap();
        agent.want(Api, "a b%Succeeded").await;
        machine.until(|machine| machine.running() == "a#a-uid").await;
        agent.want(Api, "a%Failed b%Succeeded").await;
        machine.until(|machine| machine.running().is_empty()).await;
        machine.0.changed.notify_one();
        quiet().await;
        assert_eq!(machine.calls(), ["ADD a#a-uid", "KILL a#a-uid"]);
        let kill = machine.state().kills[0].clone();
        assert_eq!((kill.grace, kill.pod), (None, None), "within its own grace");
        assert!(agent.status.borrow().pods.is_empty());
        for pod in agent.observed.borrow().values() {
            assert_eq!(pod.status.as_object().unwrap().keys().collect::<Vec<_>>(), ["message"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_pod_is_retried_alone_with_growing_delays() {
    let (agent, machine) = Agent::start_with(|workers| workers.concurrency(1), |_| ()).await;
    machine.state().failing.insert("bad".to_owned());
    agent.want(File, "bad").await;
    machine.until(|machine| machine.state().calls.len() == 12).await;
    let times: Vec<Instant> = machine.state().calls.iter().map(|call| call.0).collect();
    for (pair, nominal) in times.windows(2).zip([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]) {
        let (delay, nominal) = (pair[1] - pair[0], Duration::from_secs(nominal));
        assert!(delay >= nominal / 2 && delay <= nominal + Duration::from_millis(1), "{delay:?} {nominal:?}");
    }
    let key = PodKey::new("default", "bad");
    let progress = agent
        .status
        .clone()
        .wait_for(|status| status.pods.get(&key).is_some_and(|pod| pod.activity == Activity::BackingOff))
        .await
        .unwrap()
        .pods[&key]
        .clone();
    let failing = progress.failing.unwrap();
    assert_eq!((failing.reason, &*failing.error), ("ErrImagePull", "ErrImagePull: no such image"));
    assert_eq!(failing.attempts, 12);
    assert!(failing.next_attempt > failing.since.time);

    // Another pod does not wait, and neither does a new manifest of the failed one.
    machine.calls();
    agent.want(File, "bad good").await;
    machine.until(|machine| machine.running() == "bad#bad-uid? good#good-uid").await;
    let before = Instant::now();
    machine.state().failing.clear();
    agent.want(File, "bad=i:2 good").await;
    machine.until(|machine| machine.running() == "bad#bad-uid good#good-uid").await;
    assert_eq!(before.elapsed(), Duration::ZERO);
    agent.status.clone().wait_for(|status| status.pods.is_empty()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_vanishes_is_started_again_less_and_less_often_until_it_has_been_good_for_ten_minutes() {
    let (agent, machine) = Agent::start().await;
    agent.want(File, "a").await;
    machine.until(|machine| machine.running() == "a#a-uid").await;
    sleep(Duration::from_secs(70)).await;
    let vanish = async |lose: fn(&Machine, &str)| {
        let begin = Instant::now();
        lose(&machine, "a");
        machine.until(|machine| machine.running() == "a#a-uid").await;
        let pause = begin.elapsed();
        sleep(Duration::from_secs(100)).await;
        pause
    };
    for lose in [Machine::vanish, Machine::breaks] {
        let mut pauses = Vec::new();
        for _ in 0..5 {
            pauses.push(vanish(lose).await);
        }
        assert!(pauses[4] >= Duration::from_secs(8), "{pauses:?}");
        sleep(Duration::from_mins(10)).await;
        let pause = vanish(lose).await;
        assert!(pause <= Duration::from_millis(1_100), "{pause:?} after ten good minutes");
        sleep(Duration::from_mins(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn more_important_pods_come_first_and_so_many_at_once() {
    let pods = "d c<2 b<1 f^-1 a^9 e";
    let (agent, machine) = Agent::start_with(|workers| workers.concurrency(1), |_| ()).await;
    machine.state().delay = Duration::from_secs(1);
    agent.want(File, pods).await;
    machine.until(|machine| machine.state().calls.len() == 6).await;
    let names: String =
        machine.calls().iter().map(|call| call["ADD ".len()..].chars().next().unwrap()).collect();
    assert_eq!(names, "adebcf");
    assert_eq!(machine.state().most_busy, 1);

    let (agent, machine) = Agent::start().await;
    machine.state().delay = Duration::from_secs(1);
    agent.want(File, pods).await;
    quiet().await;
    assert_eq!(machine.calls().len(), 6);
    assert_eq!(machine.state().most_busy, 4);
}

#[tokio::test(start_paused = true)]
async fn no_start_waits_for_the_grace_of_a_stop_and_so_many_are_stopped_at_once() {
    let (agent, machine) =
        Agent::start_with(|workers| workers.concurrency(1), |machine| machine.state().kills_wait = true)
            .await;
    // No list makes up for what the workers forget.
    machine.state().lists_fail = true;
    let slow: Vec<String> = (0..10).map(|number| format!("slow-{number}")).collect();
    agent.want(File, &slow.join(" ")).await;
    machine.until(|machine| machine.state().pods.values().filter(|pod| pod.is_complete).count() == 10).await;
    machine.calls();
    machine.state().hanging.extend(slow.clone());
    // It comes last.
    agent.want(File, "quick^-1").await;
    machine.until(|machine| machine.running().starts_with("quick#quick-uid ")).await;
    quiet().await;
    // Kills begin when the workers have begun what they can at this moment.
    let kills = slow.iter().take(8).map(|name| format!("KILL {name}#{name}-uid"));
    let expected: Vec<String> = ["ADD quick#quick-uid".to_owned()].into_iter().chain(kills).collect();
    assert_eq!(machine.calls(), expected);
    let activity = |name: &str| {
        let status = agent.status.borrow();
        status.pods.get(&PodKey::new("default", name)).map(|progress| progress.activity)
    };
    assert_eq!(["slow-7", "slow-8", "slow-9"].map(activity), {
        [Some(Activity::Killing), Some(Activity::KillPending), Some(Activity::KillPending)]
    });
    // One of those that wait is wanted again, so that the other one is stopped next.
    agent.want(File, "quick^-1 slow-8").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(["slow-8", "slow-9"].map(activity), [None, Some(Activity::KillPending)]);
    machine.until(|machine| machine.running() == "quick#quick-uid slow-8#slow-8-uid").await;
    assert_eq!(machine.calls(), ["KILL slow-9#slow-9-uid"]);
}

#[tokio::test(start_paused = true)]
async fn deleted_pods_are_stopped_as_many_at_once_as_removed_ones_and_their_end_is_told_at_once() {
    let prepare = |machine: &Machine| {
        (machine.state().kills_wait, machine.state().replaces) = (true, true);
    };
    let (mut agent, machine) = Agent::start_with(|workers| workers.concurrency(1), prepare).await;
    let pods: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
    agent.want(Api, &pods.join(" ")).await;
    machine.until(|machine| machine.complete() == 10).await;
    // No list makes up for what the workers forget.
    (machine.state().lists_fail, machine.state().delay) = (true, Duration::from_secs(20));
    machine.state().most_busy = 0;
    let begun = Instant::now();
    agent.want(Api, &format!("{}!", pods.join("! "))).await;
    agent.gone.wait_for(|gone| gone.len() == 8).await.unwrap();
    let first = begun.elapsed();
    agent.gone.wait_for(|gone| gone.len() == 10).await.unwrap();
    let all = begun.elapsed();
    // tokio's timers have milliseconds.
    assert!(
        first <= Duration::from_millis(20_001) && all <= Duration::from_millis(40_002),
        "{first:?} {all:?}"
    );
    assert_eq!(machine.state().most_busy, 8);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_deleted_pod_is_told_at_once_also_if_others_wait_for_a_worker() {
    for kills_wait in [false, true] {
        let prepare = |machine: &Machine| machine.state().kills_wait = kills_wait;
        let (mut agent, machine) = Agent::start_with(|workers| workers.concurrency(1), prepare).await;
        let pods: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
        agent.want(Api, &pods.join(" ")).await;
        machine.until(|machine| machine.complete() == 10).await;
        (machine.state().lists_fail, machine.state().delay) = (true, Duration::from_secs(20));
        let begun = Instant::now();
        agent.want(Api, &format!("{}!", pods.join("! "))).await;
        agent.gone.wait_for(|gone| !gone.is_empty()).await.unwrap();
        assert!(begun.elapsed() <= Duration::from_millis(20_001), "{kills_wait} {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_deleted_pod_that_never_ran_does_not_wait_for_the_pod_before_it() {
    let (mut agent, machine) = Agent::start().await;
    agent.want(Api, "a#1").await;
    machine.until(|machine| machine.complete() == 1).await;
    machine.state().delay = Duration::from_secs(20);
    agent.want(Api, "a#2").await;
    machine.until(|machine| !machine.state().kills.is_empty()).await;
    let begun = Instant::now();
    agent.want(Api, "a#2!").await;
    let key = PodKey::new("default", "a");
    agent.gone.wait_for(|gone| gone.get(&key).is_some_and(|uid| **uid == *"2")).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_while_it_starts_has_not_failed_before_its_end() {
    let (mut agent, machine) = Agent::start().await;
    machine.state().delay = Duration::from_secs(20);
    agent.want(Api, "a").await;
    machine.until(|machine| machine.state().busy.len() == 1).await;
    agent.want(Api, "a!").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(shown(&agent.observed.borrow()), "a Pending 0/1 ContainerCreating");
    assert!(agent.gone.borrow().is_empty());
    machine.until(|machine| machine.running().is_empty()).await;
    agent.gone.wait_for(|gone| gone.len() == 1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_no_other_one_that_has_failed() {
    let (agent, machine) = Agent::start_with(|workers| workers.concurrency(1), |_| ()).await;
    machine.state().delay = Duration::from_secs(100);
    machine.state().failing.extend(["x", "y"].map(str::to_owned));
    agent.want(File, "x<1 y<2").await;
    machine.until(|machine| machine.state().calls.len() == 4).await;
    machine.calls();
    // It waits for the call in progress.
    agent.want(File, "x<1 y<2 z<3").await;
    machine.until(|machine| !machine.state().calls.is_empty()).await;
    assert_eq!(machine.calls(), ["ADD z#z-uid"]);
}

#[tokio::test(start_paused = true)]
async fn a_kill_begins_at_once_and_again_when_its_delay_is_over() {
    for kills_wait in [false, true] {
        let prepare = |machine: &Machine| machine.state().kills_wait = kills_wait;
        let (mut agent, machine) = Agent::start_with(|workers| workers, prepare).await;
        agent.want(Api, "web").await;
        machine.until(|machine| machine.complete() == 1).await;
        machine.state().lists_fail = true;
        machine.state().failing.insert("web".to_owned());
        machine.calls();
        let begun = Instant::now();
        agent.want(Api, "web!").await;
        machine.until(|machine| !machine.state().kills.is_empty() && machine.state().busy.is_empty()).await;
        machine.state().failing.clear();
        agent.gone.wait_for(|gone| gone.len() == 1).await.unwrap();
        assert!(begun.elapsed() <= Duration::from_millis(1_001), "{kills_wait} {:?}", begun.elapsed());
        assert_eq!(machine.calls(), ["KILL web#web-uid"; 2]);
    }
}

/// 32 pods, each with a UID that ends like this, and this image.
fn many((uid, image): (u8, u8)) -> String {
    let pod = |number| format!("p{number}#p{number}-{uid}=i:{image}");
    (0..32).map(pod).collect::<Vec<_>>().join(" ")
}

#[tokio::test(start_paused = true)]
async fn a_change_of_many_pods_takes_down_as_many_as_are_started_at_once() {
    // What is changed by an image, and by a UID, for a runtime whose kills wait, and for one whose kills work.
    for (kills_wait, new) in [(true, (1, 2)), (true, (2, 1)), (false, (1, 2)), (false, (2, 1))] {
        let prepare = |machine: &Machine| {
            (machine.state().kills_wait, machine.state().replaces) = (kills_wait, true);
        };
        let (agent, machine) = Agent::start_with(|workers| workers, prepare).await;
        agent.want(File, &many((1, 1))).await;
        machine.until(|machine| machine.complete() == 32).await;
        (machine.state().fewest, machine.state().delay) = (32, Duration::from_secs(20));
        machine.state().lists_fail = true;
        agent.want(File, &many(new)).await;

        machine.until(|machine| machine.state().kills.len() == 32 && machine.complete() == 32).await;
        assert_eq!(machine.state().fewest, 28, "{kills_wait} {new:?}");
        // Pods that go for good are as many as the runtime can kill at once.
        machine.state().most_busy = 0;
        agent.want(File, "").await;
        machine.until(|machine| machine.running().is_empty()).await;
        assert_eq!(machine.state().most_busy, if kills_wait { 32 } else { 4 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_change_fails_or_is_no_longer_wanted_holds_up_no_other_change() {
    let prepare = |machine: &Machine| {
        (machine.state().kills_wait, machine.state().replaces) = (true, true);
    };
    let (agent, machine) = Agent::start_with(|workers| workers.concurrency(1), prepare).await;
    agent.want(File, "a b c d").await;
    machine.until(|machine| machine.complete() == 4).await;
    machine.calls();
    machine.state().lists_fail = true;
    machine.state().failing.insert("a".to_owned());
    machine.state().hanging.insert("b".to_owned());
    agent.want(File, "a=i:2 b=i:2 c=i:2 d=i:2^-1").await;
    machine.until(|machine| machine.state().busy.contains(&PodKey::new("default", "b"))).await;
    machine.state().hanging.clear();
    // It goes while it is stopped, and another one that waits becomes the least important one.
    agent.want(File, "a=i:2 c=i:2^-2 d=i:2^-1").await;
    machine.until(|machine| machine.running() == "a#a-uid c#c-uid d#d-uid" && machine.complete() == 3).await;
    let calls: Vec<String> = machine.calls().into_iter().filter(|call| !call.contains(" a#")).collect();
    assert_eq!(
        calls,
        ["KILL b#b-uid", "KILL d#d-uid", "ADD d#d-uid", "KILL c#c-uid", "ADD c#c-uid"],
        "the newest state counts"
    );
}

#[tokio::test(start_paused = true)]
async fn with_one_worker_a_runtime_whose_kills_work_has_one_call_at_a_time() {
    let (agent, machine) = Agent::start_with(|workers| workers.concurrency(1), |_| ()).await;
    machine.state().delay = Duration::from_secs(1);
    agent.want(File, "a b#1 c d").await;
    machine.until(|machine| machine.complete() == 4).await;
    agent.want(File, "b#2 e f").await;
    machine.until(|machine| machine.running() == "b#2 e#e-uid f#f-uid" && machine.complete() == 3).await;
    assert_eq!(machine.state().most_busy, 1);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_may_have_what_it_replaces_killed_first() {
    let (agent, machine) = Agent::start_with(
        |workers| workers.concurrency(1),
        |machine| {
            (machine.state().replaces, machine.state().kills_wait) = (true, true);
            machine.runs("same", File);
            machine.runs("slow", File);
        },
    )
    .await;
    machine.state().hanging.insert("slow".to_owned());
    agent.want(File, "same slow=i:2 quick^-1").await;
    machine.until(|machine| machine.running().starts_with("quick#quick-uid ")).await;
    assert_eq!(machine.calls(), ["ADD quick#quick-uid", "KILL slow#slow-uid"]);
    let kill = machine.state().kills[0].clone();
    assert_eq!((kill.grace, kill.pod), (None, None));
    machine.until(|machine| machine.calls() == ["ADD slow#slow-uid"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_hangs_delays_no_other_and_the_newest_state_wins_then() {
    let (agent, machine) = Agent::start_with(|workers| workers.concurrency(2), |_| ()).await;
    machine.state().hanging.insert("slow".to_owned());
    agent.want(File, "slow#1").await;
    machine.until(|machine| machine.running() == "slow#1?").await;
    for round in 0..50 {
        agent.want(File, &format!("slow#{round} other#x=i:{round}")).await;
        sleep(Duration::from_secs(1)).await;
    }
    machine.state().hanging.clear();
    machine.until(|machine| machine.running() == "other#x slow#49").await;
    let slow: Vec<String> = machine.calls().into_iter().filter(|call| call.contains("slow")).collect();
    assert_eq!(slow, ["ADD slow#1", "KILL slow#1", "ADD slow#49"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_happens_before_the_runtime_is_listed() {
    let (agent, machine) =
        Agent::start_with(|workers| workers, |machine| machine.state().lists_fail = true).await;
    agent.want(File, "a").await;
    quiet().await;
    let status = agent.status.borrow().clone();
    assert!(!status.is_listed);
    assert_eq!(&*status.list_failing.unwrap().error, "Unavailable: no route to host");
    assert_eq!(machine.calls(), [""; 0]);
    machine.state().lists_fail = false;
    machine.until(|machine| machine.running() == "a#a-uid").await;
    assert_eq!(agent.status.clone().wait_for(|status| status.is_listed).await.unwrap().list_failing, None);
}

#[tokio::test(start_paused = true)]
async fn what_failed_while_the_runtime_was_away_is_retried_when_it_is_listed_again() {
    let (agent, machine) = Agent::start().await;
    machine.state().lists_fail = true;
    machine.state().failing.insert("a".to_owned());
    machine.0.changed.notify_one();
    agent.status.clone().wait_for(|status| status.list_failing.is_some()).await.unwrap();
    // Each change is tried at once, and makes the delay longer.
    for image in 1..=12 {
        agent.want(File, &format!("a=i:{image}")).await;
        machine.until(|machine| machine.state().calls.len() == image).await;
    }
    machine.state().lists_fail = false;
    machine.state().failing.clear();
    let begun = Instant::now();
    machine.until(|machine| machine.running() == "a#a-uid").await;
    assert!(begun.elapsed() <= Duration::from_mins(1), "{:?}", begun.elapsed());
    drop(agent);
}

/// The port of the node that it wants may be free now.
#[tokio::test(start_paused = true)]
async fn what_has_failed_and_wants_a_port_of_the_node_is_retried_when_a_pod_is_gone() {
    let (agent, machine) = Agent::start().await;
    let mut builder = ListingBuilder::new(File);
    let port = json!([{"containerPort": 80, "hostPort": 80}]);
    for (uid, ports) in [("a", &port), ("b", &port), ("c", &Value::Null)] {
        let spec = json!({"containers": [{"name": "c", "image": "i:1", "ports": ports}]});
        let metadata = json!({"name": uid, "namespace": "default", "uid": uid});
        let pod = Prepared::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        builder.put(&Origin::from(uid), vec![pod], jiff::Timestamp::UNIX_EPOCH);
    }
    machine.state().failing.extend(["b".to_owned(), "c".to_owned()]);
    agent.publish(builder.listing()).await;
    let attempts = |of: &str| machine.state().calls.iter().filter(|(_, call)| call.contains(of)).count();
    machine.until(|_| attempts("b#") >= 12 && attempts("c#") >= 12).await;
    machine.state().failing.clear();
    let before = Instant::now();
    builder.remove(&Origin::from("a"));
    agent.publish(builder.listing()).await;
    machine.until(|machine| machine.running() == "b#b c#c?").await;
    assert_eq!(before.elapsed(), Duration::ZERO, "without the delay");
    machine.until(|machine| machine.running() == "b#b c#c").await;
    assert!(before.elapsed() > Duration::from_secs(1), "it wants none");
}

/// A pod is changed, wanted again, or may succeed because the runtime is back.
#[tokio::test(start_paused = true)]
async fn what_happens_to_a_pod_during_a_call_that_fails_counts_after_it() {
    let delay = Duration::from_secs(10);
    for (wanted, then) in [("a=i:2", Some("a=i:3")), ("", Some("a")), ("a=i:2", None)] {
        let (agent, machine) = Agent::start().await;
        agent.want(File, "a").await;
        machine.until(|machine| machine.complete() == 1).await;
        machine.calls();
        machine.state().failing.insert("a".to_owned());
        machine.state().delay = delay;
        agent.want(File, wanted).await;
        machine.until(|machine| machine.state().calls.len() == 12).await;
        match then {
            Some(pods) => agent.want(File, pods).await,
            None => {
                for is_away in [true, false] {
                    machine.state().lists_fail = is_away;
                    machine.0.changed.notify_one();
                    let mut status = agent.status.clone();
                    status.wait_for(|status| status.list_failing.is_some() == is_away).await.unwrap();
                }
            }
        }
        machine.until(|machine| machine.state().calls.len() == 14).await;
        let times: Vec<Instant> = machine.state().calls.iter().map(|call| call.0).collect();
        assert_eq!(times[12] - times[11], delay, "{:?}", machine.calls());
        assert!(times[13] - times[12] > Duration::from_mins(1), "{:?}", machine.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_another_instance_are_left_alone() {
    let (agent, machine) = Agent::start_with(
        |workers| workers,
        |machine| {
            machine.runs("a#1", File);
            machine.state().pods.values_mut().for_each(|pod| pod.is_ours = false);
        },
    )
    .await;
    agent.want(File, "a#1").await;
    quiet().await;
    assert_eq!(machine.calls(), [""; 0]);
    machine.vanish("a");
    machine.until(|machine| machine.calls() == ["ADD a#1"]).await;
    drop(agent);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_may_follow_each_update() {
    let (mux, merging) = Mux::new(&[File, Api]);
    tokio::spawn(merging.run());
    let machine = Machine::with(mux.merged(), true);
    let agent = Agent::run(mux, &machine, |workers| workers);
    for pods in ["a", "a+b:c", "a+b:c%Running", "a+b:c%Running=i:2", "a!"] {
        agent.want(Api, pods).await;
        quiet().await;
    }
    assert_eq!(
        machine.calls(),
        ["ADD a#a-uid", "UPDATE a#a-uid", "RECONCILE a#a-uid", "UPDATE a#a-uid", "KILL a#a-uid"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_that_a_runtime_could_not_take_is_given_again_although_it_lists_the_pod_as_before() {
    let (mux, merging) = Mux::new(&[File, Api]);
    tokio::spawn(merging.run());
    let machine = Machine::with(mux.merged(), true);
    let agent = Agent::run(mux, &machine, |workers| workers);
    agent.want(Api, "a").await;
    quiet().await;
    machine.state().refused.insert("a".to_owned());
    agent.want(Api, "a+b:c").await;
    let lists = machine.state().lists;
    machine.until(|machine| machine.state().lists > lists + 1).await;
    machine.calls();
    machine.state().refused.clear();
    sleep(Duration::from_mins(5)).await;
    assert_eq!(machine.calls(), ["UPDATE a#a-uid"]);
}

#[tokio::test(start_paused = true)]
async fn what_has_begun_is_finished_at_the_stop_and_nothing_else_begins() {
    let (agent, machine) = Agent::start().await;
    machine.state().delay = Duration::from_secs(30);
    agent.want(File, "a b c d e f").await;
    machine.until(|machine| machine.state().busy.len() == 4).await;
    agent.stop.cancel();
    agent.workers.await.unwrap();
    assert_eq!(machine.running(), "a#a-uid b#b-uid c#c-uid d#d-uid");

    // The end of the mux is a stop too, and no pod is killed.
    let machine = Machine::new(agent.mux.merged());
    let (mux, merging) = Mux::new(&[File, Api]);
    tokio::spawn(merging.run());
    let agent = Agent::run(mux, &machine, |workers| workers);
    agent.want(File, "a").await;
    machine.until(|machine| machine.running() == "a#a-uid").await;
    drop(agent.channels);
    agent.workers.await.unwrap();
    assert_eq!(machine.calls(), ["ADD a#a-uid"]);
}

/// `NAME PHASE READY STATUS MESSAGE` of each observed pod: of its container, or of the pod if that waits for nothing.
fn shown(observed: &Observed) -> String {
    let line = |(key, pod): (&PodKey, &ObservedPod)| {
        let container = &pod.status["containerStatuses"][0];
        let waiting = &container["state"]["waiting"];
        let text = |field: &str| {
            let texts = [&waiting[field], &pod.status[field]];
            texts.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
        };
        let ready = if container["ready"] == true { "1/1" } else { "0/1" };
        let words =
            [key.name(), pod.status["phase"].as_str().unwrap(), ready, &text("reason"), &text("message")];
        words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(" ")
    };
    observed.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test(start_paused = true)]
async fn what_is_observed_of_a_pod_is_published_from_its_first_attempt_to_its_end() {
    let (mut agent, machine) = Agent::start().await;
    assert!(agent.observed.borrow_and_update().is_empty());
    machine.state().failing.insert("bad".to_owned());
    machine.state().delay = Duration::from_secs(10);
    agent.want(Api, "bad good").await;
    machine.until(|machine| machine.state().busy.len() == 2).await;
    let creating = "bad Pending 0/1 ContainerCreating\ngood Pending 0/1 ContainerCreating";
    assert_eq!(shown(&agent.observed.borrow_and_update()), creating);
    let failing = "bad Pending 0/1 ErrImagePull ErrImagePull: no such image";
    agent.observed.wait_for(|all| shown(all) == format!("{failing}\ngood Running 1/1")).await.unwrap();

    // Attempts that fail alike, and lists that show the same, are no news.
    agent.observed.mark_unchanged();
    let attempts = machine.state().calls.len();
    machine.until(|machine| machine.state().calls.len() > attempts + 3).await;
    assert!(!agent.observed.has_changed().unwrap());

    // The entry stays until the deletion is complete and the pod is gone from the view.
    agent.want(Api, "bad! good!").await;
    agent.gone.wait_for(|gone| gone.len() == 1).await.unwrap();
    assert_eq!(agent.observed.borrow().len(), 2);
    agent.want(Api, "").await;
    agent.shows(str::is_empty).await;
}

#[tokio::test(start_paused = true)]
async fn until_a_change_is_made_the_status_is_that_of_what_runs() {
    let (mut agent, machine) = Agent::start().await;
    agent.want(Api, "web=i:1").await;
    agent.shows(|all| all == "web Running 1/1").await;
    machine.state().hanging.insert("web".to_owned());
    agent.want(Api, "web=i:2").await;
    machine.until(|machine| machine.state().busy.len() == 1).await;
    let image = |all: &Observed| {
        let [pod] = &all.values().collect::<Vec<_>>()[..] else { panic!("{all:?}") };
        pod.status["containerStatuses"][0]["image"].clone()
    };
    assert_eq!(image(&agent.observed.borrow()), "i:1");
    agent.observed.wait_for(|all| image(all) == "i:2").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_status_of_the_runtime_is_published_when_it_is_listed_and_kept_through_an_update_that_restarts_nothing()
 {
    let (mux, merging) = Mux::new(&[File, Api]);
    tokio::spawn(merging.run());
    let machine = Machine::with(mux.merged(), true);
    let mut agent = Agent::run(mux, &machine, |workers| workers);
    agent.want(Api, "a").await;
    agent.shows(|all| all == "a Running 1/1").await;
    let crashed = json!({
        "podIP": "10.0.0.1",
        "containerStatuses": [{"name": "c", "ready": false, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
    });
    let started = "2026-01-01T00:00:00.7Z".parse().unwrap();
    for pod in machine.state().pods.values_mut() {
        (pod.status, pod.started) = (Some(Arc::new(crashed.clone())), Some(started));
    }
    machine.0.changed.notify_one();
    let is_crashed = |all: &str| all == "a Running 0/1 CrashLoopBackOff";
    agent.shows(is_crashed).await;
    machine.state().delay = Duration::from_secs(1);
    agent.want(Api, "a+b:c").await;
    machine.until(|machine| machine.state().calls.len() == 2 && machine.running() == "a#a-uid").await;
    sleep(Duration::from_millis(1)).await;
    let observed = agent.observed.borrow().clone();
    assert!(is_crashed(&shown(&observed)), "{observed:?}");
    assert_eq!(observed[&PodKey::new("default", "a")].status["podIP"], "10.0.0.1");
}

#[tokio::test(start_paused = true)]
async fn the_start_of_a_pod_outlives_lists_without_it_and_no_other_start() {
    let (mut agent, machine) = Agent::start().await;
    agent.want(Api, "a").await;
    agent.shows(|all| all == "a Running 1/1").await;
    let running = |agent: &Agent| {
        let observed = agent.observed.borrow();
        observed.values().next().unwrap().status["containerStatuses"][0]["state"]["running"].clone()
    };
    let first = running(&agent);
    assert!(first["startedAt"].is_string(), "{first}");
    let lists = machine.state().lists;
    quiet().await;
    assert!(machine.state().lists > lists + 10);
    assert_eq!(running(&agent), first);
    // The runtime has started it again, and tells when.
    let again = "2030-01-02T03:04:05Z";
    machine.state().pods.values_mut().for_each(|pod| pod.started = again.parse().ok());
    quiet().await;
    assert_eq!(running(&agent)["startedAt"], again);
}

#[tokio::test(start_paused = true)]
async fn an_activity_has_the_time_of_its_begin() {
    let (agent, machine) = Agent::start_with(
        |workers| workers,
        |machine| {
            machine.runs("web#1", Api);
            machine.state().hanging.insert("web".to_owned());
        },
    )
    .await;
    let now = || {
        let status = agent.status.borrow();
        let progress = &status.pods[&PodKey::new("default", "web")];
        (progress.activity, progress.since)
    };
    agent.want(File, "web#2").await;
    sleep(Duration::from_secs(1)).await;
    let (activity, since) = now();
    assert_eq!(activity, Activity::Waiting(Wait::Source(Api)));
    // Each list has the workers look at it again.
    quiet().await;
    assert_eq!(now(), (activity, since));
    agent.want(Api, "").await;
    machine.until(|machine| machine.state().busy.len() == 1).await;
    assert_eq!(now().0, Activity::Killing);
    assert!(now().1 > since);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_says_for_what() {
    let (mut agent, machine) = Agent::start_with(
        |workers| workers,
        |machine| {
            machine.runs("foreign#1", File);
            machine.state().pods.values_mut().for_each(|pod| pod.is_ours = false);
            machine.runs("moved#3", Api);
            machine.runs("replaced#5", File);
            machine.state().hanging.insert("replaced".to_owned());
        },
    )
    .await;
    agent.want(File, "foreign#2 moved#4 other#8~windows replaced#6").await;
    let expected = "\
foreign Pending 0/1 WaitingForOtherInstance another agent runs a pod of this name
moved Pending 0/1 WaitingForSource source api has not synced, and a pod of it runs under this name
other Failed 0/1 PodOSNotSupported its spec.os.name is not linux, the operating system of this node
replaced Pending 0/1 WaitingForPreviousPod the previous pod of this name (UID 5) is not gone yet";
    agent.shows(|all| all == expected).await;
    machine.state().hanging.clear();
    agent.want(Api, "").await;
    agent.shows(|all| all.ends_with("replaced Running 1/1")).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_as_wanted_without_a_call_waits_no_more() {
    let (mut agent, machine) = Agent::start_with(
        |workers| workers,
        |machine| {
            machine.runs("a#1", File);
            machine.state().pods.values_mut().for_each(|pod| pod.is_ours = false);
        },
    )
    .await;
    agent.want(File, "a#1").await;
    agent.shows(|all| all.starts_with("a Pending 0/1 WaitingForOtherInstance")).await;
    machine.state().pods.values_mut().for_each(|pod| pod.is_ours = true);
    machine.0.changed.notify_one();
    agent.shows(|all| all == "a Running 1/1").await;
    assert!(agent.status.borrow().pods.is_empty());
    assert_eq!(machine.calls(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_waits_is_called_again_when_its_grace_becomes_shorter() {
    // It counts from the first call.
    let all = &[60, 28, 0][..];
    for (kills_wait, last, expected) in [(true, "", all), (true, "web#new", all), (false, "", &[60])] {
        let (agent, machine) =
            Agent::start_with(|workers| workers, |machine| machine.state().kills_wait = kills_wait).await;
        agent.want(Api, "web").await;
        machine.until(|machine| machine.running() == "web#web-uid").await;
        machine.state().hanging.insert("web".to_owned());
        // At last it is erased, and perhaps another one has its name at once.
        for pods in ["web!!", "web!!+a:b", "web!", "web!!", last] {
            agent.want(Api, pods).await;
            sleep(Duration::from_secs(1)).await;
        }
        let graces = machine.state().kills.iter().filter_map(|kill| kill.grace).collect::<Vec<_>>();
        assert_eq!(graces, expected.iter().copied().map(Duration::from_secs).collect::<Vec<_>>());
        machine.state().hanging.clear();
        machine.until(|machine| machine.running() == last).await;
    }
}

/// What is published is what is observed of the state that is published.
fn assert_observed(agent: &Agent, machine: &Machine) {
    let (view, status) = (agent.mux.merged().borrow().clone(), agent.status.borrow().clone());
    let observed = agent.observed.borrow().clone();
    assert!(observed.keys().all(|key| view.contains_key(key)), "{observed:?}");
    for (key, entry) in &*view {
        let before = observed.get(key);
        let actual = machine.state().pods.get(&(key.clone(), entry.pod().uid().clone())).cloned();
        let after = observe(entry, actual.as_ref(), status.pods.get(key), before, jiff::Timestamp::MAX);
        assert_eq!(before.map(untimed), after.as_ref().map(untimed), "{key}");
    }
}

/// What is published at any moment agrees with the view and with what is done: only pods of the view are
/// observed, every pod that is worked on is, and one that fails or waits says why.
fn assert_published(agent: &Agent) {
    let (view, status) = (agent.mux.merged().borrow().clone(), agent.status.borrow().clone());
    let observed = agent.observed.borrow().clone();
    for (key, pod) in &observed {
        assert_eq!(view.get(key).map(|entry| entry.pod().uid()), Some(&pod.uid), "{key}");
    }
    for (key, progress) in &status.pods {
        let Some(entry) = view.get(key).filter(|entry| !entry.pod().has_ended()) else { continue };
        let Some(ObservedPod { status, .. }) = observed.get(key) else {
            let is_waiting = matches!(progress.activity, Activity::Waiting(_) | Activity::BackingOff);
            assert!(!is_waiting, "{key} is neither observed nor taken up: {progress:?}");
            continue;
        };
        let reason = match (&progress.failing, progress.activity) {
            _ if progress.uid != *entry.pod().uid() => "WaitingForPreviousPod",
            (_, Activity::Waiting(Wait::OtherName)) => "WaitingForPreviousPod",
            (_, Activity::Waiting(_)) => "WaitingForSource",
            (Some(failing), _) => failing.reason,
            (None, _) => continue,
        };
        let shown = [&status["containerStatuses"][0]["state"]["waiting"]["reason"], &status["reason"]];
        assert!(shown.contains(&&reason.into()), "{key}: {progress:?} {status}");
    }
}

/// A status without the start of its containers: what runs was listed at other times than it was started.
fn untimed(pod: &ObservedPod) -> Value {
    let mut status = (*pod.status).clone();
    for container in status["containerStatuses"].as_array_mut().into_iter().flatten() {
        container["state"]["running"].take();
    }
    status
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_changes_is_a_bounded_number_of_calls() {
    const PODS: usize = 100;
    let (agent, machine) = Agent::start().await;
    machine.state().delay = Duration::from_millis(1);
    let mut builder = ListingBuilder::new(File);
    let mut random = Random::new(1);
    let begin = Instant::now();
    for change in 0..10_000 {
        let name = random.below(PODS);
        let new = pod(&format!("p{name}#{}=i:{change}", random.below(2)));
        builder.put(&Origin::from(&*format!("{name}")), vec![new], jiff::Timestamp::UNIX_EPOCH);
        agent.channels[&File].publish(builder.listing());
        if change % 10 == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(begin.elapsed(), Duration::from_secs(1), "the source does not wait");
    quiet().await;
    // Four workers, a thousand milliseconds; then each pod once or twice more.
    let calls = machine.calls().len();
    assert!(calls <= 4 * 1_100 + 3 * PODS, "{calls} calls");
    assert_wanted(&agent, &machine);
}

/// What runs is exactly what is wanted.
fn assert_wanted(agent: &Agent, machine: &Machine) {
    let view = agent.mux.merged().borrow().clone();
    let wanted = view.values().filter(|entry| entry.pod().is_to_run());
    let wanted: Vec<ActualPod> = wanted.map(|entry| actual(entry.pod(), entry.source())).collect();
    let running: Vec<ActualPod> = machine.state().pods.values().cloned().collect();
    assert_eq!(running, wanted);
    let deleted = view.values().filter(|entry| entry.pod().deletion_timestamp().is_some());
    let deleted: Gone = deleted.map(|entry| (entry.pod().key().clone(), entry.pod().uid().clone())).collect();
    assert_eq!(*agent.gone.borrow(), deleted);
    assert!(agent.status.borrow().pods.is_empty(), "{:?}", agent.status.borrow());
    assert_observed(agent, machine);
    if machine.0.follows_updates {
        for entry in view.values().filter(|entry| entry.pod().is_to_run()) {
            let at = (entry.pod().key().clone(), entry.pod().uid().clone());
            assert_eq!(machine.state().given.get(&at), Some(&entry.pod().digest().to_string()), "{at:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_restored_source_is_given_when_it_has_synced() {
    let (mux, merging) = Mux::new(&[File, Api]);
    tokio::spawn(merging.run());
    let machine = Machine::with(mux.merged(), true);
    machine.runs("a", Api);
    let mut agent = Agent::run(mux, &machine, |workers| workers);
    agent.status.wait_for(|status| status.is_listed).await.unwrap();
    agent.restore(Api, "a+b:c").await;
    quiet().await;
    assert_eq!(machine.calls(), [""; 0]);
    agent.want(Api, "a+b:c").await;
    quiet().await;
    assert_eq!(machine.calls(), ["UPDATE a#a-uid"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_is_given_also_if_another_uid_is_killed_first() {
    let (mux, merging) = Mux::new(&[File, Api]);
    tokio::spawn(merging.run());
    let machine = Machine::with(mux.merged(), true);
    machine.runs("p#1", File);
    machine.runs("p#2", File);
    let agent = Agent::run(mux, &machine, |workers| workers);
    agent.want(File, "p#2+a:b").await;
    quiet().await;
    assert_eq!(machine.calls(), ["KILL p#1", "UPDATE p#2"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_renamed_with_its_uid_starts_when_the_old_one_is_gone() {
    let (mut agent, machine) = Agent::start().await;
    agent.want(File, "old#1").await;
    agent.shows(|all| all == "old Running 1/1").await;
    machine.state().hanging.insert("old".to_owned());
    agent.want(File, "new#1").await;
    let waits = "WaitingForPreviousPod a pod of another name with the same UID is not gone yet";
    agent.shows(|all| all == format!("new Pending 0/1 {waits}")).await;
    agent.shows(|all| all == "new Running 1/1").await;
    // It moves back while it is being started.
    machine.state().hanging = BTreeSet::from(["back".to_owned()]);
    agent.want(File, "back#1").await;
    machine.until(|machine| machine.state().busy.contains(&PodKey::new("default", "back"))).await;
    agent.want(File, "new#1").await;
    agent.shows(|all| all == "new Running 1/1").await;
    quiet().await;
    let calls =
        ["ADD old#1", "KILL old#1", "ADD new#1", "KILL new#1", "ADD back#1", "KILL back#1", "ADD new#1"];
    assert_eq!(machine.calls(), calls);
}

#[derive(Clone, Debug)]
enum Step {
    /// A source publishes, as synced or as restored if it has not synced.
    Publish(SourceName, bool, Vec<String>),
    /// The agent dies at this moment, and starts again.
    Restart,
    Vanish(u8),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let one = (
        0_u8..4,
        0_u8..2,
        0_u8..2,
        prop_oneof![4 => Just(""), 1 => Just("!"), 1 => Just("+a:b"), 1 => Just("%Failed")],
    );
    // Some UIDs are of the name alone; others move from name to name.
    let one = one.prop_map(|(name, uid, image, mark)| match name {
        0 | 1 => format!("p{name}#p{name}-{uid}=i:{image}{mark}"),
        _ => format!("p{name}#u{uid}=i:{image}{mark}"),
    });
    let source = prop_oneof![Just(File), Just(Api)];
    prop_oneof![
        6 => (source, any::<bool>(), vec(one, 0..4)).prop_map(|(source, restored, pods)| Step::Publish(source, restored, pods)),
        1 => Just(Step::Restart),
        1 => (0_u8..4).prop_map(Step::Vanish),
        5 => prop_oneof![Just(0), Just(1), Just(900), Just(30_000), Just(400_000)].prop_map(Step::Pass),
    ]
}

fn start_again(machine: &Machine, seed: u64) -> Agent {
    let (mux, merging) = Mux::new(&[File, Api]);
    tokio::spawn(merging.run());
    machine.state().view = mux.merged();
    let workers = if seed.is_multiple_of(2) { 4 } else { 1 };
    Agent::run(mux, machine, |workers_of| workers_of.concurrency(workers))
}

async fn run_history(seed: u64, steps: Vec<Step>) {
    let (mux, merging) = Mux::new(&[File, Api]);
    tokio::spawn(merging.run());
    let machine = Machine::with(mux.merged(), seed.is_multiple_of(3));
    machine.state().replaces = seed.is_multiple_of(5);
    machine.state().kills_wait = seed.is_multiple_of(7);
    machine.state().chaos = Some(Random::new(seed));
    let mut agent = Agent::run(mux, &machine, |workers| workers);
    let mut last = BTreeMap::from([(File, String::new()), (Api, String::new())]);
    for step in steps {
        match step {
            Step::Publish(source, restored, pods) => {
                let pods = pods.join(" ");
                let is_synced = agent.mux.merged().borrow().state(source) == Some(SourceState::Synced);
                if restored && !is_synced {
                    agent.restore(source, &pods).await;
                } else {
                    agent.want(source, &pods).await;
                }
                last.insert(source, pods);
            }
            Step::Restart => {
                agent.workers.abort();
                assert!(agent.workers.await.unwrap_err().is_cancelled());
                agent = start_again(&machine, seed);
            }
            Step::Vanish(name) => machine.vanish(&format!("p{name}")),
            Step::Pass(time) => sleep(Duration::from_millis(time)).await,
        }
        // Everything that is ready runs before the paused time passes.
        sleep(Duration::from_millis(1)).await;
        assert_published(&agent);
    }
    // At the end every source syncs and nothing fails any more.
    for (source, pods) in &last {
        agent.want(*source, pods).await;
    }
    machine.state().chaos = None;
    for _ in 0..3 {
        quiet().await;
    }
    assert!(!agent.workers.is_finished());
    assert_wanted(&agent, &machine);
    let settled = machine.state().calls.len();
    quiet().await;
    assert_eq!(machine.state().calls.len(), settled, "nothing happens when all is as wanted");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_any_history_what_runs_is_what_is_wanted(seed in any::<u64>(), steps in vec(step(), 0..40)) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(run_history(seed, steps));
    }
}
