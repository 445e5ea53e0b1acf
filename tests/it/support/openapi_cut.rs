//! Cuts an `OpenAPI` document to some paths and methods, and to the definitions that they need.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The parts of a document that others refer to: JSON pointers.
const PARTS: [&str; 3] = ["/definitions", "/parameters", "/components/schemas"];

/// The methods with their field numbers in protobuf.
pub const METHODS: [(&str, u64); 7] =
    [("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("options", 6), ("head", 7), ("patch", 8)];

/// Cuts a document in JSON, of version 2 or 3.
pub fn cut_json(document: &mut Value, served: &[(&str, &[&str])]) {
    let paths = document["paths"].as_object_mut().unwrap();
    paths.retain(|path, _| served.iter().any(|(known, _)| known == path));
    for (path, item) in paths {
        let (_, methods) = served.iter().find(|(known, _)| known == path).unwrap();
        let is_other = |field: &str| METHODS.iter().all(|(method, _)| *method != field);
        item.as_object_mut().unwrap().retain(|field, _| is_other(field) || methods.contains(&&**field));
    }
    let mut needed = references(&document["paths"]);
    let mut new: Vec<String> = needed.iter().cloned().collect();
    while let Some(reference) = new.pop() {
        let of_it = references(document.pointer(&reference).expect("what is referred to"));
        new.extend(of_it.into_iter().filter(|reference| needed.insert(reference.clone())));
    }
    for part in PARTS {
        if let Some(Value::Object(definitions)) = document.pointer_mut(part) {
            definitions.retain(|name, _| needed.contains(&format!("{part}/{name}")));
        }
    }
}

/// What a part of a document refers to directly: JSON pointers.
pub fn references(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(fields) => {
            let own = fields
                .get("$ref")
                .and_then(Value::as_str)
                .map(|text| text.trim_start_matches('#').to_owned());
            fields.values().flat_map(references).chain(own).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => BTreeSet::new(),
    }
}

/// Cuts a document of version 2 in protobuf (gnostic's `openapi_v2.Document`) to what the same one in JSON has.
pub fn cut_protobuf(document: &[u8], json: &Value) -> Vec<u8> {
    const PATHS: u64 = 8;
    const DEFINITIONS: u64 = 9;
    const PARAMETERS: u64 = 10;
    let names = |part: &str| json[part].as_object().unwrap();
    edit(document, &|number, part| match number {
        PATHS => Some(edit(part, &|_, path| cut_path(path, names("paths")))),
        DEFINITIONS => Some(edit(part, &|_, named| named_in(named, names("definitions")))),
        PARAMETERS => Some(edit(part, &|_, named| named_in(named, names("parameters")))),
        _ => Some(part.to_owned()),
    })
}

/// A message with a name and a value, if a map has the name.
fn named_in(message: &[u8], names: &Map<String, Value>) -> Option<Vec<u8>> {
    names.contains_key(&name(message)).then(|| message.to_owned())
}

fn cut_path(named: &[u8], paths: &Map<String, Value>) -> Option<Vec<u8>> {
    let methods = paths.get(&name(named))?;
    let is_method = |number| METHODS.iter().find(|(_, known)| *known == number);
    let is_kept = |number| is_method(number).is_none_or(|(method, _)| methods.get(method).is_some());
    Some(edit(named, &|field, value| match field {
        2 => Some(edit(value, &|number, part| is_kept(number).then(|| part.to_owned()))),
        _ => Some(value.to_owned()),
    }))
}

/// The name of a message with a name and a value.
fn name(named: &[u8]) -> String {
    let found = std::cell::RefCell::default();
    edit(named, &|number, part| {
        if number == 1 {
            found.replace(String::from_utf8(part.to_owned()).unwrap());
        }
        None
    });
    found.into_inner()
}

/// What becomes of a field with a length, by its number and its content; none removes it.
type Replace<'r> = &'r dyn Fn(u64, &[u8]) -> Option<Vec<u8>>;

/// A message whose fields with a length are replaced or removed.
fn edit(mut message: &[u8], replace: Replace<'_>) -> Vec<u8> {
    const LENGTH_DELIMITED: u64 = 2;
    let mut edited = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        match tag & 7 {
            0 => {
                push_varint(&mut edited, tag);
                push_varint(&mut edited, varint(&mut message));
            }
            LENGTH_DELIMITED => {
                let length = usize::try_from(varint(&mut message)).unwrap();
                let (part, rest) = message.split_at(length);
                message = rest;
                if let Some(part) = replace(tag >> 3, part) {
                    push_varint(&mut edited, tag);
                    push_varint(&mut edited, part.len() as u64);
                    edited.extend(part);
                }
            }
            other => panic!("wire type {other}"),
        }
    }
    edited
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = message.split_first().unwrap();
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn push_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    message.push(u8::try_from(value).unwrap());
}
