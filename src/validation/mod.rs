//! The API's pod validation: one file for each part of a pod. Pure.
//!
//! The rules are those of `ValidatePodCreate` in Kubernetes v1.36
//! (`pkg/apis/core/validation`) with its default feature gates, and those of
//! `HasAPIObjectReference` (`pkg/api/pod`) about references that a node without an API
//! server cannot resolve. Unusual paths (`downwarAPI`, `volumeMounts.subPath`) are
//! the API's own.

mod annotation;
mod at;
mod claim;
mod container;
mod context;
mod environment;
mod fields;
mod handler;
mod metadata;
mod mount;
mod network;
mod os;
pub mod pod_security;
mod projected;
mod reference;
mod resources;
mod scheduling;
mod security;
mod spec;
mod storage;
mod syntax;
mod volume;
mod warnings;

pub use self::at::Report;
#[cfg(feature = "agent")]
pub(crate) use self::metadata::MAX_ANNOTATIONS;
use self::{
    at::At,
    fields::{Object, list, object, text},
    syntax::Check,
};
use crate::pod::{FieldPath, Problem, quoted};

/// Validates a prepared pod as the kubelet does, and reports all its problems: first those
/// of fields, then those of references.
///
/// `path` is the path of the pod in its manifest.
pub fn validate(pod: &Object, path: &FieldPath<'_>, report: &dyn Report) {
    let at = At { path: *path, report };
    validate_fields(pod, false, &at);
    validate_references(pod, &at);
}

/// The problem of the first name in a pod that is invalid, or of a missing UID, if there is one.
///
/// It is for the pods of an API server, which are not validated otherwise. The runtimes make names and paths of theirs of
/// these names, and a server may be hostile.
pub fn invalid_name(pod: &Object) -> Option<Problem> {
    let empty = Object::new();
    let [metadata, spec] = ["metadata", "spec"].map(|part| object(pod, part).unwrap_or(&empty));
    let problem = |name: &str, check: Check, field: &dyn Fn() -> String| {
        let why = check(name).err()?;
        Some(Problem::error(format!("Invalid value: {}: {why}", quoted(name))).of(field()))
    };
    let is_given: Check = |uid| if uid.is_empty() { Err("must not be empty") } else { Ok(()) };
    let own: [(&str, Check); 3] =
        [("namespace", syntax::label), ("name", syntax::subdomain), ("uid", is_given)];
    let of_pod = own
        .into_iter()
        .find_map(|(field, check)| problem(text(metadata, field), check, &|| format!("metadata.{field}")));
    let of_list = |field| {
        list(spec, field).iter().enumerate().find_map(|(index, item)| {
            let name = item.as_object().map_or("", |item| text(item, "name"));
            problem(name, syntax::label, &|| format!("spec.{field}[{index}].name"))
        })
    };
    let lists = ["initContainers", "containers", "ephemeralContainers", "volumes"];
    of_pod.or_else(|| lists.into_iter().find_map(of_list))
}

fn validate_references(pod: &Object, at: &At<'_>) {
    at.object(pod, "spec", |at, spec| {
        reference::references(spec, at);
        reference::priority(spec, at);
    });
}

/// Validates a prepared pod as [`validate`] does, and warns as an API server does when it creates the pod, which may
/// have references there.
///
/// `name` is the pod's name in its manifest: what the preparation has added to it is no reason for a warning.
pub fn validate_and_warn(pod: &Object, name: &str, path: &FieldPath<'_>, report: &dyn Report) {
    let at = At { path: *path, report };
    validate_fields_and_warn(pod, Some(name), &at);
    validate_references(pod, &at);
}

/// A pod has a name, and a template has none.
fn validate_fields_and_warn(pod: &Object, name: Option<&str>, at: &At<'_>) {
    let errors = at.report.errors();
    warnings::of_app_armor(pod, at);
    validate_fields(pod, name.is_none(), at);
    if at.report.errors() == errors {
        warnings::of_valid_pod(pod, name.unwrap_or_default(), at);
    }
}

/// Validates the template of a workload as [`validate_and_warn`] does, without the API's rules for pods alone. The
/// template may have one of these restart policies, and may refer to objects that only an API server can resolve.
pub fn validate_template(pod: &Object, restart_policies: &[&str], path: &FieldPath<'_>, report: &dyn Report) {
    let at = At { path: *path, report };
    validate_fields_and_warn(pod, None, &at);
    at.object(pod, "spec", |at, spec| {
        if spec.contains_key("activeDeadlineSeconds") && restart_policies == ["Always"] {
            at.field("activeDeadlineSeconds").forbidden("may be set for Jobs and CronJobs only");
        }
        let (policy, at) = (text(spec, "restartPolicy"), at.field("restartPolicy"));
        match policy {
            // The default of a pod, which its author has usually not written.
            "Always" if !restart_policies.contains(&policy) => {
                at.required(&format!("valid values: {}", restart_policies.join(", ")));
            }
            "OnFailure" | "Never" if !restart_policies.contains(&policy) => {
                at.not_supported(policy, restart_policies);
            }
            _ => {}
        }
    });
}

fn validate_fields(pod: &Object, is_template: bool, at: &At<'_>) {
    let (Some(metadata), Some(spec)) = (object(pod, "metadata"), object(pod, "spec")) else { return };
    metadata::validate(metadata, &at.field("metadata"));
    spec::validate(spec, (!is_template).then_some(metadata), &at.field("spec"));
    if let Some(annotations) = object(metadata, "annotations") {
        annotation::validate(annotations, spec, at);
    }
}
