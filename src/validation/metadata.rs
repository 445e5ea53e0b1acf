//! A pod's metadata: who it is, and what is attached to it.

use serde_json::Value;

use super::{
    fields::{Object, each_object, is_true, text},
    judge::Judge,
    syntax,
};
use crate::pod::FieldPath;

/// How many bytes the keys and values of all annotations have at most.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// The longest name of a field's manager, in bytes.
const MAX_MANAGER: usize = 128;
/// The longest name of a subresource, in bytes.
const MAX_SUBRESOURCE: usize = 256;
/// The kubelet's own hash, which counts among a pod's annotations, has this many bytes.
const KUBELETS_HASH: usize = 32;
const HASH: &str = "kubernetes.io/config.hash";

/// Finalizers that may do without a prefix.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

pub(super) fn validate(metadata: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    for (field, value) in metadata {
        let path = &path.field(field);
        match (field.as_str(), value) {
            ("name", Value::String(name)) => judge.check(path, name, syntax::subdomain(name)),
            ("generateName", Value::String(prefix)) => {
                judge.check(path, prefix, syntax::subdomain_prefix(prefix));
            }
            ("namespace", Value::String(namespace)) => judge.check(path, namespace, syntax::label(namespace)),
            ("generation", generation) => judge.not_negative(path, generation.as_i64().unwrap_or_default()),
            ("labels", Value::Object(labels)) => self::labels(labels, path, judge),
            ("annotations", Value::Object(annotations)) => self::annotations(annotations, path, judge),
            ("ownerReferences", list) => owners(list, path, judge),
            ("finalizers", Value::Array(list)) => finalizers(list, path, judge),
            ("managedFields", list) => managed_fields(list, path, judge),
            _ => {}
        }
    }
}

/// Labels, or whatever is written as labels are. The API names the map and not the key.
pub(super) fn labels(labels: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    for (key, value) in labels {
        let path = path.key(key).unnamed();
        let value = value.as_str().unwrap_or_default();
        judge.check(&path, key, syntax::qualified(key));
        judge.check(&path, value, syntax::label_value(value));
    }
}

pub(super) fn annotations(annotations: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    for key in annotations.keys() {
        judge.check(&path.key(key).unnamed(), key, syntax::qualified_caseless(key));
    }
    size(annotations, path, judge);
}

/// Refuses annotations that are too much together.
pub(super) fn size(annotations: &Object, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let length = |(key, value): (&String, &Value)| {
        let value = if key == HASH { KUBELETS_HASH } else { value.as_str().map_or(0, str::len) };
        key.len() + value
    };
    if annotations.iter().map(length).sum::<usize>() > MAX_ANNOTATIONS {
        judge.too_long(path, MAX_ANNOTATIONS);
    }
}

fn owners(list: &Value, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    let mut controllers = 0;
    each_object(list, path, |path, owner| {
        let path = path.unnamed();
        let version = text(owner, "apiVersion");
        // `group/version`, `version` alone for the group without a name, `/` for none.
        let has_version = match version.split_once('/') {
            None => !version.is_empty(),
            Some((_, version)) => !version.is_empty() && !version.contains('/'),
        };
        if !has_version {
            judge.invalid(&path.field("apiVersion"), version, "the version must not be empty");
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                judge.invalid(&path.field(field), "", "must not be empty");
            }
        }
        if matches!(version, "v1" | "/v1") && text(owner, "kind") == "Event" {
            judge.invalid(&path, "Event", "an Event cannot own anything");
        }
        if is_true(owner, "controller") {
            controllers += 1;
            if controllers > 1 {
                judge.invalid(&path, text(owner, "name"), "only one owner can be the controller");
            }
        }
    });
}

fn finalizers(list: &[Value], path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    for (index, finalizer) in list.iter().enumerate() {
        let finalizer = finalizer.as_str().unwrap_or_default();
        let at = path.index(index);
        judge.check(&at.unnamed(), finalizer, syntax::qualified(finalizer));
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
            judge.invalid(&at, finalizer, "neither a standard finalizer nor a name with a domain in front");
        }
    }
    let has = |name: &str| list.iter().any(|finalizer| finalizer == name);
    if has("orphan") && has("foregroundDeletion") {
        judge.invalid(path, "orphan", "orphan and foregroundDeletion exclude each other");
    }
}

fn managed_fields(list: &Value, path: &FieldPath<'_>, judge: &mut Judge<'_>) {
    each_object(list, path, |path, managed| {
        let (operation, kind) = (text(managed, "operation"), text(managed, "fieldsType"));
        if !matches!(operation, "Apply" | "Update") {
            judge.invalid(&path.field("operation"), operation, "must be Apply or Update");
        }
        if !matches!(kind, "" | "FieldsV1") {
            judge.invalid(&path.field("fieldsType"), kind, "must be FieldsV1");
        }
        let manager = text(managed, "manager");
        if manager.len() > MAX_MANAGER {
            judge.too_long(&path.field("manager"), MAX_MANAGER);
        }
        if manager.chars().any(|c| c.is_control() || (c.is_whitespace() && c != ' ')) {
            judge.invalid(&path.field("manager"), manager, "must be printable");
        }
        if text(managed, "subresource").len() > MAX_SUBRESOURCE {
            judge.too_long(&path.field("subresource"), MAX_SUBRESOURCE);
        }
    });
}
