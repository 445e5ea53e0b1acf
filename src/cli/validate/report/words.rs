//! What the formats of other programs say of a problem: its message, its rule and its path.

use crate::{
    cli::terminal::Escaped,
    pod::{Problem, Severity, Stage},
};

/// The field and the explanation of a problem, on one line.
pub(super) fn message(problem: &Problem) -> String {
    let field = problem.field.as_deref().map(|field| format!("{field}: ")).unwrap_or_default();
    Escaped(&(field + &problem.detail)).to_string()
}

/// The name of the rule that a problem breaks: the API's reason, or the step that found it.
pub(super) fn rule(problem: &Problem, stage: Option<Stage>) -> &'static str {
    match (problem.reason, problem.severity, stage) {
        (Some(reason), ..) => reason,
        (None, Severity::Warning, _) => "warning",
        (None, _, Some(stage)) => stage.as_str(),
        (None, _, None) => "unreadable",
    }
}

/// A path as other programs show it: without a leading `./`.
pub(super) fn plain_path(path: &str) -> &str {
    path.strip_prefix("./").filter(|rest| !rest.is_empty()).unwrap_or(path)
}
