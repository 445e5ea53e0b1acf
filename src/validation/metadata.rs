//! The metadata of a pod.

use serde_json::Value;

use super::{
    at::At,
    fields::{Object, is_true, text},
    syntax,
};
use crate::pod::identity::HASH;

/// The most bytes in the keys and values of all annotations.
pub(crate) const MAX_ANNOTATIONS: usize = 256 * 1024;
/// The longest name of a field manager, in bytes.
const MAX_MANAGER: usize = 128;
/// The longest name of a subresource, in bytes.
const MAX_SUBRESOURCE: usize = 256;
/// The size of the kubelet's own hash, which counts as an annotation, in bytes.
const KUBELETS_HASH: usize = 32;

/// The finalizers without a domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

pub(super) fn validate(metadata: &Object, at: &At<'_>) {
    for (field, value) in metadata {
        let at = &at.field(field);
        match (field.as_str(), value) {
            ("name", Value::String(name)) => at.check(name, syntax::subdomain),
            ("generateName", Value::String(prefix)) => at.check(prefix, syntax::subdomain_prefix),
            ("namespace", Value::String(namespace)) => at.check(namespace, syntax::label),
            ("generation", generation) => at.not_negative(generation.as_i64().unwrap_or_default()),
            ("labels", Value::Object(labels)) => self::labels(at, labels),
            ("annotations", Value::Object(annotations)) => self::annotations(at, annotations),
            ("ownerReferences", list) => owners(list, at),
            ("finalizers", Value::Array(list)) => finalizers(list, at),
            ("managedFields", list) => managed_fields(list, at),
            _ => {}
        }
    }
}

/// Validates labels. The API's paths have the map and not the key.
pub(super) fn labels(at: &At<'_>, labels: &Object) {
    for (key, value) in labels {
        let at = at.key(key).unnamed();
        let value = value.as_str().unwrap_or_default();
        at.check(key, syntax::qualified);
        at.check(value, syntax::label_value);
    }
}

pub(super) fn annotations(at: &At<'_>, annotations: &Object) {
    for key in annotations.keys() {
        at.key(key).unnamed().check(key, syntax::qualified_caseless);
    }
    size(annotations, at);
}

/// Rejects annotations that are too large together.
pub(super) fn size(annotations: &Object, at: &At<'_>) {
    let length = |(key, value): (&String, &Value)| {
        let value = if key == HASH { KUBELETS_HASH } else { value.as_str().map_or(0, str::len) };
        key.len() + value
    };
    at.max_bytes(annotations.iter().map(length).sum(), MAX_ANNOTATIONS);
}

fn owners(list: &Value, at: &At<'_>) {
    let mut controllers = 0;
    at.each_object(list, |at, owner| {
        let at = at.unnamed();
        let version = text(owner, "apiVersion");
        // `group/version`, or `version` for the group without a name.
        let has_version = match version.split_once('/') {
            None => !version.is_empty(),
            Some((_, version)) => !version.is_empty() && !version.contains('/'),
        };
        if !has_version {
            at.field("apiVersion").invalid(version, "the version must not be empty");
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                at.field(field).invalid("", "must not be empty");
            }
        }
        if matches!(version, "v1" | "/v1") && text(owner, "kind") == "Event" {
            at.invalid("Event", "an Event cannot be an owner");
        }
        if is_true(owner, "controller") {
            controllers += 1;
            if controllers > 1 {
                at.invalid(text(owner, "name"), "only one owner can be the controller");
            }
        }
    });
}

fn finalizers(list: &[Value], at: &At<'_>) {
    for (index, finalizer) in list.iter().enumerate() {
        let finalizer = finalizer.as_str().unwrap_or_default();
        let at = at.index(index);
        at.unnamed().check(finalizer, syntax::qualified);
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
            at.invalid(finalizer, "must be a standard finalizer or begin with a domain");
        }
    }
    let has = |name: &str| list.iter().any(|finalizer| finalizer == name);
    if has("orphan") && has("foregroundDeletion") {
        at.invalid("orphan", "orphan and foregroundDeletion are mutually exclusive");
    }
}

fn managed_fields(list: &Value, at: &At<'_>) {
    at.each_object(list, |at, managed| {
        let (operation, kind) = (text(managed, "operation"), text(managed, "fieldsType"));
        if !matches!(operation, "Apply" | "Update") {
            at.field("operation").invalid(operation, "must be Apply or Update");
        }
        if !matches!(kind, "" | "FieldsV1") {
            at.field("fieldsType").invalid(kind, "must be FieldsV1");
        }
        let manager = text(managed, "manager");
        at.field("manager").max_bytes(manager.len(), MAX_MANAGER);
        if manager.chars().any(|c| c.is_control() || (c.is_whitespace() && c != ' ')) {
            at.field("manager").invalid(manager, "must be printable");
        }
        let length = text(managed, "subresource").len();
        at.field("subresource").max_bytes(length, MAX_SUBRESOURCE);
    });
}
