//! What is wrong with a manifest: where, which field, why, in words that a person can act on.

use std::fmt;

/// Whether a problem refuses the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The manifest is refused.
    Error,
    /// The manifest is taken; the author probably meant something else.
    Warning,
}

/// How far a refused manifest came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Its text could not be read as pods.
    Decode,
    /// A pod has no name.
    Name,
    /// The API's validation refused a field.
    Validate,
    /// A pod refers to an object that only an API server could resolve.
    Reference,
}

impl Stage {
    /// The word in reports: `decode`, `name`, `validate` or `reference`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Name => "name",
            Self::Validate => "validate",
            Self::Reference => "reference",
        }
    }
}

/// One thing that is wrong with a manifest.
///
/// Its `Display` is `LINE:COLUMN: FIELD: detail` without the parts that are not
/// known, and with `warning` before the field of one; the caller puts the file's
/// name in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether it refuses the manifest.
    pub severity: Severity,
    /// Line and column in the text, both counted from 1.
    pub position: Option<(u32, u32)>,
    /// The field's path as the API writes it: `spec.containers[0].name`.
    pub field: Option<String>,
    /// The API's word for the reason (`FieldValueRequired`), where it has one.
    pub reason: Option<&'static str>,
    /// The rest, for reading.
    pub detail: String,
}

impl Problem {
    /// An error with nothing but its text.
    #[must_use]
    pub fn error(detail: impl Into<String>) -> Self {
        Self { severity: Severity::Error, position: None, field: None, reason: None, detail: detail.into() }
    }

    /// A warning with nothing but its text.
    #[must_use]
    pub fn warning(detail: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(detail) }
    }

    /// The same at a line and column (from 1).
    #[must_use]
    pub fn at(mut self, position: Option<(u32, u32)>) -> Self {
        self.position = position;
        self
    }

    /// The same about a field.
    #[must_use]
    pub fn of(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// The same with the API's word for the reason.
    #[must_use]
    pub fn because(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }
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

/// A manifest that was refused: every problem found, errors and warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// How far it came.
    pub stage: Stage,
    /// What is wrong, in the order of the text; at least one is an error.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Refusal {
    /// The first error, and how many more there are: one line for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut errors = self.problems.iter().filter(|problem| problem.severity == Severity::Error);
        if let Some(first) = errors.next() {
            write!(f, "{first}")?;
        }
        match errors.count() {
            0 => Ok(()),
            1 => f.write_str(" (and 1 more error)"),
            more => write!(f, " (and {more} more errors)"),
        }
    }
}

impl std::error::Error for Refusal {}

/// A text as it may stand in a one-line message: quoted, escaped, not too long.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
