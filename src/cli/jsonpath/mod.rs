//! kubectl's JSONPath templates: text with expressions in braces, `{range}` and `{end}`.
//!
//! The dialect is kubectl's own and older than RFC 9535: expressions stand in text, a filter compares two
//! expressions without `&&`, an index outside of an array is an error, and numbers and strings are printed
//! bare. The crates of RFC 9535 have none of it.

use serde_json::Value;

mod evaluate;
mod parse;
mod syntax;

use self::syntax::Part;
pub use self::syntax::TemplateError;

/// The longest template, in bytes.
pub const MAX_TEMPLATE: usize = 16 << 10;

/// A template that was parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

impl Template {
    /// Parses a template. One without braces that begins with a dot is one expression: kubectl would print
    /// the template itself.
    ///
    /// # Errors
    /// A template that is not in kubectl's language, is empty, or is too long.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.is_empty() {
            return TemplateError::fail("template format specified but no template given");
        }
        let is_bare = text.starts_with('.') && !text.contains(['{', '}']);
        Self::new(if is_bare { format!("{{{text}}}") } else { text.to_owned() })
    }

    /// Parses one expression: `{.a.b}`, `.a.b` or `a.b`.
    ///
    /// # Errors
    /// As [`parse`](Self::parse); also more than one expression.
    pub fn expression(text: &str) -> Result<Self, TemplateError> {
        let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
        let inner = inner.strip_prefix('.').unwrap_or(inner);
        if inner.is_empty() || inner.contains(['{', '}']) {
            return TemplateError::fail(
                "unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{name1.name2}' or '{.name1.name2}'",
            );
        }
        Self::new(format!("{{.{inner}}}"))
    }

    fn new(text: String) -> Result<Self, TemplateError> {
        if text.len() > MAX_TEMPLATE {
            return TemplateError::fail(format!(
                "the template has more than {MAX_TEMPLATE} bytes: shorten it"
            ));
        }
        let parts = parse::template(&text)?;
        Ok(Self { text, parts })
    }

    /// The text of the template.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text that the template makes of an object. `escape` is applied to what comes from the object.
    ///
    /// # Errors
    /// A step that does not fit the object, such as an index outside of an array; or too much work.
    pub fn execute(&self, object: &Value, escape: impl Fn(&str) -> String) -> Result<String, TemplateError> {
        evaluate::execute(&self.parts, object, escape)
    }

    /// The first value that the template finds in an object.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn first(&self, object: &Value) -> Result<Option<Value>, TemplateError> {
        evaluate::first(&self.parts, object)
    }
}
