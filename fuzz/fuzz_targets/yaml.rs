//! Any text through the YAML composer.
//!
//! Beyond not panicking: a fault stands at a place that the text has, and a
//! value, written as JSON, is read as the same value by both readers.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use std::fmt::Write as _;

use libfuzzer_sys::fuzz_target;
use podmux::manifest::yaml;
use podmux_fuzz::stands_in;
use serde_json::{Value, json};

/// YAML wants a key and its colon within 1,024 characters; JSON does not.
const LONGEST_KEY: usize = 1_000;

fuzz_target!(|text: &str| {
    match yaml::to_json(text) {
        Ok(value) => {
            // A map, for only what begins with `{` is tried as JSON: in a text of
            // YAML some characters that `!!binary` may give have to be escaped.
            let value = json!({ "value": value });
            let json = value.to_string();
            assert_eq!(yaml::to_json(&json).unwrap(), value, "from {json}");
            if !long_keys(&value) {
                let text = flow(&json);
                assert_eq!(yaml::to_json(&text).unwrap(), value, "from {text}");
            }
        }
        Err(problem) => {
            assert!(stands_in(text, &problem), "{problem:?}");
            assert!(!problem.detail.contains('\n'), "one line: {problem:?}");
        }
    }
});

/// JSON as a YAML document that nobody takes for JSON. What YAML wants escaped is escaped.
fn flow(json: &str) -> String {
    let mut text = "--- ".to_owned();
    for character in json.chars() {
        match character {
            ' '..='~' => text.push(character),
            _ => write!(text, "\\U{:08X}", u32::from(character)).unwrap(),
        }
    }
    text
}

fn long_keys(value: &Value) -> bool {
    match value {
        // An escape takes ten characters at most.
        Value::Object(map) => map.iter().any(|(key, value)| key.len() * 10 > LONGEST_KEY || long_keys(value)),
        Value::Array(items) => items.iter().any(long_keys),
        _ => false,
    }
}
