//! Apply: a field manager sends all fields that it wants, and those that it no longer sends go.
//!
//! What the manager sent is merged strategically. Of what it sent before, the rest is removed, unless another manager
//! applied it too.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::{
    error::{PatchError, malformed},
    list::{self, Identity, Rules},
    strategic::{self, Schema},
};
use crate::{
    manifest::{
        defaults,
        go_types::{MergeKey, Type},
    },
    pod::{Object, drop_nulls, quoted},
};

/// What field managers applied last.
#[derive(Clone, Debug, Default)]
pub struct LastApplied {
    /// What the manager of the patch applied, in each of its ways.
    pub own: Vec<Object>,
    /// What the others applied.
    pub others: Vec<Object>,
}

/// Checks a manifest, and removes its nulls.
pub(super) fn check(config: &mut Value) -> Result<(), PatchError> {
    for (field, wanted) in [("apiVersion", "v1"), ("kind", "Pod")] {
        match config.get(field).and_then(Value::as_str) {
            Some(given) if given == wanted => {}
            given => {
                let given = given.map_or_else(|| "absent".to_owned(), quoted);
                return Err(malformed(format!(
                    "invalid object type: {field} is {given}; {wanted} is expected"
                )));
            }
        }
    }
    if config.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(malformed("metadata.managedFields must be nil"));
    }
    drop_nulls(config);
    if let Some(name) = directive(config) {
        return Err(malformed(format!(
            "{} is a directive of a strategic merge patch: an apply patch has only the fields of a pod",
            quoted(name)
        )));
    }
    config.as_object().map_or(Ok(()), |config| check_entries(config, Schema::POD, ""))
}

/// Checks that no list has two entries of one key: the merge would make one item of them.
fn check_entries(map: &Object, of: Schema, path: &str) -> Result<(), PatchError> {
    for (name, value) in map {
        let path = format!("{path}.{name}");
        match (of.kind(name), value) {
            (Ok((kind, _)), Value::Object(map)) => check_entries(map, Schema::of(kind), &path)?,
            (Ok((Type::List(of), Some(key))), Value::Array(items)) if key != MergeKey::Itself => {
                let mut known = HashSet::with_capacity(items.len());
                for item in items {
                    let (Value::Object(map), Ok(entry)) = (item, entry(item, Some(key))) else { continue };
                    let entry = format!("{}={entry}", key.as_str());
                    check_entries(map, Schema::of(of), &format!("{path}[{entry}]"))?;
                    if let Some(entry) = known.replace(entry) {
                        return Err(malformed(format!("{path}: duplicate entries for key [{entry}]")));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// How an apply merges lists.
const RULES: Rules =
    Rules { identify: entry, in_order: list::applied, replaces_duplicates: true, replaced: &ATOMIC };

/// The maps that are one value to an API server (`x-kubernetes-map-type: atomic`), without those that have one field only,
/// that are in lists which are replaced, or that no pod of a node may have.
const ATOMIC: [&str; 5] = ["fieldRef", "fileKeyRef", "labelSelector", "nodeSelector", "resourceFieldRef"];

/// The key of an item for an apply at an API server, which in two lists is longer than the merge key.
fn entry(item: &Value, key: Option<MergeKey>) -> Result<Identity, PatchError> {
    let own = list::identity(item, key)?;
    let Some((field, default)) = key.and_then(second_field) else { return Ok(own) };
    let value = item.get(field).filter(|value| !value.is_null());
    Ok(format!("{own},{field}={}", value.unwrap_or(&default)))
}

/// The field that such a key has beside the merge key, and its default.
fn second_field(key: MergeKey) -> Option<(&'static str, Value)> {
    match key {
        MergeKey::ContainerPort => Some(("protocol", "TCP".into())),
        MergeKey::TopologyKey => Some(("whenUnsatisfiable", Value::Null)),
        _ => None,
    }
}

/// The field without which an item of such a list is invalid, beside the merge key.
fn required_field(key: MergeKey) -> Option<&'static str> {
    match key {
        // Of a container.
        MergeKey::Name => Some("image"),
        MergeKey::MountPath | MergeKey::DevicePath => Some("name"),
        MergeKey::TopologyKey => Some("maxSkew"),
        _ => None,
    }
}

/// A field that a strategic merge patch takes for a directive.
fn directive(value: &Value) -> Option<&str> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            Some(&**name).filter(|name| name.starts_with('$')).or_else(|| directive(value))
        }),
        Value::Array(items) => items.iter().find_map(directive),
        _ => None,
    }
}

/// Applies a manifest to a pod, which is empty if it does not exist.
pub(super) fn apply(mut pod: Object, config: Object, applied: &LastApplied) -> Result<Object, PatchError> {
    let others: Vec<&Object> = applied.others.iter().collect();
    for own in &applied.own {
        prune(&mut pod, own, &config, &others, Schema::POD, &json!({"spec": *defaults::SPEC}))?;
    }
    strategic::merge(pod, config, RULES)
}

/// Removes from a map with these defaults what the manager applied before and does not send any more.
fn prune(
    map: &mut Object,
    before: &Object,
    now: &Object,
    others: &[&Object],
    of: Schema,
    defaults: &Value,
) -> Result<(), PatchError> {
    for (name, old) in before {
        let Some(value) = map.get_mut(name) else { continue };
        let Ok((kind, key)) = of.kind(name) else {
            // A key of a map of Go.
            if !now.contains_key(name) && !others.iter().any(|other| other.contains_key(name)) {
                map.remove(name);
            }
            continue;
        };
        let of_others: Vec<&Value> = others.iter().filter_map(|other| other.get(name)).collect();
        let is_wanted = now.contains_key(name) || !of_others.is_empty();
        let defaults = &defaults[&**name];
        match (value, old) {
            (Value::Object(value), Value::Object(old)) if !ATOMIC.contains(&&**name) => {
                let none = Object::new();
                let now = now.get(name).and_then(Value::as_object).unwrap_or(&none);
                let of_others: Vec<&Object> =
                    of_others.iter().filter_map(|other| other.as_object()).collect();
                prune(value, old, now, &of_others, Schema::of(kind), defaults)?;
                // A map keeps the keys of others.
                let is_over =
                    value.is_empty() || !matches!(kind, Type::Map(_)) && is_default(value, defaults);
                if !is_wanted && is_over {
                    map.remove(name);
                }
            }
            (Value::Array(items), Value::Array(old)) if key.is_some() => {
                let (of, _) = of.list(name)?;
                let now_of_field = now.get(name).and_then(Value::as_array);
                let now_items = now_of_field.map_or(&[][..], Vec::as_slice);
                prune_list(items, old, now_items, &of_others, (of, key), &defaults[0])?;
                if items.is_empty() && now_of_field.is_none() {
                    map.remove(name);
                }
            }
            _ if !is_wanted => drop(map.remove(name)),
            _ => {}
        }
    }
    Ok(())
}

/// Whether only defaults are left of a struct. Those of [`super::dependent`] have been removed before.
fn is_default(left: &Object, defaults: &Value) -> bool {
    left.iter().all(|(name, value)| match (&**name, value) {
        ("imagePullPolicy" | "pullPolicy", _) => true,
        (_, Value::Object(left)) => is_default(left, &defaults[name]),
        _ => *value == defaults[name],
    })
}

/// The same for a list with a merge key.
fn prune_list(
    items: &mut Vec<Value>,
    before: &[Value],
    now: &[Value],
    others: &[&Value],
    (of, key): (Schema, Option<MergeKey>),
    defaults: &Value,
) -> Result<(), PatchError> {
    let key = key.filter(|key| *key != MergeKey::Itself);
    let by_identity =
        |items: &mut dyn Iterator<Item = &'_ Value>| -> Result<HashMap<Identity, Vec<Object>>, PatchError> {
            let mut found: HashMap<Identity, Vec<Object>> = HashMap::new();
            for item in items {
                let object = item.as_object().cloned().unwrap_or_default();
                found.entry(entry(item, key)?).or_default().push(object);
            }
            Ok(found)
        };
    let before = by_identity(&mut before.iter())?;
    let now = by_identity(&mut now.iter())?;
    let others = by_identity(&mut others.iter().filter_map(|other| other.as_array()).flatten())?;
    let mut kept = Vec::with_capacity(items.len());
    for mut item in items.drain(..) {
        let identity = entry(&item, key)?;
        let (now, others) = (now.get(&identity), others.get(&identity));
        let Some(old) = before.get(&identity).and_then(|old| old.first()) else {
            kept.push(item);
            continue;
        };
        let is_wanted = now.is_some() || others.is_some();
        let Value::Object(item) = &mut item else {
            kept.extend(is_wanted.then_some(item));
            continue;
        };
        let none = Object::new();
        let now = now.and_then(|now| now.first()).unwrap_or(&none);
        let others: Vec<&Object> = others.into_iter().flatten().collect();
        let second = key.and_then(second_field).map(|(field, _)| field);
        let names = key.map(MergeKey::as_str).into_iter().chain(second);
        let fields: Vec<(String, Value)> = names.filter_map(|name| item.remove_entry(name)).collect();
        let required = key.and_then(required_field).filter(|field| item.contains_key(*field));
        prune(item, old, now, &others, of, defaults)?;
        let is_whole = required.is_none_or(|field| item.contains_key(field));
        if is_wanted || is_whole && !is_default(item, defaults) {
            // Its key stays: others have the item.
            item.extend(fields);
            kept.push(Value::from(std::mem::take(item)));
        }
    }
    *items = kept;
    Ok(())
}
