//! The facts that events report, from two moments of what the agent publishes. Pure.
//!
//! The reasons and messages are those of the kubelet where it has the event (`pkg/kubelet/events`).

use std::collections::HashMap;

use imbl::{OrdMap, ordmap::DiffItem};
use jiff::Timestamp;
use serde_json::Value;

use super::{
    event::{Fact, Involved},
    log::MAX_EVENTS,
    port_conflicts::port_conflicts,
};
use crate::{
    pod::{Entry, NodeName, Origin, PodKey, Rejection, RejectionReason, SourceName},
    pod_columns::{end_of, failed_probe, pull_of},
    runtime::{Activity, Observed, ObservedPod, PodProgress},
    source::SourceFailing,
    storage::{Merged, SourceState},
};

/// What the agent publishes at one moment. O(sources) to clone.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// The merged view.
    pub merged: Merged,
    /// How each source fails.
    pub failing: Vec<(SourceName, Option<SourceFailing>)>,
    /// What a runtime observes of its pods.
    pub observed: Observed,
    /// What the pod workers do.
    pub workers: OrdMap<PodKey, PodProgress>,
}

/// The facts between two moments. Of containers whose start is observed for the first time only those count that
/// have started since `start`, when the agent did. O(differences × log n).
pub fn facts(node: &NodeName, start: Timestamp, before: &Published, after: &Published) -> Vec<Fact> {
    let mut facts = Vec::new();
    sources(node, before, after, &mut facts);
    rejected(node, &before.merged, &after.merged, &mut facts);
    restored(&before.merged, &after.merged, &mut facts);
    terminating(&before.merged, &after.merged, &mut facts);
    port_conflicts(&before.merged, &after.merged, &mut facts);
    for (key, old, new) in changes(&before.workers, &after.workers) {
        worked(&after.merged, key, old, new, &mut facts);
    }
    for (key, old, new) in changes(&before.observed, &after.observed) {
        let progress = after.workers.get(key);
        let failing = progress.and_then(|progress| Some(progress.failing.as_ref()?.reason));
        observed(key, (old, new), failing, start, &mut facts);
    }
    facts
}

/// The keys with other values than before, and these values.
fn changes<'m, V: PartialEq>(
    before: &'m OrdMap<PodKey, V>,
    after: &'m OrdMap<PodKey, V>,
) -> impl Iterator<Item = (&'m PodKey, Option<&'m V>, &'m V)> {
    before.diff(after).filter_map(|change| match change {
        DiffItem::Add(key, new) => Some((key, None, new)),
        DiffItem::Update { old: (_, old), new: (key, new) } => Some((key, Some(old), new)),
        DiffItem::Remove(..) => None,
    })
}

fn sources(node: &NodeName, before: &Published, after: &Published, facts: &mut Vec<Fact>) {
    for (source, failing) in &after.failing {
        let old = before.failing.iter().find(|(name, _)| name == source).and_then(|(_, old)| old.as_ref());
        let id = |failing: &SourceFailing| (failing.since, failing.error.clone());
        let node = Involved::node(node);
        match failing {
            Some(failing) if old.map(id) != Some(id(failing)) => {
                let message = format!("source {source} is failing: {}", failing.error);
                facts.push(Fact::new(node, true, "SourceFailing", message));
            }
            None if old.is_some() => {
                facts.push(Fact::new(node, false, "SourceRecovered", format!("source {source} recovered")));
            }
            _ => {}
        }
    }
}

fn rejected(node: &NodeName, before: &Merged, after: &Merged, facts: &mut Vec<Fact>) {
    let rejections = after.rejected_since(before);
    // The only pod of each origin; none if it has several.
    let mut only: HashMap<(SourceName, &Origin), Option<&PodKey>> = HashMap::new();
    for source in SourceName::ALL {
        let is_of_source = |rejection: &Rejection| rejection.source == source && rejection.pod.is_none();
        let listing = after.listing(source).filter(|_| rejections.iter().any(is_of_source));
        for entry in listing.into_iter().flat_map(|listing| listing.values()) {
            let only = only.entry((source, entry.origin()));
            only.and_modify(|only| *only = None).or_insert(Some(entry.pod().key()));
        }
    }
    for rejection in &rejections {
        let Rejection { source, origin, pod, reason } = rejection;
        let key = pod.as_ref().or_else(|| only.get(&(*source, origin)).copied().flatten()).cloned();
        // The origin of a posted or bound pod is its own key.
        let has_key = matches!(source, SourceName::Http | SourceName::Api);
        let own = || origin.as_str().split_once('/').filter(|_| has_key);
        let key = key.or_else(|| own().map(|(namespace, name)| PodKey::new(namespace, name)));
        let involved = key.map_or_else(|| Involved::node(node), |key| Involved::merged(after, &key));
        let word = match reason {
            RejectionReason::Invalid(_) => "FailedValidation",
            reason => reason.as_str(),
        };
        let message = format!("rejected {} of source {source}: {reason}", origin.as_str());
        facts.push(Fact::new(involved, true, word, message));
    }
}

fn restored(before: &Merged, after: &Merged, facts: &mut Vec<Fact>) {
    let is_restored = |entry: &Entry| after.state(entry.source()) == Some(SourceState::Restored);
    let new = changes(before, after).filter(|(_, old, new)| old.is_none() && is_restored(new));
    // More are not held. After a start these may be all pods.
    for (key, _, new) in new.take(MAX_EVENTS) {
        let message = format!("restored from the state directory: source {} has not synced", new.source());
        facts.push(Fact::new(Involved::pod(key, new.pod().uid()), false, "Restored", message));
    }
}

/// The pods that are being deleted, with the end of their grace: also those of an earlier run.
fn terminating(before: &Merged, after: &Merged, facts: &mut Vec<Fact>) {
    for (key, old, new) in changes(before, after) {
        let (pod, old) = (new.pod(), old.and_then(|old| old.pod().deletion_timestamp()));
        if let Some(deadline) = pod.deletion_timestamp().filter(|deadline| old != Some(*deadline)) {
            let grace = pod.deletion_grace_period_seconds().unwrap_or_default();
            let message = format!("the pod is being deleted: its grace of {grace}s ends at {deadline}");
            facts.push(Fact::new(Involved::pod(key, pod.uid()), false, "Terminating", message));
        }
    }
}

/// What the pod workers do about a pod.
fn worked(
    merged: &Merged,
    key: &PodKey,
    old: Option<&PodProgress>,
    new: &PodProgress,
    facts: &mut Vec<Fact>,
) {
    let old = old.filter(|old| old.uid == new.uid);
    let pod = Involved::pod(key, &new.uid);
    if new.activity == Activity::Killing && old.is_none_or(|old| old.activity != Activity::Killing) {
        facts.push(Fact::new(pod.clone(), false, "Killing", format!("Stopping pod {}", key.name())));
    }
    let failures = |progress: &PodProgress| {
        progress.failing.as_ref().map_or((None, 0), |failing| (Some(failing.since), failing.attempts))
    };
    if let Some(failing) = &new.failing
        && old.map(failures) != Some(failures(new))
    {
        let wanted = merged.get(key).map(Entry::pod).filter(|pod| *pod.uid() == new.uid);
        let is_wanted = wanted.is_some_and(|pod| pod.is_to_run());
        let (reason, what) = if is_wanted { ("FailedSync", "syncing") } else { ("FailedKillPod", "killing") };
        facts.push(Fact::new(pod, true, reason, format!("error {what} pod: {}", failing.error)));
    }
}

/// What is observed of a pod. The workers report what fails for this reason.
fn observed<'s>(
    key: &PodKey,
    (old, new): (Option<&'s ObservedPod>, &'s ObservedPod),
    failing: Option<&str>,
    start: Timestamp,
    facts: &mut Vec<Fact>,
) {
    let old = old.filter(|old| old.uid == new.uid).map(|old| &*old.status);
    let status = &*new.status;
    let pod = Involved::pod(key, &new.uid);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // As the kubelet reports why it does not run a pod.
    let why = |status: &Value| (text(&status["reason"]), text(&status["message"]));
    let (reason, message) = why(status);
    // The end of the previous pod is reported of that one.
    let is_reported = matches!(&*reason, "" | "WaitingForPreviousPod") || failing == Some(&*reason);
    if !is_reported && old.map(why) != Some(why(status)) {
        facts.push(Fact::new(pod.clone(), true, &reason, message));
    }
    for (field, list) in [("initContainerStatuses", "initContainers"), ("containerStatuses", "containers")] {
        let name = |status: &'s Value| status["name"].as_str().unwrap_or_default();
        let before = old.and_then(|old| old[field].as_array()).into_iter().flatten();
        let before: HashMap<&str, &Value> = before.map(|old| (name(old), old)).collect();
        for new in status[field].as_array().into_iter().flatten() {
            let old = before.get(name(new)).copied();
            let involved = pod.clone().container(list, name(new));
            let shown = format!("{}_{}({})", key.name(), key.namespace(), pod.uid);
            container(&involved, &shown, (old, new), start, facts);
        }
    }
}

/// What is observed of a container.
fn container(
    involved: &Involved,
    shown: &str,
    (old, new): (Option<&Value>, &Value),
    start: Timestamp,
    facts: &mut Vec<Fact>,
) {
    let none = Value::Null;
    let old = old.unwrap_or(&none);
    let mut add = |is_warning, reason, message| {
        facts.push(Fact::new(involved.clone(), is_warning, reason, message));
    };
    // An earlier run of the agent has reported what has begun before this one. Until the runtime has looked at a
    // restored pod, its containers wait.
    let began = begun(new).and_then(|time| time.parse::<Timestamp>().ok());
    let is_reported = begun(old).is_none() && began.is_some_and(|at| at.as_second() < start.as_second());
    let is_new_container = new["containerID"].is_string() && new["containerID"] != old["containerID"];
    let image = new["image"].as_str().unwrap_or_default();
    let (waiting, waited) = (&new["state"]["waiting"], &old["state"]["waiting"]);
    let (is_pulling, was_pulling) = (pull_of(new).is_some(), pull_of(old).is_some());
    if was_pulling && is_new_container {
        add(false, "Pulled", format!("Successfully pulled image {image:?}"));
    }
    if is_new_container && !is_reported {
        add(false, "Created", "Container created".to_owned());
    }
    // Also one that has ended already, and waits to be restarted.
    if began.is_some() && begun(new) != begun(old) && !is_reported {
        add(false, "Started", "Container started".to_owned());
    }
    if is_pulling && !was_pulling {
        add(false, "Pulling", format!("Pulling image {image:?}"));
    }
    let is_running = |status: &Value| status["state"]["running"].is_object();
    if old["ready"] == true && new["ready"] == false && is_running(new) && !is_new_container {
        add(true, "Unhealthy", "Readiness probe failed".to_owned());
    }
    let has_ended = end_of(new)["containerID"] != end_of(old)["containerID"] && !is_reported;
    if let Some(why) = failed_probe(new).filter(|_| has_ended) {
        add(true, "Unhealthy", why.to_owned());
    }
    if waiting["reason"] == waited["reason"] {
        return;
    }
    let message = waiting["message"].as_str().unwrap_or_default();
    match waiting["reason"].as_str() {
        Some("CrashLoopBackOff") => {
            let name = new["name"].as_str().unwrap_or_default();
            let message = format!("Back-off restarting failed container {name} in pod {shown}");
            add(true, "BackOff", message);
        }
        Some("ImagePullBackOff") => add(false, "BackOff", format!("Back-off pulling image {image:?}")),
        Some("ErrImagePull") => add(true, "Failed", format!("Failed to pull image {image:?}: {message}")),
        Some(
            "CreateContainerConfigError"
            | "CreateContainerError"
            | "ErrImageNeverPull"
            | "InvalidImageName"
            | "RunContainerError",
        ) => add(true, "Failed", format!("Error: {message}")),
        _ => {}
    }
}

/// When a container has started, or has started before it waits to be restarted.
fn begun(status: &Value) -> Option<&str> {
    let (state, last) = (&status["state"], &status["lastState"]);
    let starts = [&state["running"], &state["terminated"], &last["terminated"]];
    starts.iter().find_map(|start| start["startedAt"].as_str())
}
