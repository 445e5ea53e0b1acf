//! The columns READY, STATUS and RESTARTS of a pod, as kubectl shows them.
//!
//! It is `printPod` of Kubernetes' `pkg/printers/internalversion/printers.go`.

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::Value;

use crate::age::age;

/// How the message of a container begins that waits for the pull of its image; the podman runtime writes the rest.
pub const PULLING: &str = "pulling image ";
/// How the message of a container's end begins that a failed probe has caused, and goes on after the kind of the probe; the
/// podman runtime writes the rest, as in `stopped: Liveness probe failed: exit code 1`.
pub const STOPPED: &str = "stopped: ";
pub const PROBE_FAILED: &str = " probe failed: ";

/// The columns of a pod that its status decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodColumns {
    /// How many of the containers are ready: `1/2`. Init containers count if they stay.
    pub ready: String,
    /// What happens to the pod: `Running`, `Init:0/1`, `CrashLoopBackOff`, `Terminating`. Empty if nothing
    /// says so.
    pub status: String,
    /// How often containers were restarted, and when last: `3 (5m ago)`.
    pub restarts: String,
}

/// Restarts of containers, and when the last of them ended.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, container: &Value) {
        self.count += container["restartCount"].as_i64().unwrap_or(0);
        let ended = text(&container["lastState"]["terminated"]["finishedAt"]).parse().ok();
        self.last = self.last.max(ended);
    }

    fn shown(self, now: Timestamp) -> String {
        match self {
            Self { count, last: Some(_) } if count != 0 => format!("{count} ({} ago)", age(self.last, now)),
            Self { count, .. } => count.to_string(),
        }
    }
}

/// What the statuses of some containers say.
struct Summary {
    status: Option<String>,
    ready: usize,
    restarts: Restarts,
}

impl PodColumns {
    /// The columns of a `v1.Pod`.
    pub fn of(pod: &Value, now: Timestamp) -> Self {
        let (spec, status) = (&pod["spec"], &pod["status"]);
        let init = items(&spec["initContainers"]);
        let sidecars: HashSet<&str> = init
            .iter()
            .filter(|container| container["restartPolicy"] == "Always")
            .map(|container| text(&container["name"]))
            .collect();
        let is_gated = |condition: &&Value| {
            condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated"
        };
        let gated = items(&status["conditions"]).iter().find(is_gated).map(|condition| &condition["reason"]);
        let phase = text(&status["phase"]);
        let reasons = gated.into_iter().chain([&status["reason"]]).map(text).chain([phase]);
        let mut shown = reasons.into_iter().find(|reason| !reason.is_empty()).unwrap_or_default().to_owned();

        let statuses = items(&status["initContainerStatuses"]);
        let (begun, of_sidecars) = initialization(statuses, init.len(), &sidecars);
        let Summary { status: unfinished, mut ready, mut restarts } = begun;
        let is_initializing = unfinished.is_some();
        shown = unfinished.unwrap_or(shown);
        if !is_initializing || is_true(status, "Initialized") {
            let all = containers(status, shown, of_sidecars);
            (shown, restarts) = (all.status.unwrap_or_default(), all.restarts);
            ready += all.ready;
        }
        if pod["metadata"]["deletionTimestamp"].is_string() {
            if status["reason"] == "NodeLost" {
                "Unknown".clone_into(&mut shown);
            } else if !matches!(phase, "Succeeded" | "Failed") {
                "Terminating".clone_into(&mut shown);
            }
        }
        let total = items(&spec["containers"]).len() + sidecars.len();
        Self { ready: format!("{ready}/{total}"), status: shown, restarts: restarts.shown(now) }
    }
}

/// What the init containers say, with a status while they have not all done their work; and the restarts of
/// those that stay.
fn initialization(statuses: &[Value], total: usize, sidecars: &HashSet<&str>) -> (Summary, Restarts) {
    let mut summary = Summary { status: None, ready: 0, restarts: Restarts::default() };
    let mut of_sidecars = Restarts::default();
    for (index, container) in statuses.iter().enumerate() {
        summary.restarts.add(container);
        let is_sidecar = sidecars.contains(text(&container["name"]));
        if is_sidecar {
            of_sidecars.add(container);
        }
        let (waiting, terminated) = states(container);
        if terminated.is_some_and(|terminated| exit_code(terminated) == 0) {
            continue;
        }
        if is_sidecar && container["started"] == true {
            summary.ready += usize::from(container["ready"] == true);
            continue;
        }
        let reason = match (terminated, waiting) {
            (Some(terminated), _) => ended(terminated),
            (None, "" | "PodInitializing") => format!("{index}/{total}"),
            (None, waiting) => waiting.to_owned(),
        };
        summary.status = Some(format!("Init:{reason}"));
        break;
    }
    (summary, of_sidecars)
}

/// What the containers say if the pod's status would be this without them.
fn containers(status: &Value, mut shown: String, mut restarts: Restarts) -> Summary {
    let (mut ready, mut is_running, mut error) = (0, false, None);
    for container in items(&status["containerStatuses"]).iter().rev() {
        restarts.add(container);
        let (waiting, terminated) = states(container);
        if !waiting.is_empty() {
            shown = pulling(container).unwrap_or_else(|| waiting.to_owned());
        } else if let Some(terminated) = terminated {
            shown = ended(terminated);
            if exit_code(terminated) != 0 {
                error = Some(shown.clone());
            }
        } else if container["ready"] == true && container["state"]["running"].is_object() {
            is_running = true;
            ready += 1;
        }
    }
    if shown == "Completed" {
        shown = match error {
            _ if is_running && is_true(status, "Ready") => "Running".to_owned(),
            Some(error) => error,
            None if is_running => "NotReady".to_owned(),
            None => shown,
        };
    }
    Summary { status: Some(shown), ready, restarts }
}

/// For what a container waits, and how it has ended.
fn states(container: &Value) -> (&str, Option<&Value>) {
    let state = &container["state"];
    (text(&state["waiting"]["reason"]), state.get("terminated").filter(|state| state.is_object()))
}

/// What a container's image is whose pull the container waits for, and how far the pull is.
pub fn pull_of(container: &Value) -> Option<&str> {
    text(&container["state"]["waiting"]["message"]).strip_prefix(PULLING)
}

/// How far the pull of a container's image is, which kubectl does not show: `Pulling`, or `Pulling:3` while the third
/// layer is copied.
fn pulling(container: &Value) -> Option<String> {
    let progress = pull_of(container)?;
    let layer = progress.rsplit_once(": copying layer ").map(|(_, layer)| format!("Pulling:{layer}"));
    Some(layer.unwrap_or_else(|| "Pulling".to_owned()))
}

/// The last end of a container.
pub fn end_of(container: &Value) -> &Value {
    let now = &container["state"]["terminated"];
    if now.is_object() { now } else { &container["lastState"]["terminated"] }
}

/// Which probe has stopped a container, and why. The container itself may have written another message that begins so.
pub fn failed_probe(container: &Value) -> Option<&str> {
    let why = text(&end_of(container)["message"]).strip_prefix(STOPPED)?;
    Some(why).filter(|why| why.contains(PROBE_FAILED))
}

fn exit_code(terminated: &Value) -> i64 {
    terminated["exitCode"].as_i64().unwrap_or(0)
}

/// How a container has ended: its reason, or its signal or exit code.
fn ended(terminated: &Value) -> String {
    match (text(&terminated["reason"]), terminated["signal"].as_i64().unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", exit_code(terminated)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Whether the status has this condition, and it is true.
fn is_true(status: &Value, name: &str) -> bool {
    let mut conditions = items(&status["conditions"]).iter();
    conditions.any(|condition| condition["type"] == name && condition["status"] == "True")
}

/// A text of an object; empty if it is missing.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A list of an object; empty if it is missing.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
