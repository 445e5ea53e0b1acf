//! One request for the manifests, and what may be wrong with the answer.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, StatusCode,
    header::{ACCEPT, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, USER_AGENT},
};
use sha2::{Digest as _, Sha256};
use tokio::task;
use tracing::warn;

use super::{super::hex, config::Config};
use crate::{
    client::{Client, ClientError, ClientSettings},
    error_chain::chain,
    manifest::MAX_MANIFEST,
    pod::Refusal,
};

/// Who asks.
const AGENT: &str = concat!("podmux/", env!("CARGO_PKG_VERSION"));
/// What is wanted. Anything is read, whatever it says it is.
const WANTED: &str = "application/yaml, application/json, */*;q=0.5";

/// Why a URL gave no pods.
#[derive(Debug, thiserror::Error)]
pub(super) enum UrlError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the request cannot be made")]
    Request(#[source] http::Error),
    #[error("the server answered {}{}; 200 with the manifests is expected", .0, hint(*.0))]
    Status(StatusCode),
    #[error("the server answered {} without being asked for changes only", StatusCode::NOT_MODIFIED)]
    NotAsked,
    #[error(
        "the body is empty, which does not mean that there are no pods; to say so, serve an empty list: {{\"apiVersion\": \"v1\", \"kind\": \"PodList\", \"items\": []}}"
    )]
    Empty,
    #[error(
        "the body's SHA-256 is {found}, and only {wanted} is taken; if the new one is meant, pin that (--manifest-url-sha256)"
    )]
    Pin { found: String, wanted: String },
    #[error("{0}")]
    Refused(Arc<Refusal>),
}

fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => " (does --manifest-url-header say who this is?)",
        StatusCode::NOT_FOUND => " (is the path right?)",
        _ => "",
    }
}

/// What a server can be asked to compare with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Validators {
    /// Its own word for a body.
    pub(super) etag: Option<HeaderValue>,
    /// When the body was changed last, by the server's clock.
    pub(super) last_modified: Option<HeaderValue>,
}

impl Validators {
    fn of(headers: &HeaderMap) -> Self {
        let value = |name: HeaderName| headers.get(name).filter(|value| !value.is_empty()).cloned();
        Self { etag: value(ETAG), last_modified: value(LAST_MODIFIED) }
    }

    /// The header that asks for changes only: the one for the server's own word, which is exact, if there is that.
    fn question(&self) -> Option<(HeaderName, HeaderValue)> {
        let etag = self.etag.clone().map(|etag| (IF_NONE_MATCH, etag));
        etag.or_else(|| Some((IF_MODIFIED_SINCE, self.last_modified.clone()?)))
    }
}

/// What an answer says.
#[derive(Debug)]
pub(super) enum Answer {
    /// Nothing has changed.
    Unchanged,
    /// These are the manifests.
    Body(Fetched),
}

/// A body that is what it should be, as far as can be told without reading it.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) body: Bytes,
    pub(super) sha256: [u8; 32],
    pub(super) validators: Validators,
}

/// Asks the server.
#[derive(Debug, Default)]
pub(super) struct Fetcher {
    client: Option<Client>,
    /// Whether another was asked for, and could not be made yet.
    stale: bool,
    /// Why not, if that was so the last time: it is said once.
    warned: Option<String>,
}

impl Fetcher {
    /// Has certificates read anew before the next request. While they cannot be
    /// used, those from before are.
    pub(super) fn refresh(&mut self) {
        (self.stale, self.warned) = (true, None);
    }

    /// Fetches once. After an error certificates are read anew: a fresh one may
    /// be what mends it. While they cannot be used, those from before still are.
    pub(super) async fn fetch(
        &mut self,
        config: &Config,
        timeout: Duration,
        known: Option<&Validators>,
    ) -> Result<Answer, UrlError> {
        let client = self.ready(config, timeout).await?;
        let answer = ask(&client, config, known).await;
        self.client = Some(client);
        self.stale |= answer.is_err();
        answer
    }

    /// A client of the certificates as they are, or else the one from before.
    async fn ready(&mut self, config: &Config, timeout: Duration) -> Result<Client, ClientError> {
        let before = match self.client.take() {
            Some(client) if !self.stale => return Ok(client),
            before => before,
        };
        match (client(config, timeout).await, before) {
            (Ok(client), _) => {
                (self.stale, self.warned) = (false, None);
                Ok(client)
            }
            (Err(error), None) => Err(error),
            (Err(error), Some(before)) => {
                let why = chain(&error);
                if self.warned.as_ref() != Some(&why) {
                    warn!(source = "url", error = why, "the URL is asked with the certificates from before");
                    self.warned = Some(why);
                }
                Ok(before)
            }
        }
    }
}

async fn client(config: &Config, timeout: Duration) -> Result<Client, ClientError> {
    let settings = ClientSettings {
        ca_file: config.ca_file.clone(),
        identity: config.client_certificate.clone(),
        socket: None,
        connect_timeout: timeout,
        timeout,
        follow_redirects: true,
    };
    // Its files may stand on a network that hangs.
    let made = task::spawn_blocking(|| Client::new(settings)).await;
    made.unwrap_or_else(|error| Err(ClientError::Roots(error.into())))
}

async fn ask(client: &Client, config: &Config, known: Option<&Validators>) -> Result<Answer, UrlError> {
    let mut request = Request::get(&config.url).body(Bytes::new()).map_err(UrlError::Request)?;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(ACCEPT, HeaderValue::from_static(WANTED));
    headers.extend(config.headers.clone());
    let question = known.and_then(Validators::question);
    let asked = question.is_some();
    if let Some((name, value)) = question {
        headers.insert(name, value);
    }

    let answer = client.send(request).await?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_MODIFIED if asked => return Ok(Answer::Unchanged),
        StatusCode::NOT_MODIFIED => return Err(UrlError::NotAsked),
        status => return Err(UrlError::Status(status)),
    }
    let validators = Validators::of(answer.headers());
    let body = answer.into_body().whole(MAX_MANIFEST).await?;
    if body.is_empty() {
        return Err(UrlError::Empty);
    }
    let sha256: [u8; 32] = Sha256::digest(&body).into();
    match config.sha256 {
        Some(wanted) if wanted != sha256 => Err(UrlError::Pin { found: hex(&sha256), wanted: hex(&wanted) }),
        _ => Ok(Answer::Body(Fetched { body, sha256, validators })),
    }
}
