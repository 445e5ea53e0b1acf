//! The lists of a strategic merge patch: items are found by their merge key, and put into an order.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::error::{PatchError, kind_of, malformed};
use crate::{
    manifest::go_types::MergeKey,
    pod::{Object, quoted},
};

/// The field that says what becomes of the map that has it: `replace` or `delete`.
pub(super) const DIRECTIVE: &str = "$patch";

pub(super) fn unknown_directive(directive: &Value) -> PatchError {
    malformed(format!(
        "unknown {DIRECTIVE}: {}; replace or delete is expected",
        quoted(&directive.to_string())
    ))
}

/// What identifies an item: the JSON text of its merge key, or of the scalar itself.
pub(super) type Identity = String;

/// An item of a list.
pub(super) struct Item {
    identity: Identity,
    value: Value,
}

impl Item {
    /// An item, identified by the field of a merge key, or by itself without one.
    pub(super) fn new(value: Value, key: Option<MergeKey>) -> Result<Self, PatchError> {
        Ok(Self { identity: identity(&value, key)?, value })
    }

    fn is_deleted(&self) -> bool {
        self.value.get(DIRECTIVE).is_some_and(|directive| directive == "delete")
    }
}

/// The identity of an item.
pub(super) fn identity(item: &Value, key: Option<MergeKey>) -> Result<Identity, PatchError> {
    let scalar = match key {
        None => item,
        Some(key) => {
            let Value::Object(fields) = item else {
                return Err(malformed(format!("an item is {}, but has to be a map", kind_of(item))));
            };
            let missing =
                || malformed(format!("an item does not contain the declared merge key: {}", key.as_str()));
            fields.get(key.as_str()).ok_or_else(missing)?
        }
    };
    if matches!(scalar, Value::Array(_) | Value::Object(_)) {
        return Err(malformed(format!("{} cannot identify an item of a list", kind_of(scalar))));
    }
    Ok(scalar.to_string())
}

/// Checks that items are of one kind, which has a merge key if they are maps.
pub(super) fn check_kinds<'v>(
    mut items: impl Iterator<Item = &'v Value>,
    key: Option<MergeKey>,
) -> Result<(), PatchError> {
    let Some(first) = items.next() else { return Err(malformed("no elements in any of the given lists")) };
    match first {
        Value::Array(_) => {
            return Err(PatchError::Inapplicable("lists of lists are not supported".to_owned()));
        }
        Value::Null => return Err(malformed("an item of a list to merge is null")),
        Value::Object(_) if key.is_none() => return Err(malformed("cannot merge lists without a merge key")),
        _ => {}
    }
    let go_kind = |value: &Value| (kind_of(value), value.is_f64());
    match items.find(|item| go_kind(item) != go_kind(first)) {
        None => Ok(()),
        Some(other) => Err(malformed(format!(
            "list element types are not identical: one is {}, one is {}",
            kind_of(first),
            kind_of(other)
        ))),
    }
}

/// Merges the patch of an item into it.
pub(super) type MergeItem<'m> = &'m dyn Fn(Object, Object) -> Result<Object, PatchError>;

/// Puts the items of a merged list into an order, which depends on those of the patch and of the server.
type Order = fn(Vec<Item>, &[Identity], &[Identity]) -> Vec<Value>;

/// How a patch merges lists.
pub(super) struct Rules {
    /// Finds the identity of an item.
    pub(super) identify: fn(&Value, Option<MergeKey>) -> Result<Identity, PatchError>,
    pub(super) in_order: Order,
    /// Whether an item of the patch replaces several of its identity, or is merged into the first of them.
    pub(super) replaces_duplicates: bool,
    /// The fields whose maps a patch replaces.
    pub(super) replaced: &'static [&'static str],
}

impl Rules {
    /// The identities of items.
    pub(super) fn identities<'v>(
        &self,
        items: impl Iterator<Item = &'v Value>,
        key: Option<MergeKey>,
    ) -> Result<Vec<Identity>, PatchError> {
        items.map(|item| (self.identify)(item, key)).collect()
    }
}

/// Those of a strategic merge patch.
pub(super) const STRATEGIC: Rules =
    Rules { identify: identity, in_order: ordered, replaces_duplicates: false, replaced: &[] };

/// Merges a patch of a list. `deletes` says that the patch has the scalars to remove.
pub(super) fn merge(
    old: Vec<Value>,
    patch: Vec<Value>,
    key: Option<MergeKey>,
    deletes: bool,
    rules: &Rules,
    merge_item: MergeItem<'_>,
) -> Result<Vec<Value>, PatchError> {
    if old.is_empty() && patch.is_empty() {
        return Ok(old);
    }
    let key = key.filter(|key| *key != MergeKey::Itself);
    check_kinds(old.iter().chain(&patch), key)?;
    let are_maps = old.iter().chain(&patch).next().is_some_and(Value::is_object);
    if deletes && !are_maps {
        let gone: HashSet<Identity> = patch.iter().map(Value::to_string).collect();
        return Ok(old.into_iter().filter(|item| !gone.contains(&item.to_string())).collect());
    }
    let (old, patch) = if are_maps { directed(old, patch, key)? } else { (old, patch) };
    let (server, order) = (rules.identities(old.iter(), key)?, rules.identities(patch.iter(), key)?);
    let mut merged: Vec<Item> = Vec::with_capacity(old.len() + patch.len());
    let mut known: HashMap<Identity, usize> = HashMap::new();
    let replacing: HashSet<&Identity> =
        if are_maps && rules.replaces_duplicates { order.iter().collect() } else { HashSet::new() };
    for (value, identity) in old.into_iter().zip(server) {
        let place = merged.len();
        let first = *known.entry(identity.clone()).or_insert(place);
        if first != place && replacing.contains(&identity) {
            // The item of the patch is merged into nothing.
            merged[first].value = Object::new().into();
        } else if first == place || are_maps {
            // A list of scalars has each once.
            merged.push(Item { identity, value });
        }
    }
    let server: Vec<Identity> = merged.iter().map(|item| item.identity.clone()).collect();
    for (value, identity) in patch.into_iter().zip(&order) {
        match (known.get(identity), value) {
            (Some(at), Value::Object(patch)) => {
                let value = &mut merged[*at].value;
                let old = value.as_object_mut().map(std::mem::take).unwrap_or_default();
                *value = merge_item(old, patch)?.into();
            }
            (Some(_), _) => {}
            (None, value) => {
                known.insert(identity.clone(), merged.len());
                merged.push(Item { identity: identity.clone(), value });
            }
        }
    }
    Ok((rules.in_order)(merged, &order, &server))
}

/// Follows the directives of a patch's items: returns the list without the deleted items, and the patch without
/// directives. A replaced list consists of the patch.
fn directed(
    mut old: Vec<Value>,
    patch: Vec<Value>,
    key: Option<MergeKey>,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let (mut gone, mut is_replaced, mut kept) = (HashSet::new(), false, Vec::with_capacity(patch.len()));
    for item in patch {
        match item.get(DIRECTIVE) {
            None => kept.push(item),
            Some(directive) if directive == "delete" => drop(gone.insert(identity(&item, key)?)),
            Some(directive) if directive == "replace" => is_replaced = true,
            Some(other) => return Err(unknown_directive(other)),
        }
    }
    if is_replaced {
        return Ok((kept, Vec::new()));
    }
    if !gone.is_empty() {
        old.retain(|item| identity(item, key).map_or(true, |identity| !gone.contains(&identity)));
    }
    Ok((old, kept))
}

/// Checks that the items of a patch are in the order that it sets.
pub(super) fn check_order<'v>(
    patch: impl Iterator<Item = &'v Value>,
    order: &[Identity],
    key: Option<MergeKey>,
) -> Result<(), PatchError> {
    if order.is_empty() {
        return Ok(());
    }
    let mut order = order.iter();
    for item in patch {
        match item.get(DIRECTIVE) {
            Some(directive) if directive == "delete" && key.is_some() => continue,
            Some(_) if order.len() > 0 => continue,
            _ => {}
        }
        let identity = if order.len() > 0 { Some(identity(item, key)?) } else { None };
        if !order.any(|wanted| Some(wanted) == identity.as_ref()) {
            return Err(malformed("The order in patch list doesn't match $setElementOrder list"));
        }
    }
    Ok(())
}

/// Puts items into an order: those of the patch as the patch has them, the others as the server has them. Where both
/// lists say nothing about two items, that of the patch is first.
pub(super) fn ordered(items: Vec<Item>, patch: &[Identity], server: &[Identity]) -> Vec<Value> {
    let (in_patch, in_server) = (places(patch), places(server));
    let (mut of_patch, mut others): (Vec<Item>, Vec<Item>) =
        items.into_iter().partition(|item| in_patch.contains_key(&item.identity));
    of_patch.sort_by_key(|item| (item.is_deleted(), in_patch.get(&item.identity).copied()));
    let last = usize::MAX;
    others.sort_by_key(|item| (item.is_deleted(), in_server.get(&item.identity).copied().unwrap_or(last)));
    let mut others = others.into_iter().peekable();
    let mut result = Vec::with_capacity(of_patch.len() + others.len());
    for item in of_patch {
        let place = in_server.get(&item.identity);
        let is_before = |other: &Item| in_server.get(&other.identity).zip(place).is_some_and(|(a, b)| a < b);
        while let Some(other) = others.next_if(is_before) {
            result.push(other.value);
        }
        result.push(item.value);
    }
    result.extend(others.map(|item| item.value));
    result
}

/// Puts items into the order of an apply (`visitListItems` of structured-merge-diff): those that only the server has
/// stay in their place, and those that only the patch has are before the next item that both have, or last. From the
/// first of both that is further ahead at the server, all items of the patch are last.
pub(super) fn applied(items: Vec<Item>, patch: &[Identity], server: &[Identity]) -> Vec<Value> {
    let (in_patch, in_server) = (places(patch), places(server));
    let both = patch.iter().enumerate().filter_map(|(at, identity)| Some((at, *in_server.get(identity)?)));
    let mut last = None;
    let both: Vec<(usize, usize)> =
        both.take_while(|(_, place)| last.replace(*place) <= Some(*place)).collect();
    let rank = |(place, item): (usize, Item)| match in_patch.get(&item.identity) {
        None => ((place, 0), item.value),
        Some(&at) => {
            let next = both.get(both.partition_point(|(other, _)| *other < at));
            ((next.map_or(usize::MAX, |(_, place)| *place), at), item.value)
        }
    };
    let mut ranked: Vec<((usize, usize), Value)> = items.into_iter().enumerate().map(rank).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, value)| value).collect()
}

/// The first place of each identity.
fn places(identities: &[Identity]) -> HashMap<&Identity, usize> {
    let mut places = HashMap::with_capacity(identities.len());
    for (place, identity) in identities.iter().enumerate() {
        places.entry(identity).or_insert(place);
    }
    places
}
