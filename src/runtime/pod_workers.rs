//! The pod workers: what runs becomes what is wanted, one worker a pod.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    future::{pending, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::Poll,
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use imbl::{OrdMap, ordmap::DiffItem};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    contract::{ActualPod, KillPod, LogRequest, PodRuntime, RuntimeError, SyncPod},
    decide::{Decision, Wait, decide},
    failing::Failing,
    hash::runtime_hash,
    kills::{Kills, Purpose},
    observed::{Obstacle, is_being_started, observe, obstacle},
    status::{Activity, Gone, Observed, PodProgress, WorkersStatus},
    work_queue::{WorkQueue, Working},
};
use crate::{
    backoff::Backoff,
    error_chain::chain,
    host::Host,
    outage::Outage,
    pod::{Entry, Op, PodKey, SourceName, Uid, classify},
    storage::Merged,
};

/// The delay after the first failure of a pod, or of listing; it doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_mins(5);
/// The longest delay after a failure to list, and the time between two lists.
const RELIST: Duration = Duration::from_mins(1);
/// The shortest time between two lists, however much changes in the runtime.
const RELIST_PAUSE: Duration = Duration::from_secs(1);
/// How many pods are synced at once by default.
const CONCURRENCY: usize = 4;
/// How many times as many pods are removed at once as are synced, if [kills mostly wait](PodRuntime::kills_wait).
const REMOVALS: usize = 8;
/// How long a pod must have been good until its failures are forgotten.
const GOOD: Duration = Duration::from_mins(10);

/// The importance of a pod: the lowest comes first. Higher priority, then one that does not fail, then the older one.
pub type Rank = (Reverse<i32>, bool, Option<Box<str>>);

/// A call of [`PodRuntime::logs`].
pub type Logging = Pin<Box<dyn Future<Output = Result<(), RuntimeError>> + Send>>;

/// Reads the output of containers: [`PodRuntime::logs`] of a runtime of any type. Cheap to clone.
pub type LogReader = Arc<dyn Fn(LogRequest, mpsc::Sender<Vec<u8>>) -> Logging + Send + Sync>;

/// Drives a runtime: what runs becomes what is wanted, as the kubelet's pod workers do it.
///
/// What is wanted is the merged view, what runs is what the runtime lists; nothing else is
/// remembered, so a crash at any moment orphans nothing.
///
/// * A pod that is wanted and does not run as wanted is synced. One that runs under our instance and is
///   not wanted is killed, if the source that it was started for has synced or is not configured.
/// * A source that was only restored creates what is absent. It changes nothing and kills nothing.
/// * A pod with a deletionTimestamp is killed within its grace and never started again. So is one whose own status says
///   that [it has ended](crate::pod::Pod::has_ended), within the grace of its spec.
/// * One worker a key at a time: a new UID waits for the end of the old one, and so does a UID that comes back under
///   another name. Several keys are worked on at once. The newest state counts when the work begins.
/// * If [kills mostly wait](PodRuntime::kills_wait), eight times as many pods are removed at once, and no sync of
///   another pod waits for the grace of one that is killed. A kill whose grace becomes shorter is called again.
/// * A pod that is killed for another one counts until that was synced: a change of many pods takes down at once only
///   as many as are synced at once.
/// * A failed pod is tried again alone, after a second at first and five minutes at most, and at once
///   when its manifest changes. The delays begin again after ten good minutes. A pod that
///   vanishes from the runtime has failed too.
/// * More important pods come first: by priority, then those that do not fail, then by age. A pod that is no longer in
///   the view comes first among those of priority 0.
#[derive(Debug)]
pub struct PodWorkers<R> {
    runtime: Arc<R>,
    merged: watch::Receiver<Merged>,
    concurrency: usize,
    host: Host,
    queue: WorkQueue<PodKey, Rank>,
    world: Mutex<World>,
    /// The kills that have not begun.
    kills: Mutex<Vec<(Working<PodKey, Rank>, KillPod)>>,
    status: watch::Sender<WorkersStatus>,
    gone: watch::Sender<Gone>,
    observed: watch::Sender<Observed>,
}

/// What is wanted and what runs.
#[derive(Debug)]
struct World {
    view: Merged,
    /// The hash of each pod of the view.
    hashes: HashMap<PodKey, Arc<str>>,
    actual: HashMap<PodKey, Vec<ActualPod>>,
    /// Where the pod of a UID is, or is being started.
    places: HashMap<Uid, PodKey>,
    /// The keys that wait until another key no longer has the pod of their UID.
    moving: HashMap<PodKey, PodKey>,
    is_listed: bool,
    working: HashSet<PodKey>,
    /// Those of them that have changed meanwhile, or may succeed now: a failure of theirs has no delay.
    again: HashSet<PodKey>,
    kills: Kills<Rank>,
    /// The keys that were worked on since the list in progress began: it may not show them as they are.
    worked: HashSet<PodKey>,
    /// The changes that the runtime has not received, if it follows updates.
    changed: HashMap<PodKey, Op>,
    records: HashMap<PodKey, Record>,
    /// What the published statuses were made of.
    seen: HashMap<PodKey, Seen>,
    /// Whether the runtime replaces pods.
    replaces_pods: bool,
}

/// What a pod's status was made of. While it is the same, so is the status.
#[derive(Debug, PartialEq)]
struct Seen {
    entry: Entry,
    actual: Option<ActualPod>,
    is_taken_up: bool,
    obstacle: Option<Obstacle>,
    is_being_started: bool,
}

/// How a pod has failed.
#[derive(Debug, Default)]
struct Record {
    outage: Outage,
    next_attempt: Option<Instant>,
    good_since: Option<Instant>,
}

/// A call of the runtime.
enum Call {
    Sync(SyncPod),
    Kill(KillPod),
}

impl<R: PodRuntime> PodWorkers<R> {
    /// Workers for this runtime, with [`Mux::merged`](crate::mux::Mux::merged) as what is wanted.
    pub fn new(runtime: R, merged: watch::Receiver<Merged>) -> Self {
        let host = Host::default();
        let view = merged.borrow().clone();
        let is_followed = runtime.follows_updates();
        let followed = view.keys().filter(|_| is_followed).map(|key| (key.clone(), Op::Update));
        let world = World {
            changed: followed.collect(),
            hashes: view.iter().map(|(key, entry)| (key.clone(), runtime_hash(entry.pod()).into())).collect(),
            view,
            actual: HashMap::new(),
            places: HashMap::new(),
            moving: HashMap::new(),
            is_listed: false,
            working: HashSet::new(),
            again: HashSet::new(),
            kills: kills(&runtime, CONCURRENCY),
            worked: HashSet::new(),
            records: HashMap::new(),
            seen: HashMap::new(),
            replaces_pods: runtime.replaces_pods(),
        };
        Self {
            runtime: Arc::new(runtime),
            merged,
            concurrency: CONCURRENCY,
            queue: WorkQueue::new(FIRST_DELAY, LONGEST_DELAY, host.random.clone()),
            host,
            world: Mutex::new(world),
            kills: Mutex::default(),
            status: watch::Sender::default(),
            gone: watch::Sender::default(),
            observed: watch::Sender::default(),
        }
    }

    /// Uses this clock and these random numbers. Call it before [`queue`](Self::queue).
    #[must_use]
    pub fn on(self, host: Host) -> Self {
        let queue = WorkQueue::new(FIRST_DELAY, LONGEST_DELAY, host.random.clone());
        Self { host, queue, ..self }
    }

    /// Works on so many pods at once, 4 by default and one at least. Pods that are removed may be
    /// [more](PodRuntime::kills_wait).
    #[must_use]
    pub fn concurrency(self, concurrency: usize) -> Self {
        let concurrency = concurrency.max(1);
        self.world().kills = kills(&*self.runtime, concurrency);
        Self { concurrency, ..self }
    }

    /// What the workers do now, and what fails.
    pub fn status(&self) -> watch::Receiver<WorkersStatus> {
        self.status.subscribe()
    }

    /// The graceful deletions that are complete.
    pub fn gone(&self) -> watch::Receiver<Gone> {
        self.gone.subscribe()
    }

    /// What is observed of the wanted pods. It changes only if the status of a pod does.
    pub fn observed(&self) -> watch::Receiver<Observed> {
        self.observed.subscribe()
    }

    /// The work queue, for its metrics.
    pub fn queue(&self) -> WorkQueue<PodKey, Rank> {
        self.queue.clone()
    }

    /// The output of the runtime's containers, until the workers have ended: a reader keeps no runtime alive.
    pub fn logs(&self) -> LogReader
    where
        R: 'static,
    {
        let runtime = Arc::downgrade(&self.runtime);
        Arc::new(move |log, output| {
            let runtime = Weak::upgrade(&runtime);
            Box::pin(async move {
                let ended = || RuntimeError::new("Stopping", "the pod workers have ended");
                runtime.ok_or_else(ended)?.logs(&log, output).await
            })
        })
    }

    /// Works until `stop` is cancelled or the mux has ended. Then nothing new begins, and what has begun
    /// is finished. No pod is killed because of it.
    ///
    /// # Cancel safety
    /// If the future is dropped, the calls of the runtime are cut off.
    pub async fn run(self, stop: CancellationToken) {
        // What ends the workers must not stop what belongs to the caller.
        let stop = stop.child_token();
        let mut tasks: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>> = FuturesUnordered::new();
        tasks.push(Box::pin(self.follow(&stop)));
        tasks.push(Box::pin(self.relist(&stop)));
        tasks.push(Box::pin(self.runtime.run(&stop)));
        for _ in 0..self.concurrency {
            tasks.push(Box::pin(self.work(&stop)));
        }
        poll_fn(|context| {
            loop {
                let polled = tasks.poll_next_unpin(context);
                // A worker has left them.
                let kills = mem::take(&mut *lock(&self.kills));
                let has_kills = !kills.is_empty();
                for (key, kill) in kills {
                    tasks.push(Box::pin(self.kill(key, kill)));
                }
                match polled {
                    Poll::Ready(None) if !has_kills => return Poll::Ready(()),
                    Poll::Pending if !has_kills => return Poll::Pending,
                    _ => {}
                }
            }
        })
        .await;
    }

    /// Queues the keys of the view that change.
    async fn follow(&self, stop: &CancellationToken) {
        let mut merged = self.merged.clone();
        merged.mark_changed();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = merged.changed() => {
                    if changed.is_err() {
                        return stop.cancel();
                    }
                    let view = merged.borrow_and_update().clone();
                    self.viewed(&view);
                }
            }
        }
    }

    /// Takes over a new view.
    fn viewed(&self, view: &Merged) {
        let mut world = self.world();
        let old = mem::replace(&mut world.view, view.clone());
        let has_new_source = SourceName::ALL.iter().any(|source| old.state(*source) != view.state(*source));
        let (mut changed, mut seen) = (Vec::new(), Vec::new());
        for change in old.diff(view) {
            let (key, op) = match change {
                DiffItem::Add(key, _) | DiffItem::Remove(key, _) => (key, Some(Op::Update)),
                DiffItem::Update { old: (key, old), new: (_, new) } => (key, kind(old, new)),
            };
            seen.push(key);
            if world.working.contains(key) {
                // The pod before it may take long.
                self.note_deletion(&world, key);
            }
            if let Some(entry) = view.get(key) {
                world.hashes.insert(key.clone(), runtime_hash(entry.pod()).into());
            } else {
                world.hashes.remove(key);
                // It is killed if it runs: no change of it is given.
                world.changed.remove(key);
            }
            let op = op.filter(|op| *op != Op::Reconcile || self.runtime.follows_updates());
            let Some(op) = op else { continue };
            self.note_change(&mut world, key, op);
            if op != Op::Reconcile {
                if let Some(record) = world.records.get_mut(key) {
                    record.next_attempt = None;
                }
                if world.working.contains(key) {
                    world.again.insert(key.clone());
                }
            }
            changed.push((world.rank(key), key.clone()));
        }
        self.observe(&mut world, seen);
        if !world.is_listed {
            return;
        }
        self.enqueue(changed);
        if has_new_source {
            self.sweep(&mut world);
        }
    }

    /// Notes a change that the runtime has to receive, if it follows updates.
    fn note_change(&self, world: &mut World, key: &PodKey, op: Op) {
        if self.runtime.follows_updates() && world.view.contains_key(key) {
            let before = world.changed.get(key).copied();
            world.changed.insert(key.clone(), before.map_or(op, |before| before.min(op)));
        }
    }

    /// Queues every key that is not as wanted, or that something is still said to be done about.
    fn sweep(&self, world: &mut World) {
        for (key, _) in world.records.extract_if(|_, record| record.is_good()) {
            self.queue.forget(&key);
        }
        let noted = self.status.borrow().pods.clone();
        let keys = world.view.keys().chain(world.actual.keys()).chain(noted.keys());
        let keys: HashSet<&PodKey> = keys.collect();
        let mut queued: Vec<(Rank, PodKey)> = Vec::new();
        for key in keys {
            if world.decide(key) == Decision::Nothing && !noted.contains_key(key) {
                self.note_deletion(world, key);
            } else {
                queued.push((world.rank(key), key.clone()));
            }
        }
        self.enqueue(queued);
    }

    /// Works on what has failed and may succeed now, without its delays.
    fn retry(&self, world: &mut World, may_succeed: impl Fn(&Merged, &PodKey) -> bool) {
        let working = world.working.iter().filter(|key| may_succeed(&world.view, key));
        world.again.extend(working.cloned());
        let failing = world.records.iter_mut().filter(|(key, _)| may_succeed(&world.view, key));
        let failing = failing.filter_map(|(key, record)| record.next_attempt.take().map(|_| key.clone()));
        let failing: Vec<PodKey> = failing.collect();
        self.enqueue(failing.into_iter().map(|key| (world.rank(&key), key)).collect());
    }

    fn enqueue(&self, mut keys: Vec<(Rank, PodKey)>) {
        // Keys of equal rank become ready in a fixed order.
        keys.sort();
        for (rank, key) in keys {
            self.queue.add(key, rank);
        }
    }

    /// Lists the runtime at the start, each minute, and when something has changed in it.
    async fn relist(&self, stop: &CancellationToken) {
        let mut backoff = Backoff::new(FIRST_DELAY, RELIST);
        let mut outage = Outage::default();
        loop {
            {
                let mut world = self.world();
                let world = &mut *world;
                world.worked.clone_from(&world.working);
            }
            let listed = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                listed = self.runtime.list() => listed,
            };
            let next = async {
                match listed {
                    Ok(pods) => {
                        self.listed(pods);
                        backoff.reset();
                        if let Some(attempts) = outage.recovered() {
                            info!(attempts, "runtime listed again");
                            // What has failed meanwhile has failed because the runtime was away.
                            self.retry(&mut self.world(), |_, _| true);
                        }
                        self.status.send_if_modified(|status| {
                            let is_news = !status.is_listed || status.list_failing.is_some();
                            (status.is_listed, status.list_failing) = (true, None);
                            is_news
                        });
                        let in_a_minute = Instant::now() + RELIST;
                        sleep(RELIST_PAUSE).await;
                        tokio::select! {
                            () = self.runtime.changed() => {}
                            () = sleep_until(in_a_minute) => {}
                        }
                    }
                    Err(error) => {
                        let delay = backoff.next(self.host.random.fraction());
                        let (failing, is_new) = self.failing(&mut outage, &error, delay);
                        if is_new {
                            warn!(error = &*failing.error, "runtime cannot be listed");
                        }
                        self.status.send_modify(|status| status.list_failing = Some(failing));
                        sleep(delay).await;
                    }
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = next => {}
            }
        }
    }

    /// Takes over what the runtime has listed.
    fn listed(&self, pods: Vec<ActualPod>) {
        let mut world = self.world();
        let mut listed: HashMap<PodKey, Vec<ActualPod>> = HashMap::new();
        for pod in pods {
            listed.entry(pod.key.clone()).or_default().push(pod);
        }
        let world = &mut *world;
        for key in &world.worked {
            let Some(pods) = world.actual.get(key) else {
                listed.remove(key);
                continue;
            };
            let mut pods = pods.clone();
            for pod in pods.iter_mut().filter(|pod| pod.is_ours) {
                pod.status = self.runtime.status(&pod.uid).or(pod.status.take());
            }
            listed.insert(key.clone(), pods);
        }
        for pod in listed.values_mut().flatten().filter(|pod| pod.is_complete && pod.started.is_none()) {
            let mut old = world.actual.get(&pod.key).into_iter().flatten();
            let old = old.find(|old| old.uid == pod.uid && old.hash == pod.hash && old.is_complete);
            pod.started = old.and_then(|old| old.started);
        }
        let old = mem::replace(&mut world.actual, listed);
        world.find_places();
        world.is_listed = true;
        for (key, pods) in &old {
            let now = world.actual.get(key).map_or(&[][..], Vec::as_slice);
            let runs = |pod: &ActualPod| now.iter().any(|now| now.uid == pod.uid && now.is_complete);
            let is_lost = pods.iter().any(|pod| pod.is_ours && pod.is_complete && !runs(pod));
            if is_lost && matches!(world.decide(key), Decision::Sync(..)) {
                // Otherwise a pod that vanishes at once would be started without a pause.
                let Some(uid) = world.view.get(key).map(|entry| entry.pod().uid().clone()) else { continue };
                let error = RuntimeError::new("Vanished", "the runtime no longer has all of the pod");
                self.fail(world, key, uid, &error);
            }
        }
        let keys = old.keys().chain(world.actual.keys());
        let changed = keys.filter(|key| old.get(*key) != world.actual.get(*key));
        let changed: Vec<PodKey> = changed.cloned().collect();
        self.observe(world, &changed);
        self.note_failing_containers(world);
        self.sweep(world);
    }

    /// Publishes whether containers of a pod fail.
    fn note_failing_container(&self, key: &PodKey, uid: &Uid) {
        let failing = self.runtime.failing(uid);
        self.status.send_if_modified(|status| match failing {
            Some(failing) => status.failing_containers.insert(key.clone(), failing.clone()) != Some(failing),
            None => status.failing_containers.remove(key).is_some(),
        });
    }

    /// Publishes which of the pods that run have containers that fail.
    fn note_failing_containers(&self, world: &World) {
        let ours = world.actual.values().flatten().filter(|pod| pod.is_ours);
        let failing = ours.filter_map(|pod| Some((pod.key.clone(), self.runtime.failing(&pod.uid)?)));
        let failing: OrdMap<PodKey, Failing> = failing.collect();
        self.status.send_if_modified(|status| {
            let is_news = status.failing_containers != failing;
            status.failing_containers = failing;
            is_news
        });
    }

    /// Works on one key after the other.
    async fn work(&self, stop: &CancellationToken) {
        loop {
            let key = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                key = self.queue.get() => key,
            };
            let Some(key) = key else { return };
            match self.begin(&key) {
                Some(Call::Sync(pod)) => {
                    let result = self.runtime.sync(&pod).await;
                    self.end(&key, Call::Sync(pod), result);
                }
                Some(Call::Kill(pod)) if self.runtime.kills_wait() => lock(&self.kills).push((key, pod)),
                Some(Call::Kill(pod)) => self.kill(key, pod).await,
                None => {}
            }
        }
    }

    async fn kill(&self, key: Working<PodKey, Rank>, mut pod: KillPod) {
        let (begun, mut call) = (Instant::now(), pod.clone());
        let result = loop {
            tokio::select! {
                biased;
                result = self.runtime.kill(&call) => break result,
                shorter = self.shorter(&pod), if self.runtime.kills_wait() => pod = shorter,
            }
            // The grace counts from the first call.
            let grace = pod.grace.map(|grace| grace.saturating_sub(begun.elapsed()));
            call = KillPod { grace, ..pod.clone() };
        };
        self.end(&key, Call::Kill(pod), result);
    }

    /// The kill of the same pod with a shorter grace, when that is wanted.
    async fn shorter(&self, kill: &KillPod) -> KillPod {
        let mut merged = self.merged.clone();
        merged.mark_changed();
        while merged.changed().await.is_ok() {
            let view = merged.borrow_and_update();
            let mut wanted = kill_pod(&view, kill.actual.clone());
            let is_erased = view.get(&kill.actual.key).is_none_or(|entry| {
                entry.source() == kill.actual.source && *entry.pod().uid() != kill.actual.uid
            });
            if kill.pod.is_some() && is_erased {
                // It was erased before its end.
                (wanted.grace, wanted.pod) = (Some(Duration::ZERO), kill.pod.clone());
            }
            if wanted.grace.is_some_and(|grace| kill.grace.is_none_or(|before| grace < before)) {
                return wanted;
            }
        }
        pending().await
    }

    /// The call that a key needs now, if it needs one.
    fn begin(&self, key: &PodKey) -> Option<Call> {
        let mut world = self.world();
        let world = &mut *world;
        world.kills.forget(key);
        let next = world.records.get(key).and_then(|record| record.next_attempt);
        let delay = next.map(|next| next.saturating_duration_since(Instant::now()));
        let call = if let Some(delay) = delay.filter(|delay| !delay.is_zero()) {
            self.queue.add_after(key.clone(), world.rank(key), delay);
            world.kills.end(key);
            None
        } else {
            self.note_deletion(world, key);
            let call = self.decide_call(world, key);
            self.observe(world, [key]);
            call
        };
        if !matches!(call, Some(Call::Kill(_))) {
            self.queue_kills(world);
        }
        call
    }

    /// Queues the most important keys whose pods can be killed now.
    fn queue_kills(&self, world: &mut World) {
        for (rank, key) in world.kills.next() {
            self.queue.add(key, rank);
        }
    }

    /// Decides on the call, and publishes what is done.
    fn decide_call(&self, world: &mut World, key: &PodKey) -> Option<Call> {
        let (call, uid, activity) = match world.decide(key) {
            Decision::Nothing => {
                world.kills.end(key);
                self.settle(world, key);
                return None;
            }
            Decision::Wait(wait) => {
                let uid = world.view.get(key)?.pod().uid().clone();
                world.kills.end(key);
                if let (Wait::OtherName, Some(place)) = (wait, world.places.get(&uid)) {
                    world.moving.insert(place.clone(), key.clone());
                }
                self.note(key, Some((uid, Activity::Waiting(wait))));
                return None;
            }
            Decision::Sync(entry, op) => {
                let (pod, source) = (entry.pod().clone(), entry.source());
                let (hash, uid) = (world.hashes.get(key).cloned()?, pod.uid().clone());
                (Call::Sync(SyncPod { pod, source, hash, op }), uid, Activity::Syncing)
            }
            Decision::Kill(actual) => {
                let actual = actual.clone();
                let (purpose, rank) = (world.purpose(key), world.rank(key));
                if !world.kills.begin(key, purpose, rank) {
                    self.note(key, Some((actual.uid, Activity::KillPending)));
                    return None;
                }
                let uid = actual.uid.clone();
                (Call::Kill(kill_pod(&world.view, actual)), uid, Activity::Killing)
            }
        };
        if let Call::Sync(_) = call {
            world.changed.remove(key);
            if !uid.is_empty() {
                world.places.insert(uid.clone(), key.clone());
            }
        }
        world.working.insert(key.clone());
        world.worked.insert(key.clone());
        self.note(key, Some((uid, activity)));
        Some(call)
    }

    /// Records the result of a call.
    fn end(&self, key: &PodKey, call: Call, result: Result<(), RuntimeError>) {
        let mut world = self.world();
        let world = &mut *world;
        world.working.remove(key);
        let is_again = world.again.remove(key);
        let (mut after, is_kill) = match call {
            Call::Kill(KillPod { mut actual, .. }) => {
                if result.is_ok() {
                    world.kills.end_removal(key);
                } else {
                    world.kills.end(key);
                }
                actual.status = self.runtime.status(&actual.uid).or(actual.status);
                (actual, true)
            }
            Call::Sync(SyncPod { pod, source, hash, op }) => {
                world.kills.end(key);
                if result.is_err() {
                    // The runtime may list the pod as it was before, or, if it was to be added, as it is to be.
                    self.note_change(world, key, op.max(Op::Update));
                }
                let uid = pod.uid().clone();
                let pods = world.actual.get(key).into_iter().flatten();
                let mut same =
                    pods.filter(|actual| actual.is_ours && actual.uid == uid && actual.hash == hash);
                // What runs with this hash was not restarted.
                let (started, status) = same.next().map(|pod| (pod.started, pod.status.clone())).unzip();
                let started = started.flatten().or_else(|| result.is_ok().then(|| self.host.clock.now()));
                let status = self.runtime.status(&uid).or(status.flatten());
                let key = key.clone();
                (
                    ActualPod { key, uid, hash, source, is_ours: true, is_complete: true, started, status },
                    false,
                )
            }
        };
        // After a failure it may be there in part.
        after.is_complete &= result.is_ok();
        let uid = after.uid.clone();
        let pods = world.actual.entry(key.clone()).or_default();
        pods.retain(|pod| !(pod.is_ours && pod.uid == uid));
        pods.push(after);
        self.note_failing_container(key, &uid);
        if let Err(error) = result {
            self.fail(world, key, uid, &error);
            if is_again {
                self.retry(world, |_, failed| failed == key);
            }
        } else {
            if is_kill {
                // What is observed of its end stays.
                self.observe(world, [key]);
                if let Some(next) = world.remove(key, &uid) {
                    let rank = world.rank(&next);
                    self.queue.add(next, rank);
                }
                // It may have had ports of the node that others want.
                let wants_ports = |pod: &Entry| !pod.pod().host_ports().is_empty();
                self.retry(world, |view, key| view.get(key).is_some_and(wants_ports));
            }
            self.succeed(world, key);
        }
        self.queue_kills(world);
        self.observe(world, [key]);
    }

    /// Records a success of a pod. Its key is queued again only if there is more to do: there it would wait for others.
    fn succeed(&self, world: &mut World, key: &PodKey) {
        if world.decide(key) == Decision::Nothing {
            self.note_deletion(world, key);
            world.kills.end(key);
            self.settle(world, key);
            return;
        }
        self.status.send_if_modified(|status| {
            status.pods.get_mut(key).is_some_and(|progress| progress.failing.take().is_some())
        });
        self.queue.add(key.clone(), world.rank(key));
    }

    /// Records that there is nothing to do about a key.
    fn settle(&self, world: &mut World, key: &PodKey) {
        self.note(key, None);
        if !world.view.contains_key(key) && !world.actual.contains_key(key) {
            world.records.remove(key);
            world.moving.remove(key);
            self.queue.forget(key);
        } else if let Some(record) = world.records.get_mut(key) {
            record.next_attempt = None;
            record.good_since.get_or_insert_with(Instant::now);
            if let Some(attempts) = record.outage.recovered() {
                info!(pod = key.as_str(), attempts, "pod recovered");
            }
        }
    }

    /// Records a failure of a pod, and queues its key for the next attempt.
    fn fail(&self, world: &mut World, key: &PodKey, uid: Uid, error: &RuntimeError) {
        let (priority, _, age) = world.rank(key);
        let record = world.records.entry(key.clone()).or_default();
        if record.is_good() {
            self.queue.forget(key);
        }
        record.good_since = None;
        let delay = self.queue.add_rate_limited(key.clone(), (priority, true, age));
        record.next_attempt = Some(Instant::now() + delay);
        let (failing, is_new) = self.failing(&mut record.outage, error, delay);
        let (pod, error) = (key.as_str(), &*failing.error);
        if is_new {
            warn!(pod, error, "pod failed; it is retried until it succeeds");
        } else {
            debug!(pod, error, "pod failed; next retry in {delay:.1?}");
        }
        let (since, activity) = (self.host.clock.now(), Activity::BackingOff);
        let progress = PodProgress { uid, activity, since, failing: Some(failing) };
        self.status.send_modify(|status| drop(status.pods.insert(key.clone(), progress)));
    }

    /// Notes a failure in its outage. Returns it, and whether its error is new.
    fn failing(&self, outage: &mut Outage, error: &RuntimeError, delay: Duration) -> (Failing, bool) {
        Failing::note(outage, (error.reason, &chain(error)), delay, self.host.clock.now())
    }

    /// Publishes what is done about a pod.
    fn note(&self, key: &PodKey, doing: Option<(Uid, Activity)>) {
        let now = self.host.clock.now();
        self.status.send_if_modified(|status| {
            let before = status.pods.get(key);
            let Some((uid, activity)) = doing else { return status.pods.remove(key).is_some() };
            let before = before.filter(|before| before.uid == uid);
            let since =
                before.filter(|before| before.activity == activity).map_or(now, |before| before.since);
            let failing = before.and_then(|before| before.failing.clone());
            let progress = PodProgress { uid, activity, since, failing };
            let is_news = status.pods.get(key) != Some(&progress);
            status.pods.insert(key.clone(), progress);
            is_news
        });
    }

    /// Publishes what is observed of these pods.
    fn observe<'k>(&self, world: &mut World, keys: impl IntoIterator<Item = &'k PodKey>) {
        let (now, status) = (self.host.clock.now(), self.status.borrow());
        let World { view, hashes, actual, seen, .. } = world;
        self.observed.send_if_modified(|all| {
            let mut is_news = false;
            for key in keys {
                let Some(entry) = view.get(key) else {
                    seen.remove(key);
                    is_news |= all.remove(key).is_some();
                    continue;
                };
                let (uid, progress, before) = (entry.pod().uid(), status.pods.get(key), all.get(key));
                let mut pods = actual.get(key).into_iter().flatten();
                let actual = pods.find(|pod| pod.is_ours && pod.uid == *uid);
                let was_taken_up = before.is_some_and(|before| before.uid == *uid);
                let obstacle = progress.and_then(|progress| obstacle(entry.pod(), progress));
                let is_outdated = |pod: &ActualPod| pod.is_complete && Some(&pod.hash) != hashes.get(key);
                let runs_as_before = actual.is_some_and(|pod| pod.status.is_none() && is_outdated(pod));
                if was_taken_up && runs_as_before && obstacle.is_none() {
                    // What is wanted now says nothing of what runs until the change is made.
                    continue;
                }
                let now_seen = Seen {
                    entry: entry.clone(),
                    actual: actual.cloned(),
                    is_taken_up: actual.is_some() || progress.is_some() || was_taken_up,
                    obstacle,
                    is_being_started: progress
                        .is_some_and(|progress| is_being_started(entry.pod(), progress)),
                };
                if seen.get(key) == Some(&now_seen) {
                    continue;
                }
                seen.insert(key.clone(), now_seen);
                let after = observe(entry, actual, progress, before, now);
                if before == after.as_ref() {
                    continue;
                }
                is_news = true;
                match after {
                    Some(after) => drop(all.insert(key.clone(), after)),
                    None => drop(all.remove(key)),
                }
            }
            is_news
        });
    }

    /// Publishes whether a graceful deletion is complete.
    fn note_deletion(&self, world: &World, key: &PodKey) {
        let deleted = world.view.get(key).map(Entry::pod).filter(|pod| pod.deletion_timestamp().is_some());
        let runs = |uid: &Uid| {
            let mut pods = world.actual.get(key).into_iter().flatten();
            // The call may be for the pod before it.
            let is_called = || self.status.borrow().pods.get(key).is_none_or(|progress| progress.uid == *uid);
            (world.working.contains(key) && is_called()) || pods.any(|pod| pod.is_ours && pod.uid == *uid)
        };
        let gone = deleted.map(|pod| pod.uid()).filter(|uid| !runs(uid));
        self.gone.send_if_modified(|all| match gone {
            Some(uid) => all.insert(key.clone(), uid.clone()).as_ref() != Some(uid),
            None => all.remove(key).is_some(),
        });
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the workers, so what it leaves is not used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kill of a pod, with the grace that is wanted now.
fn kill_pod(view: &Merged, actual: ActualPod) -> KillPod {
    let same = view.get(&actual.key).map(Entry::pod).filter(|pod| *pod.uid() == actual.uid);
    let deleted = same.filter(|pod| pod.deletion_timestamp().is_some());
    let grace = deleted.and_then(|pod| pod.deletion_grace_period_seconds());
    let grace = grace.map(|seconds| Duration::from_secs(seconds.try_into().unwrap_or(0)));
    KillPod { actual, grace, pod: deleted.cloned() }
}

/// How many pods of a runtime are killed at once.
fn kills(runtime: &impl PodRuntime, concurrency: usize) -> Kills<Rank> {
    Kills::new(if runtime.kills_wait() { REMOVALS } else { 1 } * concurrency, concurrency)
}

impl World {
    fn decide(&self, key: &PodKey) -> Decision<'_> {
        let actual = self.actual.get(key).map_or(&[][..], Vec::as_slice);
        let wanted = self.view.get(key).zip(self.hashes.get(key).map(|hash| &**hash));
        match decide(wanted, &self.view, actual, self.changed.get(key).copied(), self.replaces_pods) {
            Decision::Sync(entry, _)
                if self.places.get(entry.pod().uid()).is_some_and(|place| place != key) =>
            {
                Decision::Wait(Wait::OtherName)
            }
            decision => decision,
        }
    }

    /// Finds the places of all pods anew.
    fn find_places(&mut self) {
        let Self { places, working, actual, .. } = self;
        places.retain(|_, place| working.contains(place));
        let ours = actual.values().flatten().filter(|pod| pod.is_ours && !pod.uid.is_empty());
        for pod in ours {
            places.entry(pod.uid.clone()).or_insert_with(|| pod.key.clone());
        }
    }

    /// Removes what the runtime no longer has. Returns the key that waits for it.
    fn remove(&mut self, key: &PodKey, uid: &Uid) -> Option<PodKey> {
        let pods = self.actual.get_mut(key)?;
        pods.retain(|pod| !(pod.is_ours && pod.uid == *uid));
        if pods.is_empty() {
            self.actual.remove(key);
        }
        if self.places.get(uid) == Some(key) {
            self.places.remove(uid);
        }
        self.moving.remove(key)
    }

    /// Why a pod of this name is killed.
    fn purpose(&self, key: &PodKey) -> Purpose {
        match self.view.get(key).map(Entry::pod) {
            Some(pod) if pod.is_to_run() => Purpose::Replacement,
            _ => Purpose::Removal,
        }
    }

    fn rank(&self, key: &PodKey) -> Rank {
        let pod = self.view.get(key).map(Entry::pod);
        (
            Reverse(pod.map_or(0, |pod| pod.priority())),
            self.records.get(key).is_some_and(|record| record.next_attempt.is_some()),
            pod.and_then(|pod| Some(pod.creation_timestamp()?.into())),
        )
    }
}

impl Record {
    /// Whether the pod has been good so long that its failures are forgotten.
    fn is_good(&self) -> bool {
        self.good_since.is_some_and(|since| since.elapsed() >= GOOD)
    }
}

/// The kind of a change of a pod in the view, for a runtime: the whole pod, only its status, or nothing. The end of a pod
/// is more than its status.
fn kind(old: &Entry, new: &Entry) -> Option<Op> {
    let is_other = old.pod().uid() != new.pod().uid() || old.incarnation() != new.incarnation();
    if is_other || old.source() != new.source() || old.pod().has_ended() != new.pod().has_ended() {
        return Some(Op::Update);
    }
    classify(old.pod(), new.pod()).map(|op| if op == Op::Reconcile { op } else { Op::Update })
}
