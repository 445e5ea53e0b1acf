//! Any text through the YAML composer.
//!
//! Nothing panics, a problem has a position in the text, and a value that is written as JSON
//! is read as the same value by both parsers.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use std::fmt::Write as _;

use libfuzzer_sys::fuzz_target;
use podmux::manifest::yaml;
use podmux_fuzz::{bounded, is_position_in};
use serde_json::{Number, Value, json};

/// The longest key with its colon in YAML, in characters; JSON has no limit.
const LONGEST_KEY: usize = 1_000;

/// More than the text that aliases may make, in bytes.
const LARGEST_EXPANSION: usize = 100 << 10;

fuzz_target!(|text: &str| {
    // An alias repeats what the text has once, within a bound of its own.
    let length = if text.contains('*') { LARGEST_EXPANSION } else { text.len() };
    match bounded(length, || yaml::to_json(text)) {
        Ok(value) => {
            // A map, because only a text that begins with `{` is read as JSON. In YAML some
            // characters that `!!binary` may contain must be escaped.
            let value = json!({ "value": value });
            let json = value.to_string();
            assert_eq!(yaml::to_json(&json).unwrap(), value, "from {json}");
            if !long_keys(&value) {
                let text = flow(&json);
                assert_eq!(yaml::to_json(&text).unwrap(), whole(value), "from {text}");
            }
        }
        Err(problem) => {
            assert!(is_position_in(text, &problem), "{problem:?}");
            assert!(!problem.detail.contains('\n'), "one line: {problem:?}");
        }
    }
});

/// JSON as a YAML document that is not read as JSON, with the escapes that YAML needs.
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

/// The value as YAML has it: 4 for 4.0, which JSON keeps, and so does the kubelet.
fn whole(value: Value) -> Value {
    match value {
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, whole(value))).collect(),
        Value::Array(items) => items.into_iter().map(whole).collect(),
        Value::Number(number) if number.is_f64() => {
            let text = number.as_f64().unwrap().to_string();
            let integer =
                text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
            integer.unwrap_or(number).into()
        }
        value => value,
    }
}

fn long_keys(value: &Value) -> bool {
    match value {
        // An escape has at most ten characters.
        Value::Object(map) => map.iter().any(|(key, value)| key.len() * 10 > LONGEST_KEY || long_keys(value)),
        Value::Array(items) => items.iter().any(long_keys),
        _ => false,
    }
}
