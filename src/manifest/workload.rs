//! The workloads of the API whose pod templates can be checked: Deployments, Jobs and the like.

use super::tree::Node;

/// A kind of objects with a pod template.
pub(super) struct Workload {
    kind: &'static str,
    /// The API groups that have it; empty for `v1`.
    groups: &'static [&'static str],
    /// The fields that lead to the template.
    pub(super) template: &'static [&'static str],
    /// The restart policies that its pods may have.
    pub(super) restart_policies: &'static [&'static str],
}

const TEMPLATE: &[&str] = &["spec", "template"];
const APPS: &[&str] = &["apps", "extensions"];
const ALWAYS: &[&str] = &["Always"];
/// Pods that end.
const UNTIL_DONE: &[&str] = &["OnFailure", "Never"];

const WORKLOADS: [Workload; 7] = [
    Workload { kind: "CronJob", groups: &["batch"], template: CRON, restart_policies: UNTIL_DONE },
    Workload { kind: "DaemonSet", groups: APPS, template: TEMPLATE, restart_policies: ALWAYS },
    Workload { kind: "Deployment", groups: APPS, template: TEMPLATE, restart_policies: ALWAYS },
    Workload { kind: "Job", groups: &["batch"], template: TEMPLATE, restart_policies: UNTIL_DONE },
    Workload { kind: "ReplicaSet", groups: APPS, template: TEMPLATE, restart_policies: ALWAYS },
    Workload { kind: "ReplicationController", groups: &[""], template: TEMPLATE, restart_policies: ALWAYS },
    Workload { kind: "StatefulSet", groups: APPS, template: TEMPLATE, restart_policies: ALWAYS },
];

const CRON: &[&str] = &["spec", "jobTemplate", "spec", "template"];

/// What an object is, if it is not of the kinds of pods.
pub(super) enum Other {
    /// A workload.
    Workload(&'static Workload),
    /// An object of another kind.
    Object,
}

/// What an object with a kind and an API version is. None if it has none, or is no map.
pub(super) fn of(node: &Node<'_>) -> Option<Other> {
    let text = |field| node.get(field).and_then(Node::text).filter(|text| !text.is_empty());
    let (kind, version) = (text("kind")?, text("apiVersion")?);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let workload = WORKLOADS.iter().find(|known| known.kind == kind && known.groups.contains(&group));
    Some(workload.map_or(Other::Object, Other::Workload))
}
