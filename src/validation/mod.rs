//! The API's pod validation, pure: one file for each part of a pod.
//!
//! The rules are those of `ValidatePodCreate` in Kubernetes v1.36
//! (`pkg/apis/core/validation`) with its default feature gates, and those of
//! `HasAPIObjectReference` (`pkg/api/pod`), which say what a pod may not refer
//! to on a node that has no API server to ask. A path that reads oddly
//! (`downwarAPI`, `volumeMounts.subPath`) is the API's.

mod fields;
mod judge;
mod metadata;
mod priority;
mod reference;
mod syntax;

use self::{
    fields::{Object, object},
    judge::Judge,
};
use crate::pod::{
    FieldPath, Problem, Refusal, Stage,
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
    let mut tell = |at: &FieldPath<'_>, path: &FieldPath<'_>, reason, detail: &dyn Fn() -> String| {
        faults.refuse_at(at, Stage::Validate, path, || Problem::error(detail()).because(reason));
    };
    validate(pod, path, &mut Judge::new(&mut tell));
    let Some(spec) = object(pod, "spec") else { return };
    let path = path.field("spec");
    reference::references(spec, &path, faults);
    priority::warnings(spec, &path, faults);
}

fn validate(pod: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    if let Some(metadata) = object(pod, "metadata") {
        metadata::validate(metadata, &path.field("metadata"), judge);
    }
}
