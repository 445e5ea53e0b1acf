//! Annotations that fields have replaced: they must be valid and agree with the fields.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    at::At,
    fields::{Object, given_text, object, text},
    scheduling, syntax,
};

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
pub(super) const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
pub(super) const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
pub(super) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const LOCALHOST: &str = "localhost/";
const SECCOMP_DEFAULTS: [&str; 2] = ["runtime/default", "docker/default"];

/// Validates the annotations of the pod at a path.
pub(super) fn validate(annotations: &Object, spec: &Object, pod: &At<'_>) {
    let at = pod.field("metadata");
    let at = at.field("annotations");
    let mut names: Option<BTreeSet<&str>> = None;
    let mut has_profiles = false;
    for (key, value) in annotations {
        let value = value.as_str().unwrap_or_default();
        match key.as_str() {
            TOLERATIONS if !value.is_empty() => tolerations(value, &at),
            DELETION_COST if !is_cost(value) => {
                at.key(key).invalid(value, "must be a 32bit integer");
            }
            // In the API's paths these two keys are fields.
            key if key == SECCOMP_OF_POD || key.starts_with(SECCOMP) => {
                has_profiles = true;
                seccomp(value, &at.field(key));
            }
            key => {
                let Some(container) = key.strip_prefix(APP_ARMOR) else { continue };
                has_profiles = true;
                let names = names.get_or_insert_with(|| {
                    let mut names = BTreeSet::new();
                    at.each_container(spec, |_, container| names.extend([text(container, "name")]));
                    names
                });
                if !names.contains(container) {
                    at.key(key).invalid(container, "container not found");
                }
                let is_profile = matches!(value, "" | "runtime/default" | "unconfined");
                if !is_profile && !value.starts_with(LOCALHOST) {
                    at.key(key).invalid(value, "must be an AppArmor profile");
                }
            }
        }
    }
    if has_profiles {
        agree(annotations, spec, &pod.field("spec"));
    }
}

/// Whether a text is an integer of 32 bits without `+` and leading zeros.
fn is_cost(value: &str) -> bool {
    let has_valid_start = value == "0" || value.starts_with(|c: char| c == '-' || ('1'..='9').contains(&c));
    has_valid_start && value.parse::<i32>().is_ok()
}

fn seccomp(profile: &str, at: &At<'_>) {
    match profile.strip_prefix(LOCALHOST) {
        _ if matches!(profile, "runtime/default" | "docker/default" | "unconfined") => {}
        Some(file) => at.check(profile, |_| syntax::descending(file)),
        None => at.invalid(profile, "must be a valid seccomp profile"),
    }
}

/// Validates tolerations that an annotation has as JSON.
fn tolerations(value: &str, at: &At<'_>) {
    let tolerations = match serde_json::from_str(value) {
        Ok(Value::Null) => return,
        Ok(Value::Array(list)) => list.into_iter().map(toleration).collect::<Option<Vec<Value>>>(),
        _ => None,
    };
    match tolerations {
        Some(list) => scheduling::tolerations(&list.into(), &at.field(TOLERATIONS)),
        None => at.invalid(TOLERATIONS, "must be tolerations as JSON"),
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
fn agree(annotations: &Object, spec: &Object, at: &At<'_>) {
    let of_pod = |field: &str| object(object(spec, "securityContext")?, field);
    if let (Some(annotation), Some(profile)) =
        (given_text(annotations, SECCOMP_OF_POD), of_pod("seccompProfile"))
    {
        let at = at.field("securityContext");
        same(annotation, profile, &SECCOMP_DEFAULTS, &at.field("seccompProfile"));
    }
    let on_windows = object(spec, "os").is_some_and(|os| text(os, "name") == "windows");
    let app_armor_of_pod = of_pod("appArmorProfile");
    at.each_container(spec, |at, container| {
        let compare = |prefix: &str, field: &str, inherited: Option<&Object>, defaults: &[&str]| {
            let own = object(container, "securityContext").and_then(|context| object(context, field));
            let annotation = given_text(annotations, &format!("{prefix}{}", text(container, "name")));
            if let (Some(annotation), Some(profile)) = (annotation, own.or(inherited)) {
                let at = at.field("securityContext");
                same(annotation, profile, defaults, &at.field(field));
            }
        };
        compare(SECCOMP, "seccompProfile", None, &SECCOMP_DEFAULTS);
        if !on_windows {
            compare(APP_ARMOR, "appArmorProfile", app_armor_of_pod, &["runtime/default"]);
        }
    });
}

fn same(annotation: &str, profile: &Object, defaults: &[&str], at: &At<'_>) {
    let is_same_type = match text(profile, "type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => defaults.contains(&annotation),
        "Localhost" => annotation.starts_with(LOCALHOST),
        _ => return,
    };
    if !is_same_type {
        at.field("type").forbidden("the type in annotation and field must match");
    } else if text(profile, "type") == "Localhost"
        && annotation.strip_prefix(LOCALHOST) != given_text(profile, "localhostProfile")
    {
        at.field("localhostProfile").forbidden("the profile in annotation and field must match");
    }
}
