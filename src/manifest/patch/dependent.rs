//! The requests and host ports that a pod has by default. They depend on other fields, so an apply sets them again.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use crate::pod::{Object, aggregate};

/// Decides whether a field stays, from its place and whether it has its default.
type Keeps<'k> = &'k mut dyn FnMut(String, bool) -> bool;

/// Removes these defaults from a pod, except those that a manifest names.
pub(super) fn remove<'m>(pod: &mut Object, manifests: impl Iterator<Item = &'m Object>) {
    let mut named = HashSet::new();
    for manifest in manifests {
        visit(&mut manifest.clone(), &mut |place, _| {
            named.insert(place);
            true
        });
    }
    visit(pod, &mut |place, is_default| !is_default || named.contains(&place));
}

/// Visits the requests and host ports of a pod.
fn visit(pod: &mut Object, keeps: Keeps<'_>) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let is_on_host = spec.get("hostNetwork") == Some(&Value::Bool(true));
    let mut sums = aggregate(spec, "requests");
    sums.retain(|name, _| matches!(&**name, "cpu" | "memory"));
    if let Some(resources) = spec.get_mut("resources") {
        requests(resources, &sums, "", keeps);
    }
    for field in ["containers", "initContainers"] {
        for container in spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            let place = format!("{field}/{}", container["name"]);
            if let Some(resources) = container.get_mut("resources") {
                requests(resources, &BTreeMap::new(), &place, keeps);
            }
            for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                host_port(port, is_on_host, &place, keeps);
            }
        }
    }
}

/// Visits requests. The default is the sum of the containers' if there is one, else the limit.
fn requests(resources: &mut Value, sums: &BTreeMap<String, String>, place: &str, keeps: Keeps<'_>) {
    let limits = resources.get("limits").and_then(Value::as_object).cloned().unwrap_or_default();
    let Some(Value::Object(requests)) = resources.get_mut("requests") else { return };
    requests.retain(|name, request| {
        let is_default = match sums.get(name) {
            Some(sum) => !limits.is_empty() && *request == **sum,
            None => limits.get(name) == Some(request),
        };
        keeps(format!("{place}/{name}"), is_default)
    });
}

/// Visits a host port. The default on the node's network is the container's port.
fn host_port(port: &mut Value, is_on_host: bool, place: &str, keeps: Keeps<'_>) {
    let (Some(host_port), Some(number)) = (port.get("hostPort"), port.get("containerPort")) else { return };
    let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
    let is_default = is_on_host && host_port == number;
    if !keeps(format!("{place}/{number}/{protocol}"), is_default) {
        port.as_object_mut().and_then(|port| port.remove("hostPort"));
    }
}
