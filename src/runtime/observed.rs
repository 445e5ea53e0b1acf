//! What is observed of a wanted pod, as a kubelet writes a pod's status. Pure.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    contract::ActualPod,
    decide::Wait,
    hash::runtime_hash,
    qos::class,
    status::{Activity, ObservedPod, PodProgress},
};
use crate::pod::{Entry, Object, Pod};

/// The conditions that the workers write.
const CONDITIONS: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// The parts of a pod that its status depends on.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parts {
    metadata: Metadata,
    spec: Spec,
    status: OwnStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    generation: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    resources: Value,
    init_containers: Vec<Container>,
    containers: Vec<Container>,
    readiness_gates: Vec<Gate>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: String,
    image: String,
    resources: Value,
    restart_policy: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Gate {
    condition_type: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OwnStatus {
    conditions: Vec<Value>,
    message: String,
}

impl Container {
    /// Whether it is an init container that runs as long as the pod.
    fn is_sidecar(&self) -> bool {
        self.restart_policy == "Always"
    }
}

/// Why a pod is not run that has ended for its API server, if that says no more.
const HAS_ENDED: &str = "its API server says that it has ended, so it is not run here";

/// The reason of a container whose end is not known, as with the kubelet.
const UNKNOWN: &str = "ContainerStatusUnknown";

/// The reason of a pod that is not started because of its `spec.os`, as with the kubelet.
const OTHER_SYSTEM: &str = "PodOSNotSupported";

/// Why a pod does not run as wanted: a word and a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    reason: &'static str,
    message: String,
    /// Whether the runtime was not even asked to start the pod.
    waits: bool,
}

/// Whether a condition is true, and why. Both texts may be empty.
type Truth = (bool, &'static str, String);

const TRUE: Truth = (true, "", String::new());

/// What is observed of a wanted pod: its status as a kubelet writes it.
///
/// None if the workers have not taken up the pod, and while they take up one that runs already. A pod that has ended for
/// its API server keeps its own status, whatever runs.
///
/// `actual` is what runs with the pod's UID under our instance, `progress` is what is done about its name,
/// and `before` is what was observed last: a condition keeps its `lastTransitionTime` until its status
/// changes, and the pod its `startTime`.
///
/// The status that the runtime gives counts, completed by the phase, the start time and the conditions that
/// it lacks. Without one a complete pod counts as running and ready, and any other one waits. What was observed last stays
/// of a pod that has been stopped, and its `observedGeneration` while what runs is of another spec.
///
/// O(length of the pod's text).
pub fn observe(
    entry: &Entry,
    actual: Option<&ActualPod>,
    progress: Option<&PodProgress>,
    before: Option<&ObservedPod>,
    now: Timestamp,
) -> Option<ObservedPod> {
    let pod = entry.pod();
    let before = before.filter(|before| before.uid == *pod.uid());
    let is_new = actual.is_none() && progress.is_none() && before.is_none();
    if is_new && !pod.has_ended() {
        return None;
    }
    let parts: Parts = serde_json::from_slice(pod.text()).unwrap_or_default();
    let observed = |status| Some(ObservedPod { uid: pod.uid().clone(), status: Arc::new(status) });
    if pod.has_ended() {
        return observed(json!({"message": HAS_ENDED})).filter(|_| parts.status.message.is_empty());
    }
    let before = before.map(|before| &*before.status);
    let obstacle = progress.and_then(|progress| obstacle(pod, progress));
    let is_current = actual.is_none_or(|actual| *actual.hash == *runtime_hash(pod));
    let is_unknown = actual.is_some_and(|actual| !actual.is_complete && actual.status.is_none());
    if is_unknown && is_current && before.is_none() && obstacle.is_none() {
        return None;
    }
    // It has ended, or never began.
    let is_over = actual.is_none()
        && pod.deletion_timestamp().is_some()
        && !progress.is_some_and(|progress| is_being_started(pod, progress));
    let mut status = phase_and_containers(&parts.spec, actual, obstacle.as_ref(), (is_over, before));
    let was = |field| before.and_then(|before| before.get(field));
    let has_ended = status.get("phase").is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
    if !is_current
        && pod.deletion_timestamp().is_none()
        && has_ended
        && let Some(phase) = was("phase")
    {
        // It ends only because another one replaces it.
        status.insert("phase".to_owned(), phase.clone());
    }
    if let Some(started) = was("startTime") {
        status.insert("startTime".to_owned(), started.clone());
    }
    let started = || time(actual.and_then(|actual| actual.started).unwrap_or(now));
    let started = status.entry("startTime").or_insert_with(started).clone();
    // What is true when the pod is observed for the first time has been true since its start.
    let since = |is_true| if before.is_none() && is_true { started.clone() } else { time(now) };
    let generation = if is_current { parts.metadata.generation.as_ref() } else { was("observedGeneration") };
    // As with the kubelet, a pod that has ended has no namespaces any more.
    let has_namespaces = !has_ended && actual.is_some_and(|actual| actual.is_complete);
    let conditions = conditions(&parts, &mut status, before, has_namespaces, generation, since);
    status.insert("conditions".to_owned(), conditions.into());
    status.extend(generation.map(|generation| ("observedGeneration".to_owned(), generation.clone())));
    let Spec { resources, init_containers, containers, .. } = &parts.spec;
    let of_containers = init_containers.iter().chain(containers).map(|container| &container.resources);
    status.entry("qosClass").or_insert_with(|| class(resources, of_containers).into());
    observed(status.into())
}

/// Whether the runtime is given a pod just now: it may start, also if it is being deleted.
pub(super) fn is_being_started(pod: &Pod, progress: &PodProgress) -> bool {
    progress.activity == Activity::Syncing && progress.uid == *pod.uid()
}

/// Why a pod does not run as wanted, if what is done about its name says so.
pub(super) fn obstacle(pod: &Pod, progress: &PodProgress) -> Option<Obstacle> {
    let failing = progress.failing.as_ref();
    let waits = |reason, message| Some(Obstacle { reason, message, waits: true });
    if progress.uid != *pod.uid() {
        let error = failing.map(|failing| format!(": {}", failing.error)).unwrap_or_default();
        let message = format!("the previous pod of this name (UID {}) is not gone yet{error}", progress.uid);
        return waits("WaitingForPreviousPod", message);
    }
    match progress.activity {
        Activity::Waiting(Wait::Source(source)) => {
            let message = format!("source {source} has not synced, and a pod of it runs under this name");
            waits("WaitingForSource", message)
        }
        Activity::Waiting(Wait::OtherInstance) => {
            waits("WaitingForOtherInstance", "another agent runs a pod of this name".to_owned())
        }
        Activity::Waiting(Wait::OtherName) => waits(
            "WaitingForPreviousPod",
            "a pod of another name with the same UID is not gone yet".to_owned(),
        ),
        Activity::Waiting(Wait::OtherSystem) => {
            let message = "its spec.os.name is not linux, the operating system of this node";
            waits(OTHER_SYSTEM, message.to_owned())
        }
        _ => failing.map(|failing| Obstacle {
            reason: failing.reason,
            message: failing.error.to_string(),
            waits: false,
        }),
    }
}

/// The status without the start time and the conditions. That of a pod that is over is the one before.
fn phase_and_containers(
    spec: &Spec,
    actual: Option<&ActualPod>,
    obstacle: Option<&Obstacle>,
    (is_over, before): (bool, Option<&Value>),
) -> Object {
    let is_complete = actual.is_some_and(|actual| actual.is_complete);
    let given = actual.and_then(|actual| actual.status.as_deref()).and_then(Value::as_object);
    let last = before.filter(|_| is_over).and_then(Value::as_object);
    let (mut status, is_explained) = match given.cloned().or_else(|| last.map(stopped)) {
        Some(given) => (given, false),
        None if is_complete => {
            let started = actual.and_then(|actual| actual.started);
            (containers(spec, |has_ended| running(has_ended, started)), false)
        }
        None if is_over || obstacle.is_some_and(|obstacle| obstacle.waits) => (Object::new(), false),
        None => (containers(spec, |_| waiting(spec, obstacle)), true),
    };
    let phase = match obstacle {
        Some(obstacle) if obstacle.reason == OTHER_SYSTEM => "Failed",
        _ if is_over => "Failed",
        _ if is_complete => "Running",
        _ => "Pending",
    };
    status.entry("phase").or_insert_with(|| phase.into());
    if let Some(obstacle) = obstacle.filter(|_| !is_explained && !status.contains_key("reason")) {
        status.insert("reason".to_owned(), obstacle.reason.into());
        status.insert("message".to_owned(), obstacle.message.as_str().into());
    }
    status
}

/// What stays of a pod that has been stopped: its last status, with the conditions of others. The phase is by the exit
/// codes, unless one is not known; a container that has not run has failed.
fn stopped(last: &Object) -> Object {
    let mut status = last.clone();
    // What had kept it from running.
    status.retain(|field, _| !matches!(&**field, "reason" | "message"));
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.retain(|condition| !CONDITIONS.iter().any(|name| condition["type"] == *name));
    }
    let lists = status.iter_mut().filter(|(field, _)| field.ends_with("ontainerStatuses"));
    for container in lists.filter_map(|(_, list)| list.as_array_mut()).flatten() {
        if container["state"]["running"].is_object() {
            container["state"] = json!({"terminated": {"exitCode": 137, "reason": UNKNOWN}});
            (container["ready"], container["started"]) = (false.into(), false.into());
        }
    }
    let statuses = status.get("containerStatuses").and_then(Value::as_array).into_iter().flatten();
    let ends: Vec<Value> = statuses.map(|container| container["state"]["terminated"].clone()).collect();
    if ends.iter().all(|end| end["reason"] != UNKNOWN) {
        let is_success = !ends.is_empty() && ends.iter().all(|end| end["exitCode"] == 0);
        status.insert("phase".to_owned(), if is_success { "Succeeded" } else { "Failed" }.into());
    }
    status
}

/// The statuses of the containers. The state of each depends on whether it runs to its end before the others.
fn containers(spec: &Spec, state: impl Fn(bool) -> Value) -> Object {
    let status = |container: &Container, runs_before: bool| {
        let state = state(runs_before);
        json!({
            "name": container.name, "image": container.image, "imageID": "", "restartCount": 0,
            "ready": state.get("waiting").is_none(), "started": state.get("running").is_some(),
            "state": state,
        })
    };
    let init = spec.init_containers.iter().map(|container| status(container, !container.is_sidecar()));
    let mut others: Vec<&Container> = spec.containers.iter().collect();
    others.sort_by(|one, other| one.name.cmp(&other.name));
    let (init, others): (Vec<Value>, Vec<Value>) =
        (init.collect(), others.into_iter().map(|container| status(container, false)).collect());
    let lists = [("initContainerStatuses", init), ("containerStatuses", others)];
    let lists = lists.into_iter().filter(|(_, statuses)| !statuses.is_empty());
    lists.map(|(field, statuses)| (field.to_owned(), statuses.into())).collect()
}

fn running(has_ended: bool, started: Option<Timestamp>) -> Value {
    match started {
        _ if has_ended => json!({"terminated": {"exitCode": 0, "reason": "Completed"}}),
        Some(started) => json!({"running": {"startedAt": time(started)}}),
        None => json!({"running": {}}),
    }
}

fn waiting(spec: &Spec, obstacle: Option<&Obstacle>) -> Value {
    match obstacle {
        Some(obstacle) => json!({"waiting": {"reason": obstacle.reason, "message": obstacle.message}}),
        None if spec.init_containers.is_empty() => json!({"waiting": {"reason": "ContainerCreating"}}),
        None => json!({"waiting": {"reason": "PodInitializing"}}),
    }
}

/// All conditions: those of others in the pod's own status, those that the runtime gives, and the
/// remaining ones of the kubelet.
fn conditions(
    parts: &Parts,
    status: &mut Object,
    before: Option<&Value>,
    has_namespaces: bool,
    generation: Option<&Value>,
    since: impl Fn(bool) -> Value,
) -> Vec<Value> {
    let given = status.remove("conditions");
    let given = given.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let by_type = by_text("type", given);
    let others = parts.status.conditions.iter().filter(|own| {
        let name = text(own, "type");
        !CONDITIONS.contains(&name) && !by_type.contains_key(name)
    });
    let mut conditions: Vec<Value> = others.chain(given).cloned().collect();
    let containers = Containers::new(&parts.spec, status);
    for name in CONDITIONS {
        if by_type.contains_key(name) {
            continue;
        }
        let (is_true, reason, message) = match name {
            "PodReadyToStartContainers" => (has_namespaces, "", String::new()),
            "Initialized" => containers.are_initialized(),
            "Ready" => containers.make_ready(&conditions),
            "ContainersReady" => containers.are_ready(),
            _ => TRUE,
        };
        let mut condition = json!({"type": name, "status": if is_true { "True" } else { "False" }});
        if !reason.is_empty() {
            condition["reason"] = reason.into();
        }
        if !message.is_empty() {
            condition["message"] = message.into();
        }
        conditions.push(condition);
    }
    let before = before.and_then(|before| before["conditions"].as_array());
    let before = by_text("type", before.into_iter().flatten());
    for condition in &mut conditions {
        let old = before.get(text(condition, "type")).filter(|old| old["status"] == condition["status"]);
        let kept = old.and_then(|old| old.get("lastTransitionTime")).cloned();
        let since = kept.unwrap_or_else(|| since(condition["status"] == "True"));
        let is_own = CONDITIONS.iter().any(|name| condition["type"] == *name);
        if let Some(condition) = condition.as_object_mut() {
            condition.entry("lastTransitionTime").or_insert(since);
            if let Some(generation) = generation.filter(|_| is_own) {
                condition.insert("observedGeneration".to_owned(), generation.clone());
            }
        }
    }
    conditions
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

/// The first value with each text in a field.
fn by_text<'v>(
    field: &str,
    values: impl IntoIterator<Item = &'v Value, IntoIter: DoubleEndedIterator>,
) -> HashMap<&'v str, &'v Value> {
    values.into_iter().rev().map(|value| (text(value, field), value)).collect()
}

/// The containers of a pod with their statuses. The rules are those of the kubelet
/// (`pkg/kubelet/status/generate.go`).
struct Containers<'a> {
    spec: &'a Spec,
    phase: &'a Value,
    statuses: HashMap<&'a str, &'a Value>,
}

impl<'a> Containers<'a> {
    fn new(spec: &'a Spec, status: &'a Object) -> Self {
        let lists = ["initContainerStatuses", "containerStatuses"].map(|field| status.get(field));
        let statuses = lists.into_iter().flatten().filter_map(Value::as_array).flatten();
        let statuses = by_text("name", statuses);
        Self { spec, phase: status.get("phase").unwrap_or(&Value::Null), statuses }
    }

    fn status_of(&self, container: &Container) -> Option<&'a Value> {
        self.statuses.get(&*container.name).copied()
    }

    /// The names of those containers that have no status, and of those with one that is not good.
    fn sort<'c>(
        &self,
        containers: impl Iterator<Item = &'c Container>,
        is_good: impl Fn(&Container, &Value) -> bool,
    ) -> (Vec<&'c str>, Vec<&'c str>) {
        let (mut unknown, mut bad) = (Vec::new(), Vec::new());
        for container in containers {
            match self.status_of(container) {
                None => unknown.push(&*container.name),
                Some(status) if !is_good(container, status) => bad.push(&*container.name),
                Some(_) => {}
            }
        }
        (unknown, bad)
    }

    fn are_initialized(&self) -> Truth {
        let Spec { init_containers, containers, .. } = self.spec;
        if self.statuses.is_empty() && !init_containers.is_empty() {
            return (false, "UnknownContainerStatuses", String::new());
        }
        let (unknown, bad) = self.sort(init_containers.iter(), |container, status| {
            status[if container.is_sidecar() { "started" } else { "ready" }] == true
        });
        if *self.phase == "Succeeded" && unknown.is_empty() {
            return (true, "PodCompleted", String::new());
        }
        let has_begun = |container| {
            let state = self.status_of(container).map(|status| &status["state"]);
            state.is_some_and(|state| state["running"].is_object() || state["terminated"].is_object())
        };
        if containers.iter().any(has_begun) {
            return TRUE;
        }
        explain("ContainersNotInitialized", &unknown, "incomplete", &bad)
    }

    fn are_ready(&self) -> Truth {
        if self.statuses.is_empty() {
            return (false, "UnknownContainerStatuses", String::new());
        }
        let sidecars = self.spec.init_containers.iter().filter(|container| container.is_sidecar());
        let all = sidecars.chain(&self.spec.containers);
        let (unknown, bad) = self.sort(all, |_, status| status["ready"] == true);
        match self.phase.as_str() {
            Some("Succeeded") if unknown.is_empty() => (false, "PodCompleted", String::new()),
            Some("Failed") => (false, "PodFailed", String::new()),
            _ => explain("ContainersNotReady", &unknown, "unready", &bad),
        }
    }

    /// Whether the pod is ready, by its containers and by the conditions of its readiness gates.
    fn make_ready(&self, conditions: &[Value]) -> Truth {
        let (ready, conditions) = (self.are_ready(), by_text("type", conditions));
        let gates = self.spec.readiness_gates.iter().filter_map(|Gate { condition_type }| {
            match conditions.get(&**condition_type).map(|condition| &condition["status"]) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {condition_type:?} does not exist."
                )),
                Some(status) if *status != "True" => {
                    let status = status.as_str().unwrap_or_default();
                    Some(format!(
                        "the status of pod readiness gate {condition_type:?} is not \"True\", but {status}"
                    ))
                }
                Some(_) => None,
            }
        });
        let gates: Vec<String> = gates.collect();
        if ready.0 && !gates.is_empty() {
            return (false, "ReadinessGatesNotReady", gates.join(", "));
        }
        ready
    }
}

/// A condition that is false because of these containers, and true if there are none.
fn explain(reason: &'static str, unknown: &[&str], state: &str, bad: &[&str]) -> Truth {
    let part = |state: &str, names: &[&str]| {
        (!names.is_empty()).then(|| format!("containers with {state} status: [{}]", names.join(" ")))
    };
    let parts: Vec<String> = part("unknown", unknown).into_iter().chain(part(state, bad)).collect();
    if parts.is_empty() { TRUE } else { (false, reason, parts.join(", ")) }
}

/// A time as the API writes it, in whole seconds.
pub(super) fn time(time: Timestamp) -> Value {
    format!("{time:.0}").into()
}
