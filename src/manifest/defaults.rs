//! The API's defaults for a pod, and the changes by its conversion to Kubernetes' internal type and back.
//!
//! The rules are those of `pkg/apis/core/v1` in Kubernetes v1.36 (`SetObjectDefaults_Pod`
//! and the conversions), with its default feature gates. They expect a pod in
//! Go's form as [`super::typed::object`] returns it, where a zero value that is
//! not behind a pointer is absent.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::image;
use crate::pod::{Object, Quantity, aggregate};

/// Sets the API's defaults for a pod.
pub(super) fn set(pod: &mut Object) {
    let spec = child(pod, "spec");
    default_requests(spec);
    pod_level_resources(spec);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for field in ["containers", "initContainers"] {
            each(spec, field).for_each(host_ports);
        }
    }
    set_in_template(pod);
}

/// Sets the defaults that a pod template has too.
pub(super) fn set_in_template(pod: &mut Object) {
    let spec = child(pod, "spec");
    default(spec, "securityContext", Object::new());
    each(spec, "volumes").for_each(volume);
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        each(spec, field).for_each(container);
    }
    complete(spec, &SPEC);
    round_up(spec, "overhead");
    fill(spec, "resources", round_up_resources);
    if let Some(status) = get(pod, "status") {
        for field in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
            each(status, field).for_each(resources_of_status);
        }
        resources_of_status(status);
    }
}

/// The annotations that `initContainers` has replaced; the API drops them.
const INIT_CONTAINERS: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
];

/// Applies the changes by the conversions to the internal type and back.
pub(super) fn convert(pod: &mut Object) {
    if let Some(annotations) = get(pod, "metadata").and_then(|metadata| get(metadata, "annotations")) {
        for name in INIT_CONTAINERS {
            annotations.remove(name);
        }
    }
    let spec = child(pod, "spec");
    if let Some(account) = spec.get("serviceAccountName").or_else(|| spec.get("serviceAccount")).cloned() {
        spec.insert("serviceAccount".to_owned(), account.clone());
        spec.insert("serviceAccountName".to_owned(), account);
    }
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        spec.insert("terminationGracePeriodSeconds".to_owned(), 1.into());
    }
    fill(pod, "status", pod_ips);
}

/// Makes `podIP` the first of `podIPs`. If they differ, `podIP` counts.
fn pod_ips(status: &mut Object) {
    let first = status.get("podIPs").and_then(|ips| ips.get(0)).map(|ip| ip.get("ip").cloned());
    match (status.get("podIP").cloned(), first) {
        (Some(ip), first) if first.as_ref().is_none_or(|first| first.as_ref() != Some(&ip)) => {
            let only = Object::from_iter([("ip".to_owned(), ip)]);
            status.insert("podIPs".to_owned(), vec![Value::from(only)].into());
        }
        (None, Some(Some(ip))) => drop(status.insert("podIP".to_owned(), ip)),
        _ => {}
    }
}

/// The object in a field, if there is one.
fn get<'v>(object: &'v mut Object, field: &str) -> Option<&'v mut Object> {
    object.get_mut(field)?.as_object_mut()
}

/// Fills the object in a field, if there is one.
fn fill(object: &mut Object, field: &str, fill: impl FnOnce(&mut Object)) {
    if let Some(object) = get(object, field) {
        fill(object);
    }
}

/// The object in a field; created if there is none.
pub(super) fn child<'v>(object: &'v mut Object, field: &str) -> &'v mut Object {
    let value = object.entry(field).or_insert_with(|| Object::new().into());
    if !value.is_object() {
        *value = Object::new().into();
    }
    value.as_object_mut().expect("the value was made an object")
}

/// The objects in a list.
fn each<'v>(object: &'v mut Object, field: &str) -> impl Iterator<Item = &'v mut Object> {
    let items = object.get_mut(field).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn default(object: &mut Object, field: &str, value: impl Into<Value>) {
    if !object.contains_key(field) {
        object.insert(field.to_owned(), value.into());
    }
}

/// The defaults of a pod's spec that depend on nothing else. Those within a map, or within the
/// items of a list, apply where the spec has that map or list.
pub(super) static SPEC: LazyLock<Value> = LazyLock::new(|| {
    let http_get = json!({ "path": "/", "scheme": "HTTP" });
    let probe = json!({
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
        "httpGet": http_get,
        "grpc": { "service": "" },
    });
    let field_ref = json!({ "apiVersion": "v1" });
    let downward_items = json!([{ "fieldRef": field_ref }]);
    let container = json!({
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "ports": [{ "protocol": "TCP" }],
        "env": [{ "valueFrom": {
            "fieldRef": field_ref,
            "fileKeyRef": { "optional": false },
            "resourceFieldRef": { "divisor": "0" },
        } }],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "startupProbe": probe,
        "lifecycle": { "postStart": { "httpGet": http_get }, "preStop": { "httpGet": http_get } },
    });
    let volume = json!({
        "hostPath": { "type": "" },
        "secret": { "defaultMode": 0o644 },
        "configMap": { "defaultMode": 0o644 },
        "iscsi": { "iscsiInterface": "default", "lun": 0 },
        "rbd": { "pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring" },
        "downwardAPI": { "defaultMode": 0o644, "items": downward_items },
        "azureDisk": { "cachingMode": "ReadWrite", "fsType": "ext4", "readOnly": false, "kind": "Shared" },
        "projected": {
            "defaultMode": 0o644,
            "sources": [{
                "downwardAPI": { "items": downward_items },
                "serviceAccountToken": { "expirationSeconds": 3600 },
            }],
        },
        "scaleIO": { "storageMode": "ThinProvisioned", "fsType": "xfs" },
        "ephemeral": { "volumeClaimTemplate": { "spec": { "volumeMode": "Filesystem" } } },
    });
    json!({
        "enableServiceLinks": true,
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "schedulerName": "default-scheduler",
        "initContainers": [container],
        "containers": [container],
        "ephemeralContainers": [container],
        "volumes": [volume],
    })
});

/// Adds the defaults that an object lacks.
fn complete(object: &mut Object, defaults: &Value) {
    for (field, default) in defaults.as_object().into_iter().flatten() {
        match (object.get_mut(field), default) {
            (Some(Value::Object(given)), _) => complete(given, default),
            (Some(Value::Array(items)), Value::Array(defaults)) => {
                let items = items.iter_mut().filter_map(Value::as_object_mut);
                items.for_each(|item| defaults.iter().for_each(|default| complete(item, default)));
            }
            (Some(_), _) | (None, Value::Object(_) | Value::Array(_)) => {}
            (None, default) => drop(object.insert(field.clone(), default.clone())),
        }
    }
}

fn host_ports(container: &mut Object) {
    for port in each(container, "ports") {
        if let Some(number) = port.get("containerPort").cloned() {
            default(port, "hostPort", number);
        }
    }
}

fn container(container: &mut Object) {
    pull_policy(container, "image", "imagePullPolicy");
    fill(container, "resources", round_up_resources);
}

/// Sets the pull policy that the name of an image implies.
fn pull_policy(object: &mut Object, image: &str, policy: &str) {
    let image = object.get(image).and_then(Value::as_str).unwrap_or_default();
    let implied = if image::is_latest(image) { "Always" } else { "IfNotPresent" };
    default(object, policy, implied);
}

fn volume(volume: &mut Object) {
    if volume.keys().all(|field| field == "name") {
        volume.insert("emptyDir".to_owned(), Object::new().into());
    }
    fill(volume, "image", |image| pull_policy(image, "reference", "pullPolicy"));
    fill(volume, "ephemeral", |ephemeral| {
        fill(ephemeral, "volumeClaimTemplate", |template| {
            fill(child(template, "spec"), "resources", round_up_resources);
        });
    });
}

/// Rounds the quantities in a field up to thousandths.
fn round_up(object: &mut Object, field: &str) {
    for value in get(object, field).into_iter().flat_map(Map::values_mut) {
        let rounded = value
            .as_str()
            .and_then(Quantity::parse)
            .map(|quantity| quantity.to_milli().canonical().into_owned());
        if let Some(rounded) = rounded.filter(|rounded| value != rounded) {
            *value = rounded.into();
        }
    }
}

fn round_up_resources(resources: &mut Object) {
    round_up(resources, "limits");
    round_up(resources, "requests");
}

fn resources_of_status(status: &mut Object) {
    round_up(status, "allocatedResources");
    fill(status, "resources", round_up_resources);
}

/// Sets the requests of containers that have only a limit to the limit.
fn default_requests(spec: &mut Object) {
    for field in ["containers", "initContainers"] {
        for container in each(spec, field) {
            let Some(resources) = get(container, "resources") else { continue };
            let Some(limits) = get(resources, "limits").map(|limits| limits.clone()) else { continue };
            let requests = child(resources, "requests");
            for (name, limit) in limits {
                requests.entry(name).or_insert(limit);
            }
        }
    }
}

/// Completes the resources of a pod as a whole with those of its containers.
fn pod_level_resources(spec: &mut Object) {
    let Some(resources) = spec.get("resources").and_then(Value::as_object) else { return };
    let list = |field: &str| resources.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut limits, mut requests) = (list("limits"), list("requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    for (name, limit) in aggregate(spec, "limits") {
        if name.starts_with(HUGE_PAGES) && !requests.contains_key(&name) {
            limits.entry(name).or_insert_with(|| limit.into());
        }
    }
    if !limits.is_empty() {
        for (name, request) in aggregate(spec, "requests") {
            if matches!(name.as_str(), "cpu" | "memory") {
                requests.entry(name).or_insert_with(|| request.into());
            }
        }
        for (name, limit) in &limits {
            if matches!(name.as_str(), "cpu" | "memory") || name.starts_with(HUGE_PAGES) {
                requests.entry(name.clone()).or_insert_with(|| limit.clone());
            }
        }
    }
    let resources = child(spec, "resources");
    for (field, list) in [("limits", limits), ("requests", requests)] {
        if !list.is_empty() {
            resources.insert(field.to_owned(), list.into());
        }
    }
}

const HUGE_PAGES: &str = "hugepages-";
