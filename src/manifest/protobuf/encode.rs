//! Encodes JSON as a protobuf message.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::wire::{put_bytes, put_number};
use crate::manifest::go_types::{Struct, Type};

/// Encodes a JSON object as the message of a Go struct. Fields that the struct does not have, and values that do not
/// fit, are left out; so are those that are absent in JSON, which every reader takes for their zero values.
pub(crate) fn message(of: &Struct, object: &Map<String, Value>) -> Vec<u8> {
    let mut out = Vec::new();
    // The messages of structs that Go embeds.
    let mut embedded: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    for (name, value) in object {
        let Some(field) = of.field(name) else { continue };
        // The envelope has the fields without a number.
        let Some(number) = field.number else { continue };
        match field.message {
            None => put(&mut out, &field.kind, number, value),
            Some(outer) => put(embedded.entry(outer).or_default(), &field.kind, number, value),
        }
    }
    for (number, message) in embedded {
        put_bytes(&mut out, number, &message);
    }
    out
}

/// Appends a field.
fn put(out: &mut Vec<u8>, kind: &Type, number: u8, value: &Value) {
    match (kind, value) {
        (_, Value::Null) => {}
        (Type::List(of), Value::Array(items)) => items.iter().for_each(|item| put(out, of, number, item)),
        (Type::Map(of), Value::Object(map)) => {
            for (key, value) in map {
                let mut entry = Vec::new();
                put_bytes(&mut entry, 1, key.as_bytes());
                put(&mut entry, of, 2, value);
                put_bytes(out, number, &entry);
            }
        }
        (Type::Struct(of), Value::Object(object)) => put_bytes(out, number, &message(of, object)),
        (Type::String, Value::String(text)) => put_bytes(out, number, text.as_bytes()),
        (Type::Bool, Value::Bool(flag)) => put_number(out, number, u64::from(*flag)),
        (Type::Int32 | Type::Int64, Value::Number(value)) => {
            // A negative number is written with all its 64 bits.
            put_number(out, number, value.as_i64().unwrap_or_default().cast_unsigned());
        }
        (kind, value) => {
            if let Some(message) = scalar_message(kind, value) {
                put_bytes(out, number, &message);
            }
        }
    }
}

/// The message of a value that is a scalar in JSON.
fn scalar_message(kind: &Type, value: &Value) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match (kind, value) {
        (Type::Quantity, Value::String(text)) => put_bytes(&mut out, 1, text.as_bytes()),
        (Type::Time, Value::String(text)) => {
            let time: Timestamp = text.parse().ok()?;
            put_number(&mut out, 1, time.as_second().cast_unsigned());
        }
        (Type::IntOrString, Value::Number(value)) => {
            put_number(&mut out, 1, 0);
            put_number(&mut out, 2, value.as_i64()?.cast_unsigned());
        }
        (Type::IntOrString, Value::String(text)) => {
            put_number(&mut out, 1, 1);
            put_bytes(&mut out, 3, text.as_bytes());
        }
        (Type::Any, value) => put_bytes(&mut out, 1, value.to_string().as_bytes()),
        _ => return None,
    }
    Some(out)
}
