//! Results as lines: one for each problem, or one JSON object for each manifest.

use std::num::NonZero;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    cli::{
        failure::Failure,
        terminal::{BOLD, Escaped, YELLOW, styled},
        validate::check::CheckedManifest,
    },
    pod::{Prepared, Problem, Severity, Stage},
};

/// One line for each problem of a manifest.
pub(super) fn problems(checked: &CheckedManifest, colour: bool) -> String {
    let path = checked.path.to_string_lossy();
    checked.problems.iter().map(|problem| line(&path, problem, colour)).collect()
}

/// `PATH:LINE:COLUMN: FIELD: REASON: detail`.
pub(super) fn line(path: &str, problem: &Problem, colour: bool) -> String {
    let place = match problem.position {
        Some((line, column)) => format!("{}:{line}:{column}", Escaped(path)),
        None => Escaped(path).to_string(),
    };
    let mut parts = vec![styled(colour, BOLD, &place)];
    if problem.severity == Severity::Warning {
        parts.push(styled(colour, YELLOW, "warning"));
    }
    parts.extend(problem.field.as_deref().map(|field| Escaped(field).to_string()));
    parts.extend(problem.reason.map(str::to_owned));
    parts.push(Escaped(&problem.detail).to_string());
    parts.join(": ") + "\n"
}

/// The result of a manifest as one line of JSON.
pub(super) fn json(checked: &CheckedManifest) -> Result<String, Failure> {
    let object = ManifestObject {
        path: &checked.path.to_string_lossy(),
        ok: checked.is_valid(),
        stage: checked.stage.map(Stage::as_str),
        problems: &checked.problems,
        pods: checked.pods().iter().map(Prepared::object).collect(),
        skipped: NonZero::new(checked.skipped),
    };
    Ok(serde_json::to_string(&object).map_err(Failure::failed)? + "\n")
}

#[derive(Serialize)]
struct ManifestObject<'a> {
    path: &'a str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<&'static str>,
    problems: &'a [Problem],
    pods: Vec<&'a Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<NonZero<usize>>,
}
