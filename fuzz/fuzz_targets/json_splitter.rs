//! Any bytes as the response of an API server, in chunks.
//!
//! Nothing panics, the chunk sizes make no difference, every part is part of the text, and
//! what serde_json reads as events or as a list is split in the same way.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use std::mem::discriminant;

use libfuzzer_sys::fuzz_target;
use podmux::source::api::{
    json_splitter::{BodyShape, Part, SplitError},
    splitter::Splitter,
};
use podmux_fuzz::bounded;
use serde_json::{Deserializer, Value, from_slice};

fuzz_target!(|input: &[u8]| {
    // The first byte is the length of the chunks.
    let Some((chunk, text)) = input.split_first() else { return };
    let chunk = usize::from(*chunk) + 1;
    for shape in [BodyShape::Events, BodyShape::List] {
        let (parts, end) = bounded(text.len(), || split(shape, text, text.len().max(1)));
        let length: usize = parts.iter().map(|part| object(part).len()).sum();
        assert!(length <= text.len());
        for length in [1, chunk] {
            let (again, ended) = bounded(text.len(), || split(shape, text, length));
            assert_eq!(again, parts);
            assert_eq!(
                ended.map_err(|error| discriminant(&error)),
                end.clone().map_err(|error| discriminant(&error))
            );
        }
        match shape {
            BodyShape::Events => is_split_as_events(text, &parts, &end),
            BodyShape::List => is_split_as_list(text, &parts, &end),
        }
    }
});

fn split(shape: BodyShape, text: &[u8], chunk: usize) -> (Vec<Part>, Result<(), SplitError>) {
    let mut splitter = Splitter::new(false, shape);
    let mut parts = Vec::new();
    for chunk in text.chunks(chunk) {
        splitter.push(chunk);
        loop {
            match splitter.next() {
                Ok(Some(part)) => parts.push(part),
                Ok(None) => break,
                Err(error) => {
                    assert!(!error.to_string().chars().any(char::is_control), "{error}");
                    assert!(error.to_string().len() < 300, "{error}");
                    return (parts, Err(error));
                }
            }
        }
        assert!(
            splitter.capacity() <= 2 * text.len() + 64,
            "{} bytes for {}",
            splitter.capacity(),
            text.len()
        );
    }
    (parts, splitter.finish())
}

fn object(part: &Part) -> &[u8] {
    match part {
        Part::Object(text) => text,
        Part::End(_) => b"",
    }
}

fn is_split_as_events(text: &[u8], parts: &[Part], end: &Result<(), SplitError>) {
    let events: Result<Vec<Value>, _> = Deserializer::from_slice(text).into_iter().collect();
    if let Ok(events) = events
        && events.iter().all(Value::is_object)
    {
        assert_eq!(*end, Ok(()));
        let found: Vec<Value> = parts.iter().map(|part| from_slice(object(part)).unwrap()).collect();
        assert_eq!(found, events);
    }
}

fn is_split_as_list(text: &[u8], parts: &[Part], end: &Result<(), SplitError>) {
    let Ok(Value::Object(list)) = from_slice::<Value>(text) else { return };
    let are_items_items = matches!(list.get("items"), None | Some(Value::Null | Value::Array(_)));
    let is_metadata_metadata = matches!(list.get("metadata"), None | Some(Value::Object(_)));
    // Of duplicate fields serde_json keeps one.
    let names = |name: &str| text.windows(name.len()).filter(|window| *window == name.as_bytes()).count();
    let is_once = names("items") <= 1 && names("metadata") <= 1 && names("\\") == 0;
    if !are_items_items || !is_metadata_metadata || !is_once {
        return;
    }
    assert_eq!(*end, Ok(()));
    let (last, items) = parts.split_last().unwrap();
    let found: Vec<Value> = items.iter().map(|part| from_slice(object(part)).unwrap()).collect();
    assert_eq!(found, list.get("items").and_then(Value::as_array).cloned().unwrap_or_default());
    let Part::End(end) = last else { panic!("{last:?}") };
    let version = list.get("metadata").and_then(|metadata| metadata.get("resourceVersion")?.as_str());
    if names("resourceVersion") <= 1 {
        assert_eq!(end.resource_version, version.unwrap_or_default());
    }
}
