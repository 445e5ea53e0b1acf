//! A pod's status as a kubelet writes it, from what podman has. Pure; `pkg/kubelet/kubelet_pods.go` has the rules.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    logs::SCHEME,
    plan::{
        Exit, Observation, Plan, START_ERROR, Seen, State, has_failed, has_failed_init, has_main, is_over,
    },
    spec::{Container, Role, Translation},
};
use crate::runtime::observed::time;

/// The longest termination messages of a pod together, in bytes, as with the kubelet: each container has its share.
const LONGEST_MESSAGES: usize = 12 << 10;
/// How many fields that podman cannot do are named.
const MOST_NAMED: usize = 50;

/// What is known of a pod besides what podman has.
pub(super) struct Known<'a> {
    pub(super) pod: &'a Translation,
    pub(super) seen: &'a Observation,
    pub(super) plan: &'a Plan,
    /// `name_namespace(uid)`, for messages.
    pub(super) shown: &'a str,
    pub(super) started: Option<Timestamp>,
    /// The node's address, if it is known.
    pub(super) host: Option<&'a str>,
    /// Why a container is not started: a word, empty for the kubelet's own, and a sentence.
    pub(super) obstacle: &'a dyn Fn(&str) -> Option<(&'static str, String)>,
    /// Whether a running container has passed its startup probe, and its readiness probe.
    pub(super) probed: &'a dyn Fn(&Seen) -> (bool, bool),
}

impl Known<'_> {
    /// The status. The workers add the conditions of the kubelet.
    pub(super) fn status(&self) -> Value {
        let mut status = Map::new();
        status.insert("phase".to_owned(), self.phase().into());
        status.insert("qosClass".to_owned(), self.pod.qos_class.into());
        let lists = [("initContainerStatuses", false), ("containerStatuses", true)];
        let has_main = has_main(self.pod, self.seen);
        for (field, is_main) in lists {
            let of = self.pod.containers.iter().filter(|container| (container.role == Role::Main) == is_main);
            let mut of: Vec<&Container> = of.collect();
            if is_main {
                // Init containers keep the order in which they run.
                of.sort_by(|one, other| one.name.cmp(&other.name));
            }
            let statuses: Vec<Value> =
                of.into_iter().map(|container| self.container(container, has_main)).collect();
            if !statuses.is_empty() {
                status.insert(field.to_owned(), statuses.into());
            }
        }
        if let Some(started) = self.started {
            status.insert("startTime".to_owned(), time(started));
        }
        if let Some(host) = self.host {
            status.insert("hostIP".to_owned(), host.into());
            status.insert("hostIPs".to_owned(), json!([{"ip": host}]));
        }
        let on_host = self.host.filter(|_| self.pod.host_network).map(str::to_owned);
        let addresses: Vec<&String> = on_host.iter().chain(&self.seen.addresses).collect();
        if let Some(first) = addresses.first() {
            status.insert("podIP".to_owned(), first.as_str().into());
            let all: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
            status.insert("podIPs".to_owned(), all.into());
        }
        if !self.pod.unsupported.is_empty() {
            let (named, more) = self.pod.unsupported.split_at(self.pod.unsupported.len().min(MOST_NAMED));
            let more = if more.is_empty() { String::new() } else { format!(", and {} more", more.len()) };
            let condition = json!({
                "type": "podmux.dev/Unsupported", "status": "True", "reason": "FieldsNotSupported",
                "message": format!("podman cannot do these fields: {}{more}", named.join(", ")),
            });
            status.insert("conditions".to_owned(), json!([condition]));
        }
        status.into()
    }

    fn phase(&self) -> &'static str {
        let (pod, seen) = (self.pod, self.seen);
        if !has_main(pod, seen) {
            // As with the kubelet, a pod of which something runs has no final phase.
            return if !seen.runs() && has_failed_init(pod, seen) { "Failed" } else { "Pending" };
        }
        let main: Vec<Option<&Seen>> = pod
            .containers
            .iter()
            .filter(|container| container.role == Role::Main)
            .map(|container| seen.current(&container.name))
            .collect();
        let has_run =
            |seen: Option<&Seen>| seen.is_some_and(|seen| seen.state != State::Created || seen.restarts > 0);
        if !main.iter().copied().all(has_run) {
            return "Pending";
        }
        let runs = |container: &Container| {
            container.role == Role::Sidecar
                && seen.current(&container.name).is_some_and(|seen| seen.state == State::Running)
        };
        if !is_over(pod, seen) || pod.containers.iter().any(runs) {
            return "Running";
        }
        let failed = |seen: &Seen| matches!(&seen.state, State::Exited(exit) if exit.code != 0);
        if main.into_iter().flatten().any(failed) { "Failed" } else { "Succeeded" }
    }

    fn container(&self, container: &Container, has_main: bool) -> Value {
        let (name, seen) = (&container.name, self.seen);
        let current = seen.current(name);
        let (has_started, is_ready) = match current {
            Some(current) if current.state == State::Running => (self.probed)(current),
            _ => (false, false),
        };
        // It was removed from podman.
        let is_gone = container.role == Role::Init && current.is_none() && has_main;
        let waiting = if is_gone { None } else { self.waiting(container, current, has_main) };
        let is_ready = match container.role {
            Role::Init if is_gone => true,
            Role::Init => {
                matches!(current, Some(Seen { state: State::Exited(exit), .. }) if !has_failed(Role::Init, exit))
            }
            Role::Main | Role::Sidecar => is_ready,
        };
        let last = current.filter(|current| waiting.is_some() && matches!(current.state, State::Exited(_)));
        let last = last.or_else(|| seen.previous(name));
        let image = container.body["image"].as_str().unwrap_or_default();
        let mut status = json!({
            "name": name,
            "image": current.map_or(image, |current| current.image.as_str()),
            "imageID": current.map(|current| format!("sha256:{}", current.image_id)).unwrap_or_default(),
            "restartCount": current.map_or(0, |current| current.restarts),
            "ready": is_ready,
            "started": has_started,
            "state": waiting.or_else(|| current.map(|current| self.state(current))).unwrap_or_default(),
        });
        if let Some(current) = current {
            status["containerID"] = id(current);
        }
        if is_gone {
            let message = "podman does not have it any more, and the pod is initialized";
            status["state"] =
                json!({"terminated": {"exitCode": 0, "reason": "Completed", "message": message}});
        }
        if let Some(last @ Seen { state: State::Exited(_), .. }) = last {
            status["lastState"] = self.state(last);
        }
        status
    }

    /// Why a container waits, if it does.
    fn waiting(&self, container: &Container, current: Option<&Seen>, has_main: bool) -> Option<Value> {
        let waiting = |reason: &str, message: String| {
            let mut waiting = json!({"waiting": {"reason": reason}});
            if !message.is_empty() {
                waiting["waiting"]["message"] = message.into();
            }
            Some(waiting)
        };
        if matches!(current, Some(Seen { state: State::Running, .. })) {
            return None;
        }
        let has_init = self.pod.containers.first().is_some_and(|first| first.role != Role::Main);
        let is_initializing = has_init && !has_main;
        let default = if is_initializing { "PodInitializing" } else { "ContainerCreating" };
        if let Some((reason, message)) = (self.obstacle)(&container.name) {
            return waiting(if reason.is_empty() { default } else { reason }, message);
        }
        if let Some(delay) = self.plan.waiting.get(&container.name) {
            let (name, shown) = (&container.name, self.shown);
            let message =
                format!("back-off {}s restarting failed container={name} pod={shown}", delay.as_secs());
            return waiting("CrashLoopBackOff", message);
        }
        if current.is_some_and(|current| current.state != State::Created) {
            return None;
        }
        waiting(default, String::new())
    }

    fn state(&self, seen: &Seen) -> Value {
        match &seen.state {
            State::Created => json!({"waiting": {"reason": "ContainerCreating"}}),
            State::Running => {
                let started = seen.started.map(|started| json!({"startedAt": time(started)}));
                json!({"running": started.unwrap_or_else(|| json!({}))})
            }
            State::Exited(exit) => {
                let longest = LONGEST_MESSAGES / self.pod.containers.len().max(1);
                json!({"terminated": terminated(seen, exit, longest)})
            }
        }
    }
}

fn terminated(seen: &Seen, exit: &Exit, longest: usize) -> Value {
    let reason = match exit.code {
        _ if exit.is_oom => "OOMKilled",
        0 => "Completed",
        START_ERROR if seen.started.is_none() => "StartError",
        _ => "Error",
    };
    let mut terminated = json!({
        "exitCode": exit.code, "reason": reason, "finishedAt": time(exit.finished), "containerID": id(seen),
    });
    if let Some(started) = seen.started {
        terminated["startedAt"] = time(started);
    }
    if !exit.message.is_empty() {
        terminated["message"] = exit.message[..exit.message.floor_char_boundary(longest)].into();
    }
    terminated
}

fn id(seen: &Seen) -> Value {
    format!("{SCHEME}{}", seen.id).into()
}
