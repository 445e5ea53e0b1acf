//! The API's pod validation: one file for each part of a pod. Pure.
//!
//! The rules are those of `ValidatePodCreate` in Kubernetes v1.36
//! (`pkg/apis/core/validation`) with its default feature gates, and those of
//! `HasAPIObjectReference` (`pkg/api/pod`) about references that a node without an API
//! server cannot resolve. Unusual paths (`downwarAPI`, `volumeMounts.subPath`) are
//! the API's own.

mod annotation;
mod claim;
mod container;
mod context;
mod environment;
mod errors;
mod fields;
mod handler;
mod metadata;
mod mount;
mod network;
mod os;
mod projected;
mod reference;
mod resources;
mod scheduling;
mod security;
mod spec;
mod storage;
mod syntax;
mod volume;

pub use self::errors::Report;
use self::{
    errors::Errors,
    fields::{Object, object},
};
use crate::pod::FieldPath;

/// Validates a prepared pod as the kubelet does, and reports all its problems: first those
/// of fields, then those of references.
///
/// `path` is the path of the pod in its manifest.
pub fn validate(pod: &Object, path: &FieldPath<'_>, report: &mut dyn Report) {
    validate_fields(pod, path, &mut Errors::new(report));
    let Some(spec) = object(pod, "spec") else { return };
    let path = path.field("spec");
    reference::references(spec, &path, report);
    reference::priority(spec, &path, report);
}

fn validate_fields(pod: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let (Some(metadata), Some(spec)) = (object(pod, "metadata"), object(pod, "spec")) else { return };
    metadata::validate(metadata, &path.field("metadata"), errors);
    spec::validate(spec, metadata, &path.field("spec"), errors);
    if let Some(annotations) = object(metadata, "annotations") {
        annotation::validate(annotations, spec, path, errors);
    }
}
