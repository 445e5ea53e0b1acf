//! Annotations that once were fields: what they say must be right, and the same as the fields say.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    container,
    errors::Errors,
    fields::{Object, given_text, object, text},
    scheduling, syntax,
};
use crate::pod::FieldPath;

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const LOCALHOST: &str = "localhost/";

/// Judges what the annotations of the pod at a path say.
pub(super) fn validate(annotations: &Object, spec: &Object, pod: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let path = pod.field("metadata");
    let path = path.field("annotations");
    let mut names: Option<BTreeSet<&str>> = None;
    let mut has_profiles = false;
    for (key, value) in annotations {
        let value = value.as_str().unwrap_or_default();
        match key.as_str() {
            TOLERATIONS if !value.is_empty() => tolerations(value, &path, errors),
            DELETION_COST if !is_cost(value) => {
                errors.invalid(&path.key(key), value, "must be a 32bit integer");
            }
            // The API writes these two as fields of the annotations.
            key if key == SECCOMP_OF_POD || key.starts_with(SECCOMP) => {
                has_profiles = true;
                seccomp(value, &path.field(key), errors);
            }
            key => {
                let Some(container) = key.strip_prefix(APP_ARMOR) else { continue };
                has_profiles = true;
                let names = names.get_or_insert_with(|| container_names(spec));
                if !names.contains(container) {
                    errors.invalid(&path.key(key), container, "container not found");
                }
                let is_profile = matches!(value, "" | "runtime/default" | "unconfined");
                if !is_profile && !value.starts_with(LOCALHOST) {
                    errors.invalid(&path.key(key), value, "is no AppArmor profile");
                }
            }
        }
    }
    if has_profiles {
        agree(annotations, spec, &pod.field("spec"), errors);
    }
}

fn container_names(spec: &Object) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    container::each(spec, &FieldPath::ROOT, |_, container| {
        names.insert(text(container, "name"));
    });
    names
}

/// An integer of 32 bits as it is usually written: no sign but `-`, no leading zeros.
fn is_cost(value: &str) -> bool {
    let begins_well = value == "0" || value.starts_with(|c: char| c == '-' || ('1'..='9').contains(&c));
    begins_well && value.parse::<i32>().is_ok()
}

fn seccomp(profile: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    match profile.strip_prefix(LOCALHOST) {
        _ if matches!(profile, "runtime/default" | "docker/default" | "unconfined") => {}
        Some(file) => errors.check(path, profile, syntax::descending(file)),
        None => errors.invalid(path, profile, "must be a valid seccomp profile"),
    }
}

/// Tolerations as JSON in an annotation.
fn tolerations(value: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let tolerations = match serde_json::from_str(value) {
        Ok(Value::Null) => return,
        Ok(Value::Array(list)) => list.into_iter().map(toleration).collect::<Option<Vec<Value>>>(),
        _ => None,
    };
    match tolerations {
        Some(list) => scheduling::tolerations(&list.into(), &path.field(TOLERATIONS), errors),
        None => errors.invalid(path, TOLERATIONS, "must be tolerations as JSON"),
    }
}

/// A toleration as Go reads it from JSON: the case of its fields does not
/// matter, and what is empty is not there. Nothing if a field has another type.
fn toleration(given: Value) -> Option<Value> {
    let given = match given {
        Value::Object(given) => given,
        Value::Null => Object::new(),
        _ => return None,
    };
    let mut toleration = Object::new();
    for (field, value) in given {
        let named = |name: &&&str| name.eq_ignore_ascii_case(&field);
        let Some(name) = ["key", "operator", "value", "effect", "tolerationSeconds"].iter().find(named)
        else {
            continue;
        };
        match &value {
            Value::Null => continue,
            Value::String(_) if *name != "tolerationSeconds" => {}
            Value::Number(seconds) if *name == "tolerationSeconds" && seconds.is_i64() => {}
            _ => return None,
        }
        toleration.insert((*name).to_owned(), value);
    }
    Some(toleration.into())
}

/// Refuses fields that say something else than the annotations for the same thing.
fn agree(annotations: &Object, spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let has = |prefix: &str| annotations.keys().any(|key| key.starts_with(prefix));
    let pods = object(spec, "securityContext");
    if let (Some(annotation), Some(profile)) =
        (given_text(annotations, SECCOMP_OF_POD), pods.and_then(|context| object(context, "seccompProfile")))
    {
        let path = path.field("securityContext");
        same_seccomp(annotation, profile, &path.field("seccompProfile"), errors);
    }
    if has(SECCOMP) {
        container::each(spec, path, |path, container| {
            let Some((annotation, profile)) =
                annotation_and_field(annotations, SECCOMP, container, "seccompProfile", None)
            else {
                return;
            };
            let path = path.field("securityContext");
            same_seccomp(annotation, profile, &path.field("seccompProfile"), errors);
        });
    }
    let on_windows = object(spec, "os").is_some_and(|os| text(os, "name") == "windows");
    if has(APP_ARMOR) && !on_windows {
        let of_pod = pods.and_then(|context| object(context, "appArmorProfile"));
        container::each(spec, path, |path, container| {
            let found = annotation_and_field(annotations, APP_ARMOR, container, "appArmorProfile", of_pod);
            let Some((annotation, profile)) = found else { return };
            let path = path.field("securityContext");
            same(annotation, profile, &["runtime/default"], &path.field("appArmorProfile"), errors);
        });
    }
}

/// What an annotation and a field say of a container, if both say something.
fn annotation_and_field<'v>(
    annotations: &'v Object,
    prefix: &str,
    container: &'v Object,
    field: &str,
    of_pod: Option<&'v Object>,
) -> Option<(&'v str, &'v Object)> {
    let own = object(container, "securityContext").and_then(|context| object(context, field));
    let profile = own.or(of_pod)?;
    let annotation = given_text(annotations, &format!("{prefix}{}", text(container, "name")))?;
    Some((annotation, profile))
}

fn same_seccomp(annotation: &str, profile: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    same(annotation, profile, &["runtime/default", "docker/default"], path, errors);
}

fn same(
    annotation: &str,
    profile: &Object,
    defaults: &[&str],
    path: &FieldPath<'_>,
    errors: &mut Errors<'_>,
) {
    let is_same_type = match text(profile, "type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => defaults.contains(&annotation),
        "Localhost" => annotation.starts_with(LOCALHOST),
        _ => return,
    };
    if !is_same_type {
        errors.forbidden(&path.field("type"), "the type in annotation and field must match");
    } else if text(profile, "type") == "Localhost"
        && annotation.strip_prefix(LOCALHOST) != given_text(profile, "localhostProfile")
    {
        errors.forbidden(&path.field("localhostProfile"), "the profile in annotation and field must match");
    }
}
