//! How Kubernetes names are spelled: labels, subdomains and qualified names.

use std::sync::Arc;

/// What a check of a text returns: the reason if the text is invalid.
pub(crate) type SyntaxResult = Result<(), &'static str>;

const LABEL: &str = "a lowercase RFC 1123 label consists of lower-case letters, digits and '-', and begins and ends with a letter or digit";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain consists of lower-case letters, digits, '-' and '.', and each of its parts begins and ends with a letter or digit";
const QUALIFIED_FORM: &str =
    "a qualified name is a name with an optional DNS subdomain and '/' before it (example.com/name)";
const QUALIFIED_PREFIX: &str =
    "the prefix part must be a lowercase RFC 1123 subdomain of at most 253 characters";
const QUALIFIED: &str =
    "the name part consists of letters, digits, '-', '_' and '.', and begins and ends with a letter or digit";
const LABEL_VALUE: &str = "a label's value is empty or consists of letters, digits, '-', '_' and '.', and begins and ends with a letter or digit";

/// The reason of the first rule that is broken.
pub(crate) fn first_broken<const N: usize>(rules: [(bool, &'static str); N]) -> SyntaxResult {
    rules.into_iter().find(|(is_broken, _)| *is_broken).map_or(Ok(()), |(_, why)| Err(why))
}

/// Whether a text is not empty, every byte satisfies `inner`, and the first and last `edge`.
pub(crate) fn consists_of(text: &str, inner: impl Fn(u8) -> bool, edge: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|byte| edge(*byte))
        && bytes.last().is_some_and(|byte| edge(*byte))
        && bytes.iter().all(|byte| inner(*byte))
}

/// Whether a byte is a lower-case letter or a digit.
pub(crate) fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_label_shaped(text: &str) -> bool {
    consists_of(text, |byte| is_lower(byte) || byte == b'-', is_lower)
}

fn is_subdomain_shaped(text: &str) -> bool {
    text.split('.').all(is_label_shaped)
}

fn is_word_shaped(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    consists_of(text, inner, |byte| byte.is_ascii_alphanumeric())
}

/// Checks a DNS-1123 label: at most 63 bytes.
pub(crate) fn label(text: &str) -> SyntaxResult {
    let is_label = is_label_shaped(text);
    first_broken([
        (text.len() > 63, "must be no more than 63 characters"),
        (!is_label && is_subdomain_shaped(text), "must not contain dots"),
        (!is_label, LABEL),
    ])
}

/// Checks a DNS-1123 subdomain: at most 253 bytes.
pub(crate) fn subdomain(text: &str) -> SyntaxResult {
    let too_long = (text.len() > 253, "must be no more than 253 characters");
    first_broken([too_long, (!is_subdomain_shaped(text), SUBDOMAIN)])
}

/// Checks the prefix of a generated name: a subdomain that may end with a dash. As in Go,
/// an `a` then replaces the last two bytes before the check.
pub(crate) fn subdomain_prefix(text: &str) -> SyntaxResult {
    if text.len() < 2 || !text.ends_with('-') {
        return subdomain(text);
    }
    text.get(..text.len() - 2).map_or(Err(SUBDOMAIN), |kept| subdomain(&format!("{kept}a")))
}

/// Checks a qualified name, such as the key of a label: `name` or `prefix.example.com/name`.
pub(crate) fn qualified(text: &str) -> SyntaxResult {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let is_prefix = prefix.is_none_or(|prefix| subdomain(prefix).is_ok());
    first_broken([
        (name.contains('/'), QUALIFIED_FORM),
        (prefix == Some(""), "the prefix part must not be empty"),
        (!is_prefix, QUALIFIED_PREFIX),
        (name.is_empty(), "the name part must not be empty"),
        (name.len() > 63, "the name part must be no more than 63 bytes"),
        (!is_word_shaped(name), QUALIFIED),
    ])
}

/// Checks the value of a label.
pub(crate) fn label_value(text: &str) -> SyntaxResult {
    let too_long = (text.len() > 63, "must be no more than 63 bytes");
    first_broken([too_long, (!text.is_empty() && !is_word_shaped(text), LABEL_VALUE)])
}

/// The name of this node: a lower-case DNS-1123 subdomain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Arc<str>);

/// A text is not a valid node name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid node name: use up to 253 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit"
)]
pub struct NodeNameError(pub String);

impl NodeName {
    /// Makes a node name from a host name, which it converts to lower case.
    ///
    /// # Errors
    /// If the host name is not a DNS-1123 subdomain.
    pub fn new(name: &str) -> Result<Self, NodeNameError> {
        let lower = name.trim().to_lowercase();
        subdomain(&lower).map(|()| Self(lower.into())).map_err(|_| NodeNameError(name.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
