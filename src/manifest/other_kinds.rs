//! What an object is that is not a Pod, and where its pod is, for the person who has written it. Pure.

use crate::pod::quoted;

/// The longest kind and version that are shown as they are.
const LONGEST_PLAIN: usize = 100;

/// Why an object of this kind and version is rejected, and what to do. `expected` are the kinds that fit in its place.
pub(super) fn advice(kind: &str, version: &str, expected: &str) -> String {
    let (group, _) = version.rsplit_once('/').unwrap_or_default();
    let is_known = matches!(group, "" | "apps" | "batch" | "extensions");
    let what = format!("{} {} is not a Pod", shown(kind), shown(version));
    let runs = format!("{what}: podmux runs pods only");
    match kind {
        _ if kind != "Pod" && kind.trim().trim_end_matches('s').eq_ignore_ascii_case("pod") => {
            format!("the kind is {}: write kind: Pod", quoted(kind))
        }
        "Deployment" | "DaemonSet" | "StatefulSet" | "ReplicaSet" | "ReplicationController" | "Job"
            if is_known =>
        {
            with_template(&runs, "spec.template")
        }
        "CronJob" if is_known => with_template(&runs, "spec.jobTemplate.spec.template"),
        "PodTemplate" if is_known => with_template(&runs, "template"),
        "List" | "PodList" => format!("{what}: a list inside a list is not read; write its items here"),
        "ConfigMap" | "Secret" => {
            format!("{runs}; give its values to the pod itself, with env or a hostPath volume, and remove it")
        }
        "Service" | "Ingress" | "Endpoints" | "EndpointSlice" => {
            format!("{runs}; a pod is reached at its hostPort, or with hostNetwork; remove it")
        }
        "PersistentVolume" | "PersistentVolumeClaim" | "StorageClass" => {
            format!("{runs}; use a hostPath volume in the pod, and remove it")
        }
        "Namespace" => format!("{runs}; a namespace needs no object here: name it in the pod, and remove it"),
        "Config" => format!("{what}: a kubeconfig is given with --kubeconfig; move it out of the manifests"),
        "PodmuxConfiguration" | "KubeletConfiguration" => {
            format!("{what}: a config file is given with --config; move it out of the manifests")
        }
        "Kustomization" => format!("{what}: write the output of kubectl kustomize here"),
        _ => format!("{runs}; {expected} is expected here"),
    }
}

/// Why this version of a Pod or a list is rejected.
pub(super) fn other_version(kind: &str, version: &str) -> String {
    format!("the version of {} is {}: write apiVersion: v1", shown(kind), quoted(version))
}

fn with_template(runs: &str, path: &str) -> String {
    format!("{runs}; its pod is at {path} (podmux validate --templates FILE checks it)")
}

/// A kind or version without quotes if it is a plain word.
fn shown(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"./-_".contains(&byte);
    if word.len() <= LONGEST_PLAIN && !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        quoted(word)
    }
}
