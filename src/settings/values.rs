//! The values of single flags: from text to type.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use http::{HeaderName, HeaderValue, Uri, uri::Scheme};

use crate::{
    client::parse_url,
    duration,
    mux::Notify,
    pod::{SecurityLevel, SourceName, UnknownSource},
    registry::HOME,
    server::Listen,
    source::file::OnInvalid,
    telemetry::Format,
};

const HOUR: Duration = Duration::from_hours(1);
/// The highest level of `--verbose`.
pub(super) const MAX_VERBOSITY: u8 = 3;
/// The longest path of a Unix socket, in bytes: `sun_path` holds 108 with the NUL at its end.
const MAX_SOCKET_PATH: usize = 107;

pub(super) const ON_INVALID: [(&str, OnInvalid); 2] =
    [("keep", OnInvalid::Keep), ("remove", OnInvalid::Remove)];
pub(super) const NOTIFY: [(&str, Notify); 3] = [
    ("incremental", Notify::Incremental),
    ("snapshot", Notify::Snapshot),
    ("snapshot-and-updates", Notify::SnapshotAndUpdates),
];
const SECURITY_LEVEL: [(&str, SecurityLevel); 3] = [
    (SecurityLevel::Privileged.as_str(), SecurityLevel::Privileged),
    (SecurityLevel::Baseline.as_str(), SecurityLevel::Baseline),
    (SecurityLevel::Restricted.as_str(), SecurityLevel::Restricted),
];
pub(super) const LOG_FORMAT: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];

/// A parser of certain words.
pub(super) fn word<T: Copy + Send + Sync + 'static>(
    words: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let value = |text: String| words.iter().find_map(|(word, value)| (*word == text).then_some(*value));
    PossibleValuesParser::new(words.iter().map(|(word, _)| *word))
        .try_map(move |text| value(text).ok_or("unknown"))
}

pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("the path is empty".to_owned());
    }
    if text.starts_with("~/") {
        return Err(HOME.to_owned());
    }
    Ok(text.into())
}

/// The bounds of the time between two checks.
pub(super) const FREQUENCIES: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_hours(24);

pub(super) fn frequency(text: &str) -> Result<Duration, String> {
    duration::read(text, &FREQUENCIES)
}

pub(super) fn grace(text: &str) -> Result<Duration, String> {
    duration::read(text, &(Duration::ZERO..=HOUR))
}

/// A number of pods.
pub(super) fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number of pods: write it like 1000"))
}

pub(super) fn concurrency(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a whole number from 1 to 1000"))
}

pub(super) fn verbosity(text: &str) -> Result<u8, String> {
    let level = text.parse().ok().filter(|level| *level <= MAX_VERBOSITY);
    level.ok_or_else(|| format!("{text:?} is not a level: use 0, 1, 2 or 3"))
}

/// A source and its level of the Pod Security Standards.
pub(super) fn pod_security(text: &str) -> Result<(SourceName, SecurityLevel), String> {
    let (source, level) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} has no '=': write SOURCE=LEVEL (http=baseline)"))?;
    let source = source.parse().map_err(|unknown: UnknownSource| unknown.to_string())?;
    let known = SECURITY_LEVEL.iter().find(|(word, _)| *word == level).map(|(_, level)| *level);
    let known =
        known.ok_or_else(|| format!("unknown level {level:?}: use privileged, baseline or restricted"))?;
    Ok((source, known))
}

/// A parser of the levels of the Pod Security Standards.
pub(crate) fn security_level() -> impl TypedValueParser<Value = SecurityLevel> {
    word(&SECURITY_LEVEL)
}

/// An address of the server; `None` for the word `none`.
pub(super) fn listen(text: &str) -> Result<Option<Listen>, String> {
    if text == "none" {
        return Ok(None);
    }
    if let Some(path) = text.strip_prefix("unix:") {
        let invalid = |problem: &str| Err(format!("{text:?}: unix:PATH needs {problem}"));
        return match path.len() {
            0 => invalid("a path"),
            _ if path.starts_with("~/") => Err(HOME.to_owned()),
            1..=MAX_SOCKET_PATH => Ok(Some(Listen::Unix(path.into()))),
            _ => invalid("a path of at most 107 bytes"),
        };
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(Some(Listen::Tcp(address)));
    }
    let named = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    match named {
        Some(("localhost", port)) => Ok(Some(Listen::Tcp((IpAddr::from(Ipv4Addr::LOCALHOST), port).into()))),
        // Names are not resolved: at boot the resolver may not work yet, and their addresses may change.
        Some((_, port)) => Err(format!(
            "{text:?}: the host must be an IP address or localhost: 127.0.0.1:{port}, [::1]:{port}, 0.0.0.0:{port}"
        )),
        None => Err(format!("{text:?} is not an address: write HOST:PORT, unix:PATH or none")),
    }
}

/// An `http` or `https` URL. Errors do not repeat it: it may contain a secret.
pub(super) fn url(text: &str) -> Result<Uri, String> {
    let invalid = |problem: &str| format!("{problem}: write it like https://HOST:PORT/PATH");
    let uri = parse_url(text).map_err(invalid)?;
    if uri.scheme() != Some(&Scheme::HTTP) && uri.scheme() != Some(&Scheme::HTTPS) {
        return Err(invalid("the URL does not begin with http:// or https://"));
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(invalid("the URL has no host"));
    }
    Ok(uri)
}

/// A header as in curl's `-H`. Errors do not repeat it: it may contain a secret.
pub(super) fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) =
        text.split_once(':').ok_or("a header is written 'NAME: VALUE', this one has no colon")?;
    let name =
        HeaderName::try_from(name.trim()).map_err(|_| "the text before the colon is not a header name")?;
    let mut value = HeaderValue::try_from(value.trim())
        .map_err(|_| format!("the value of {name} has characters that are not allowed in a header"))?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// The digits of a SHA-256, in lower case.
pub(super) fn sha256(text: &str) -> Result<String, String> {
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(format!(
            "{text:?} is not a SHA-256: write 64 hexadecimal digits, as sha256sum prints them"
        ));
    }
    Ok(text.to_ascii_lowercase())
}
