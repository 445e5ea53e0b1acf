//! Results as SARIF 2.1.0, the format of code scanning.

use std::{collections::BTreeSet, iter::once};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::words::{message, plain_path, rule};
use crate::{
    cli::{terminal::Escaped, validate::check::CheckedManifest},
    pod::{Problem, Stage},
};

const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// What is encoded in the path of a URI.
const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What each rule says. The API's own reasons are not all listed.
const RULES: [(&str, &str); 14] = [
    ("DuplicateName", "Another pod of the directory has the name."),
    ("DuplicateUID", "Another pod of the directory has the UID."),
    ("FieldValueDuplicate", "A value occurs twice."),
    ("FieldValueForbidden", "A field may not be set."),
    ("FieldValueInvalid", "A value is not allowed."),
    ("FieldValueNotFound", "A name refers to nothing in the pod."),
    ("FieldValueNotSupported", "A value is none of those that are supported."),
    ("FieldValueRequired", "A field is missing."),
    ("FieldValueTypeInvalid", "A value has the wrong type."),
    ("decode", "The text cannot be decoded as pods."),
    ("reference", "A pod refers to an object that only an API server can resolve."),
    ("security", "A pod exceeds its level of the Pod Security Standards."),
    ("unreadable", "The file cannot be read."),
    ("warning", "The manifest is valid, but its author probably meant something else."),
];

/// A log of one run. Results are written as they come, and the rules that they break at the end.
#[derive(Default)]
pub(super) struct Sarif {
    has_begun: bool,
    has_results: bool,
    rules: BTreeSet<&'static str>,
    unusable: Vec<Value>,
}

impl Sarif {
    /// The results of a manifest.
    pub(super) fn problems(&mut self, checked: &CheckedManifest) -> String {
        let path = checked.path.to_string_lossy();
        let mut text = self.begin();
        for problem in &checked.problems {
            text += if self.has_results { ",\n" } else { "" };
            self.has_results = true;
            self.rules.insert(rule(problem, checked.stage));
            text += &result(&path, problem, checked.stage).to_string();
        }
        text
    }

    /// Adds the error of an argument that cannot be checked.
    pub(super) fn unusable(&mut self, path: &str, why: &str) {
        let text = format!("{}: {why}", Escaped(path));
        self.unusable.push(json!({ "level": "error", "message": { "text": text } }));
    }

    fn begin(&mut self) -> String {
        if self.has_begun {
            return String::new();
        }
        self.has_begun = true;
        format!(
            "{{\"$schema\":\"{SCHEMA}\",\"version\":\"2.1.0\",\"runs\":[{{\"columnKind\":\"unicodeCodePoints\",\"results\":[\n"
        )
    }

    /// The end of the log.
    pub(super) fn end(&mut self) -> String {
        let rules: Vec<Value> = self.rules.iter().map(|id| described(id)).collect();
        let driver = json!({
            "name": "podmux",
            "version": env!("CARGO_PKG_VERSION"),
            "semanticVersion": env!("CARGO_PKG_VERSION"),
            "rules": rules,
        });
        let invocation = json!({
            "executionSuccessful": self.unusable.is_empty(),
            "toolExecutionNotifications": self.unusable,
        });
        let begin = self.begin();
        format!("{begin}\n],\"tool\":{{\"driver\":{driver}}},\"invocations\":[{invocation}]}}]}}\n")
    }
}

fn described(id: &str) -> Value {
    let known = RULES.iter().find(|(known, _)| *known == id);
    let text = known.map_or(id, |(_, text)| text);
    json!({ "id": id, "shortDescription": { "text": text } })
}

fn result(path: &str, problem: &Problem, stage: Option<Stage>) -> Value {
    // Code scanning needs a line.
    let (line, column) = problem.position.unwrap_or((1, 1));
    let mut location = json!({ "physicalLocation": {
        "artifactLocation": { "uri": uri(path) },
        "region": { "startLine": line, "startColumn": column },
    } });
    if let Some(field) = &problem.field {
        let field = Escaped(field).to_string();
        location["logicalLocations"] = once(json!({ "fullyQualifiedName": field })).collect();
    }
    json!({
        "ruleId": rule(problem, stage),
        "level": problem.severity,
        "message": { "text": message(problem) },
        "locations": [location],
    })
}

/// A path as a URI, relative to the root of the repository.
fn uri(path: &str) -> String {
    let scheme = if path.starts_with('/') { "file://" } else { "" };
    format!("{scheme}{}", utf8_percent_encode(plain_path(path), &ENCODED))
}
