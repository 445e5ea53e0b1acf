//! The podman runtime: pods by podman's REST socket.
//!
//! `docs/podman.md` describes it for users. A pod is one pod of podman, with a container for each of the
//! pod's, so every field is translated or named by [`TABLE`]; `podman kube play` drops in silence what it does not
//! know.
//!
//! What runs is asked for and not remembered. The labels of podman's pods say what they were made of:
//!
//! | label | of | meaning |
//! |---|---|---|
//! | `podmux.uid`, `podmux.namespace`, `podmux.name` | pods, containers, volumes | the pod |
//! | `podmux.instance` | pods, containers, volumes | the agent |
//! | `podmux.hash`, `podmux.source` | pods, volumes | what it was synced with |
//! | `podmux.grace` | pods, volumes | its grace, in seconds |
//! | `podmux.container`, `podmux.role` | containers | the container of the pod, and `main`, `init` or `sidecar` |
//! | `podmux.restarts` | containers | how many containers of the name were before it |
//! | `podmux.backoff` | containers | how many of them count for the delay before the next one |
//!
//! [`sync`](PodRuntime::sync) makes the pod with its namespaces and supervises it. A supervised pod gets its
//! containers by [`run`](PodRuntime::run): what is missing is created in the order of the kubelet, and a container
//! that has ended is replaced by a new one after its delay. podman's own restart policy is not used,
//! because it restarts at once. The container before it is kept for `lastState` and its output. As the count is a
//! label of the new container, it is durable with it, and a crash at any moment repeats or continues the last step.
//!
//! A pod is complete for the workers if this process supervises it. So each pod that is wanted is synced
//! once after a start of the agent, whatever state a crash has left it in, and a pod that is complete stays as it is.
//!
//! As with the kubelet an emptyDir on disk lives as long as the UID of its pod: a pod that is made again with the same hash
//! has the volumes of both. A pod of which podman has only volumes is listed as one that was started in part, so the workers
//! sync it or kill it.

mod api;
mod budget;
mod context;
mod fields;
mod files;
mod frames;
pub(super) mod kind;
mod logs;
mod plan;
mod probe;
mod probing;
mod progress;
mod qos;
mod spec;
mod status;
mod supervise;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::{IpAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, future::try_join, stream::FuturesUnordered};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub use self::{
    api::ApiError,
    context::Config,
    fields::{Support, TABLE},
    spec::{Container, PullPolicy, RestartPolicy, Role, Translation, translate},
};
use self::{
    api::{Api, Event, ListedContainer, ListedPod, Volume, refusal},
    context::{Context, lock},
    spec::pod_name,
    supervise::Supervised,
};
use super::{
    contract::{ActualPod, KillPod, LogRequest, PodRuntime, RuntimeError, SyncPod},
    failing::Failing,
};
use crate::{
    backoff::Backoff,
    client::ClientError,
    error_chain::chain,
    outage::Outage,
    pod::{PodKey, SourceName, Uid},
};

/// The delays before the events are followed again.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// How often podman is asked for its pods at once.
const MOST_LISTS: usize = 5;

/// The podman runtime. See the [module](self).
#[derive(Debug)]
pub struct Podman {
    context: Context,
    /// Making it reads no files, so it fails only if that changes.
    api: Result<Api, Arc<ClientError>>,
    pods: Mutex<HashMap<Uid, Arc<Supervised>>>,
    /// The last statuses of pods that were killed, until they are read.
    ended: Mutex<HashMap<Uid, Arc<Value>>>,
    /// The pods whose supervision has not begun.
    new: Mutex<Vec<Arc<Supervised>>>,
    has_new: Notify,
    /// Whether the files that crashes have left were removed.
    is_swept: AtomicBool,
    /// The emptyDirs that have got their mode, of pods that podman does not have, until they are made again.
    with_mode: Mutex<HashMap<Uid, Vec<String>>>,
    /// The pods whose kill has failed: something of them may be left that podman does not list.
    unfinished: Mutex<HashMap<Uid, ActualPod>>,
}

impl Podman {
    /// A runtime. It connects to nothing before the first `list`.
    pub fn new(config: Config) -> Self {
        let api = Api::new(&config.socket, config.timeout, &config.host).map_err(Arc::new);
        Self {
            context: Context {
                config,
                changed: Notify::new(),
                address: Mutex::default(),
                stops: Mutex::default(),
                ends: Mutex::default(),
            },
            api,
            pods: Mutex::default(),
            ended: Mutex::default(),
            new: Mutex::default(),
            has_new: Notify::new(),
            is_swept: AtomicBool::new(false),
            with_mode: Mutex::default(),
            unfinished: Mutex::default(),
        }
    }

    fn api(&self) -> Result<&Api, RuntimeError> {
        self.api.as_ref().map_err(|error| RuntimeError::new("PodmanUnavailable", error.clone()))
    }

    fn get(&self, uid: &Uid) -> Option<Arc<Supervised>> {
        lock(&self.pods).get(uid).cloned()
    }

    fn is_ours(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.get("podmux.instance").is_some_and(|instance| **instance == *self.context.config.instance)
    }

    /// Ends the supervision of a pod, and waits for its end. Its status stays.
    async fn release(&self, uid: &Uid) {
        if let Some(pod) = self.get(uid) {
            pod.stop.cancel();
            drop(pod.alive.lock().await);
        }
    }

    /// Stops and removes the pods of a UID, with all that belongs to them, and the volumes of its name. Returns those that
    /// are kept: the ones on disk of the UID and of this hash.
    async fn tear_down(
        &self,
        api: &Api,
        key: &PodKey,
        uid: &Uid,
        grace: Option<Duration>,
        keep: Option<&str>,
    ) -> Result<Vec<String>, ApiError> {
        let mut kept = Vec::new();
        for pod in api.pods_of(uid).await? {
            if self.is_ours(&pod.labels) {
                let own = pod.label("podmux.grace").parse().ok().map(Duration::from_secs);
                let (grace, supervised) = (grace.or(own).unwrap_or(Duration::ZERO), self.get(uid));
                self.context.stop_containers(api, &pod.id, supervised.as_deref(), grace).await?;
                api.remove("pods", &pod.id).await?;
            }
        }
        // Also those that a crash has left of another UID: the names of volumes have none. podman makes one without
        // labels if it is to mount one that was removed.
        let own = format!("{}_", pod_name(key));
        // The names of volumes may be cut.
        let begin = &own[..own.floor_char_boundary(spec::LONGEST_BEGIN)];
        for volume in api.volumes("name", &format!("^{begin}")).await? {
            let has = |label: &str, value: &str| volume.labels.get(label).is_some_and(|found| found == value);
            if volume.labels.is_empty() && volume.name.starts_with(&own) {
                self.remove_unused(api, &volume).await?;
            } else if has("podmux.name", key.name())
                && has("podmux.namespace", key.namespace())
                && self.is_ours(&volume.labels)
            {
                // Those of earlier versions have no hash, and are not kept.
                let is_same = keep.is_some_and(|hash| has("podmux.hash", hash)) && has("podmux.uid", uid);
                if is_same && volume.options.is_empty() {
                    kept.push(volume.name);
                } else {
                    api.remove("volumes", &volume.name).await?;
                }
            }
        }
        let directory = files::pod_directory(&self.context.config.directory, uid);
        lock(&self.context.ends).retain(|end, _| !end.starts_with(&directory));
        if let Ok(Err(error)) =
            self.context.config.host.threads.blocking(move || files::discard(&directory)).await
        {
            debug!(%error, "files of a pod not removed");
        }
        Ok(kept)
    }

    /// Makes the pod in podman, with its namespaces, and its volumes that were not kept. Returns it.
    async fn create(
        &self,
        api: &Api,
        sync: &SyncPod,
        translation: &Translation,
        kept: &[String],
    ) -> Result<ListedPod, ApiError> {
        let (pod, grace) = (&sync.pod, translation.grace.as_secs().to_string());
        let labels = BTreeMap::from([
            ("podmux.uid", &**pod.uid()),
            ("podmux.namespace", pod.key().namespace()),
            ("podmux.name", pod.key().name()),
            ("podmux.instance", &*self.context.config.instance),
            ("podmux.hash", &*sync.hash),
            ("podmux.source", sync.source.as_str()),
            ("podmux.grace", &*grace),
        ]);
        let is_kept = |volume: &Value| kept.iter().any(|kept| volume["Name"] == **kept);
        for volume in translation.volumes.iter().filter(|volume| !is_kept(volume)) {
            let mut body = volume.clone();
            (body["Labels"], body["Label"]) = (json!(labels), json!(labels));
            api.create("volumes", &body).await?;
        }
        let mut body = translation.pod.clone();
        body["labels"] = json!(labels);
        let id = api.create("pods", &body).await?;
        let pods = api.pods_of(pod.uid()).await?;
        let pod = pods.into_iter().find(|pod| pod.id == id).ok_or(ApiError::Vanished(id))?;
        if translation.has_infra() {
            api.start(&pod.infra_id).await?;
        }
        Ok(pod)
    }

    /// The pods of which podman has only volumes: an operator has removed the pod, or it could not be made. Removes the empty
    /// volumes without labels, too.
    async fn left_over(&self, api: &Api, pods: &[ListedPod]) -> Result<Vec<ActualPod>, ApiError> {
        let mut uids: HashSet<String> = pods.iter().map(|pod| pod.label("podmux.uid").to_owned()).collect();
        let mut left = Vec::new();
        for mut volume in api.volumes("name", &format!("^{}", spec::PREFIX)).await? {
            if volume.labels.is_empty() && volume.name.starts_with(spec::PREFIX) {
                self.tidy_up(api, volume).await?;
            } else if let Some(uid) = volume.labels.get("podmux.uid")
                && self.is_ours(&volume.labels)
                && uids.insert(uid.clone())
            {
                // Those of earlier versions have neither. So they are removed, whatever is wanted.
                for (name, value) in [("podmux.hash", "none"), ("podmux.source", SourceName::File.as_str())] {
                    volume.labels.entry(name.to_owned()).or_insert_with(|| value.to_owned());
                }
                left.extend(self.actual(&volume.labels));
            }
        }
        Ok(left)
    }

    /// Removes a volume without labels if it is empty. podman makes one for a container that a killed agent had asked
    /// for, and whose own volume was removed meanwhile.
    async fn tidy_up(&self, api: &Api, volume: Volume) -> Result<(), ApiError> {
        let place = volume.mountpoint.clone();
        // What cannot be read may hold something.
        let is_empty = move || std::fs::read_dir(place).is_ok_and(|mut content| content.next().is_none());
        if self.context.config.host.threads.blocking(is_empty).await.unwrap_or(false) {
            self.remove_unused(api, &volume).await?;
        }
        Ok(())
    }

    /// Removes a volume, unless a container uses it.
    async fn remove_unused(&self, api: &Api, volume: &Volume) -> Result<(), ApiError> {
        match api.remove("volumes", &volume.name).await {
            Err(ApiError::Refused(_, error)) => {
                debug!(name = volume.name, error, "volume not removed");
                Ok(())
            }
            removed => removed,
        }
    }

    /// Supervises the pod of a sync: what is there, if it can be used, or else a new one.
    async fn adopt(&self, api: &Api, sync: &SyncPod) -> Result<Arc<Supervised>, ApiError> {
        let (config, uid) = (&self.context.config, sync.pod.uid());
        let translation = translate(&sync.pod, config.host.memory());
        let found = api.pods_of(uid).await?;
        let is_same = |pod: &&ListedPod| {
            // One that an operator has cloned has its labels, but not its name.
            pod.name == pod_name(sync.pod.key())
                && pod.label("podmux.hash") == &*sync.hash
                && pod.label("podmux.source") == sync.source.as_str()
                && pod.label("podmux.instance") == &*self.context.config.instance
        };
        let has_own_users = translation.unsupported.iter().any(|field| field == "spec.hostUsers");
        let old = self.get(uid);
        let mut with_mode = lock(&self.with_mode).get(uid).cloned().unwrap_or_default();
        with_mode.extend(old.iter().flat_map(|old| old.used()));
        if let Some(listed) = found.iter().find(is_same).filter(|_| !has_own_users) {
            let is_new = old.is_none_or(|old| old.id != listed.id);
            let pod = Arc::new(Supervised::new(&sync.pod, translation.clone(), listed, with_mode));
            self.context.look(api, &pod).await?;
            // A crash came before its namespaces were made.
            if !pod.is_usable() && pod.is_empty() && api.start(&listed.infra_id).await.is_ok() {
                self.context.look(api, &pod).await?;
            }
            // What an earlier agent has left running without namespaces is stopped outside of the workers.
            if pod.is_usable() || is_new && lock(&pod.memory).seen.runs() {
                self.context.restore_found(&pod).await;
                lock(&self.with_mode).remove(uid);
                return Ok(pod);
            }
            with_mode = pod.used();
            lock(&self.with_mode).insert(uid.clone(), with_mode.clone());
        }
        let mut kept = Vec::new();
        if !found.is_empty() || !translation.volumes.is_empty() {
            kept = self.tear_down(api, sync.pod.key(), uid, None, Some(&sync.hash)).await?;
        }
        if has_own_users {
            // A pod may be allowed to run as root because of it (--pod-security).
            return Err(ApiError::HostUsers);
        }
        let listed = self.create(api, sync, &translation, &kept).await?;
        lock(&self.with_mode).remove(uid);
        with_mode.retain(|volume| kept.contains(volume));
        Ok(Arc::new(Supervised::new(&sync.pod, translation, &listed, with_mode)))
    }

    /// Publishes what podman has of a pod that is killed, also if it was never supervised: an agent before this one has
    /// begun to kill it.
    async fn show(&self, api: &Api, kill: &KillPod) -> Result<(), ApiError> {
        let (uid, config) = (&kill.actual.uid, &self.context.config);
        if self.status(uid).is_none()
            && let Some(pod) = &kill.pod
            && let Some(listed) =
                api.pods_of(uid).await?.iter().find(|listed| listed.name == pod_name(&kill.actual.key))
        {
            let translation = translate(pod, config.host.memory());
            let killed = Arc::new(Supervised::new(pod, translation, listed, Vec::new()));
            killed.stop.cancel();
            lock(&self.pods).insert(uid.clone(), killed.clone());
            self.context.look(api, &killed).await?;
        }
        Ok(())
    }

    /// Removes the files of pods of which podman has nothing: what crashes have left.
    async fn sweep(&self, pods: &[ListedPod], by_pod: &HashMap<String, Vec<ListedContainer>>) {
        let uids = pods.iter().map(|pod| pod.label("podmux.uid"));
        let uids = uids.chain(by_pod.values().flatten().map(|container| container.label("podmux.uid")));
        let directory = self.context.config.directory.clone();
        let kept = uids.map(|uid| files::pod_directory(&directory, uid)).collect();
        let swept = self.context.config.host.threads.blocking(move || files::sweep(&directory, &kept)).await;
        if let Ok(Err(error)) = swept {
            debug!(%error, "files of removed pods not removed");
        }
    }

    /// All pods, and the containers of each by its id.
    ///
    /// podman 4.3 leaves a pod out while a container of it is made or removed, and never leaves out a container: if that is
    /// a supervised pod, or any pod at the first list, it is asked again.
    async fn pods_and_containers(
        &self,
        api: &Api,
    ) -> Result<(Vec<ListedPod>, HashMap<String, Vec<ListedContainer>>), ApiError> {
        let mut attempts = 0;
        loop {
            let (pods, containers) =
                try_join(api.pods("podmux.uid"), api.containers("label", "podmux.uid")).await?;
            let mut by_pod: HashMap<String, Vec<ListedContainer>> = HashMap::new();
            for container in containers {
                by_pod.entry(container.pod.clone()).or_default().push(container);
            }
            let ids: HashSet<&str> = pods.iter().map(|pod| &*pod.id).collect();
            attempts += 1;
            let is_first = !self.is_swept.load(Ordering::Relaxed);
            let is_known = |id: &String| is_first || lock(&self.pods).values().any(|pod| pod.id == *id);
            // A container may have lost its pod.
            if attempts == MOST_LISTS || !by_pod.keys().any(|id| !ids.contains(&**id) && is_known(id)) {
                return Ok((pods, by_pod));
            }
        }
    }

    async fn list_all(&self, api: &Api) -> Result<Vec<ActualPod>, ApiError> {
        *lock(&self.context.address) = node_address().map(|address| address.to_string().into());
        let before: Vec<Arc<Supervised>> = lock(&self.pods).values().cloned().collect();
        let (pods, by_pod) = self.pods_and_containers(api).await?;
        if !self.is_swept.load(Ordering::Relaxed) {
            self.sweep(&pods, &by_pod).await;
            self.is_swept.store(true, Ordering::Relaxed);
        }
        // What runs is known without them, and the next list tries it again.
        let left = self.left_over(api, &pods).await.unwrap_or_else(|error| {
            debug!(error = chain(&error), "volumes not looked at");
            Vec::new()
        });
        for lost in before.iter().filter(|pod| pods.iter().all(|listed| listed.id != pod.id)) {
            // The workers sync it, if it is still wanted.
            lost.stop.cancel();
            if left.iter().any(|left| left.uid == lost.uid) {
                lock(&self.with_mode).insert(lost.uid.clone(), lost.used());
            }
            lock(&self.pods).retain(|_, pod| pod.id != lost.id);
        }
        let mut all = Vec::new();
        for listed in &pods {
            let Some(mut actual) = self.actual(&listed.labels) else { continue };
            // A clone of it is not it.
            if listed.name != pod_name(&actual.key) {
                continue;
            }
            actual.started = listed.created;
            if let Some(pod) = self.get(&actual.uid).filter(|pod| pod.id == listed.id) {
                if pod.differs(by_pod.get(&listed.id).map_or(&[], Vec::as_slice), &self.context.config) {
                    // It looks for itself: its events may be lost.
                    pod.wake.notify_one();
                }
                actual.is_complete = pod.is_complete();
                actual.status = Some(self.context.publish(&pod));
            }
            all.push(actual);
        }
        // podman does not have them any more, but it may have their volumes.
        let unfinished: Vec<ActualPod> = lock(&self.unfinished).values().cloned().collect();
        for left in unfinished.into_iter().chain(left) {
            if all.iter().all(|actual| actual.uid != left.uid) {
                all.push(left);
            }
        }
        Ok(all)
    }

    /// The pod of these labels without its status; none if they are not those of this runtime.
    fn actual(&self, labels: &BTreeMap<String, String>) -> Option<ActualPod> {
        let label = |name| labels.get(name).map(String::as_str).filter(|label| !label.is_empty());
        Some(ActualPod {
            key: PodKey::new(label("podmux.namespace")?, label("podmux.name")?),
            uid: label("podmux.uid")?.into(),
            hash: label("podmux.hash")?.into(),
            source: label("podmux.source")?.parse().ok()?,
            is_ours: self.is_ours(labels),
            is_complete: false,
            started: None,
            status: None,
        })
    }

    /// Wakes pods when something happens to them in podman.
    async fn follow_events(&self, api: &Api) {
        let (mut backoff, mut outage) = (Backoff::new(FIRST_DELAY, LONGEST_DELAY), Outage::default());
        loop {
            let error = match api.events().await {
                Ok(mut lines) => {
                    let begun = Instant::now();
                    // What has happened before is not in the stream.
                    self.wake_all();
                    let error = loop {
                        match timeout(LONGEST_DELAY, lines.next()).await {
                            Ok(Some(Ok(line))) => match serde_json::from_slice(&line) {
                                Ok(event) => self.event(&event),
                                // podman accepts a request that it cannot fulfil.
                                Err(_) => match refusal(&line) {
                                    Some(refused) => break refused,
                                    None => continue,
                                },
                            },
                            Ok(Some(Err(error))) => break chain(&error),
                            Ok(None) => break "podman has ended the stream".to_owned(),
                            // Nothing has happened for long.
                            Err(_) => {}
                        }
                        outage.log("podman", "event stream", None, self.context.config.host.clock.now());
                    };
                    if begun.elapsed() > LONGEST_DELAY {
                        backoff.reset();
                    }
                    error
                }
                Err(error) => chain(&error),
            };
            outage.log("podman", "event stream", Some(&error), self.context.config.host.clock.now());
            // A list finds out whether podman is away.
            self.context.changed.notify_one();
            sleep(backoff.next(self.context.config.host.random.fraction())).await;
        }
    }

    fn wake_all(&self) {
        for pod in lock(&self.pods).values() {
            pod.wake.notify_one();
        }
        self.context.changed.notify_one();
    }

    fn event(&self, event: &Event) {
        if event.kind == "image" {
            for pod in lock(&self.pods).values() {
                pod.images_changed();
            }
        } else if let Some(uid) = event.actor.attributes.get("podmux.uid") {
            match self.get(&uid.as_str().into()) {
                Some(pod) => pod.wake.notify_one(),
                None => self.context.changed.notify_one(),
            }
        } else if event.kind == "pod" {
            self.context.changed.notify_one();
        }
    }
}

impl PodRuntime for Podman {
    async fn list(&self) -> Result<Vec<ActualPod>, RuntimeError> {
        self.list_all(self.api()?).await.map_err(failed("PodmanFailed"))
    }

    async fn sync(&self, sync: &SyncPod) -> Result<(), RuntimeError> {
        let (api, uid) = (self.api()?, sync.pod.uid());
        self.release(uid).await;
        let pod = self.adopt(api, sync).await.map_err(failed("CreatePodSandboxError"))?;
        self.context.publish(&pod);
        lock(&self.unfinished).remove(uid);
        lock(&self.context.stops).remove(&pod.id);
        lock(&self.pods).insert(uid.clone(), pod.clone());
        lock(&self.new).push(pod);
        self.has_new.notify_one();
        Ok(())
    }

    async fn kill(&self, kill: &KillPod) -> Result<(), RuntimeError> {
        let (api, key, uid) = (self.api()?, &kill.actual.key, &kill.actual.uid);
        self.release(uid).await;
        lock(&self.with_mode).remove(uid);
        if let Err(error) = self.show(api, kill).await {
            debug!(error = chain(&error), "pod not looked at");
        }
        // A list forgets it as soon as podman does.
        let pod = self.get(uid);
        let torn_down = self.tear_down(api, key, uid, kill.grace, None).await;
        let status = pod.map(|pod| self.context.publish(&pod));
        if let Err(error) = torn_down {
            let status = status.or(kill.actual.status.clone());
            let left = ActualPod { is_complete: false, status, ..kill.actual.clone() };
            lock(&self.unfinished).insert(uid.clone(), left);
            return Err(failed("KillPodSandboxError")(error));
        }
        lock(&self.unfinished).remove(uid);
        lock(&self.pods).remove(uid);
        lock(&self.ended).extend(status.map(|status| (uid.clone(), status)));
        Ok(())
    }

    async fn changed(&self) {
        self.context.changed.notified().await;
    }

    fn replaces_pods(&self) -> bool {
        true
    }

    fn kills_wait(&self) -> bool {
        true
    }

    fn status(&self, uid: &Uid) -> Option<Arc<Value>> {
        let pod = self.get(uid).map(|pod| self.context.publish(&pod));
        pod.or_else(|| lock(&self.ended).remove(uid))
    }

    fn failing(&self, uid: &Uid) -> Option<Failing> {
        self.get(uid).and_then(|pod| pod.failing())
    }

    async fn logs(&self, log: &LogRequest, output: mpsc::Sender<Vec<u8>>) -> Result<(), RuntimeError> {
        let config = &self.context.config;
        let sent = logs::send(self.api()?, log, &config.instance, &config.host.clock, output).await;
        sent.map_err(failed("LogsFailed"))
    }

    async fn run(&self, stop: &CancellationToken) {
        let Ok(api) = &self.api else { return stop.cancelled().await };
        let mut pods = FuturesUnordered::new();
        let mut events = std::pin::pin!(self.follow_events(api));
        loop {
            pods.extend(lock(&self.new).drain(..).map(|pod| self.context.supervise(api, pod)));
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.has_new.notified() => {}
                () = &mut events => {}
                Some(()) = pods.next() => {}
            }
        }
        // What podman makes is waited for: the next agent may remove its pod.
        lock(&self.pods).values().for_each(|pod| pod.stop.cancel());
        while pods.next().await.is_some() {}
    }
}

/// An error of a call, with a reason by its cause.
fn failed(refused: &'static str) -> impl Fn(ApiError) -> RuntimeError {
    move |error| {
        let reason = match error {
            ApiError::Client(_) | ApiError::Busy(..) | ApiError::Silent(..) | ApiError::Unexpected(..) => {
                "PodmanUnavailable"
            }
            ApiError::NotPodman(..) => "NotPodman",
            ApiError::TooOld(..) => "PodmanTooOld",
            ApiError::Refused(..) | ApiError::Vanished(_) | ApiError::HostUsers => refused,
        };
        RuntimeError::new(reason, error)
    }
}

/// The address of this node that leads to other machines: of IPv6 if none of IPv4 does.
fn node_address() -> Option<IpAddr> {
    // Addresses for documentation (RFC 5737, RFC 3849). Connecting only chooses a route: nothing is sent.
    [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")].into_iter().find_map(|(own, other)| {
        let socket = UdpSocket::bind(own).ok()?;
        socket.connect(other).ok()?;
        Some(socket.local_addr().ok()?.ip())
    })
}
