//! A storm of changes for a runtime that takes a millisecond a pod: the memory is bounded, the final state is
//! exact, and no source waits.
//!
//! `PODMUX_STORM=full` makes 1,000,000 changes of 10,000 pods (20,000 of 1,000 otherwise). The clock is paused,
//! so a millisecond of the runtime is one of the source, however slow the machine is.

use std::{
    collections::BTreeMap,
    env, fs,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use podmux::{
    mux::Mux,
    pod::{ListingBuilder, Origin, PodKey, Prepared, SourceName},
    runtime::{ActualPod, KillPod, PodRuntime, PodWorkers, RuntimeError, SyncPod, runtime_hash},
};
use serde_json::json;
use tokio::{
    runtime::Builder,
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::support::{namespace::inside, random::Random};

/// How long a call of the runtime takes.
const CALL: Duration = Duration::from_millis(1);
/// The changes in a millisecond: more than the runtime can follow.
const PACE: usize = 10;
/// How much the peak may be above the memory of the pods at rest, in MiB. The texts of all changes of the small
/// storm are twice as much.
const SLACK: usize = 16;

/// A runtime in memory.
#[derive(Default)]
struct Slow {
    pods: Mutex<BTreeMap<(PodKey, String), ActualPod>>,
    calls: AtomicUsize,
    /// How many pods are synced, and how many were at most.
    syncing: AtomicUsize,
    most_syncing: AtomicUsize,
    /// The same of those that are killed.
    killing: AtomicUsize,
    most_killing: AtomicUsize,
}

impl Slow {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<(PodKey, String), ActualPod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        sleep(CALL).await;
    }
}

impl PodRuntime for &Slow {
    async fn list(&self) -> Result<Vec<ActualPod>, RuntimeError> {
        Ok(self.pods().values().cloned().collect())
    }

    async fn sync(&self, sync: &SyncPod) -> Result<(), RuntimeError> {
        let syncing = self.syncing.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_syncing.fetch_max(syncing, Ordering::SeqCst);
        self.call().await;
        self.syncing.fetch_sub(1, Ordering::SeqCst);
        let (key, uid) = (sync.pod.key().clone(), sync.pod.uid().clone());
        let actual = ActualPod {
            key: key.clone(),
            uid: uid.clone(),
            hash: sync.hash.clone(),
            source: sync.source,
            is_ours: true,
            is_complete: true,
            started: None,
            status: None,
        };
        self.pods().insert((key, uid.to_string()), actual);
        Ok(())
    }

    async fn kill(&self, kill: &KillPod) -> Result<(), RuntimeError> {
        let killing = self.killing.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_killing.fetch_max(killing, Ordering::SeqCst);
        self.call().await;
        self.killing.fetch_sub(1, Ordering::SeqCst);
        self.pods().remove(&(kill.actual.key.clone(), kill.actual.uid.to_string()));
        Ok(())
    }

    fn follows_updates(&self) -> bool {
        true
    }

    fn kills_wait(&self) -> bool {
        true
    }
}

/// A source of many pods.
struct Source {
    wanted: ListingBuilder,
    pods: usize,
}

impl Source {
    /// Changes a pod: mostly its image, sometimes only a label; at times it goes, and comes back with a new UID.
    fn change(&mut self, number: usize, round: usize, random: &mut Random) {
        let name = format!("pod-{number:05}");
        let origin = Origin::from(&*name);
        if random.once_in(8) {
            self.wanted.remove(&origin);
            return;
        }
        let uid = format!("{name}-{}", random.below(3));
        let image = if random.once_in(4) { 0 } else { round };
        let pod = json!({
            "metadata": {"name": name, "uid": uid, "labels": {"round": round.to_string()}},
            "spec": {
                "containers": [{"name": "c", "image": format!("i:{image}"), "args": ["x".repeat(1_000)]}],
            },
        });
        let pod = Prepared::from_value(pod).unwrap();
        self.wanted.put(&origin, vec![pod], jiff::Timestamp::UNIX_EPOCH);
    }
}

/// A size of this process, in MiB.
fn memory(field: &str) -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() >> 10
}

async fn storm(pods: usize, changes: usize) {
    let bare = memory("VmRSS:");
    let runtime: &'static Slow = Box::leak(Box::default());
    let (mux, merging) = Mux::new(&[SourceName::File]);
    let merging = tokio::spawn(merging.run());
    let channel = mux.channel(SourceName::File).unwrap();
    let workers = PodWorkers::new(runtime, mux.merged());
    let (queue, status, stop) = (workers.queue(), workers.status(), CancellationToken::new());
    let workers = tokio::spawn(workers.run(stop.clone()));

    let mut source = Source { wanted: ListingBuilder::new(SourceName::File), pods };
    let mut random = Random::new(1);
    for number in 0..pods {
        source.change(number, 0, &mut random);
    }
    channel.publish(source.wanted.listing());
    at_rest(runtime, &mux, &status).await;
    let full = memory("VmRSS:");
    // Resets the peak that the kernel records.
    fs::write("/proc/self/clear_refs", "5").unwrap();

    let (begun, mut pauses) = (Instant::now(), 0);
    let mut deepest = 0;
    for round in 1..=changes {
        let number = random.below(source.pods);
        source.change(number, round, &mut random);
        channel.publish(source.wanted.listing());
        if round % PACE == 0 {
            pauses += 1;
            sleep(CALL).await;
            // The merge waits for no runtime either.
            let asked = Instant::now();
            assert!(channel.merged().await);
            assert_eq!(asked.elapsed(), Duration::ZERO, "the source waits");
            // A key whose pod waits to be killed is in the status alone.
            let (queued, noted) = (queue.len(), status.borrow().pods.len());
            deepest = deepest.max(queued.max(noted));
            assert!(queued <= pods && noted <= pods, "{queued} {noted}");
        }
    }
    assert_eq!(begun.elapsed(), pauses * CALL, "the source waits");
    let during = runtime.calls.load(Ordering::SeqCst);
    let left = queue.len() + status.borrow().pods.len();
    let grown = memory("VmHWM:").saturating_sub(full);
    at_rest(runtime, &mux, &status).await;
    let after = runtime.calls.load(Ordering::SeqCst) - during;
    println!(
        "{changes} changes of {pods} pods: {during} calls meanwhile, {left} keys left of at most {deepest}, \
         {after} calls after it; {} MiB for the pods, {grown} MiB above it",
        full - bare
    );
    assert!(deepest > pods / 4, "this is no storm: {deepest} keys waited at most");
    assert!(grown <= SLACK, "the memory grows with the changes: {grown} MiB");
    // Only the newest state counts: for each key that is left a kill and an ADD, and what has begun before.
    assert!(after <= 2 * left + 8, "{after} calls for {left} keys");
    assert_eq!(runtime.most_syncing.load(Ordering::SeqCst), 4);
    // Pods that go for good, and pods of whose names another one is wanted.
    assert!(runtime.most_killing.load(Ordering::SeqCst) <= 32 + 4);
    runtime.most_killing.store(0, Ordering::SeqCst);
    channel.publish(ListingBuilder::new(SourceName::File).listing());
    while !runtime.pods().is_empty() {
        sleep(CALL).await;
    }
    assert_eq!(runtime.most_killing.load(Ordering::SeqCst), 32);
    stop.cancel();
    workers.await.unwrap();
    drop(channel);
    merging.await.unwrap();
}

/// Waits until the runtime has nothing to do; what runs is exactly what is wanted then.
async fn at_rest(runtime: &Slow, mux: &Mux, status: &watch::Receiver<podmux::runtime::WorkersStatus>) {
    let mut calls = usize::MAX;
    while calls != runtime.calls.load(Ordering::SeqCst) || !status.borrow().pods.is_empty() {
        calls = runtime.calls.load(Ordering::SeqCst);
        sleep(100 * CALL).await;
    }
    let merged = mux.merged();
    let view = merged.borrow();
    let wanted: Vec<_> = view
        .values()
        .map(|entry| {
            let pod = entry.pod();
            (pod.key().clone(), pod.uid().to_string(), runtime_hash(pod))
        })
        .collect();
    let running = runtime.pods();
    let running: Vec<_> =
        running.iter().map(|((key, uid), pod)| (key.clone(), uid.clone(), pod.hash.to_string())).collect();
    assert!(!wanted.is_empty() && running == wanted, "{} pods instead of {}", running.len(), wanted.len());
}

#[test]
fn a_storm_of_changes_for_a_slow_runtime() {
    // In a process of its own: its memory is measured.
    if !inside("-Ur", "storm::a_storm_of_changes_for_a_slow_runtime") {
        return;
    }
    let is_full = env::var("PODMUX_STORM").is_ok_and(|size| size == "full");
    let (pods, changes) = if is_full { (10_000, 1_000_000) } else { (1_000, 20_000) };
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(storm(pods, changes));
}
