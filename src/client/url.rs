//! URLs: how they are written, shown, and what is secret in them.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Uri, header::AUTHORIZATION, request::Parts, uri::Authority};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// All bytes but the unreserved ones (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The bytes that no path and no query may hold.
const FORBIDDEN: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Parses a URL. The parser of `http` accepts a port that is none, and a request would go to the default one.
///
/// # Errors
/// What is wrong, without the text: it may hold a secret.
pub fn parse_url(text: &str) -> Result<Uri, &'static str> {
    let url: Uri = text.parse().map_err(|_| "this is not a URL")?;
    if has_valid_port(&url) { Ok(url) } else { Err("the port of the URL is above 65535") }
}

/// Whether the port of a URL, if it has one, is at most 65535.
pub fn has_valid_port(url: &Uri) -> bool {
    let authority = url.authority().map_or("", |authority| without_user(authority.as_str()).1);
    let port = url.host().and_then(|host| authority.strip_prefix(host)?.strip_prefix(':'));
    port.is_none_or(|port| port.is_empty() || port.parse::<u16>().is_ok())
}

/// Escapes a text as one segment of a path or one value of a query: every byte
/// but the unreserved ones (RFC 3986, 2.3).
pub fn escaped(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// A path with a query, as a user has written it: escapes only what it may not hold.
pub fn escaped_path(text: &str) -> String {
    utf8_percent_encode(text, FORBIDDEN).to_string()
}

/// A URL without its user, password and query, which may be secret.
pub fn shown(url: &Uri) -> String {
    let scheme = url.scheme_str().map(|scheme| format!("{scheme}://")).unwrap_or_default();
    let authority = url.authority().map_or("", |authority| without_user(authority.as_str()).1);
    format!("{scheme}{authority}{}", url.path())
}

/// Whether the host of a URL, which has brackets around an IPv6 address, is this machine.
pub fn is_loopback(host: &str) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Splits `user:password@host:port` into the user with the password, and the rest.
fn without_user(authority: &str) -> (Option<&str>, &str) {
    authority.rsplit_once('@').map_or((None, authority), |(user, rest)| (Some(user), rest))
}

/// Moves the user and the password of a request's URI into its `Authorization` header.
/// Returns nothing if they cannot be sent.
pub(super) fn authorize(head: &mut Parts) -> Option<()> {
    let authority = head.uri.authority().map(|authority| without_user(authority.as_str()));
    let Some((Some(user), rest)) = authority else { return Some(()) };
    let user: Vec<u8> = percent_decode_str(user).collect();
    let user = if user.contains(&b':') { user } else { [&user[..], b":"].concat() };
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(user))).ok()?;
    value.set_sensitive(true);
    let mut parts = head.uri.clone().into_parts();
    parts.authority = Some(Authority::try_from(rest).ok()?);
    head.uri = Uri::from_parts(parts).ok()?;
    head.headers.entry(AUTHORIZATION).or_insert(value);
    Some(())
}
