//! Strategic merge patches: maps are merged, and lists by the merge keys of the API's types.
//!
//! The result is that of `k8s.io/apimachinery/pkg/util/strategicpatch`, in linear time. Only the lists of an item that a
//! patch has again are merged again, within a bound.

use std::cell::Cell;

use serde_json::Value;

use super::{
    error::{PatchError, kind_of, malformed},
    list::{self, DIRECTIVE, Item, Rules, unknown_directive},
};
use crate::{
    manifest::go_types::{self, MergeKey, Struct, Type},
    pod::{Object, drop_nulls, quoted},
};

/// The field with the names of all fields that remain of a map.
const RETAIN_KEYS: &str = "$retainKeys";
/// The beginning of a field with scalars to remove from a list: `$deleteFromPrimitiveList/finalizers`.
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
/// The beginning of a field with the order of a list: `$setElementOrder/containers`.
const SET_ORDER: &str = "$setElementOrder";

/// The most bytes that the keys of the items of all lists that are merged may have. Each item counts [`ITEM`] bytes more.
/// Merged once, the containers, variables and volumes of a pod of 10 MiB have less.
const MAX_MERGED: usize = 16 << 20;
const ITEM: usize = 16;

/// Merges a patch into a pod, its lists by these rules.
pub(super) fn merge(pod: Object, patch: Object, rules: Rules) -> Result<Object, PatchError> {
    merge_map(pod, patch, Schema::POD, &Merging { rules, merged: Cell::new(0) })
}

/// The merge of a patch: the rules of its lists, and what counts for [`MAX_MERGED`].
struct Merging {
    rules: Rules,
    merged: Cell<usize>,
}

impl Merging {
    /// Counts the items of a list before a patch is merged into it.
    fn count(&self, items: &[Value], key: Option<MergeKey>) -> Result<(), PatchError> {
        let field = key.map_or("", MergeKey::as_str);
        let size = |item: &Value| ITEM + item.get(field).unwrap_or(item).as_str().map_or(0, str::len);
        self.merged.set(self.merged.get() + items.iter().map(size).sum::<usize>());
        if self.merged.get() <= MAX_MERGED {
            return Ok(());
        }
        Err(PatchError::TooLarge("the patch merges too many items of lists: send each item once".to_owned()))
    }
}

/// The Go type of a value.
#[derive(Clone, Copy)]
pub(super) struct Schema(Option<&'static Struct>);

impl Schema {
    pub(super) const POD: Self = Self(Some(&go_types::POD));

    /// The schema of a Go type.
    pub(super) fn of(kind: &'static Type) -> Self {
        match kind {
            Type::Struct(of) => Self(Some(of)),
            _ => Self(None),
        }
    }

    /// The type of a field. As in Go's JSON, the case of its name does not matter.
    pub(super) fn kind(self, name: &str) -> Result<(&'static Type, Option<MergeKey>), PatchError> {
        let Some(of) = self.0 else {
            return Err(malformed(format!("{}: the map that has it has no fields to merge", quoted(name))));
        };
        let fold = || of.0.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        let field = of.field(name).or_else(fold);
        let field = field.ok_or_else(|| malformed(format!("unable to find api field {}", quoted(name))))?;
        Ok((&field.kind, field.merge_key))
    }

    /// The schema of the items of a field that is a list, and their merge key.
    pub(super) fn list(self, name: &str) -> Result<(Self, Option<MergeKey>), PatchError> {
        match self.kind(name)? {
            (Type::List(of), key) => Ok((Self::of(of), key)),
            _ => Err(malformed(format!("{} is no list", quoted(name)))),
        }
    }
}

/// Merges a patch of a map into it.
fn merge_map(mut map: Object, mut patch: Object, of: Schema, work: &Merging) -> Result<Object, PatchError> {
    match patch.remove(DIRECTIVE) {
        None => {}
        Some(Value::String(directive)) if directive == "replace" => return Ok(patch),
        Some(Value::String(directive)) if directive == "delete" => return Ok(Object::new()),
        Some(other) => return Err(unknown_directive(&other)),
    }
    retain_keys(&mut map, &mut patch)?;
    set_orders(&mut map, &mut patch, of, work)?;
    for (name, value) in patch {
        if name.starts_with(DELETE_FROM_LIST) {
            merge_field(&mut map, target(&name, DELETE_FROM_LIST)?, value, of, work, true)?;
        } else {
            merge_field(&mut map, &name, value, of, work, false)?;
        }
    }
    Ok(map)
}

/// The list that a directive is about.
fn target<'n>(name: &'n str, prefix: &str) -> Result<&'n str, PatchError> {
    let target = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/'));
    target.ok_or_else(|| malformed(format!("{} is not {prefix}/LIST", quoted(name))))
}

/// Merges the patch of a field. `deletes` says that it has the scalars to remove.
fn merge_field(
    map: &mut Object,
    name: &str,
    patch: Value,
    of: Schema,
    work: &Merging,
    deletes: bool,
) -> Result<(), PatchError> {
    if patch.is_null() {
        map.remove(name);
        return Ok(());
    }
    let Some(old) = map.get_mut(name) else {
        if !deletes {
            insert(map, name, patch);
        }
        return Ok(());
    };
    match (old, patch) {
        (Value::Object(old), Value::Object(patch)) if !work.rules.replaced.contains(&name) => {
            let (kind, _) = of.kind(name)?;
            *old = merge_map(std::mem::take(old), patch, Schema::of(kind), work)?;
        }
        (Value::Array(old), Value::Array(patch)) => {
            let (items, key) = of.list(name)?;
            *old = if key.is_some() || deletes {
                work.count(old, key)?;
                list::merge(std::mem::take(old), patch, key, deletes, &work.rules, &|old, patch| {
                    merge_map(old, patch, items, work)
                })?
            } else {
                patch
            };
        }
        (old, patch) if deletes && kind_of(old) != kind_of(&patch) => {}
        (_, patch) => insert(map, name, patch),
    }
    Ok(())
}

/// Sets a field that is not merged.
fn insert(map: &mut Object, name: &str, mut value: Value) {
    drop_nulls(&mut value);
    match without_directives(value) {
        Some(value) => drop(map.insert(name.to_owned(), value)),
        None => drop(map.remove(name)),
    }
}

/// Removes the maps that have a directive.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => None,
        Value::Object(fields) => {
            let fields = fields.into_iter();
            let kept = fields.filter_map(|(name, value)| Some((name, without_directives(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => Some(items.into_iter().filter_map(without_directives).collect()),
        value => Some(value),
    }
}

/// Removes the fields that `$retainKeys` does not name.
fn retain_keys(map: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let bad = |why: String| malformed(format!("invalid patch format of retainKeys: {why}"));
    let Value::Array(retained) = retained else { return Err(bad(format!("it is {}", kind_of(&retained)))) };
    let retained: std::collections::HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    for (name, value) in &*patch {
        let is_list = name.starts_with(DELETE_FROM_LIST) || name.starts_with(SET_ORDER);
        if !value.is_null() && !is_list && !retained.contains(&**name) {
            return Err(bad(format!("the patch sets {}, which is not retained", quoted(name))));
        }
    }
    map.retain(|name, _| retained.contains(&**name));
    Ok(())
}

/// Merges the lists whose order the patch sets.
fn set_orders(map: &mut Object, patch: &mut Object, of: Schema, work: &Merging) -> Result<(), PatchError> {
    let names: Vec<String> = patch.keys().filter(|name| name.starts_with(SET_ORDER)).cloned().collect();
    for directive in names {
        let order = a_list(&directive, patch.remove(&directive))?.unwrap_or_default();
        let name = target(&directive, SET_ORDER)?;
        let old = a_list(name, map.get_mut(name).map(Value::take))?;
        let new = a_list(name, patch.remove(name))?;
        let (items, key) = of.list(name)?;
        if old.is_none() && new.is_none() {
            continue;
        }
        work.count(old.as_deref().unwrap_or_default(), key)?;
        let field = key.filter(|key| *key != MergeKey::Itself);
        let server = list::STRATEGIC.identities(old.iter().flatten(), field)?;
        let order = list::STRATEGIC.identities(order.iter(), field)?;
        list::check_order(new.iter().flatten(), &order, field)?;
        list::check_kinds(old.iter().flatten().chain(new.iter().flatten()), field)?;
        let merged = match (old, new) {
            (old, None) => old.unwrap_or_default(),
            (None, Some(new)) => new.into_iter().filter_map(without_directives).collect(),
            (Some(old), Some(new)) if key.is_some() => {
                list::merge(old, new, key, false, &list::STRATEGIC, &|old, patch| {
                    merge_map(old, patch, items, work)
                })?
            }
            (Some(_), Some(new)) => new,
        };
        let merged: Result<Vec<Item>, PatchError> =
            merged.into_iter().map(|item| Item::new(item, field)).collect();
        map.insert(name.to_owned(), list::ordered(merged?, &order, &server).into());
    }
    Ok(())
}

fn a_list(name: &str, value: Option<Value>) -> Result<Option<Vec<Value>>, PatchError> {
    match value {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(other) => {
            Err(malformed(format!("{}: a list is expected, but this is {}", quoted(name), kind_of(&other))))
        }
    }
}
