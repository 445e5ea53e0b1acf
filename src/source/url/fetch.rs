//! The settings, one request for the manifests, and its errors.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri,
    header::{ACCEPT, ETAG, IF_NONE_MATCH, USER_AGENT},
};
use sha2::{Digest as _, Sha256};
use tracing::warn;

use crate::{
    certificate_files::CertificateFiles,
    client::{Client, ClientError, ClientSettings, Redirects, content_coding, shown},
    error_chain::chain,
    hex::hex,
    host::Host,
    manifest::MAX_MANIFEST,
    pod::{InvalidManifest, SecurityLevel},
};

/// The `User-Agent` header.
const AGENT: &str = concat!("podmux/", env!("CARGO_PKG_VERSION"));
/// The `Accept` header. The content type of the answer is ignored.
const ACCEPTED: &str = "application/yaml, application/json, */*;q=0.5";

/// The url source's settings.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// The `http` or `https` URL that is polled; it may hold a user and a password.
    pub url: Uri,
    /// Headers of every request. Values that are marked as sensitive are not printed.
    pub headers: HeaderMap,
    /// The CAs that are trusted in place of the system's, as PEM.
    pub ca_file: Option<PathBuf>,
    /// The certificate that the source presents to the server.
    pub client_certificate: Option<CertificateFiles>,
    /// The SHA-256 that the body must have, in lower-case hexadecimal digits.
    pub sha256: Option<String>,
    /// The time between the end of one poll and the beginning of the next.
    pub check_frequency: Duration,
    /// The level that its pods may not exceed.
    pub pod_security: SecurityLevel,
}

impl fmt::Debug for Config {
    /// Without user, password and query of the URL and without the headers' values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.keys().map(HeaderName::as_str).collect();
        f.debug_struct("Config")
            .field("url", &shown(&self.url))
            .field("headers", &headers)
            .field("ca_file", &self.ca_file)
            .field("client_certificate", &self.client_certificate)
            .field("sha256", &self.sha256)
            .field("check_frequency", &self.check_frequency)
            .field("pod_security", &self.pod_security)
            .finish()
    }
}

/// Why a URL gave no pods.
#[derive(Debug, thiserror::Error)]
pub(super) enum UrlError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the request cannot be made")]
    Request(#[source] http::Error),
    #[error("the server answered {}{}; 200 with the manifests is expected", .0, hint(*.0))]
    Status(StatusCode),
    #[error("the server answered {} to an unconditional request", StatusCode::NOT_MODIFIED)]
    NotConditional,
    #[error("the body has the Content-Encoding {0}, but none was requested; serve it without one")]
    Encoded(String),
    #[error(
        "the body is empty; to remove all pods, serve an empty list: {{\"apiVersion\": \"v1\", \"kind\": \"PodList\", \"items\": []}}"
    )]
    Empty,
    #[error(
        "the body's SHA-256 is {found}, only {pinned} is accepted; to accept this body, change --manifest-url-sha256"
    )]
    Pin { found: String, pinned: String },
    #[error("{0}")]
    Rejected(Arc<InvalidManifest>),
}

fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            " (does --manifest-url-header carry the right credentials?)"
        }
        StatusCode::NOT_FOUND => " (is the path right?)",
        _ => "",
    }
}

/// A body by its digest, and its strong entity tag: it is sent again only if it has another one. A date and a weak
/// tag are no such condition: a file that is put back is older, and two writes may be in one second.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) sha256: String,
    pub(super) etag: Option<HeaderValue>,
}

/// A body that is not empty and has the pinned digest; none if it is the same as before.
pub(super) type Answer = Option<(Bytes, Known)>;

/// Sends requests, and reloads certificates.
#[derive(Debug)]
pub(super) struct Fetcher {
    /// The time limit for a request, with redirects and the whole body.
    pub(super) timeout: Duration,
    client: Option<Client>,
    /// Whether the certificates must be reloaded.
    stale: bool,
    /// The last error of reloading. It is logged once.
    warned: Option<String>,
    /// Whether a client certificate that is not valid now was logged since the start or the last refresh.
    has_noted: bool,
}

impl Fetcher {
    /// It connects to nothing before the first request.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, client: None, stale: false, warned: None, has_noted: false }
    }

    /// Reloads certificates before the next request. The previous ones stay in use while the
    /// new ones are invalid.
    pub(super) fn refresh(&mut self) {
        (self.stale, self.warned, self.has_noted) = (true, None, false);
    }

    /// Fetches once. After an error certificates are reloaded: a new one may repair it.
    pub(super) async fn fetch(
        &mut self,
        host: &Host,
        config: &Config,
        etag: Option<HeaderValue>,
    ) -> Result<Answer, UrlError> {
        let client = self.ready(host, config).await?;
        let answer = request(&client, config, etag).await;
        self.client = Some(client);
        self.stale |= answer.is_err();
        answer
    }

    /// A client with the current certificates, or else with the previous ones.
    async fn ready(&mut self, host: &Host, config: &Config) -> Result<Client, ClientError> {
        let before = match self.client.take() {
            Some(client) if !self.stale => return Ok(client),
            before => before,
        };
        match (client(host, config, self.timeout).await, before) {
            (Ok((client, invalid)), _) => {
                (self.stale, self.warned) = (false, None);
                if let Some(error) = invalid.filter(|_| !std::mem::replace(&mut self.has_noted, true)) {
                    warn!(source = "url", error, "client certificate not valid now");
                }
                Ok(client)
            }
            (Err(error), None) => Err(error),
            (Err(error), Some(before)) => {
                let error = chain(&error);
                if self.warned.as_ref() != Some(&error) {
                    warn!(source = "url", %error, "certificates not reloaded, the previous ones stay in use");
                    self.warned = Some(error);
                }
                Ok(before)
            }
        }
    }
}

/// The client, and why its certificate is not valid now, if it is not.
async fn client(
    host: &Host,
    config: &Config,
    timeout: Duration,
) -> Result<(Client, Option<String>), ClientError> {
    let identity = config.client_certificate.clone();
    let settings = ClientSettings {
        ca_file: config.ca_file.clone(),
        identity: identity.clone(),
        connect_timeout: timeout,
        timeout,
        redirects: Redirects::All,
        ..ClientSettings::default()
    };
    // The certificates may be on a network file system that hangs.
    let (threads, host) = (host.threads.clone(), host.clone());
    let made = threads.blocking(move || {
        let client = Client::on(&host, settings)?;
        Ok((client, identity.and_then(|identity| identity.invalid_now(&host))))
    });
    let made = made.await;
    made.unwrap_or_else(|error| Err(ClientError::Roots(io::Error::other(error))))
}

async fn request(client: &Client, config: &Config, etag: Option<HeaderValue>) -> Result<Answer, UrlError> {
    let mut request = Request::get(&config.url).body(Bytes::new()).map_err(UrlError::Request)?;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED));
    headers.extend(config.headers.clone());
    let is_conditional = etag.is_some();
    headers.extend(etag.map(|etag| (IF_NONE_MATCH, etag)));

    let answer = client.send(request).await?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_MODIFIED if is_conditional => return Ok(None),
        StatusCode::NOT_MODIFIED => return Err(UrlError::NotConditional),
        status => return Err(UrlError::Status(status)),
    }
    if let Some(coding) = content_coding(answer.headers()) {
        return Err(UrlError::Encoded(coding.as_bytes().escape_ascii().to_string()));
    }
    let etag = answer.headers().get(ETAG).filter(|etag| etag.as_bytes().starts_with(b"\"")).cloned();
    let body = answer.into_body().whole(MAX_MANIFEST).await?;
    if body.is_empty() {
        return Err(UrlError::Empty);
    }
    let sha256 = hex(&Sha256::digest(&body));
    match &config.sha256 {
        Some(pinned) if *pinned != sha256 => Err(UrlError::Pin { found: sha256, pinned: pinned.clone() }),
        _ => Ok(Some((body, Known { sha256, etag }))),
    }
}
