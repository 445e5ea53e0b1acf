//! The parts of a template, and its errors.

use serde_json::Value;

/// Why a template is invalid, or cannot be used on an object. The texts are kubectl's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

impl TemplateError {
    /// Fails with this text.
    pub(super) fn fail<T>(text: impl Into<String>) -> Result<T, Self> {
        Err(Self(text.into()))
    }
}

/// A part of a template: text, or what stands in one pair of braces.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    Action(Vec<Node>),
}

/// A step of an expression. Each takes values and gives values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// A text, number or truth value that was written there.
    Literal(Value),
    /// `range`, `end`, or a word that has no meaning.
    Identifier(String),
    Field(String),
    Wildcard,
    Recursive,
    Slice(Slice),
    Union(Vec<Vec<Node>>),
    Filter(Box<Filter>),
}

/// `[START:END:STEP]`, or `[START]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) start: Option<i64>,
    pub(super) end: Option<i64>,
    pub(super) step: Option<i64>,
    /// Whether the end is that of a single index.
    pub(super) is_index: bool,
}

/// `[?(LEFT OPERATOR RIGHT)]`. Without an operator, it asks whether the left has values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Filter {
    pub(super) left: Vec<Node>,
    pub(super) comparison: Option<(String, Vec<Node>)>,
}
