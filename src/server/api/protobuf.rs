//! Reviews as protobuf, which kubectl 1.36 and client-go send (`k8s.io/api/authorization/v1/generated.proto`).

use http::{HeaderMap, header::CONTENT_TYPE};
use serde_json::{Map, Value, json};

/// What begins each object in protobuf.
const MAGIC: &[u8] = b"k8s\0";
/// The fields of `ResourceAttributes` and of `NonResourceAttributes`, from number 1 on.
const ATTRIBUTES: [&[&str]; 2] =
    [&["namespace", "verb", "group", "version", "resource", "subresource", "name"], &["path", "verb"]];

/// Whether a body is an object in protobuf.
pub(super) fn is_protobuf(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    media_type.split(';').next() == Some("application/vnd.kubernetes.protobuf")
}

/// A review with its kind and spec; `None` if it is malformed.
pub(super) fn review(body: &[u8]) -> Option<Value> {
    let envelope = fields(body.strip_prefix(MAGIC)?)?;
    let kind = text(last(&fields(last(&envelope, 1)?)?, 2)?)?;
    let object = fields(last(&envelope, 2).unwrap_or_default())?;
    let spec = fields(last(&object, 2).unwrap_or_default())?;
    let mut read = Map::new();
    if kind == "SelfSubjectRulesReview" {
        read.insert("namespace".to_owned(), text(last(&spec, 1).unwrap_or_default())?.into());
    } else {
        for (number, field, names) in
            [(1, "resourceAttributes", ATTRIBUTES[0]), (2, "nonResourceAttributes", ATTRIBUTES[1])]
        {
            let Some(attributes) = last(&spec, number) else { continue };
            let attributes = fields(attributes)?;
            let mut values = Map::new();
            for (number, name) in (1..).zip(names) {
                if let Some(value) = last(&attributes, number).filter(|value| !value.is_empty()) {
                    values.insert((*name).to_owned(), text(value)?.into());
                }
            }
            read.insert(field.to_owned(), values.into());
        }
    }
    Some(json!({"kind": kind, "spec": read}))
}

/// The fields of a message that have a length, with their numbers.
fn fields(mut rest: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let number = varint(&mut rest)?;
        match tag & 7 {
            // A number, which no field that is read has.
            0 => {}
            2 => {
                let (value, after) = rest.split_at_checked(usize::try_from(number).ok()?)?;
                fields.push((tag >> 3, value));
                rest = after;
            }
            _ => return None,
        }
    }
    Some(fields)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The last field with a number counts.
fn last<'m>(fields: &[(u64, &'m [u8])], number: u64) -> Option<&'m [u8]> {
    fields.iter().rev().find(|(other, _)| *other == number).map(|(_, value)| *value)
}

fn text(value: &[u8]) -> Option<&str> {
    str::from_utf8(value).ok()
}
