//! Annotations that fields have replaced: they must be valid and agree with the fields.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    errors::Errors,
    fields::{Object, each_container, given_text, object, text},
    scheduling, syntax,
};
use crate::pod::FieldPath;

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const LOCALHOST: &str = "localhost/";
const SECCOMP_DEFAULTS: [&str; 2] = ["runtime/default", "docker/default"];

/// Validates the annotations of the pod at a path.
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
            // In the API's paths these two keys are fields.
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
                    errors.invalid(&path.key(key), value, "must be an AppArmor profile");
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
    each_container(spec, &FieldPath::ROOT, |_, container| {
        names.insert(text(container, "name"));
    });
    names
}

/// Whether a text is an integer of 32 bits without `+` and leading zeros.
fn is_cost(value: &str) -> bool {
    let has_valid_start = value == "0" || value.starts_with(|c: char| c == '-' || ('1'..='9').contains(&c));
    has_valid_start && value.parse::<i32>().is_ok()
}

fn seccomp(profile: &str, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    match profile.strip_prefix(LOCALHOST) {
        _ if matches!(profile, "runtime/default" | "docker/default" | "unconfined") => {}
        Some(file) => errors.check(path, profile, syntax::descending(file)),
        None => errors.invalid(path, profile, "must be a valid seccomp profile"),
    }
}

/// Validates tolerations that an annotation has as JSON.
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

/// Reads a toleration as Go does: field names are case-insensitive, and null is absent.
/// Returns none if a field has another type.
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

/// Rejects fields that differ from the annotations for the same setting.
fn agree(annotations: &Object, spec: &Object, path: &FieldPath<'_>, errors: &mut Errors<'_>) {
    let of_pod = |field: &str| object(object(spec, "securityContext")?, field);
    if let (Some(annotation), Some(profile)) =
        (given_text(annotations, SECCOMP_OF_POD), of_pod("seccompProfile"))
    {
        let path = path.field("securityContext");
        same(annotation, profile, &SECCOMP_DEFAULTS, &path.field("seccompProfile"), errors);
    }
    let on_windows = object(spec, "os").is_some_and(|os| text(os, "name") == "windows");
    let app_armor_of_pod = of_pod("appArmorProfile");
    each_container(spec, path, |path, container| {
        let mut compare = |prefix: &str, field: &str, inherited: Option<&Object>, defaults: &[&str]| {
            let own = object(container, "securityContext").and_then(|context| object(context, field));
            let annotation = given_text(annotations, &format!("{prefix}{}", text(container, "name")));
            if let (Some(annotation), Some(profile)) = (annotation, own.or(inherited)) {
                let path = path.field("securityContext");
                same(annotation, profile, defaults, &path.field(field), errors);
            }
        };
        compare(SECCOMP, "seccompProfile", None, &SECCOMP_DEFAULTS);
        if !on_windows {
            compare(APP_ARMOR, "appArmorProfile", app_armor_of_pod, &["runtime/default"]);
        }
    });
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
