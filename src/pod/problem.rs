//! The problems of a manifest: position, field, reason and explanation.

use std::fmt;

use serde::{Serialize, ser::Serializer};

/// Whether a problem rejects the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The manifest is rejected.
    Error,
    /// The manifest is accepted, but its author probably meant something else.
    Warning,
}

/// The step of reading at which a manifest was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The text cannot be decoded as pods.
    Decode,
    /// A pod has no name.
    Name,
    /// The API's validation rejects a field.
    Validate,
    /// A pod refers to an object that only an API server can resolve.
    Reference,
    /// A pod exceeds the level of the Pod Security Standards that its source may use.
    Security,
}

impl Stage {
    /// The name in reports: `decode`, `name`, `validate`, `reference` or `security`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Name => "name",
            Self::Validate => "validate",
            Self::Reference => "reference",
            Self::Security => "security",
        }
    }
}

/// One error or warning about a manifest.
///
/// `Display` writes `LINE:COLUMN: FIELD: detail` without the parts that are not
/// known, and `warning` before the field of a warning. The caller adds the file's name.
/// In JSON, the position is the fields `line` and `column`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Whether the problem rejects the manifest.
    pub severity: Severity,
    /// Line and column in the text, both counted from 1.
    #[serde(flatten, serialize_with = "line_and_column")]
    pub position: Option<(u32, u32)>,
    /// The field's path as the API writes it: `spec.containers[0].name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The API's name of the reason (`FieldValueRequired`), if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The explanation.
    pub detail: String,
    /// How many problems it stands for: 1, or those that are too many to be listed.
    #[serde(skip)]
    pub count: usize,
}

impl Problem {
    /// An error with only an explanation.
    pub fn error(detail: impl Into<String>) -> Self {
        let (severity, detail) = (Severity::Error, detail.into());
        Self { severity, position: None, field: None, reason: None, detail, count: 1 }
    }

    /// A warning with only an explanation.
    pub fn warning(detail: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(detail) }
    }

    /// Sets the line and column, both counted from 1.
    #[must_use]
    pub fn at(mut self, position: Option<(u32, u32)>) -> Self {
        self.position = position;
        self
    }

    /// Sets the field's path.
    #[must_use]
    pub fn of(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Sets the API's name of the reason.
    #[must_use]
    pub fn because(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }
}

#[allow(clippy::ref_option, reason = "serde passes a reference to the field")]
fn line_and_column<S: Serializer>(position: &Option<(u32, u32)>, serializer: S) -> Result<S::Ok, S::Error> {
    let numbers = position.iter().flat_map(|(line, column)| [line, column]);
    serializer.collect_map(["line", "column"].into_iter().zip(numbers))
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.position {
            write!(f, "{line}:{column}: ")?;
        }
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.detail)
    }
}

/// What comes before the field that was probably meant, in the warning about an unknown one.
pub(crate) const SUGGESTION: &str = "; did you mean ";

/// Why a manifest is rejected: all its errors and warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidManifest {
    /// The first step that found an error.
    pub stage: Stage,
    /// The problems in the order of the text; at least one is an error.
    pub problems: Vec<Problem>,
}

impl fmt::Display for InvalidManifest {
    /// Writes the first error, the number of others and the first misspelled field, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut errors = self.problems.iter().filter(|problem| problem.severity == Severity::Error);
        if let Some(first) = errors.next() {
            write!(f, "{first}")?;
        }
        match errors.map(|problem| problem.count).sum() {
            0 => {}
            1 => f.write_str(" (and 1 more error)")?,
            more => write!(f, " (and {more} more errors)")?,
        }
        // Without it a required field that is misspelled is only reported as missing.
        let mut warnings = self.problems.iter().filter(|problem| problem.severity == Severity::Warning);
        match warnings.find(|warning| warning.detail.contains(SUGGESTION)) {
            Some(warning) => write!(f, "; {warning}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for InvalidManifest {}

/// A text for a one-line message: in quotes, escaped, cut after 40 characters.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
