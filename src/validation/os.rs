//! The fields that depend on the pod's operating system, and on the users of the host.

use super::{
    errors::Errors,
    fields::{Object, each_container, is_false, is_true, list, object, text},
};
use crate::pod::FieldPath;

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

pub(super) fn validate(spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let Some(os) = object(spec, "os") else { return };
    let os_path = path.field("os");
    match text(os, "name") {
        "" => errors.required(&os_path.field("name"), ""),
        "linux" => contexts(spec, path, |path, context, _| {
            if context.contains_key("windowsOptions") {
                errors.forbidden(
                    &path.field("windowsOptions"),
                    "windows options cannot be set for a linux pod",
                );
            }
        }),
        "windows" => windows(spec, path, errors),
        other => errors.not_supported(&os_path, other, &["linux", "windows"]),
    }
}

/// Visits the security contexts of a pod and of its containers.
fn contexts(spec: &Object, path: &FieldPath<'_>, mut visit: impl FnMut(&FieldPath<'_>, &Object, bool)) {
    if let Some(context) = object(spec, "securityContext") {
        visit(&path.field("securityContext"), context, true);
    }
    each_container(spec, path, |path, container| {
        if let Some(context) = object(container, "securityContext") {
            visit(&path.field("securityContext"), context, false);
        }
    });
}

fn windows(spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for field in ["hostUsers", "shareProcessNamespace"] {
        if spec.contains_key(field) {
            errors.forbidden(&path.field(field), NOT_ON_WINDOWS);
        }
    }
    for field in ["hostPID", "hostIPC"] {
        if is_true(spec, field) {
            errors.forbidden(&path.field(field), NOT_ON_WINDOWS);
        }
    }
    contexts(spec, path, |path, context, is_pods| {
        let fields = if is_pods { &POD[..] } else { &CONTAINER };
        for field in fields {
            let is_set = match *field {
                "sysctls" => context.contains_key("sysctls"),
                field => errors.is_set(context, field, path),
            };
            if is_set {
                errors.forbidden(&path.field(field), NOT_ON_WINDOWS);
            }
        }
    });
}

/// Whether a security context is for processes of the host, if it is given.
fn host_process(context: Option<&Object>) -> Option<bool> {
    object(context?, "windowsOptions")?.get("hostProcess")?.as_bool()
}

/// Validates that all containers or none are processes of a Windows host, in the host's network.
pub(super) fn host_processes(spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let of_pod = host_process(object(spec, "securityContext"));
    let (mut all, mut host) = (0, 0);
    each_container(spec, path, |path, container| {
        all += 1;
        let own = host_process(object(container, "securityContext"));
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let (path, why) =
                (path.field("securityContext"), "must be the same for the pod and its containers");
            let path = path.field("windowsOptions");
            errors.invalid(&path.field("hostProcess"), if own { "true" } else { "false" }, why);
        }
        host += usize::from(own.or(of_pod) == Some(true));
    });
    if host == 0 {
        return;
    }
    if host != all {
        errors.invalid(path, "", "all containers must be HostProcess containers if one is");
    }
    if !is_true(spec, "hostNetwork") {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.invalid(&path.field("hostNetwork"), "false", why);
    }
}

/// Validates that a pod with its own user namespace shares no other namespace with the host.
pub(super) fn own_users(spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    if !is_false(spec, "hostUsers") {
        return;
    }
    let why = "when `hostUsers` is false";
    // The API reports Go's names of two fields.
    for (field, name) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if is_true(spec, field) {
            errors.forbidden(&path.field(field).unnamed().named(name), why);
        }
    }
    each_container(spec, path, |path, container| {
        if !list(container, "volumeDevices").is_empty() {
            errors.forbidden(&path.field("volumeDevices"), why);
        }
    });
}
