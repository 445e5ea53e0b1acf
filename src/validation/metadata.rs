//! The metadata of a pod.

use serde_json::Value;

use super::{
    errors::Errors,
    fields::{Object, each_object, is_true, text},
    syntax,
};
use crate::pod::{FieldPath, identity::HASH};

/// The most bytes in the keys and values of all annotations.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// The longest name of a field manager, in bytes.
const MAX_MANAGER: usize = 128;
/// The longest name of a subresource, in bytes.
const MAX_SUBRESOURCE: usize = 256;
/// The size of the kubelet's own hash, which counts as an annotation, in bytes.
const KUBELETS_HASH: usize = 32;

/// The finalizers without a domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

pub(super) fn validate(metadata: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for (field, value) in metadata {
        let path = &path.field(field);
        match (field.as_str(), value) {
            ("name", Value::String(name)) => errors.check(path, name, syntax::subdomain(name)),
            ("generateName", Value::String(prefix)) => {
                errors.check(path, prefix, syntax::subdomain_prefix(prefix));
            }
            ("namespace", Value::String(namespace)) => {
                errors.check(path, namespace, syntax::label(namespace));
            }
            ("generation", generation) => errors.not_negative(path, generation.as_i64().unwrap_or_default()),
            ("labels", Value::Object(labels)) => self::labels(labels, path, errors),
            ("annotations", Value::Object(annotations)) => self::annotations(annotations, path, errors),
            ("ownerReferences", list) => owners(list, path, errors),
            ("finalizers", Value::Array(list)) => finalizers(list, path, errors),
            ("managedFields", list) => managed_fields(list, path, errors),
            _ => {}
        }
    }
}

/// Validates labels. The API's paths have the map and not the key.
pub(super) fn labels(labels: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for (key, value) in labels {
        let path = path.key(key).unnamed();
        let value = value.as_str().unwrap_or_default();
        errors.check(&path, key, syntax::qualified(key));
        errors.check(&path, value, syntax::label_value(value));
    }
}

pub(super) fn annotations(annotations: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for key in annotations.keys() {
        errors.check(&path.key(key).unnamed(), key, syntax::qualified_caseless(key));
    }
    size(annotations, path, errors);
}

/// Rejects annotations that are too large together.
pub(super) fn size(annotations: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let length = |(key, value): (&String, &Value)| {
        let value = if key == HASH { KUBELETS_HASH } else { value.as_str().map_or(0, str::len) };
        key.len() + value
    };
    errors.max_bytes(path, annotations.iter().map(length).sum(), MAX_ANNOTATIONS);
}

fn owners(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let mut controllers = 0;
    each_object(list, path, |path, owner| {
        let path = path.unnamed();
        let version = text(owner, "apiVersion");
        // `group/version`, or `version` for the group without a name.
        let has_version = match version.split_once('/') {
            None => !version.is_empty(),
            Some((_, version)) => !version.is_empty() && !version.contains('/'),
        };
        if !has_version {
            errors.invalid(&path.field("apiVersion"), version, "the version must not be empty");
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                errors.invalid(&path.field(field), "", "must not be empty");
            }
        }
        if matches!(version, "v1" | "/v1") && text(owner, "kind") == "Event" {
            errors.invalid(&path, "Event", "an Event cannot be an owner");
        }
        if is_true(owner, "controller") {
            controllers += 1;
            if controllers > 1 {
                errors.invalid(&path, text(owner, "name"), "only one owner can be the controller");
            }
        }
    });
}

fn finalizers(list: &[Value], path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    for (index, finalizer) in list.iter().enumerate() {
        let finalizer = finalizer.as_str().unwrap_or_default();
        let at = path.index(index);
        errors.check(&at.unnamed(), finalizer, syntax::qualified(finalizer));
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
            errors.invalid(&at, finalizer, "must be a standard finalizer or begin with a domain");
        }
    }
    let has = |name: &str| list.iter().any(|finalizer| finalizer == name);
    if has("orphan") && has("foregroundDeletion") {
        errors.invalid(path, "orphan", "orphan and foregroundDeletion are mutually exclusive");
    }
}

fn managed_fields(list: &Value, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    each_object(list, path, |path, managed| {
        let (operation, kind) = (text(managed, "operation"), text(managed, "fieldsType"));
        if !matches!(operation, "Apply" | "Update") {
            errors.invalid(&path.field("operation"), operation, "must be Apply or Update");
        }
        if !matches!(kind, "" | "FieldsV1") {
            errors.invalid(&path.field("fieldsType"), kind, "must be FieldsV1");
        }
        let manager = text(managed, "manager");
        errors.max_bytes(&path.field("manager"), manager.len(), MAX_MANAGER);
        if manager.chars().any(|c| c.is_control() || (c.is_whitespace() && c != ' ')) {
            errors.invalid(&path.field("manager"), manager, "must be printable");
        }
        let length = text(managed, "subresource").len();
        errors.max_bytes(&path.field("subresource"), length, MAX_SUBRESOURCE);
    });
}
