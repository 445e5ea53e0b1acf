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
    fields::{Object, object, text},
};
use crate::pod::FieldPath;

/// Validates a prepared pod as the kubelet does, and reports all its problems: first those
/// of fields, then those of references.
///
/// `path` is the path of the pod in its manifest.
pub fn validate(pod: &Object, path: &FieldPath<'_>, report: &dyn Report) {
    let at = At { path: *path, report };
    validate_fields(pod, &at);
    validate_references(pod, &at);
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
    validate_fields_and_warn(pod, name, &at);
    validate_references(pod, &at);
}

fn validate_fields_and_warn(pod: &Object, name: &str, at: &At<'_>) {
    let errors = at.report.errors();
    warnings::of_app_armor(pod, at);
    validate_fields(pod, at);
    if at.report.errors() == errors {
        warnings::of_valid_pod(pod, name, at);
    }
}

/// Validates the prepared pod of a workload's template as [`validate_and_warn`] does. The template may have
/// one of these restart policies, and may refer to objects that only an API server can resolve.
pub fn validate_template(pod: &Object, restart_policies: &[&str], path: &FieldPath<'_>, report: &dyn Report) {
    let at = At { path: *path, report };
    // A workload gives its pods names of their own.
    validate_fields_and_warn(pod, "", &at);
    at.object(pod, "spec", |at, spec| {
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

fn validate_fields(pod: &Object, at: &At<'_>) {
    let (Some(metadata), Some(spec)) = (object(pod, "metadata"), object(pod, "spec")) else { return };
    metadata::validate(metadata, &at.field("metadata"));
    spec::validate(spec, metadata, &at.field("spec"));
    if let Some(annotations) = object(metadata, "annotations") {
        annotation::validate(annotations, spec, at);
    }
}
