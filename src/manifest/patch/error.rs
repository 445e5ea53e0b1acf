//! Why a patch cannot be applied.

use serde_json::Value;

/// Why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// It is not a patch of its type.
    #[error("{0}")]
    Malformed(String),
    /// It does not apply to the pod.
    #[error("{0}")]
    Inapplicable(String),
    /// It exceeds a bound.
    #[error("{0}")]
    TooLarge(String),
}

pub(super) fn malformed(why: impl Into<String>) -> PatchError {
    PatchError::Malformed(why.into())
}

/// The kind of a value, for an error. The value itself may be a secret.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
