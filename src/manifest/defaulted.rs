//! Tells which fields of a prepared pod are defaults.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::defaults::{self, SPEC};
use crate::pod::{FieldPath, Object};

/// The fields of a spec whose default depends on others, as [`SPEC`] has those that do not.
static DEPENDENT: LazyLock<Value> = LazyLock::new(|| {
    let container = json!({
        "imagePullPolicy": null,
        "ports": [{ "hostPort": null }],
        "resources": { "requests": null },
    });
    let volumes = json!([{ "image": { "pullPolicy": null } }]);
    json!({ "initContainers": [container], "containers": [container], "volumes": volumes })
});

/// The fields of a prepared pod that have the value which defaulting gives them, with their paths.
///
/// A prepared pod does not tell what its manifest had. So each field that can have a default is removed, and
/// [`defaults::set`] decides: a field that it restores is a default, also if the manifest has the same value. Empty
/// maps, and the resources of a pod as a whole, are left out.
pub(crate) fn defaulted(pod: &Object) -> Vec<(String, Value)> {
    let mut bare = pod.clone();
    if let Some(spec) = bare.get_mut("spec") {
        remove(spec, &SPEC);
        remove(spec, &DEPENDENT);
    }
    let mut restored = bare.clone();
    defaults::set(&mut restored);
    let [pod, bare, restored] = [pod, &bare, &restored].map(|object| object.get("spec"));
    let mut found = Vec::new();
    if let (Some(pod), Some(restored)) = (pod, restored) {
        compare(pod, bare, restored, &FieldPath::ROOT.field("spec"), &mut found);
    }
    found
}

/// Removes the fields that some defaults have: null stands for any value.
fn remove(value: &mut Value, defaults: &Value) {
    match (value, defaults) {
        (Value::Object(object), Value::Object(defaults)) => {
            for (field, default) in defaults {
                match object.get_mut(field) {
                    Some(value) if default.is_object() || default.is_array() => remove(value, default),
                    Some(value) if default.is_null() || value == default => drop(object.remove(field)),
                    _ => {}
                }
            }
        }
        (Value::Array(items), Value::Array(defaults)) => {
            for item in items {
                for default in defaults {
                    remove(item, default);
                }
            }
        }
        _ => {}
    }
}

/// Finds the values that were removed and are restored.
fn compare(
    value: &Value,
    bare: Option<&Value>,
    restored: &Value,
    path: &FieldPath<'_>,
    found: &mut Vec<(String, Value)>,
) {
    match (value, restored) {
        (Value::Object(fields), Value::Object(restored)) => {
            for (field, value) in fields {
                let bare = bare.and_then(|bare| bare.get(field));
                if let Some(restored) = restored.get(field) {
                    compare(value, bare, restored, &path.field(field), found);
                }
            }
        }
        (Value::Array(items), Value::Array(restored)) => {
            for (index, (item, restored)) in items.iter().zip(restored).enumerate() {
                let bare = bare.and_then(|bare| bare.get(index));
                compare(item, bare, restored, &path.index(index), found);
            }
        }
        _ if bare.is_none() && value == restored => found.push((path.to_string(), value.clone())),
        _ => {}
    }
}
