//! Access to the fields of a prepared pod. Every field has the type that the API gives it.

use serde_json::Value;

pub(super) use crate::pod::Object;

/// The text of a field; empty if the field is absent.
pub(super) fn text<'v>(object: &'v Object, field: &str) -> &'v str {
    given_text(object, field).unwrap_or_default()
}

/// The text of a field, if it is present.
pub(super) fn given_text<'v>(object: &'v Object, field: &str) -> Option<&'v str> {
    object.get(field)?.as_str()
}

/// The number in a field, if it is present.
pub(super) fn number(object: &Object, field: &str) -> Option<i64> {
    object.get(field)?.as_i64()
}

/// Whether a field is present and true.
pub(super) fn is_true(object: &Object, field: &str) -> bool {
    object.get(field) == Some(&Value::Bool(true))
}

/// Whether a field is present and false.
pub(super) fn is_false(object: &Object, field: &str) -> bool {
    object.get(field) == Some(&Value::Bool(false))
}

/// The object in a field, if it is present.
pub(super) fn object<'v>(object: &'v Object, field: &str) -> Option<&'v Object> {
    object.get(field)?.as_object()
}

/// The items of the list in a field; none if the field is absent.
pub(super) fn list<'v>(object: &'v Object, field: &str) -> &'v [Value] {
    object.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The objects of the list in a field.
pub(super) fn objects<'v>(object: &'v Object, field: &str) -> impl Iterator<Item = &'v Object> + use<'v> {
    list(object, field).iter().filter_map(Value::as_object)
}

/// The texts of the list in a field.
pub(super) fn texts<'v>(object: &'v Object, field: &str) -> impl Iterator<Item = &'v str> {
    list(object, field).iter().filter_map(Value::as_str)
}
