//! `--sort-by`: sorts rows or objects by a value in each, as kubectl does.

use std::cmp::Ordering;

use anyhow::anyhow;
use serde_json::Value;

use crate::{
    cli::{failure::Failure, jsonpath::Template, output::text},
    pod::Quantity,
};

/// Sorts rows or objects by what an expression finds in each: first those in which it finds nothing, then
/// by number, quantity or text.
pub(super) fn sort(items: &mut Vec<Value>, by: &Template) -> Result<(), Failure> {
    let object = |item: &Value| by.first(if item["cells"].is_array() { &item["object"] } else { item });
    let keys: Vec<Option<Value>> =
        items.iter().map(object).collect::<Result<_, _>>().map_err(Failure::failed)?;
    if items.len() > 1 && keys.iter().all(Option::is_none) {
        let path = by.text();
        return Err(Failure::Failed(anyhow!(
            "couldn't find any field with path {path:?} in the list of objects"
        )));
    }
    let order = order(keys.iter().flatten()).ok_or_else(|| {
        let path = by.text();
        Failure::Failed(anyhow!("cannot sort by {path}: its values are not all numbers, or all texts"))
    })?;
    let mut sorted: Vec<_> = keys.into_iter().zip(std::mem::take(items)).collect();
    sorted.sort_by(|(left, _), (right, _)| match (left, right) {
        // A null is after what is absent.
        (Some(left), Some(right)) => (!left.is_null()).cmp(&!right.is_null()).then_with(|| {
            if left.is_null() || right.is_null() { Ordering::Equal } else { order(left, right) }
        }),
        (left, right) => left.is_some().cmp(&right.is_some()),
    });
    items.extend(sorted.into_iter().map(|(_, item)| item));
    Ok(())
}

/// The order of values that are not null. kubectl decides for each two of them whether they are quantities,
/// which is no order where only some are.
fn order<'v>(values: impl Iterator<Item = &'v Value>) -> Option<fn(&Value, &Value) -> Ordering> {
    let values: Vec<&Value> = values.filter(|value| !value.is_null()).collect();
    let all = |is: fn(&Value) -> bool| values.iter().all(|value| is(value));
    if all(Value::is_number) {
        Some(|left, right| number(left).total_cmp(&number(right)))
    } else if all(|value| value.as_str().is_some_and(|text| Quantity::parse(text).is_some())) {
        Some(quantities)
    } else if all(Value::is_string) {
        Some(|left, right| text(left).cmp(text(right)))
    } else {
        None
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

fn quantities(left: &Value, right: &Value) -> Ordering {
    match (Quantity::parse(text(left)), Quantity::parse(text(right))) {
        (Some(left), Some(right)) if left.exceeds(&right) => Ordering::Greater,
        (Some(left), Some(right)) if right.exceeds(&left) => Ordering::Less,
        _ => Ordering::Equal,
    }
}
