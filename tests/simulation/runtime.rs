//! A runtime in memory, which outlives the agent and not the machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use podmux::{
    pod::{Op, Pod, Uid},
    runtime::{ActualPod, KillPod, PodRuntime, RuntimeError, RuntimeKind, SyncPod},
};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use super::{
    consumer::{NOTICES, kind},
    node::world,
    script::NAMES,
    truth::{Image, image},
};

/// The image whose containers do not end when they are asked to.
const STUBBORN: usize = 2;

/// The runtime, as the settings of the agent name it.
pub static RUNTIME: RuntimeKind =
    RuntimeKind { kind: kind("simulated"), open: |_, opening| opening.drive(Calls(world().runtime.clone())) };

/// How the runtime fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeFaults {
    pub fails: bool,
    pub hangs: bool,
    /// The calls for pods of this number fail.
    pub refuses: Option<usize>,
}

#[derive(Default)]
pub struct Machine {
    pub faults: Mutex<RuntimeFaults>,
    pods: Mutex<Pods>,
    changed: Notify,
    /// When the calls for pods of a number were last refused.
    refused: Mutex<[Option<Instant>; NAMES]>,
}

/// A pod that runs.
struct Running {
    pod: ActualPod,
    image: Image,
    /// How long its containers may take to end.
    grace: Duration,
    /// When they were first asked to.
    stopping: Option<Instant>,
    since: Instant,
    /// How often its container was started again.
    restarts: usize,
    /// Whether a call for it has begun since, which may have failed: then the agent does not know how it runs.
    is_uncertain: bool,
}

impl Running {
    fn status(&self) -> Value {
        let container =
            json!({"name": "c", "ready": true, "restartCount": self.restarts, "image": "", "imageID": ""});
        json!({"phase": "Running", "containerStatuses": [container]})
    }
}

#[derive(Default)]
struct Pods {
    running: BTreeMap<Uid, Running>,
    /// The pods that a call of this run of the agent works on.
    working: BTreeSet<String>,
}

impl Machine {
    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap()
    }

    /// What runs, by key.
    pub fn running(&self) -> BTreeMap<String, Image> {
        self.pods().running.values().map(|running| (running.pod.key.to_string(), running.image)).collect()
    }

    /// What has run for so long.
    pub fn running_for(&self, time: Duration) -> BTreeSet<String> {
        let pods = self.pods();
        let long = pods.running.values().filter(|running| running.since.elapsed() > time);
        long.map(|running| running.pod.key.to_string()).collect()
    }

    /// Whether no call fails, but for some pods.
    pub fn works_now(&self) -> bool {
        let RuntimeFaults { fails, hangs, .. } = *self.faults.lock().unwrap();
        !fails && !hangs
    }

    /// The agent is gone: its calls are, too.
    pub fn abandoned(&self) {
        self.pods().working.clear();
    }

    /// The machine has started again.
    pub fn rebooted(&self) {
        *self.pods() = Pods::default();
    }

    /// The first pod vanishes.
    pub fn lose(&self) {
        self.pods().running.pop_first();
    }

    /// Refuses the calls for pods of this number from now on, and no others.
    pub fn refuse(&self, n: Option<usize>) {
        let before = std::mem::replace(&mut self.faults.lock().unwrap().refuses, n);
        for n in before.into_iter().chain(n) {
            self.refused.lock().unwrap()[n] = Some(Instant::now());
        }
    }

    /// Whether calls for a pod were refused in this time.
    pub fn has_refused(&self, key: &str, time: Duration) -> bool {
        let now = self.faults.lock().unwrap().refuses;
        let last = *self.refused.lock().unwrap();
        let is_recent = |n: usize| last[n].is_some_and(|at| at.elapsed() <= time);
        (0..NAMES).any(|n| is_of(key, n) && (now == Some(n) || is_recent(n)))
    }

    /// The container of the last pod is started again.
    pub fn restart(&self) {
        if let Some(mut last) = self.pods().running.last_entry() {
            last.get_mut().restarts += 1;
        }
        self.changed.notify_one();
    }

    /// The status of each pod that runs, by key.
    pub fn statuses(&self) -> BTreeMap<String, Value> {
        self.pods().running.values().map(|running| (running.pod.key.to_string(), running.status())).collect()
    }

    async fn works(&self, key: &str) -> Result<(), RuntimeError> {
        let faults = || *self.faults.lock().unwrap();
        let RuntimeFaults { fails, hangs, refuses } = faults();
        let fails = fails || refuses.is_some_and(|n| is_of(key, n));
        if hangs {
            while faults().hangs {
                sleep(NOTICES).await;
            }
            return Err(RuntimeError::new("Simulated", "the connection broke"));
        }
        sleep(Duration::from_millis(20)).await;
        if fails { Err(RuntimeError::new("Simulated", "the simulation")) } else { Ok(()) }
    }

    /// The turn to work on a pod, on which nothing else may work.
    fn turn(&self, key: &str) -> Turn<'_> {
        if !self.pods().working.insert(key.to_owned()) {
            world().broken.add(format!("two calls of the runtime at once for {key}"));
        }
        Turn(self, key.to_owned())
    }

    /// A call for a pod begins.
    fn begins(&self, uid: &Uid) {
        if let Some(running) = self.pods().running.get_mut(uid) {
            running.is_uncertain = true;
        }
    }

    /// When the containers of a pod end that are asked to now, if they may take so long: those of one image in three
    /// take all their time.
    fn ends(&self, uid: &Uid, grace: Option<Duration>) -> Instant {
        let (now, mut pods) = (Instant::now(), self.pods());
        let Some(running) = pods.running.get_mut(uid).filter(|running| running.image == Some(STUBBORN))
        else {
            return now;
        };
        *running.stopping.get_or_insert(now) + grace.unwrap_or(running.grace)
    }
}

/// A call that works on a pod. It may be dropped.
struct Turn<'a>(&'a Machine, String);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.pods().working.remove(&self.1);
    }
}

/// The calls of one run of the agent.
struct Calls(Arc<Machine>);

impl PodRuntime for Calls {
    async fn list(&self) -> Result<Vec<ActualPod>, RuntimeError> {
        self.0.works("").await?;
        let listed =
            |running: &Running| ActualPod { status: Some(Arc::new(running.status())), ..running.pod.clone() };
        Ok(self.0.pods().running.values().map(listed).collect())
    }

    async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn status(&self, uid: &Uid) -> Option<Arc<Value>> {
        self.0.pods().running.get(uid).map(|running| Arc::new(running.status()))
    }

    async fn sync(&self, pod: &SyncPod) -> Result<(), RuntimeError> {
        let (key, uid) = (pod.pod.key().clone(), pod.pod.uid().clone());
        let actual = ActualPod {
            key: key.clone(),
            uid: uid.clone(),
            hash: pod.hash.clone(),
            source: pod.source,
            is_ours: true,
            is_complete: true,
            started: None,
            status: None,
        };
        if pod.op == Op::Add && self.0.pods().running.contains_key(&uid) {
            world().broken.add(format!("{key} is added, which runs"));
        }
        let is_same = |running: &Running| {
            !running.is_uncertain && running.pod.hash == pod.hash && running.pod.source == pod.source
        };
        if self.0.pods().running.get(&uid).is_some_and(is_same) {
            world().broken.add(format!("{key} is changed, which runs as it is to be"));
        }
        let image = of_pod(&pod.pod);
        let is_running = self.0.pods().running.contains_key(&uid);
        if !is_running && !world().may_start(pod.source, &pod.pod, image) {
            world()
                .broken
                .add(format!("{key} is started with image {image:?}, which its source does not want"));
        }
        let _turn = self.0.turn(key.as_str());
        self.0.begins(&uid);
        self.0.works(key.as_str()).await?;
        let mut pods = self.0.pods();
        let before = pods.running.get(&uid);
        let (since, restarts) = before.map_or_else(|| (Instant::now(), 0), |pod| (pod.since, pod.restarts));
        let grace = grace_of(&pod.pod);
        let (stopping, is_uncertain) = (None, false);
        pods.running
            .insert(uid, Running { pod: actual, image, grace, stopping, since, restarts, is_uncertain });
        Ok(())
    }

    fn replaces_pods(&self) -> bool {
        world().setup.replaces_pods
    }

    fn kills_wait(&self) -> bool {
        world().setup.replaces_pods
    }

    async fn kill(&self, pod: &KillPod) -> Result<(), RuntimeError> {
        let (key, uid) = (pod.actual.key.as_str(), pod.actual.uid.clone());
        let running = self.0.pods().running.get(&uid).map(|running| (running.image, running.since));
        if let Some((image, since)) = running
            && !world().truth.may_be_gone(key, &uid, since)
            && !world().truth.may_have_ended(&uid, since)
            && !(world().setup.replaces_pods && world().truth.may_have_changed(key, image, since))
        {
            world().broken.add(format!("{key} is stopped, which is there"));
        }
        let _turn = self.0.turn(key);
        self.0.begins(&uid);
        self.0.works(key).await?;
        if world().setup.replaces_pods {
            sleep_until(self.0.ends(&uid, pod.grace)).await;
        }
        self.0.pods().running.remove(&uid);
        Ok(())
    }
}

/// Whether a pod has this number.
fn is_of(key: &str, n: usize) -> bool {
    key.trim_end_matches("-node").ends_with(&n.to_string())
}

fn grace_of(pod: &Pod) -> Duration {
    let pod: Value = serde_json::from_slice(pod.text()).unwrap();
    Duration::from_secs(pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap())
}

fn of_pod(pod: &Pod) -> Image {
    let pod: Value = serde_json::from_slice(pod.text()).unwrap();
    let text = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned();
    (0..10).find(|v| image(*v) == text)
}
