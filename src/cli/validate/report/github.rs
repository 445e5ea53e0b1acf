//! Results as workflow commands of GitHub Actions.

use super::words::{message, plain_path, rule};
use crate::{
    cli::{terminal::Escaped, validate::check::CheckedManifest},
    pod::{Problem, Severity, Stage},
};

/// One annotation for each problem of a manifest.
pub(super) fn problems(checked: &CheckedManifest) -> String {
    let path = checked.path.to_string_lossy();
    checked.problems.iter().map(|problem| annotation(&path, problem, checked.stage)).collect()
}

fn annotation(path: &str, problem: &Problem, stage: Option<Stage>) -> String {
    let command = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let place = problem.position.map(|(line, column)| format!(",line={line},col={column}"));
    let (file, place) = (property(plain_path(path)), place.unwrap_or_default());
    let title = property(rule(problem, stage));
    format!("::{command} file={file}{place},title={title}::{}\n", data(&message(problem)))
}

/// The error of an argument that cannot be checked.
pub(super) fn unusable(path: &str, why: &str) -> String {
    let message = format!("{}: {why}", Escaped(path));
    format!("::error title=unusable::{}\n", data(&message))
}

/// A message as the runner reads it.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// A property as the runner reads it.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
