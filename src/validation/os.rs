//! The fields that depend on the pod's operating system, and on the users of the host.

use super::{
    at::At,
    fields::{Object, is_false, is_true, list, object, text},
};

const NOT_ON_WINDOWS: &str = "cannot be set for a windows pod";

/// The fields for Linux in the security context of a pod.
const POD: [&str; 11] = [
    "appArmorProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "runAsGroup",
    "runAsUser",
    "seLinuxChangePolicy",
    "seLinuxOptions",
    "seccompProfile",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "sysctls",
];
/// The fields for Linux in the security context of a container.
const CONTAINER: [&str; 10] = [
    "allowPrivilegeEscalation",
    "appArmorProfile",
    "capabilities",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
];

pub(super) fn validate(spec: &Object, at: &At<'_>) {
    let Some(os) = object(spec, "os") else { return };
    let os_path = at.field("os");
    match text(os, "name") {
        "" => os_path.field("name").required(""),
        "linux" => contexts(spec, at, |at, context, _| {
            if context.contains_key("windowsOptions") {
                at.field("windowsOptions").forbidden("windows options cannot be set for a linux pod");
            }
        }),
        "windows" => windows(spec, at),
        other => os_path.not_supported(other, &["linux", "windows"]),
    }
}

/// Visits the security contexts of a pod and of its containers.
fn contexts(spec: &Object, at: &At<'_>, mut visit: impl FnMut(&At<'_>, &Object, bool)) {
    at.object(spec, "securityContext", |at, context| visit(at, context, true));
    at.each_container(spec, |at, container| {
        at.object(container, "securityContext", |at, context| visit(at, context, false));
    });
}

fn windows(spec: &Object, at: &At<'_>) {
    for field in ["hostUsers", "shareProcessNamespace"] {
        if spec.contains_key(field) {
            at.field(field).forbidden(NOT_ON_WINDOWS);
        }
    }
    for field in ["hostPID", "hostIPC"] {
        if is_true(spec, field) {
            at.field(field).forbidden(NOT_ON_WINDOWS);
        }
    }
    contexts(spec, at, |at, context, is_pods| {
        let fields = if is_pods { &POD[..] } else { &CONTAINER };
        for field in fields {
            let is_set = match *field {
                "sysctls" => context.contains_key("sysctls"),
                field => at.is_set(context, field),
            };
            if is_set {
                at.field(field).forbidden(NOT_ON_WINDOWS);
            }
        }
    });
}

/// Whether a security context is for processes of the host, if it is given.
fn host_process(context: Option<&Object>) -> Option<bool> {
    object(context?, "windowsOptions")?.get("hostProcess")?.as_bool()
}

/// Validates that all containers or none are processes of a Windows host, in the host's network.
pub(super) fn host_processes(spec: &Object, at: &At<'_>) {
    let of_pod = host_process(object(spec, "securityContext"));
    let (mut all, mut host) = (0, 0);
    at.each_container(spec, |at, container| {
        all += 1;
        let own = host_process(object(container, "securityContext"));
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let at = at.field("securityContext");
            let (at, own) = (at.field("windowsOptions"), if own { "true" } else { "false" });
            at.field("hostProcess").invalid(own, "must be the same for the pod and its containers");
        }
        host += usize::from(own.or(of_pod) == Some(true));
    });
    if host == 0 {
        return;
    }
    if host != all {
        at.invalid("", "all containers must be HostProcess containers if one is");
    }
    if !is_true(spec, "hostNetwork") {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        at.field("hostNetwork").invalid("false", why);
    }
}

/// Validates that a pod with its own user namespace shares no other namespace with the host.
pub(super) fn own_users(spec: &Object, at: &At<'_>) {
    if !is_false(spec, "hostUsers") {
        return;
    }
    let why = "when `hostUsers` is false";
    // The API reports Go's names of two fields.
    for (field, name) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if is_true(spec, field) {
            at.field(field).unnamed().named(name).forbidden(why);
        }
    }
    at.each_container(spec, |at, container| {
        if !list(container, "volumeDevices").is_empty() {
            at.field("volumeDevices").forbidden(why);
        }
    });
}
