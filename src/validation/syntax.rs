//! How names, keys, values and paths may be written (`k8s.io/apimachinery/pkg/util/validation`), byte by byte.
//!
//! Each check gives what is wrong as words for a person, or nothing.

use std::net::{Ipv4Addr, Ipv6Addr};

/// What a check of a text found.
pub(super) type Verdict = Result<(), &'static str>;

const LABEL: &str = "a lowercase RFC 1123 label is made of lower-case letters, digits and '-', and begins and ends with a letter or digit";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain is made of lower-case letters, digits, '-' and '.', and each of its parts begins and ends with a letter or digit";
const QUALIFIED: &str =
    "the name part is made of letters, digits, '-', '_' and '.', and begins and ends with a letter or digit";
const LABEL_VALUE: &str = "a label's value is empty or made of letters, digits, '-', '_' and '.', and begins and ends with a letter or digit";

/// Whether a text is not empty, has only bytes of a kind, and edges of another.
pub(super) fn is_made_of(text: &str, inner: impl Fn(u8) -> bool, edge: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|byte| edge(*byte))
        && bytes.last().is_some_and(|byte| edge(*byte))
        && bytes.iter().all(|byte| inner(*byte))
}

/// A lower-case letter or a digit.
pub(super) fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_label_shaped(text: &str) -> bool {
    is_made_of(text, |byte| is_lower(byte) || byte == b'-', is_lower)
}

fn is_subdomain_shaped(text: &str) -> bool {
    text.split('.').all(is_label_shaped)
}

fn is_word_shaped(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    is_made_of(text, inner, |byte| byte.is_ascii_alphanumeric())
}

/// A DNS-1123 label, of at most 63 bytes.
pub(super) fn label(text: &str) -> Verdict {
    if text.len() > 63 {
        Err("must be no more than 63 characters")
    } else if is_label_shaped(text) {
        Ok(())
    } else if is_subdomain_shaped(text) {
        Err("must not contain dots")
    } else {
        Err(LABEL)
    }
}

/// A DNS-1123 subdomain, of at most 253 bytes.
pub(super) fn subdomain(text: &str) -> Verdict {
    if text.len() > 253 {
        Err("must be no more than 253 characters")
    } else if is_subdomain_shaped(text) {
        Ok(())
    } else {
        Err(SUBDOMAIN)
    }
}

/// A DNS-1123 subdomain whose parts may hold underscores and begin with one.
pub(super) fn subdomain_with_underscore(text: &str) -> Verdict {
    let part = |part: &str| {
        let part = part.strip_prefix('_').unwrap_or(part);
        is_made_of(part, |byte| is_lower(byte) || matches!(byte, b'-' | b'_'), is_lower)
    };
    if text.len() > 253 {
        Err("must be no more than 253 characters")
    } else if text.split('.').all(part) {
        Ok(())
    } else {
        Err(
            "a subdomain here is made of lower-case letters, digits, '_', '-' and '.', and each of its parts ends with a letter or digit",
        )
    }
}

/// The prefix of a generated name: a subdomain that may end with a dash. As in
/// Go an `a` takes the place of the last two bytes then.
pub(super) fn subdomain_prefix(text: &str) -> Verdict {
    if text.len() < 2 || !text.ends_with('-') {
        return subdomain(text);
    }
    text.get(..text.len() - 2).map_or(Err(SUBDOMAIN), |kept| subdomain(&format!("{kept}a")))
}

/// A qualified name: `name` or `prefix.example.com/name`.
pub(super) fn qualified(text: &str) -> Verdict {
    let (prefix, name) = match text.split_once('/') {
        None => (None, text),
        Some((_, name)) if name.contains('/') => {
            return Err(
                "a qualified name is a name, perhaps with a DNS subdomain and one '/' in front (example.com/name)",
            );
        }
        Some((prefix, name)) => (Some(prefix), name),
    };
    match prefix {
        Some("") => return Err("the prefix part must not be empty"),
        Some(prefix) => subdomain(prefix)
            .map_err(|_| "the prefix part is no lowercase RFC 1123 subdomain of at most 253 characters")?,
        None => {}
    }
    if name.is_empty() {
        Err("the name part must not be empty")
    } else if name.len() > 63 {
        Err("the name part must be no more than 63 bytes")
    } else if is_word_shaped(name) {
        Ok(())
    } else {
        Err(QUALIFIED)
    }
}

/// A qualified name in letters of any case: the key of an annotation.
pub(super) fn qualified_caseless(text: &str) -> Verdict {
    // Nearly every key is in lower case as it stands.
    if qualified(text).is_ok() { Ok(()) } else { qualified(&lower(text)) }
}

/// A text in lower case as Go makes it, as far as a name can hold the result:
/// the Kelvin sign and the dotted I become ASCII letters.
pub(super) fn lower(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\u{212a}' => 'k',
            '\u{130}' => 'i',
            c => c.to_ascii_lowercase(),
        })
        .collect()
}

/// The value of a label.
pub(super) fn label_value(text: &str) -> Verdict {
    if text.len() > 63 {
        Err("must be no more than 63 bytes")
    } else if text.is_empty() || is_word_shaped(text) {
        Ok(())
    } else {
        Err(LABEL_VALUE)
    }
}

/// The name of a port (RFC 6335).
pub(super) fn port_name(text: &str) -> Verdict {
    if text.len() > 15 {
        Err("must be no more than 15 characters")
    } else if !text.bytes().all(|byte| is_lower(byte) || byte == b'-') {
        Err("must contain only lower-case letters, digits and '-'")
    } else if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        Err("must contain at least one lower-case letter")
    } else if text.contains("--") {
        Err("must not contain '--'")
    } else if text.starts_with('-') || text.ends_with('-') {
        Err("must not begin or end with '-'")
    } else {
        Ok(())
    }
}

/// The name of an environment variable, as freely as the API has it now.
pub(super) fn variable_name(text: &str) -> Verdict {
    if text.is_empty() {
        Err("must not be empty")
    } else if text.bytes().all(|byte| (byte == b' ' || byte.is_ascii_graphic()) && byte != b'=') {
        Ok(())
    } else {
        Err("the name of an environment variable is made of printable ASCII characters other than '='")
    }
}

/// The name of a header of HTTP.
pub(super) fn header_name(text: &str) -> Verdict {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        Ok(())
    } else {
        Err("the name of an HTTP header is made of letters, digits and '-'")
    }
}

/// A key of a `ConfigMap` or Secret.
pub(super) fn config_key(text: &str) -> Verdict {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if text.len() > 253 {
        Err("must be no more than 253 characters")
    } else if text.is_empty() || !text.bytes().all(fine) {
        Err("a key here is made of letters, digits, '-', '_' and '.'")
    } else if text == "." || text == ".." {
        Err("must not be '.' or '..'")
    } else if text.starts_with("..") {
        Err("must not begin with '..'")
    } else {
        Ok(())
    }
}

/// An IP address, IPv4 or IPv6, but no IPv4 one written as IPv6.
pub(super) fn address(text: &str) -> Verdict {
    if text.parse::<Ipv4Addr>().is_ok() {
        return Ok(());
    }
    match text.parse::<Ipv6Addr>() {
        Ok(address) if address.to_ipv4_mapped().is_some() => {
            Err("must not be an IPv4 address mapped to IPv6")
        }
        Ok(_) => Ok(()),
        Err(_) => Err("must be an IP address without leading zeros (10.9.8.7, 2001:db8::ffff)"),
    }
}

/// A path without steps back.
pub(super) fn no_backsteps(path: &str) -> Verdict {
    if path.split('/').any(|step| step == "..") { Err("must not contain '..'") } else { Ok(()) }
}

/// A path below something.
pub(super) fn descending(path: &str) -> Verdict {
    if path.starts_with('/') { Err("must be a relative path") } else { no_backsteps(path) }
}

/// A path below something whose first step is no reserved name.
pub(super) fn local_path(path: &str) -> Verdict {
    descending(path)?;
    if path.starts_with("..") { Err("must not begin with '..'") } else { Ok(()) }
}
