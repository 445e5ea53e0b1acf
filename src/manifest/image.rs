//! The name of a container image, as far as the default pull policy depends on it.

use crate::pod::names::{consists_of, is_lower};

/// Whether the default pull policy of an image is Always: the tag is `latest`, or there is
/// neither tag nor digest. Not for an invalid name, by the grammar of
/// `github.com/distribution/reference`, which the API's `ParseImageName` uses.
pub(super) fn is_latest(image: &str) -> bool {
    let (domain, rest) = match image.split_once('/') {
        Some((domain, rest)) if is_domain_like(domain) => (Some(domain), rest),
        _ => (None, image),
    };
    let (name, digest) = cut(rest, '@');
    let (path, tag) = cut(name, ':');
    let on_hub = domain.is_none_or(|domain| matches!(domain, "docker.io" | "index.docker.io"));
    let implied = if on_hub && !path.contains('/') { "library/".len() } else { 0 };
    let is_identifier = image.len() == 64 && image.bytes().all(is_hex);
    let is_valid = !is_identifier
        && domain.is_none_or(is_domain)
        && path.split('/').all(is_path_component)
        && path.len() + implied <= 255
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    is_valid && tag.map_or(digest.is_none(), |tag| tag == "latest")
}

/// Splits a text at the first delimiter, if it has one.
fn cut(text: &str, delimiter: char) -> (&str, Option<&str>) {
    text.split_once(delimiter).map_or((text, None), |(before, after)| (before, Some(after)))
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn is_domain_like(text: &str) -> bool {
    text == "localhost" || text.contains(['.', ':']) || text.chars().any(char::is_uppercase)
}

/// Whether a text is a host name or a bracketed IPv6 address, with an optional port.
fn is_domain(text: &str) -> bool {
    let (host, port) = match text.rfind(']') {
        Some(end) => (&text[..=end], text[end + 1..].strip_prefix(':')),
        None => cut(text, ':'),
    };
    let whole = host.len() + port.map_or(0, |port| port.len() + 1) == text.len();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric();
    let is_label = |label: &str| consists_of(label, |byte| is_word(byte) || byte == b'-', is_word);
    let is_address = |host: &str| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.is_some_and(|inner| {
            !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_hexdigit() || b == b':')
        })
    };
    whole
        && (host.split('.').all(is_label) || is_address(host))
        && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a text consists of lower-case letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn is_path_component(text: &str) -> bool {
    let mut rest = text.as_bytes();
    loop {
        let plain = rest.iter().take_while(|byte| is_lower(**byte)).count();
        if plain == 0 {
            return false;
        }
        rest = &rest[plain..];
        rest = match rest {
            [] => return true,
            [b'_', b'_', after @ ..] | [b'.' | b'_', after @ ..] => after,
            [b'-', ..] => &rest[rest.iter().take_while(|b| **b == b'-').count()..],
            _ => return false,
        };
    }
}

fn is_tag(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let bytes = text.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(|b| is_word(*b))
        && bytes.iter().all(|b| is_word(*b) || matches!(b, b'.' | b'-'))
}

/// Whether a text is a digest by an algorithm that container tools support.
fn is_digest(text: &str) -> bool {
    let length = match text.split_once(':') {
        Some(("sha256", _)) => 64,
        Some(("sha384", _)) => 96,
        Some(("sha512", _)) => 128,
        _ => return false,
    };
    text.len() == length + 7 && text[7..].bytes().all(is_hex)
}
