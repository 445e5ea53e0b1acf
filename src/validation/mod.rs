//! The API's pod validation, pure: one file for each part of a pod.
//!
//! The rules are those of `ValidatePodCreate` in Kubernetes v1.36
//! (`pkg/apis/core/validation`) with its default feature gates, and those of
//! `HasAPIObjectReference` (`pkg/api/pod`), which say what a pod may not refer
//! to on a node that has no API server to ask. A path that reads oddly
//! (`downwarAPI`, `volumeMounts.subPath`) is the API's.

mod annotation;
mod claim;
mod container;
mod environment;
mod fields;
mod handler;
mod judge;
mod metadata;
mod mount;
mod network;
mod os;
mod priority;
mod projected;
mod reference;
mod resources;
mod scheduling;
mod security;
mod spec;
mod storage;
mod syntax;
mod volume;

use self::{
    fields::{Object, object},
    judge::Judge,
};
use crate::pod::{
    FieldPath, Refusal,
    decode::{self, Faults, Manifest, Preparation},
};

/// Reads a manifest as [`decode::manifest`] does, and validates each pod as the
/// kubelet would: once it is prepared, the fields first and then the references.
/// All that is wrong is told at once.
///
/// # Errors
/// All that is wrong with it, with the place of each problem in the text. A
/// manifest is taken whole or not at all.
pub fn manifest(text: &[u8], preparation: &Preparation) -> Result<Manifest, Refusal> {
    decode::manifest_checked(text, preparation, &check)
}

fn check(pod: &Object, path: &FieldPath<'_>, faults: &mut Faults<'_, '_>) {
    validate(pod, path, &mut Judge::new(faults));
    let Some(spec) = object(pod, "spec") else { return };
    let path = path.field("spec");
    reference::references(spec, &path, faults);
    priority::warnings(spec, &path, faults);
}

fn validate(pod: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let (Some(metadata), Some(spec)) = (object(pod, "metadata"), object(pod, "spec")) else { return };
    metadata::validate(metadata, &path.field("metadata"), judge);
    spec::validate(spec, metadata, &path.field("spec"), judge);
    if let Some(annotations) = object(metadata, "annotations") {
        annotation::validate(annotations, spec, path, judge);
    }
}
