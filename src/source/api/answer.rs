//! What an API server says went wrong, as a `Status`: the body of a refusal, or the object of an ERROR event.

use std::{fmt, time::Duration};

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use serde::Deserialize;

/// The most of a server's message that is repeated, in characters.
const MAX_MESSAGE: usize = 500;

/// A refusal, whatever the way it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status, or the `code` of an ERROR event.
    pub code: u16,
    /// Kubernetes' word for it: `Expired`; empty if there is none.
    pub reason: String,
    message: String,
    /// How long to wait before it is asked again, if the server says that.
    pub retry_after: Option<Duration>,
    too_large: bool,
}

/// A `Status`, as far as it matters here.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    code: Option<u16>,
    reason: Option<String>,
    message: Option<String>,
    details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    causes: Option<Vec<Cause>>,
    retry_after_seconds: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: Option<String>,
    message: Option<String>,
}

impl Refusal {
    /// What an answer says whose HTTP status is not 200. Its body may be anything.
    #[must_use]
    pub fn of_answer(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let status = serde_json::from_slice(body).unwrap_or_else(|_| Status {
            message: Some(String::from_utf8_lossy(body).trim().to_owned()),
            ..Status::default()
        });
        let header = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let refusal = Self::of(status, code.as_u16());
        Self { retry_after: header.map(Duration::from_secs).or(refusal.retry_after), ..refusal }
    }

    /// What the object of an ERROR event says. It should be a `Status`.
    #[must_use]
    pub fn of_event(object: &[u8]) -> Self {
        let status: Status = serde_json::from_slice(object).unwrap_or_default();
        let code = status.code.unwrap_or_default();
        Self::of(status, code)
    }

    fn of(status: Status, code: u16) -> Self {
        let details = status.details.unwrap_or_default();
        let message: String = status.message.unwrap_or_default().chars().take(MAX_MESSAGE).collect();
        // Servers before 1.18 name no cause, and only say it in words.
        let said = "Too large resource version";
        let too_large = details.causes.unwrap_or_default().iter().any(|cause| {
            cause.reason.as_deref() == Some("ResourceVersionTooLarge")
                || cause.message.as_deref() == Some(said)
        }) || (code == 504 && message.contains(said));
        Self {
            code,
            reason: status.reason.unwrap_or_default(),
            message,
            retry_after: details.retry_after_seconds.map(Duration::from_secs),
            too_large,
        }
    }

    /// The resource version is older than what the server remembers.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    /// The resource version is newer than anything that the server knows.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.too_large
    }

    /// Either: another version has to be asked for.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.is_expired() || self.is_too_large()
    }

    /// The server does not understand the request. (Of a `WatchList`: it is too old for it.)
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.code == 400 || self.code == 422
    }

    /// The server does not answer this request, whenever it is asked.
    #[must_use]
    pub fn is_about_the_request(&self) -> bool {
        matches!(self.code, 400 | 403 | 404 | 405 | 422)
    }

    /// The server may well answer the same request later, so it says nothing
    /// about the resource version: who asks, how often, and when.
    #[must_use]
    pub fn is_about_the_moment(&self) -> bool {
        matches!(self.code, 401 | 403 | 429 | 503)
    }

    /// What a person may do about it.
    fn hint(&self) -> &'static str {
        match self.code {
            // Go's own words.
            400 if self.message.contains("HTTP request to an HTTPS server") => {
                "; it speaks TLS: begin the kubeconfig's server with https://"
            }
            401 => "; the credentials of the kubeconfig are not, or no longer, valid",
            403 => {
                "; grant this user list and watch on pods (a node's own credentials have both, if --node-name is that node's)"
            }
            404 => "; is this the API server's URL?",
            _ => "",
        }
    }
}

/// A server's words on one line, whatever is in them.
fn shown(words: &str) -> String {
    let shown = words
        .chars()
        .map(|char| if char.is_control() { char.escape_default().to_string() } else { char.to_string() });
    shown.collect()
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code =
            StatusCode::from_u16(self.code).map_or_else(|_| self.code.to_string(), |code| code.to_string());
        write!(f, "{code}")?;
        if !self.message.is_empty() {
            write!(f, ": {}", shown(&self.message))?;
        } else if !self.reason.is_empty() {
            write!(f, ": {}", shown(&self.reason))?;
        }
        f.write_str(self.hint())
    }
}
