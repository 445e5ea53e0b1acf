//! The url source's settings: where it polls, with which headers and certificates.

use std::{fmt, path::PathBuf, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Uri, uri::Scheme};

use super::{HOUR, Key, Layers, SettingsError, duration, read_path};

/// The url source's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlSettings {
    /// What is polled.
    pub url: ManifestUrl,
    /// What every request says besides; every value is marked as sensitive, so
    /// that none is printed.
    pub headers: HeaderMap,
    /// The only certificate authorities that are trusted, in PEM; the system's if none is given.
    pub ca_file: Option<PathBuf>,
    /// Who the agent is to the server.
    pub client_certificate: Option<CertificateFiles>,
    /// What the body has to be, if it is pinned: its SHA-256.
    pub sha256: Option<[u8; 32]>,
    /// How often it is polled.
    pub check_frequency: Duration,
}

/// A certificate chain and its key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, the own certificate first.
    pub certificate: PathBuf,
    /// The private key of the first.
    pub key: PathBuf,
}

/// An `http` or `https` URL. What may be a secret in it, the user's part and the
/// query, is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ManifestUrl(Uri);

impl ManifestUrl {
    /// The whole of it, with its secrets: for requests only.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    fn read(text: &str) -> Result<Self, String> {
        // What cannot be read may be a secret all the same, so it is not repeated.
        let refused = |problem: &str| format!("{problem}: it is written like https://HOST:PORT/PATH");
        let uri: Uri = text.parse().map_err(|_| refused("this is no URL"))?;
        if uri.scheme() != Some(&Scheme::HTTP) && uri.scheme() != Some(&Scheme::HTTPS) {
            return Err(refused("the URL does not begin with http:// or https://"));
        }
        if uri.host().is_none_or(str::is_empty) {
            return Err(refused("the URL has no host"));
        }
        Ok(Self(uri))
    }
}

impl fmt::Display for ManifestUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        let (user, host) = authority.rsplit_once('@').map_or(("", authority), |(_, host)| ("***@", host));
        let query = if self.0.query().is_some() { "?***" } else { "" };
        write!(f, "{}://{user}{host}{}{query}", self.0.scheme_str().unwrap_or_default(), self.0.path())
    }
}

impl fmt::Debug for ManifestUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManifestUrl({self})")
    }
}

/// What says something about the URL, and nothing without one.
const COMPANIONS: [Key; 5] = [
    Key::ManifestUrlHeader,
    Key::ManifestUrlCaFile,
    Key::ManifestUrlClientCertFile,
    Key::ManifestUrlClientKeyFile,
    Key::ManifestUrlSha256,
];

pub(super) fn read(layers: &Layers) -> Result<Option<UrlSettings>, SettingsError> {
    let url = layers.one(Key::ManifestUrl, ManifestUrl::read)?;
    let bounds = Duration::from_millis(100)..=24 * HOUR;
    let check_frequency = layers.set(Key::HttpCheckFrequency, |text| duration::read(text, &bounds))?;
    let headers = headers(layers)?;
    let ca_file = layers.one(Key::ManifestUrlCaFile, read_path)?;
    let pair = (Key::ManifestUrlClientCertFile, Key::ManifestUrlClientKeyFile);
    let client_certificate = certificate_files(layers, pair)?;
    let sha256 = layers.one(Key::ManifestUrlSha256, read_sha256)?;
    let Some(url) = url else {
        let lonely = COMPANIONS.into_iter().find_map(|key| layers.said(key));
        return match lonely {
            Some((place, _)) => Err(SettingsError::Value {
                place,
                problem: "it needs a URL to be about: give --manifest-url URL".to_owned(),
            }),
            None => Ok(None),
        };
    };
    Ok(Some(UrlSettings { url, headers, ca_file, client_certificate, sha256, check_frequency }))
}

/// The files of a certificate and its key: both or none.
pub(super) fn certificate_files(
    layers: &Layers,
    (certificate, key): (Key, Key),
) -> Result<Option<CertificateFiles>, SettingsError> {
    let alone = |given: Key, missing: Key| {
        let place = layers.said(given).map_or(super::Place::Default(given), |(place, _)| place);
        let problem = format!("a certificate and its key go together: give --{} FILE, too", missing.flag());
        Err(SettingsError::Value { place, problem })
    };
    match (layers.one(certificate, read_path)?, layers.one(key, read_path)?) {
        (Some(certificate), Some(key)) => Ok(Some(CertificateFiles { certificate, key })),
        (Some(_), None) => alone(certificate, key),
        (None, Some(_)) => alone(key, certificate),
        (None, None) => Ok(None),
    }
}

fn headers(layers: &Layers) -> Result<HeaderMap, SettingsError> {
    let mut headers = HeaderMap::new();
    if let Some((place, values)) = layers.said(Key::ManifestUrlHeader) {
        for (number, text) in (1..).zip(values) {
            let (name, value) = read_header(&text).map_err(|problem| SettingsError::Value {
                place: place.clone(),
                problem: format!("header {number}: {problem}"),
            })?;
            headers.append(name, value);
        }
    }
    Ok(headers)
}

/// A header as curl takes it. What is refused is not repeated: it may hold a secret.
fn read_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) =
        text.split_once(':').ok_or("a header is written 'NAME: VALUE', and this one has no colon")?;
    let name = HeaderName::try_from(name.trim()).map_err(|_| "before its colon there is no header's name")?;
    let mut value = HeaderValue::try_from(value.trim())
        .map_err(|_| format!("the value of {name} has characters that no header may have"))?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn read_sha256(text: &str) -> Result<[u8; 32], String> {
    let refused = || format!("{text:?} is no SHA-256: 64 hexadecimal digits are, as sha256sum prints them");
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(refused());
    }
    let mut sum = [0; 32];
    for (at, byte) in sum.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| refused())?;
    }
    Ok(sum)
}
