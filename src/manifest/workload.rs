//! The workloads of the API whose pod templates can be checked: Deployments, Jobs and the like.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::tree::{Data, Node};
use crate::pod::Object;

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

impl Workload {
    /// Changes the spec of a template, for its validation, as the controller of a `StatefulSet` does: there is a volume
    /// for each claim in place of the volumes with its name, and each pod gets its own host name and subdomain
    /// (`ValidateStatefulSetSpec` in `pkg/apis/apps/validation`).
    pub(super) fn change(&self, object: &Node<'_>, spec: &mut Object) {
        if self.kind != "StatefulSet" {
            return;
        }
        for field in ["hostname", "subdomain"] {
            spec.remove(field);
        }
        let claims = object.get("spec").and_then(|spec| spec.get("volumeClaimTemplates"));
        let Some(Data::List(claims)) = claims.map(|claims| &claims.data) else { return };
        let names: BTreeSet<&str> = claims.iter().map(name).collect();
        let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
        let Value::Array(volumes) = volumes else { return };
        for volume in &mut *volumes {
            if names.contains(volume["name"].as_str().unwrap_or_default()) {
                // Nothing is in its place: the volumes behind it keep the indices that they have in the text.
                *volume = Value::Null;
            }
        }
        let volume = |name| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
        volumes.extend(names.into_iter().map(volume));
    }
}

/// The name of an object; empty if it has none.
fn name<'n>(object: &'n Node<'_>) -> &'n str {
    let name = object.get("metadata").and_then(|metadata| metadata.get("name"));
    name.and_then(Node::text).unwrap_or_default()
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
