//! What is done for one pod as long as it runs: its containers are created, started, and replaced when they end.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::join_all};
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{
    sync::{self, Notify},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    api::{Api, ApiError, InspectedState, LONGEST_GRACE, LONGEST_WORDS, ListedContainer, ListedPod, found},
    context::{Config, Context, lock},
    files,
    plan::{
        Action, Exit, LOST, Observation, Plan, START_ERROR, Seen, State, delay, is_over, is_restarted, plan,
        start,
    },
    probe::Probing,
    progress::Progress,
    spec::{Container, PullPolicy, RestartPolicy, Role, Translation, pod_name},
    status::Known,
};
use crate::{
    backoff::Backoff,
    client::ClientError,
    error_chain::chain,
    outage::Outage,
    pod::{Pod, Uid},
    pod_columns::PULLING,
    runtime::failing::Failing,
};

/// The delays before podman is asked again after a failure. It is asked at once when its events arrive again.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_mins(1);
/// How long a pull may report nothing: podman says nothing while it loads a layer.
const SILENCE: Duration = Duration::from_mins(15);
/// podman's words for what it has stored and cannot use.
const INTERNAL_ERROR: &str = "internal libpod error";
/// podman's words for a container that the OCI runtime could not start, for example because its command does not exist.
const REFUSED_START: &str = ": OCI ";
/// Why a container has ended whose pod has lost its namespaces.
const NO_NAMESPACES: &str = "stopped: the infra container of the pod has ended";
/// From so many counted restarts on a container is in a crash loop.
const LOOP: u32 = 2;
/// The longest configuration of an image, in bytes. podman repeats most of it in each list of containers, and the labels in
/// each event of one: a longer one would hide all pods of the node.
const LONGEST_IMAGE_CONFIG: usize = 128 << 10;
/// The shortest time between two reports of a pull.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);

/// A pod that is supervised.
#[derive(Debug)]
pub(super) struct Supervised {
    /// Its id in podman.
    pub(super) id: String,
    infra_id: String,
    pub(super) uid: Uid,
    created: Option<Timestamp>,
    /// Its name in podman.
    name: String,
    /// `namespace/name`, for the log.
    pub(super) shown: String,
    /// `name_namespace(uid)`, as a kubelet writes it in a status.
    in_status: String,
    labels: BTreeMap<String, String>,
    pub(super) translation: Translation,
    /// Its volumes that had got their mode before it.
    had_mode: Vec<String>,
    /// Something may have changed: the next step is due.
    pub(super) wake: Notify,
    /// Ends the supervision.
    pub(super) stop: CancellationToken,
    /// Locked during the supervision.
    pub(super) alive: sync::Mutex<()>,
    /// How many looks at it were asked for, and how many of them are done.
    looks: AtomicU64,
    pub(super) served: sync::Mutex<u64>,
    pub(super) memory: Mutex<Memory>,
    pub(super) probing: Probing,
}

/// What the supervision has seen and done.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) seen: Observation,
    plan: Plan,
    /// The containers that could not be started, by name.
    held: BTreeMap<String, Held>,
    /// How containers fail to start, or end again and again, by name, until they have recovered.
    failing: BTreeMap<String, (Outage, Failing)>,
    /// How the pod fails, as it was published.
    shown: Option<Failing>,
    /// What is done about a container, by name.
    progress: BTreeMap<String, String>,
    /// The emptyDirs on disk that have got their mode. It is set once: a container may change it.
    with_mode: Vec<String>,
    /// Some image has changed since those that could not be had were looked for.
    has_new_images: bool,
    /// The pod's namespaces are gone, although it is not over.
    is_lost: bool,
    status: Option<Arc<Value>>,
}

/// Why a container could not be started, and until when it is not tried again.
#[derive(Debug)]
struct Held {
    failures: u32,
    until: Instant,
    failure: Failure,
}

/// Why a container could not be started: a word of the kubelet, and a sentence.
#[derive(Debug)]
struct Failure {
    reason: &'static str,
    message: String,
}

impl Failure {
    fn new(reason: &'static str) -> impl Fn(ApiError) -> Self {
        move |error| Self { reason, message: chain(&error) }
    }

    fn is_of_image(&self) -> bool {
        matches!(self.reason, "ErrImagePull" | "ErrImageNeverPull")
    }
}

impl Supervised {
    pub(super) fn new(
        pod: &Pod,
        translation: Translation,
        listed: &ListedPod,
        had_mode: Vec<String>,
    ) -> Self {
        let (namespace, name) = (pod.key().namespace(), pod.key().name());
        let base =
            |name: &str| ["podmux.uid", "podmux.namespace", "podmux.name", "podmux.instance"].contains(&name);
        Self {
            id: listed.id.clone(),
            infra_id: listed.infra_id.clone(),
            uid: pod.uid().clone(),
            created: listed.created,
            name: pod_name(pod.key()),
            shown: pod.key().as_str().to_owned(),
            in_status: format!("{name}_{namespace}({})", pod.uid()),
            labels: listed.labels.clone().into_iter().filter(|(name, _)| base(name)).collect(),
            probing: Probing::new(&translation),
            translation,
            had_mode,
            wake: Notify::new(),
            stop: CancellationToken::new(),
            alive: sync::Mutex::new(()),
            looks: AtomicU64::new(0),
            served: sync::Mutex::new(0),
            memory: Mutex::default(),
        }
    }

    /// Whether it is supervised and can be.
    pub(super) fn is_complete(&self) -> bool {
        !self.stop.is_cancelled() && !lock(&self.memory).is_lost
    }

    /// Whether its namespaces are there, or not needed any more.
    pub(super) fn is_usable(&self) -> bool {
        let seen = &lock(&self.memory).seen;
        seen.is_up || is_over(&self.translation, seen)
    }

    /// Whether it has no container yet.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.memory).seen.containers.is_empty()
    }

    /// Its emptyDirs on disk that a container has had.
    pub(super) fn used(&self) -> Vec<String> {
        let memory = lock(&self.memory);
        let started = memory.seen.containers.iter().filter(|seen| seen.started.is_some());
        let started = started.filter_map(|seen| self.translation.container(&seen.name));
        let used = started.flat_map(|container| container.empty_dirs.iter().map(|(volume, _)| volume));
        used.chain(&memory.with_mode).chain(&self.had_mode).cloned().collect()
    }

    /// Whether these are other containers than those that were seen, or in another state.
    pub(super) fn differs(&self, containers: &[ListedContainer], config: &Config) -> bool {
        let seen = &lock(&self.memory).seen;
        let own = containers.iter().filter(|container| !container.is_infra);
        let is_seen = |container: &&ListedContainer| {
            let start = start(&container.id, container.started());
            let state = seen.containers.iter().find(|seen| seen.start() == start).map(|seen| &seen.state);
            state.is_some_and(|state| (*state == State::Running) == container.runs())
        };
        let own: Vec<_> = own.filter(|container| self.has(container)).collect();
        seen.is_up != self.is_up(containers, config)
            || seen.containers.len() != own.len()
            || !own.iter().all(is_seen)
    }

    /// Whether its namespaces are there: those of its infra container, or else those of the host since its containers
    /// were started.
    fn is_up(&self, containers: &[ListedContainer], config: &Config) -> bool {
        if self.infra_id.is_empty() && !self.translation.has_infra() {
            return !containers.iter().any(|container| container.is_lost(config));
        }
        containers.iter().any(|container| container.is_infra && container.runs())
    }

    /// Whether a container has ended with the machine and must not run again, as with the kubelet.
    fn has_lost(&self, container: &ListedContainer, config: &Config) -> bool {
        let own = self.translation.container(container.label("podmux.container"));
        let is_over = |own: &Container| own.restart == RestartPolicy::Never || own.role == Role::Sidecar;
        own.is_some_and(is_over) && container.is_lost(config)
    }

    /// Whether a container is one of the pod's own. Others may have been put into it.
    fn has(&self, container: &ListedContainer) -> bool {
        self.translation.container(container.label("podmux.container")).is_some()
    }

    /// Has the images looked for that could not be had.
    pub(super) fn images_changed(&self) {
        let mut memory = lock(&self.memory);
        if memory.held.values().any(|held| held.failure.is_of_image()) {
            memory.has_new_images = true;
            self.wake.notify_one();
        }
    }

    /// Records whether a container could be started.
    fn note(&self, container: &Container, result: Result<(), Failure>, now: Timestamp) {
        let (mut memory, name) = (lock(&self.memory), &*container.name);
        memory.progress.remove(name);
        match result {
            Ok(()) => drop(memory.held.remove(name)),
            Err(mut failure) => {
                // A registry's words, which podman passes on, have no limit of their own.
                failure.message.truncate(failure.message.floor_char_boundary(LONGEST_WORDS));
                let failures = memory.held.get(name).map_or(0, |held| held.failures) + 1;
                self.failed(&mut memory, name, (failure.reason, &failure.message), delay(failures), now);
                let until = Instant::now() + delay(failures);
                memory.held.insert(name.to_owned(), Held { failures, until, failure });
            }
        }
    }

    /// Notes a failure of a container. A new one is logged as a warning.
    fn failed(
        &self,
        memory: &mut Memory,
        container: &str,
        (reason, error): (&'static str, &str),
        delay: Duration,
        now: Timestamp,
    ) {
        let mut outage = memory.failing.remove(container).map(|(outage, _)| outage).unwrap_or_default();
        let text = format!("container {container}: {error}");
        let (failing, is_new) = Failing::note(&mut outage, (reason, &text), delay, now);
        memory.failing.insert(container.to_owned(), (outage, failing));
        let pod = &*self.shown;
        if is_new && !self.stop.is_cancelled() {
            warn!(pod, container, reason, error, "container failed; it is retried until it runs");
        } else {
            debug!(pod, container, reason, error, "container failed; next retry in {delay:.1?}");
        }
    }

    /// Notes that a container does not fail any more.
    fn recovered(&self, memory: &mut Memory, container: &str) {
        if let Some((mut outage, _)) = memory.failing.remove(container) {
            let attempts = outage.recovered();
            info!(pod = &*self.shown, container, attempts, "container recovered");
        }
    }

    /// Notes which containers wait because they end again and again, and which have recovered, after those of `before`
    /// were seen.
    fn note_ends(&self, memory: &mut Memory, before: &Observation, now: Timestamp) {
        if self.stop.is_cancelled() {
            return;
        }
        if is_over(&self.translation, &memory.seen) {
            memory.failing.clear();
        }
        for container in &self.translation.containers {
            let name = &*container.name;
            let Some(current) = memory.seen.current(name).cloned() else { continue };
            let end = match &current.state {
                State::Running if current.backoff < LOOP => {
                    self.recovered(memory, name);
                    continue;
                }
                State::Created | State::Running => continue,
                State::Exited(exit) => exit,
            };
            let waits = memory.plan.waiting.get(name).copied();
            let is_new = before.current(name) != Some(&current);
            if !is_restarted(container, end) || is_new && waits.is_none() && !memory.held.contains_key(name) {
                // It is not tried again, or was good for so long that it is at once.
                memory.failing.remove(name);
            } else if let Some(delay) = waits.filter(|_| is_new && memory.seen.is_up) {
                let error = format!("it ends again and again, the last time with exit code {}", end.code);
                let passed = Duration::try_from(now.duration_since(end.finished)).unwrap_or_default();
                let left = delay.saturating_sub(passed);
                self.failed(memory, name, ("CrashLoopBackOff", &error), left, now);
            }
        }
    }

    /// How the pod fails: the container that has failed longest of those that do not run.
    pub(super) fn failing(&self) -> Option<Failing> {
        if self.stop.is_cancelled() { None } else { lock(&self.memory).failing() }
    }

    fn make_plan(&self, memory: &Memory, now: Timestamp) -> Plan {
        let held = |name: &str| memory.held.get(name).is_some_and(|held| held.until > Instant::now());
        let (pod, seen) = (&self.translation, &memory.seen);
        let mut plan = plan(pod, seen, now, |seen| self.probing.result(seen).0, held);
        if seen.is_up && !self.infra_id.is_empty() && is_over(pod, seen) && !seen.runs() {
            // As with the kubelet, nothing of its namespaces, ports and memory is held any more.
            plan.actions.push(Action::Stop(self.infra_id.clone()));
        }
        plan
    }
}

impl Context {
    /// Supervises a pod until it is killed, and podman has answered what it is asked to make for it: podman would make
    /// it after the pod's removal, or lock itself out (podman#20313).
    pub(super) async fn supervise(&self, api: &Api, pod: Arc<Supervised>) {
        let _alive = pod.alive.lock().await;
        let probes = pod.stop.run_until_cancelled(self.probe(api, &pod));
        tokio::join!(self.control(api, &pod), probes);
    }

    async fn control(&self, api: &Api, pod: &Supervised) {
        let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        while !pod.stop.is_cancelled() {
            // What has happened before this step is seen by it, as the events of the starts of the step before.
            let _ = pod.wake.notified().now_or_never();
            let next = match self.step(api, pod).await {
                Ok(true) => {
                    backoff.reset();
                    continue;
                }
                Ok(false) => self.next_step(pod),
                Err(error) => {
                    debug!(pod = pod.shown, error = chain(&error), "pod not looked at");
                    Some(backoff.next(self.config.host.random.fraction()))
                }
            };
            tokio::select! {
                () = pod.stop.cancelled() => {}
                () = pod.wake.notified() => {}
                () = sleep(next.unwrap_or_default()), if next.is_some() => {}
            }
        }
    }

    /// Looks at a pod and does what it needs. Returns whether something was done. When the supervision ends, only what
    /// is made in podman is waited for.
    async fn step(&self, api: &Api, pod: &Supervised) -> Result<bool, ApiError> {
        let looked = async {
            let has_new_images = std::mem::take(&mut lock(&pod.memory).has_new_images);
            let found = if has_new_images { self.find_images(api, pod).await } else { Ok(()) };
            lock(&pod.memory).has_new_images |= found.is_err();
            self.look(api, pod).await.map(|()| found)
        };
        let Some(looked) = pod.stop.run_until_cancelled(looked).await else { return Ok(false) };
        let found = looked?;
        let actions = lock(&pod.memory).plan.actions.clone();
        if !pod.is_usable() {
            return self.give_up(api, pod).await.map(|()| false);
        }
        // The end of what is stopped is an event. podman may not notice it.
        let is_done = actions.iter().any(|action| !matches!(action, Action::Stop(_)));
        let (mut result, begun, mut is_empty) = (Ok(is_done), Instant::now(), pod.is_empty());
        for action in &actions {
            if pod.stop.is_cancelled() {
                break;
            }
            // A container that cannot be stopped or removed keeps no other from being started.
            let done = match action {
                Action::Remove(id) => {
                    self.keep_end(&pod.uid, id, None).await;
                    api.remove("containers", id).await
                }
                Action::Stop(id) => {
                    let stopped = api.stop(id, pod.translation.grace.saturating_sub(begun.elapsed()));
                    let stopped = pod.stop.run_until_cancelled(stopped).await.unwrap_or(Ok(()));
                    self.try_look(api, Some(pod)).await;
                    stopped
                }
                Action::Create { index, restarts, backoff } => {
                    let container = &pod.translation.containers[*index];
                    let body = self.prepare(api, pod, *index, *restarts, *backoff);
                    let Some(body) = pod.stop.run_until_cancelled(body).await else { break };
                    let created = match body {
                        Ok(body) => self.create_container(api, pod, container, &body).await,
                        Err(failure) => Err(failure),
                    };
                    let is_internal = |failure: &Failure| failure.message.contains(INTERNAL_ERROR);
                    let is_broken = is_empty && created.as_ref().is_err_and(is_internal);
                    is_empty &= created.is_err();
                    pod.note(container, created, self.config.host.clock.now());
                    // podman was killed while it made the pod: the workers have it made again.
                    if is_broken { api.remove("pods", &pod.id).await } else { Ok(()) }
                }
                Action::Start { index, id } => {
                    let container = &pod.translation.containers[*index];
                    let started = self.start(api, pod, container, id).await;
                    pod.note(container, started, self.config.host.clock.now());
                    Ok(())
                }
            };
            result = result.and_then(|is_done| done.map(|()| is_done));
            self.publish(pod);
        }
        found.and(result)
    }

    /// Stops what runs of a pod without its namespaces, within its grace. If anything of it is to run again then, the
    /// workers find it incomplete and sync it: it is made again.
    async fn give_up(&self, api: &Api, pod: &Supervised) -> Result<(), ApiError> {
        let seen = lock(&pod.memory).seen.containers.clone();
        for seen in seen.into_iter().filter(|seen| seen.state == State::Running) {
            // As with the kubelet, it has not succeeded, whatever its exit code is.
            let end = seen.start() + NO_NAMESPACES;
            self.keep_end(&pod.uid, &seen.id, Some(end)).await;
        }
        let stopped = self.stop_containers(api, &pod.id, Some(pod), pod.translation.grace);
        let Some(stopped) = pod.stop.run_until_cancelled(stopped).await else { return Ok(()) };
        stopped?;
        let is_lost = !pod.is_usable();
        lock(&pod.memory).is_lost = is_lost;
        self.changed.notify_one();
        Ok(())
    }

    /// Stops the containers of a pod: its own first, then the sidecars, the last one first, in what is left of the
    /// grace, which goes on if this fails and is tried again. Publishes what it has then, and after each end, if it was
    /// ever supervised.
    pub(super) async fn stop_containers(
        &self,
        api: &Api,
        id: &str,
        pod: Option<&Supervised>,
        grace: Duration,
    ) -> Result<(), ApiError> {
        let containers = match api.containers("pod", id).await {
            // podman stops them when it removes the pod.
            Err(ApiError::Client(ClientError::TooLarge(..))) => Vec::new(),
            listed => listed?,
        };
        let runs = |container: &&ListedContainer| !container.is_infra && container.runs();
        let (mut sidecars, others): (Vec<_>, Vec<_>) =
            containers.iter().filter(runs).partition(|container| container.label("podmux.role") == "sidecar");
        let stop = |container: String| async move {
            if api.signal(&container).await? {
                api.end(&container, self.rest_of_grace(id, grace)).await?;
            }
            self.try_look(api, pod).await;
            Ok::<_, ApiError>(())
        };
        for stopped in join_all(others.iter().map(|container| stop(container.id.clone()))).await {
            stopped?;
        }
        sidecars.sort_by_key(|container| container.label("podmux.index").parse::<usize>().unwrap_or(0));
        for sidecar in sidecars.into_iter().rev() {
            stop(sidecar.id.clone()).await?;
        }
        // Also what has ended before it could be stopped.
        self.try_look(api, pod).await;
        lock(&self.stops).remove(id);
        Ok(())
    }

    /// What is left of the grace of a pod that is stopped. It counts from the first signal.
    fn rest_of_grace(&self, id: &str, grace: Duration) -> Duration {
        let now = Instant::now();
        let end = now + grace.min(LONGEST_GRACE);
        let mut stops = lock(&self.stops);
        let first = stops.entry(id.to_owned()).or_insert(end);
        *first = end.min(*first);
        first.saturating_duration_since(now)
    }

    /// Looks at a pod that is stopped, if it was ever supervised.
    async fn try_look(&self, api: &Api, pod: Option<&Supervised>) {
        if let Some(pod) = pod
            && let Err(error) = self.look(api, pod).await
        {
            debug!(error = chain(&error), "pod not looked at");
        }
    }

    /// Tries those containers again at once whose images have appeared. An attempt to pull is an event too, so
    /// an event alone says nothing.
    async fn find_images(&self, api: &Api, pod: &Supervised) -> Result<(), ApiError> {
        for container in
            pod.translation.containers.iter().filter(|container| container.pull != PullPolicy::Always)
        {
            let is_held = |held: &Held| held.failure.is_of_image();
            if lock(&pod.memory).held.get(&container.name).is_some_and(is_held)
                && api.image(container.image()).await?.is_some()
            {
                lock(&pod.memory).held.remove(&container.name);
            }
        }
        Ok(())
    }

    /// How long nothing is due.
    fn next_step(&self, pod: &Supervised) -> Option<Duration> {
        let (memory, now) = (lock(&pod.memory), self.config.host.clock.now());
        let restart = memory.plan.next.into_iter();
        let restart = restart.map(|until| Duration::try_from(until.duration_since(now)).unwrap_or_default());
        // One whose time has passed may have to wait for other containers.
        let held = memory.held.iter().filter(|(name, _)| memory.plan.held.contains(*name));
        let held = held.map(|(_, held)| held.until.saturating_duration_since(Instant::now()));
        let next = restart.chain(held).min()?;
        // A delay never ends a moment too early, and is no longer than the longest one.
        Some((next + Duration::from_millis(1)).min(delay(u32::MAX)))
    }

    /// Asks podman for a pod's containers. One look at a time: it serves all callers that wait when it begins.
    pub(super) async fn look(&self, api: &Api, pod: &Supervised) -> Result<(), ApiError> {
        let call = pod.looks.fetch_add(1, Ordering::Relaxed) + 1;
        let mut served = pod.served.lock().await;
        if *served < call {
            let calls = pod.looks.load(Ordering::Relaxed);
            let containers = api.containers("pod", &pod.id).await?;
            self.observe(api, pod, containers).await?;
            self.publish(pod);
            *served = calls;
        }
        Ok(())
    }

    /// Takes over what podman has of a pod.
    async fn observe(
        &self,
        api: &Api,
        pod: &Supervised,
        containers: Vec<ListedContainer>,
    ) -> Result<(), ApiError> {
        let is_up = pod.is_up(&containers, &self.config);
        let infra_pid = containers.iter().find(|one| one.is_infra).map(|infra| infra.pid);
        let (mut addresses, known) = {
            let seen = &lock(&pod.memory).seen;
            // By their starts: an operator may start one again.
            let known: BTreeMap<String, State> =
                seen.containers.iter().map(|seen| (seen.start(), seen.state.clone())).collect();
            // A pod that is over keeps them, as with the kubelet.
            let is_same = !is_up || (seen.is_up && seen.infra_pid == infra_pid);
            (if is_same { seen.addresses.clone() } else { Vec::new() }, known)
        };
        if is_up && addresses.is_empty() && !pod.translation.host_network {
            let inspected = api.inspect(&pod.infra_id).await?;
            addresses = inspected.network_settings.map(|network| network.addresses()).unwrap_or_default();
        }
        let mut seen = Vec::new();
        for container in containers.into_iter().filter(|container| !container.is_infra && pod.has(container))
        {
            let known = known.get(&start(&container.id, container.started()));
            let Some(state) = self.state(api, pod, &container, is_up, known).await? else { continue };
            let number = |label| container.label(label).parse().unwrap_or(0);
            seen.push(Seen {
                name: container.label("podmux.container").to_owned(),
                restarts: number("podmux.restarts"),
                backoff: number("podmux.backoff"),
                state,
                started: container.started(),
                id: container.id,
                image: container.image,
                image_id: container.image_id,
            });
        }
        let mut memory = lock(&pod.memory);
        let seen = Observation { is_up, infra_pid, addresses, containers: seen };
        let is_new = memory.seen != seen;
        let before = std::mem::replace(&mut memory.seen, seen);
        let Memory { seen, held, .. } = &mut *memory;
        let is_over = is_over(&pod.translation, seen);
        let runs = |name: &str| seen.current(name).is_some_and(|current| current.state == State::Running);
        // What could not be started need not be any more, or an operator has started it.
        held.retain(|name, _| !is_over && !runs(name));
        let now = self.config.host.clock.now();
        memory.plan = pod.make_plan(&memory, now);
        pod.note_ends(&mut memory, &before, now);
        drop(memory);
        if is_new {
            pod.probing.changed();
        }
        Ok(())
    }

    /// The state of a container; none if it was removed meanwhile.
    async fn state(
        &self,
        api: &Api,
        pod: &Supervised,
        container: &ListedContainer,
        is_up: bool,
        known: Option<&State>,
    ) -> Result<Option<State>, ApiError> {
        let (config, now) = (&self.config, self.config.host.clock.now());
        Ok(match &*container.state {
            _ if container.runs() => Some(State::Running),
            // Later versions of podman list a lost one as exited, with no exit code that means anything.
            "exited" | "stopped" | "removing" if !container.is_lost(config) => match known {
                // Otherwise a clock that was set back would hold up the next start.
                Some(State::Exited(exit)) if exit.code == container.exit_code => {
                    Some(State::Exited(Exit { finished: exit.finished.min(now), ..exit.clone() }))
                }
                _ => self.exit(api, pod, container).await?.map(State::Exited),
            },
            _ if !is_up && pod.has_lost(container, config) => Some(State::Exited(Exit {
                code: LOST,
                finished: config.booted.max(container.started()).unwrap_or(now).min(now),
                is_oom: false,
                is_unhealthy: false,
                message: "the machine was restarted while it ran".to_owned(),
            })),
            _ => Some(self.refused(pod, &container.id).await.map_or(State::Created, State::Exited)),
        })
    }

    /// The end of a container that the OCI runtime could not start and that is not tried again; none otherwise.
    async fn refused(&self, pod: &Supervised, id: &str) -> Option<Exit> {
        let end = self.kept_end(&pod.uid, id).await;
        let (finished, message) = end.split_once(' ')?;
        let finished = finished.parse::<Timestamp>().ok()?.min(self.config.host.clock.now());
        let message = message.to_owned();
        Some(Exit { code: START_ERROR, finished, is_oom: false, is_unhealthy: false, message })
    }

    /// How a container has ended; none if it is gone.
    async fn exit(
        &self,
        api: &Api,
        pod: &Supervised,
        container: &ListedContainer,
    ) -> Result<Option<Exit>, ApiError> {
        let inspected = match api.inspect(&container.id).await {
            Err(ApiError::Refused(StatusCode::NOT_FOUND, _)) => return Ok(None),
            // Its storage may be lost. That keeps no other container from being supervised.
            Err(ApiError::Refused(_, error)) => InspectedState { error, ..InspectedState::default() },
            other => other?.state,
        };
        let name = container.label("podmux.container");
        let restarts = container.label("podmux.restarts").parse().unwrap_or(0);
        let path = files::message_file(&self.config.directory, &pod.uid, name, restarts);
        let read = self.config.host.threads.blocking(move || files::read_message(&path)).await;
        let mut message = read.unwrap_or_default();
        let has_fallback = pod.translation.container(name).is_some_and(|own| own.message_from_output);
        if message.is_empty() && container.exit_code != 0 && has_fallback {
            message = api.last_lines(&container.id).await;
        }
        if message.is_empty() {
            message = inspected.error;
        }
        let end = self.kept_end(&pod.uid, &container.id).await;
        let unhealthy = end.strip_prefix(&start(&container.id, container.started()));
        let is_unhealthy = unhealthy.is_some();
        if message.is_empty() {
            unhealthy.unwrap_or_default().clone_into(&mut message);
        }
        let finished = Timestamp::from_second(container.exited_at).ok().filter(|at| at.as_second() > 0);
        let now = self.config.host.clock.now();
        // podman may note the end of a short one before its start.
        let finished =
            finished.map_or(now, |finished| finished.max(container.started().unwrap_or(finished)).min(now));
        let is_oom = inspected.oom_killed;
        Ok(Some(Exit { code: container.exit_code, finished, is_oom, is_unhealthy, message }))
    }

    /// The status of a pod. Says that something has changed if it has.
    pub(super) fn publish(&self, pod: &Supervised) -> Arc<Value> {
        let address = lock(&self.address).clone();
        let mut memory = lock(&pod.memory);
        let obstacle = |name: &str| memory.obstacle(name);
        // What is being stopped is not started again.
        let plan = if pod.stop.is_cancelled() { &Plan::default() } else { &memory.plan };
        let known = Known {
            pod: &pod.translation,
            seen: &memory.seen,
            plan,
            shown: &pod.in_status,
            started: pod.created,
            host: address.as_deref(),
            obstacle: &obstacle,
            probed: &|seen| pod.probing.result(seen),
        };
        let status = known.status();
        let failing = memory.failing();
        if memory.shown != failing {
            memory.shown = failing;
            self.changed.notify_one();
        }
        if let Some(before) = memory.status.as_ref().filter(|before| ***before == status) {
            return before.clone();
        }
        let status = Arc::new(status);
        memory.status = Some(status.clone());
        self.changed.notify_one();
        status
    }

    /// Provides what a container needs. Returns what podman makes it of.
    async fn prepare(
        &self,
        api: &Api,
        pod: &Supervised,
        index: usize,
        restarts: u32,
        backoff: u32,
    ) -> Result<Value, Failure> {
        let container = &pod.translation.containers[index];
        if pod.translation.is_too_long {
            let message = "the pod's containers repeat more than 2 MiB of it, as values of $(NAME) and `fieldRef`, groups, \
                host aliases, DNS settings, profiles, paths of volumes and its UID: make these shorter, or use fewer containers";
            return Err(Failure { reason: "CreateContainerConfigError", message: message.to_owned() });
        }
        let provided = self.provide_host_paths(pod).await;
        // As with the kubelet, what vanishes later keeps only those from being restarted that mount it.
        if pod.is_empty() {
            provided?;
        }
        let image = self.image(api, pod, container).await?;
        let size = image["Config"].to_string().len();
        if size > LONGEST_IMAGE_CONFIG {
            let message = format!(
                "the configuration of image {:?} (its labels, command and volumes) has {size} bytes, more than the limit \
                 of {LONGEST_IMAGE_CONFIG}: give the image shorter labels",
                container.image()
            );
            return Err(Failure { reason: "CreateContainerError", message });
        }
        container.check_user(image["User"].as_str().unwrap_or_default())?;
        self.body(pod, container, index, restarts, backoff).await
    }

    /// Creates a container and starts it.
    async fn create_container(
        &self,
        api: &Api,
        pod: &Supervised,
        container: &Container,
        body: &Value,
    ) -> Result<(), Failure> {
        let failed = Failure::new("CreateContainerError");
        let name = body["name"].as_str().unwrap_or_default();
        let id = match api.create("containers", body).await {
            Err(ApiError::Refused(_, words))
                if found(api.inspect(name).await).map_err(&failed)?.is_none() =>
            {
                // podman has crashed while it created it, and left storage of this name.
                debug!(container = container.name, error = words, "container created again");
                api.remove("containers", name).await.map_err(&failed)?;
                api.create("containers", body).await
            }
            created => created,
        };
        let id = id.map_err(failed)?;
        self.start(api, pod, container, &id).await
    }

    /// Starts a container that was created, unless the supervision has ended. It is removed if that fails.
    async fn start(
        &self,
        api: &Api,
        pod: &Supervised,
        container: &Container,
        id: &str,
    ) -> Result<(), Failure> {
        if let Err(failure) = self.check_created(api, container, id).await {
            // Otherwise it is checked again.
            let _ = api.remove("containers", id).await;
            return Err(failure);
        }
        let used = pod.used();
        let new = container.empty_dirs.iter().filter(|(volume, _)| !used.contains(volume));
        let new: Vec<&(String, String)> = new.collect();
        let begin = async {
            if !new.is_empty() {
                // podman gives a new volume the mode that its path has in the image.
                api.init(id).await?;
            }
            for (volume, path) in new {
                api.set_mode(id, path, 0o777, self.config.host.clock.now()).await?;
                lock(&pod.memory).with_mode.push(volume.clone());
            }
            // A pod that is killed is removed next.
            if pod.stop.is_cancelled() { Ok(()) } else { api.start(id).await }
        };
        let Err(error) = begin.await else { return Ok(()) };
        if let ApiError::Refused(_, words) = &error
            && words.contains(REFUSED_START)
            && container.restart == RestartPolicy::Never
        {
            // Without it the container would be started again at once.
            let end = format!("{} {words}", self.config.host.clock.now());
            self.keep_end(&pod.uid, id, Some(end)).await;
            return Ok(());
        }
        if matches!(error, ApiError::Refused(..)) {
            let removed = api.remove("containers", id).await;
            debug!(
                container = container.name,
                error = removed.err().map(|error| chain(&error)),
                "container removed"
            );
        }
        Err(Failure::new("RunContainerError")(error))
    }

    /// Checks the user that a container has from its image. podman has looked up the image by its name, which may have
    /// become that of another image since `prepare`. An image by its id would have another name in the status.
    async fn check_created(&self, api: &Api, container: &Container, id: &str) -> Result<(), Failure> {
        if !container.non_root || container.body["user"].is_string() {
            return Ok(());
        }
        let created = api.inspect(id).await.map_err(Failure::new("RunContainerError"))?;
        container.check_user(&created.config.user)
    }

    async fn body(
        &self,
        pod: &Supervised,
        container: &Container,
        index: usize,
        restarts: u32,
        backoff: u32,
    ) -> Result<Value, Failure> {
        let file =
            |restarts| files::message_file(&self.config.directory, &pod.uid, &container.name, restarts);
        // Only the container before this one is kept.
        let (path, old) = (file(restarts), restarts.checked_sub(2).map(file));
        let new = path.clone();
        let made =
            self.config.host.threads.blocking(move || files::create_message_file(&new, old.as_deref())).await;
        let failed = |error: std::io::Error| Failure {
            reason: "CreateContainerConfigError",
            message: format!("cannot create {} for the termination message: {error}", path.display()),
        };
        made.map_err(std::io::Error::other).and_then(|made| made).map_err(failed)?;
        let mut labels = pod.labels.clone();
        let more = [
            ("podmux.container", container.name.clone()),
            ("podmux.role", container.role.as_str().to_owned()),
            ("podmux.index", index.to_string()),
            ("podmux.restarts", restarts.to_string()),
            ("podmux.backoff", backoff.to_string()),
            ("podmux.boot", self.config.boot.clone()),
        ];
        labels.extend(more.map(|(name, value)| (name.to_owned(), value)));
        let mut body = container.body.clone();
        body["name"] = format!("{}_{}_{restarts}", pod.name, container.name).into();
        (body["pod"], body["labels"]) = (pod.id.as_str().into(), json!(labels));
        let message = container.message_path.as_ref().map(|target| {
            json!({"type": "bind", "source": path, "destination": target, "options": ["rbind", "rw"]})
        });
        let mut mounts = body["mounts"].as_array().cloned().unwrap_or_default();
        mounts.extend(message);
        body["mounts"] = mounts.into();
        Ok(body)
    }

    async fn provide_host_paths(&self, pod: &Supervised) -> Result<(), Failure> {
        let paths = pod.translation.host_paths.clone();
        let provided = self.config.host.threads.blocking(move || {
            let provided = paths.iter().map(|(path, kind)| {
                files::provide(path, kind).map_err(|error| format!("hostPath {path}: {error}"))
            });
            // One that is missing keeps no other from being made.
            provided.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>()
        });
        let provided = provided.await.map_err(|error| error.to_string()).and_then(|provided| provided);
        provided.map_err(|message| Failure { reason: "CreateContainerConfigError", message })
    }

    /// The image of a container, pulled if its policy says so.
    async fn image(&self, api: &Api, pod: &Supervised, container: &Container) -> Result<Value, Failure> {
        let name = container.image();
        if !is_image_name(name) {
            let message =
                format!("{name:?} is not the name of an image; images are not built or loaded from paths");
            return Err(Failure { reason: "InvalidImageName", message });
        }
        let inspect = async || api.image(name).await.map_err(Failure::new("ImageInspectError"));
        if container.pull != PullPolicy::Always
            && let Some(image) = inspect().await?
        {
            return Ok(image);
        }
        if container.pull == PullPolicy::Never {
            let message = format!("image {name:?} is not there, and its pull policy is Never");
            return Err(Failure { reason: "ErrImageNeverPull", message });
        }
        let pulled = self.pull(api, pod, container, name).await;
        pulled.map_err(|message| Failure { reason: "ErrImagePull", message })?;
        let none =
            || Failure { reason: "ErrImagePull", message: format!("image {name:?} is gone after its pull") };
        inspect().await?.ok_or_else(none)
    }

    /// Pulls an image, and publishes the progress, but not each of its many steps.
    async fn pull(
        &self,
        api: &Api,
        pod: &Supervised,
        container: &Container,
        name: &str,
    ) -> Result<(), String> {
        let report = |progress: &Progress| {
            let message = format!("{PULLING}{name:?}{}", progress.text);
            lock(&pod.memory).progress.insert(container.name.clone(), message);
            self.publish(pod);
        };
        let mut progress = Progress::default();
        report(&progress);
        let mut lines = api.pull(name).await.map_err(|error| chain(&error))?;
        let (mut is_new, mut due) = (false, Instant::now());
        loop {
            let line = tokio::select! {
                biased;
                () = sleep_until(due), if is_new => {
                    report(&progress);
                    (is_new, due) = (false, Instant::now() + PROGRESS_PAUSE);
                    continue;
                }
                line = timeout(SILENCE, lines.next()) => line,
            };
            let line = line.map_err(|_| format!("podman has reported no progress for {SILENCE:?}"))?;
            let line = match line {
                Some(Ok(line)) if line.is_empty() => continue,
                Some(Ok(line)) => line,
                Some(Err(error)) => return Err(chain(&error)),
                None => return Err("podman has ended the pull without a result".to_owned()),
            };
            let line: Value = serde_json::from_slice(&line).map_err(|error| error.to_string())?;
            match (line["error"].as_str(), line["id"].as_str(), line["stream"].as_str()) {
                (Some(error), ..) => return Err(error.to_owned()),
                (_, Some(_), _) => {
                    info!(pod = &*pod.shown, container = container.name, image = name, "image pulled");
                    return Ok(());
                }
                (.., Some(step)) => {
                    progress.note(step);
                    is_new = true;
                }
                _ => {}
            }
        }
    }
}

impl Memory {
    /// How the pod fails: the container that has failed longest of those that do not run.
    fn failing(&self) -> Option<Failing> {
        let runs = |name: &str| self.seen.current(name).is_some_and(|seen| seen.state == State::Running);
        let failing = self.failing.iter().filter(|(name, _)| !runs(name)).map(|(_, (_, failing))| failing);
        failing.min_by_key(|failing| failing.since).cloned()
    }

    /// Why a container is not started, for its status.
    fn obstacle(&self, name: &str) -> Option<(&'static str, String)> {
        if let Some(held) = self.held.get(name) {
            let Failure { reason, message } = &held.failure;
            return Some(match *reason {
                "ErrImagePull" if held.failures > 1 => {
                    ("ImagePullBackOff", format!("Back-off pulling image: {message}"))
                }
                reason => (reason, message.clone()),
            });
        }
        // The kubelet's word for a container without an obstacle.
        self.progress.get(name).map(|progress| ("", progress.clone()))
    }
}

impl Translation {
    /// Whether podman makes an infra container for it.
    pub(super) fn has_infra(&self) -> bool {
        self.pod.get("no_infra").is_none()
    }

    /// The container of this name.
    pub(super) fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }
}

impl Container {
    fn image(&self) -> &str {
        self.body["image"].as_str().unwrap_or_default()
    }

    /// Checks that it does not run as root if it must not, with an image of this user.
    fn check_user(&self, of_image: &str) -> Result<(), Failure> {
        if !self.non_root {
            return Ok(());
        }
        let user = self.body["user"].as_str().unwrap_or(of_image);
        let name = user.split(':').next().unwrap_or_default();
        let user = match name.parse::<u64>() {
            Ok(1..) => return Ok(()),
            Ok(0) => "root".to_owned(),
            Err(_) if name.is_empty() => "root".to_owned(),
            Err(_) => format!("user {name:?}, which may be root"),
        };
        let message = format!("container has runAsNonRoot and would run as {user}");
        Err(Failure { reason: "CreateContainerConfigError", message })
    }
}

/// Whether the repository of an image is not in lower case, which a registry's host and a tag need not be.
fn has_upper_case(name: &str) -> bool {
    let is_host = |first: &str| first.contains(['.', ':']) || first == "localhost";
    let path = name.split_once('/').filter(|(first, _)| is_host(first)).map_or(name, |(_, path)| path);
    let path = path.split_once('@').map_or(path, |(path, _)| path);
    path.split_once(':').map_or(path, |(path, _)| path).bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Whether a text can only be the name of an image: no path, no transport.
fn is_image_name(name: &str) -> bool {
    let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@[]".contains(&byte);
    name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'[')
        && name.bytes().all(is_inside)
        && !name.contains("//")
        && !name.contains(":/")
        && !has_upper_case(name)
}
