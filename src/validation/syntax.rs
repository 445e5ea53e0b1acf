//! The syntax of names, keys, values and paths (`k8s.io/apimachinery/pkg/util/validation`).

use std::net::{Ipv4Addr, Ipv6Addr};

pub(super) use crate::pod::names::{
    SyntaxResult, consists_of, first_broken, is_lower, label, label_value, qualified, subdomain,
    subdomain_prefix,
};

/// Checks a text.
pub(super) type Check = fn(&str) -> SyntaxResult;

/// Checks a DNS-1123 subdomain whose parts may contain underscores and begin with one.
pub(super) fn subdomain_with_underscore(text: &str) -> SyntaxResult {
    let part = |part: &str| {
        let part = part.strip_prefix('_').unwrap_or(part);
        consists_of(part, |byte| is_lower(byte) || matches!(byte, b'-' | b'_'), is_lower)
    };
    let why = "a subdomain here consists of lower-case letters, digits, '_', '-' and '.', and each of its parts ends with a letter or digit";
    let too_long = (text.len() > 253, "must be no more than 253 characters");
    first_broken([too_long, (!text.split('.').all(part), why)])
}

/// Checks the key of an annotation: a qualified name in letters of any case.
pub(super) fn qualified_caseless(text: &str) -> SyntaxResult {
    // Nearly every key is in lower case already.
    if qualified(text).is_ok() { Ok(()) } else { qualified(&lower(text)) }
}

/// Converts a text to lower case as Go does, as far as a name can contain the result:
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

/// Checks the name of a port (RFC 6335).
pub(super) fn port_name(text: &str) -> SyntaxResult {
    let is_plain = text.bytes().all(|byte| is_lower(byte) || byte == b'-');
    let has_letter = text.bytes().any(|byte| byte.is_ascii_lowercase());
    first_broken([
        (text.len() > 15, "must be no more than 15 characters"),
        (!is_plain, "must contain only lower-case letters, digits and '-'"),
        (!has_letter, "must contain at least one lower-case letter"),
        (text.contains("--"), "must not contain '--'"),
        (text.starts_with('-') || text.ends_with('-'), "must not begin or end with '-'"),
    ])
}

/// Checks the name of an environment variable, by the API's relaxed rule.
pub(super) fn variable_name(text: &str) -> SyntaxResult {
    let why = "the name of an environment variable consists of printable ASCII characters other than '='";
    let is_valid = text.bytes().all(|byte| (byte == b' ' || byte.is_ascii_graphic()) && byte != b'=');
    first_broken([(text.is_empty(), "must not be empty"), (!is_valid, why)])
}

/// Checks the name of an HTTP header.
pub(super) fn header_name(text: &str) -> SyntaxResult {
    let is_valid = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    first_broken([(!is_valid, "the name of an HTTP header consists of letters, digits and '-'")])
}

/// Checks a key of a `ConfigMap` or Secret.
pub(super) fn config_key(text: &str) -> SyntaxResult {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_valid = !text.is_empty() && text.bytes().all(is_valid);
    first_broken([
        (text.len() > 253, "must be no more than 253 characters"),
        (!is_valid, "a key here consists of letters, digits, '-', '_' and '.'"),
        (text == "." || text == "..", "must not be '.' or '..'"),
        (text.starts_with(".."), "must not begin with '..'"),
    ])
}

/// Checks an IP address: IPv4 or IPv6, but not an IPv4 address mapped to IPv6.
pub(super) fn address(text: &str) -> SyntaxResult {
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

/// Checks a path without `..`.
pub(super) fn no_backsteps(path: &str) -> SyntaxResult {
    if path.split('/').any(|step| step == "..") { Err("must not contain '..'") } else { Ok(()) }
}

/// Checks a relative path without `..`.
pub(super) fn descending(path: &str) -> SyntaxResult {
    if path.starts_with('/') { Err("must be a relative path") } else { no_backsteps(path) }
}

/// Checks a relative path without `..` whose first step is not reserved.
pub(super) fn local_path(path: &str) -> SyntaxResult {
    descending(path)?;
    if path.starts_with("..") { Err("must not begin with '..'") } else { Ok(()) }
}
