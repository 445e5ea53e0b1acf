//! Warnings about a request, as headers of its response.

use std::{collections::HashSet, fmt::Write as _};

use http::{HeaderMap, HeaderValue, header::WARNING};

use crate::{
    manifest::{UNKNOWN_FIELD, is_strict},
    pod::{Problem, Severity},
};

/// kube-apiserver's limits, in characters (`apiserver/pkg/endpoints/filters/warning.go`): if all warnings have more,
/// each one is cut, and as many are sent as fit.
const MAX_WARNINGS: usize = 4096;
const MAX_WARNING: usize = 256;

/// The most warnings of a response. Many HTTP clients read at most 100 headers.
const MAX_HEADERS: usize = 64;

/// The API's text for a warning that is an error with `Strict`: an unknown field or a duplicate key.
pub(super) fn strict_text(warning: &Problem) -> Option<String> {
    let field = warning.field.as_deref().filter(|_| is_strict(warning))?;
    // Of all texts only a JSON patch is a list.
    let what = if field.starts_with('[') { "json patch " } else { "" };
    // The field is escaped already.
    Some(match warning.detail.strip_prefix(UNKNOWN_FIELD) {
        Some(rest) => format!("{what}unknown field \"{field}\"{rest}"),
        None => format!("{what}duplicate field \"{field}\""),
    })
}

/// The warnings among problems as headers: `299 - "unknown field \"spec.foo\""`. With `Ignore`, those that are errors
/// with `Strict` are left out.
pub(super) fn warning_headers(problems: &[Problem], validation: &str) -> HeaderMap {
    let mut known = HashSet::new();
    let warnings = problems.iter().filter(|problem| problem.severity == Severity::Warning);
    let texts = warnings.filter_map(|warning| match strict_text(warning) {
        Some(_) if validation == "Ignore" => None,
        Some(text) => Some(text),
        None => Some(Problem { severity: Severity::Error, position: None, ..warning.clone() }.to_string()),
    });
    let mut texts: Vec<String> = texts.filter(|text| known.insert(text.clone())).collect();
    if texts.len() > MAX_HEADERS {
        texts.truncate(MAX_HEADERS - 1);
        texts.push("and more warnings".to_owned());
    }
    bounded(&texts).into_iter().filter_map(|text| header(&text)).map(|value| (WARNING, value)).collect()
}

/// As much of the texts as fits.
fn bounded(texts: &[String]) -> Vec<String> {
    let length = |text: &str| text.chars().count();
    let mut total = 0;
    let is_over = |text: &String| {
        total += length(text);
        total > MAX_WARNINGS
    };
    let Some(first_over) = texts.iter().position(is_over) else { return texts.to_vec() };
    let mut written = 0;
    let cut = |text: &String| text.chars().take(MAX_WARNING).collect::<String>();
    let shown = texts.iter().map(cut).enumerate().take_while(|(index, text)| {
        let fits = *index <= first_over || written < MAX_WARNINGS;
        written += length(text);
        fits
    });
    shown.map(|(_, text)| text).collect()
}

/// A header with a warning of the server.
pub(crate) fn warning_header(text: &str) -> HeaderMap {
    let text: String = text.chars().take(MAX_WARNING).collect();
    header(&text).into_iter().map(|value| (WARNING, value)).collect()
}

/// The value of a warning's header: code 299, no agent, and a quoted text without control characters.
fn header(text: &str) -> Option<HeaderValue> {
    let mut value = "299 - \"".to_owned();
    for c in text.chars() {
        match c {
            '"' | '\\' => value.extend(['\\', c]),
            // Writing to memory cannot fail.
            c if c.is_control() => drop(write!(value, "\\\\u{{{:x}}}", u32::from(c))),
            c => value.push(c),
        }
    }
    value.push('"');
    HeaderValue::from_bytes(value.as_bytes()).ok()
}
