//! What becomes of each field of a pod's spec with podman: one table, for the code and for `docs/podman.md`. Pure.

use serde_json::Value;

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It does what the API says. Fields below it may differ.
    Yes,
    /// It has no effect on a node without a scheduler and a cluster, and podmux needs none of it.
    Inert,
    /// Only these values can be had, which are also what absence means.
    Only(&'static [&'static str]),
    /// It is not done.
    No,
}

use Support::{Inert, No, Only, Yes};

/// Each field that podmux knows, what becomes of it, and a note. `containers` stands for `initContainers` too.
/// A field that has no row, and no row above it, is not supported.
pub const TABLE: &[(&str, Support, &str)] = &[
    ("spec.activeDeadlineSeconds", No, ""),
    ("spec.affinity", Inert, "scheduling"),
    ("spec.automountServiceAccountToken", Inert, "the token's volume is reported"),
    ("spec.containers[].args", Yes, "with `$(NAME)` expanded"),
    ("spec.containers[].command", Yes, "with `$(NAME)` expanded"),
    ("spec.containers[].env[].name", Yes, "podman sets `HOSTNAME` itself, except with `hostNetwork`"),
    ("spec.containers[].env[].value", Yes, "with `$(NAME)` expanded, within the 2 MiB of a pod"),
    (
        "spec.containers[].env[].valueFrom.fieldRef",
        Yes,
        "`metadata.*`, `spec.nodeName`, `spec.serviceAccountName`",
    ),
    ("spec.containers[].image", Yes, "a name, never a path; short names as in podman's registries.conf"),
    ("spec.containers[].imagePullPolicy", Yes, ""),
    ("spec.containers[].livenessProbe", Yes, "`exec` with `$(NAME)` expanded, `httpGet`, `tcpSocket`"),
    ("spec.containers[].livenessProbe.grpc", No, ""),
    ("spec.containers[].name", Yes, ""),
    ("spec.containers[].ports[].containerPort", Yes, ""),
    ("spec.containers[].ports[].hostIP", Yes, ""),
    ("spec.containers[].ports[].hostPort", Yes, ""),
    ("spec.containers[].ports[].name", Yes, "for probes"),
    ("spec.containers[].ports[].protocol", Yes, ""),
    ("spec.containers[].readinessProbe", Yes, "as livenessProbe"),
    ("spec.containers[].readinessProbe.grpc", No, ""),
    ("spec.containers[].resizePolicy", Inert, "a changed spec restarts the pod"),
    ("spec.containers[].resources.limits.cpu", Yes, "a CPU quota"),
    ("spec.containers[].resources.limits.memory", Yes, "without swap in addition"),
    ("spec.containers[].resources.requests", Inert, "scheduling, CPU shares and `oom_score_adj`"),
    (
        "spec.containers[].restartPolicy",
        Yes,
        "instead of the pod's; `Always` of an init container makes it a sidecar",
    ),
    ("spec.containers[].restartPolicyRules", No, ""),
    ("spec.containers[].securityContext.allowPrivilegeEscalation", Yes, ""),
    ("spec.containers[].securityContext.appArmorProfile", Yes, ""),
    ("spec.containers[].securityContext.capabilities", Yes, "`add` is effective for users without root too"),
    ("spec.containers[].securityContext.privileged", Yes, ""),
    ("spec.containers[].securityContext.procMount", Only(&["Default"]), ""),
    ("spec.containers[].securityContext.readOnlyRootFilesystem", Yes, "from podman 4.7 on `/dev/shm` too"),
    ("spec.containers[].securityContext.runAsGroup", Yes, "with runAsUser only"),
    ("spec.containers[].securityContext.runAsNonRoot", Yes, ""),
    ("spec.containers[].securityContext.runAsUser", Yes, ""),
    ("spec.containers[].securityContext.seLinuxOptions", Yes, ""),
    ("spec.containers[].securityContext.seccompProfile.localhostProfile", No, ""),
    (
        "spec.containers[].securityContext.seccompProfile.type",
        Only(&["RuntimeDefault", "Unconfined"]),
        "without one podman's own profile is used, which the kubelet does not",
    ),
    ("spec.containers[].startupProbe", Yes, "as livenessProbe"),
    ("spec.containers[].startupProbe.grpc", No, ""),
    ("spec.containers[].stdin", Yes, ""),
    ("spec.containers[].stdinOnce", Only(&["false"]), ""),
    ("spec.containers[].terminationMessagePath", Yes, "not where the container has a volume"),
    ("spec.containers[].terminationMessagePolicy", Yes, ""),
    ("spec.containers[].tty", Yes, ""),
    ("spec.containers[].volumeMounts[].mountPath", Yes, ""),
    ("spec.containers[].volumeMounts[].mountPropagation", Yes, "also of an emptyDir"),
    ("spec.containers[].volumeMounts[].name", Yes, ""),
    ("spec.containers[].volumeMounts[].readOnly", Yes, ""),
    ("spec.containers[].volumeMounts[].recursiveReadOnly", Only(&["Disabled"]), ""),
    ("spec.containers[].volumeMounts[].subPath", No, "the volume is not mounted then"),
    ("spec.containers[].volumeMounts[].subPathExpr", No, "the volume is not mounted then"),
    ("spec.containers[].workingDir", Yes, ""),
    ("spec.dnsConfig", Yes, "replaces the node's; without servers it is added to the node's"),
    ("spec.dnsPolicy", Yes, "`None`; else as `Default`, because there is no cluster's DNS"),
    ("spec.enableServiceLinks", Inert, "no services are known"),
    ("spec.hostAliases", Yes, ""),
    ("spec.hostIPC", Yes, ""),
    ("spec.hostNetwork", Yes, ""),
    ("spec.hostPID", Yes, ""),
    ("spec.hostUsers", Only(&["true"]), "a pod with `false` is not started"),
    ("spec.hostname", Yes, ""),
    ("spec.hostnameOverride", Yes, ""),
    ("spec.imagePullSecrets", No, "podman's own auth.json is used"),
    ("spec.nodeName", Inert, "it is this node"),
    ("spec.nodeSelector", Inert, "scheduling"),
    ("spec.os", Inert, "a pod of another system is not started"),
    ("spec.overhead", Inert, "scheduling"),
    ("spec.preemptionPolicy", Inert, "scheduling"),
    ("spec.priority", Yes, "more important pods are started first"),
    ("spec.priorityClassName", Inert, "`priority` has its value"),
    (
        "spec.readinessGates",
        Yes,
        "by the conditions in a manifest's `status.conditions`, or those that the API server has; a posted pod has none and is never ready",
    ),
    ("spec.restartPolicy", Yes, "with the kubelet's delays"),
    ("spec.schedulerName", Inert, "scheduling"),
    ("spec.schedulingGates", Inert, "scheduling"),
    ("spec.securityContext.appArmorProfile", Yes, ""),
    ("spec.securityContext.fsGroup", Yes, "a further group; every user can write to an emptyDir"),
    ("spec.securityContext.fsGroupChangePolicy", Inert, ""),
    ("spec.securityContext.runAsGroup", Yes, "with runAsUser only"),
    ("spec.securityContext.runAsNonRoot", Yes, ""),
    ("spec.securityContext.runAsUser", Yes, ""),
    ("spec.securityContext.seLinuxOptions", Yes, ""),
    ("spec.securityContext.seccompProfile.localhostProfile", No, ""),
    (
        "spec.securityContext.seccompProfile.type",
        Only(&["RuntimeDefault", "Unconfined"]),
        "without one podman's own profile is used, which the kubelet does not",
    ),
    ("spec.securityContext.supplementalGroups", Yes, ""),
    ("spec.securityContext.supplementalGroupsPolicy", Only(&["Merge"]), ""),
    ("spec.serviceAccount", Inert, "no token is mounted"),
    ("spec.serviceAccountName", Inert, "no token is mounted"),
    ("spec.setHostnameAsFQDN", Only(&["false"]), ""),
    ("spec.shareProcessNamespace", Yes, ""),
    ("spec.terminationGracePeriodSeconds", Yes, ""),
    ("spec.tolerations", Inert, "scheduling"),
    ("spec.topologySpreadConstraints", Inert, "scheduling"),
    (
        "spec.volumes[].emptyDir.medium",
        Only(&["", "Memory"]),
        "`Memory` is a tmpfs, which all containers of the pod can read below `/.podmux` too",
    ),
    ("spec.volumes[].emptyDir.sizeLimit", No, ""),
    ("spec.volumes[].hostPath", Yes, "every `type`; without one a missing path becomes a directory"),
    ("spec.volumes[].name", Yes, "a volume that no container mounts is not made"),
];

/// The paths of the fields of a spec that podman cannot do. O(size of the spec × rows).
pub(super) fn unsupported(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(spec, "spec", "spec", false, &mut found);
    found
}

/// `pattern` is the path in the table, `path` that of the pod. `is_done` tells whether a row above says that it is done.
fn walk(value: &Value, pattern: &str, path: &str, is_done: bool, found: &mut Vec<String>) {
    let is_absent = match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        // A source of a volume counts without fields too.
        Value::Object(fields) => fields.is_empty() && !pattern.starts_with("spec.volumes[]."),
        _ => false,
    };
    if is_absent {
        return;
    }
    let has_rows_below =
        TABLE.iter().any(|row| row.0.strip_prefix(pattern).is_some_and(|rest| rest.starts_with(['.', '['])));
    let row = TABLE.iter().find(|row| row.0 == pattern).map(|row| row.1);
    match row {
        Some(No) => return found.push(path.to_owned()),
        Some(Only(values)) => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if !values.contains(&&*text) {
                found.push(path.to_owned());
            }
            return;
        }
        None if !has_rows_below && !is_done => return found.push(path.to_owned()),
        Some(Yes | Inert) | None if !has_rows_below => return,
        _ => {}
    }
    let is_done = is_done || row.is_some();
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let row = if name == "initContainers" { "containers" } else { name };
                walk(value, &format!("{pattern}.{row}"), &format!("{path}.{name}"), is_done, found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                walk(value, &format!("{pattern}[]"), &format!("{path}[{index}]"), is_done, found);
            }
        }
        _ => {}
    }
}
