//! The API's defaults for a pod, and the changes by its conversion to Kubernetes' internal type and back.
//!
//! The rules are those of `pkg/apis/core/v1` in Kubernetes v1.36 (`SetObjectDefaults_Pod`
//! and the conversions), with its default feature gates. They expect a pod in
//! Go's form as [`super::typed::object`] returns it, where a zero value that is
//! not behind a pointer is absent.

use serde_json::{Map, Value};

use super::image;
use crate::pod::{Object, Quantity, aggregate};

/// Sets the API's defaults.
pub(super) fn set(pod: &mut Object) {
    let spec = child(pod, "spec");
    default_requests(spec);
    pod_level_resources(spec);
    default(spec, "enableServiceLinks", true);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for field in ["containers", "initContainers"] {
            each(spec, field).for_each(host_ports);
        }
    }
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "restartPolicy", "Always");
    default(spec, "securityContext", Object::new());
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "schedulerName", "default-scheduler");
    each(spec, "volumes").for_each(volume);
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        each(spec, field).for_each(container);
    }
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

fn host_ports(container: &mut Object) {
    for port in each(container, "ports") {
        if let Some(number) = port.get("containerPort").cloned() {
            default(port, "hostPort", number);
        }
    }
}

fn container(container: &mut Object) {
    if !container.contains_key("imagePullPolicy") {
        let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
        container.insert("imagePullPolicy".to_owned(), pull_policy(image).into());
    }
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    each(container, "ports").for_each(|port| default(port, "protocol", "TCP"));
    for variable in each(container, "env") {
        if let Some(from) = get(variable, "valueFrom") {
            field_ref(from);
            fill(from, "fileKeyRef", |key| default(key, "optional", false));
        }
    }
    fill(container, "resources", round_up_resources);
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        fill(container, field, probe);
    }
    fill(container, "lifecycle", |lifecycle| {
        for field in ["postStart", "preStop"] {
            fill(lifecycle, field, http_get);
        }
    });
}

fn pull_policy(image: &str) -> &'static str {
    if image::is_latest(image) { "Always" } else { "IfNotPresent" }
}

fn probe(probe: &mut Object) {
    default(probe, "timeoutSeconds", 1);
    default(probe, "periodSeconds", 10);
    default(probe, "successThreshold", 1);
    default(probe, "failureThreshold", 3);
    http_get(probe);
    fill(probe, "grpc", |grpc| default(grpc, "service", ""));
}

fn http_get(handler: &mut Object) {
    fill(handler, "httpGet", |get| {
        default(get, "path", "/");
        default(get, "scheme", "HTTP");
    });
}

fn field_ref(source: &mut Object) {
    fill(source, "fieldRef", |field| default(field, "apiVersion", "v1"));
}

fn volume(volume: &mut Object) {
    if volume.keys().all(|field| field == "name") {
        volume.insert("emptyDir".to_owned(), Object::new().into());
        return;
    }
    let mut source = |field, with: fn(&mut Object)| fill(volume, field, with);
    source("image", |image| {
        let reference = image.get("reference").and_then(Value::as_str).unwrap_or_default();
        let policy = pull_policy(reference);
        default(image, "pullPolicy", policy);
    });
    source("hostPath", |path| default(path, "type", ""));
    source("secret", |secret| default(secret, "defaultMode", 0o644));
    source("configMap", |map| default(map, "defaultMode", 0o644));
    source("iscsi", |iscsi| default(iscsi, "iscsiInterface", "default"));
    source("rbd", |rbd| {
        default(rbd, "pool", "rbd");
        default(rbd, "user", "admin");
        default(rbd, "keyring", "/etc/ceph/keyring");
    });
    source("downwardAPI", |api| {
        default(api, "defaultMode", 0o644);
        each(api, "items").for_each(field_ref);
    });
    source("azureDisk", |disk| {
        default(disk, "cachingMode", "ReadWrite");
        default(disk, "fsType", "ext4");
        default(disk, "readOnly", false);
        default(disk, "kind", "Shared");
    });
    source("projected", projected);
    source("scaleIO", |scale| {
        default(scale, "storageMode", "ThinProvisioned");
        default(scale, "fsType", "xfs");
    });
    source("ephemeral", |ephemeral| {
        if let Some(template) = get(ephemeral, "volumeClaimTemplate") {
            let spec = child(template, "spec");
            default(spec, "volumeMode", "Filesystem");
            fill(spec, "resources", round_up_resources);
        }
    });
}

fn projected(volume: &mut Object) {
    default(volume, "defaultMode", 0o644);
    for source in each(volume, "sources") {
        fill(source, "downwardAPI", |api| each(api, "items").for_each(field_ref));
        fill(source, "serviceAccountToken", |token| default(token, "expirationSeconds", 3600));
    }
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
