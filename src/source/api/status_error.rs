//! A Kubernetes `Status` that reports an error: the body of a response, or the object of an
//! ERROR event.

use std::{fmt, time::Duration};

use http::{
    HeaderMap, StatusCode,
    header::{LOCATION, RETRY_AFTER},
};
use serde_json::{Value, json};

use super::protobuf_splitter::is_protobuf;
use crate::{
    client::{parse_url, shown},
    manifest::protobuf,
};

/// How much of a server's message is repeated, in characters.
const MAX_MESSAGE: usize = 500;

/// An error that the API server reports, as apimachinery's `StatusError`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusError {
    /// The HTTP status, or the `code` of an ERROR event.
    pub code: u16,
    /// The `reason`, such as `Expired`; empty if there is none.
    pub reason: String,
    message: String,
    /// How long the server asks the client to wait before a retry.
    pub retry_after: Option<Duration>,
    /// Whether the resource version is newer than what the server knows.
    is_too_large: bool,
}

impl StatusError {
    /// Reads a response whose HTTP status is not 200. Its body may be anything.
    pub fn from_response(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let status = if is_protobuf(headers) {
            protobuf::decode(body, "Status").ok()
        } else {
            serde_json::from_slice(body).ok().filter(Value::is_object)
        };
        let target = headers.get(LOCATION).filter(|_| code.is_redirection());
        let target = target.and_then(|target| parse_url(target.to_str().ok()?).ok());
        let status = target.map(|target| json!({ "message": format!("to {}", shown(&target)) })).or(status);
        let status = status.unwrap_or_else(|| json!({ "message": String::from_utf8_lossy(body).trim() }));
        let header = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let error = Self::new(&status, code.as_u16());
        Self { retry_after: header.map(Duration::from_secs).or(error.retry_after), ..error }
    }

    /// Reads the object of an ERROR event, which should be a `Status`. Of an object of another
    /// kind the code counts, too.
    pub fn from_event(object: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(object).unwrap_or_default();
        let code = status["code"].as_u64().and_then(|code| code.try_into().ok());
        Self::new(&status, code.unwrap_or_default())
    }

    fn new(status: &Value, code: u16) -> Self {
        let text = |name: &str| status[name].as_str().unwrap_or_default();
        let message: String = text("message").chars().take(MAX_MESSAGE).collect();
        // Servers before 1.18 have no such cause, only the message.
        let too_large = "Too large resource version";
        let mut causes = status["details"]["causes"].as_array().into_iter().flatten();
        let is_too_large = causes
            .any(|cause| cause["reason"] == "ResourceVersionTooLarge" || cause["message"] == too_large)
            || (code == 504 && message.contains(too_large));
        let retry_after = status["details"]["retryAfterSeconds"].as_u64().map(Duration::from_secs);
        Self { code, reason: text("reason").to_owned(), message, retry_after, is_too_large }
    }

    /// Whether the resource version is older than what the server remembers.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    /// Whether the next request needs another resource version.
    pub fn is_stale(&self) -> bool {
        self.is_expired() || self.is_too_large
    }

    /// Whether the server does not understand the request: for a `WatchList`, that it does
    /// not support it.
    pub fn is_invalid(&self) -> bool {
        self.code == 400 || self.code == 422
    }

    /// Whether the same request would fail at any time.
    pub fn is_permanent(&self) -> bool {
        matches!(self.code, 400 | 403 | 404 | 405 | 422)
    }

    /// Whether the same request may succeed later, so that the error says nothing about
    /// the resource version.
    pub fn is_temporary(&self) -> bool {
        matches!(self.code, 401 | 403 | 429 | 503)
    }

    /// What the user can do.
    fn hint(&self) -> &'static str {
        match self.code {
            300..400 => " (write the URL of the API server itself in the kubeconfig)",
            // The message is that of Go's HTTP server.
            400 if self.message.contains("HTTP request to an HTTPS server") => {
                " (the server uses TLS: write https:// in the kubeconfig's server)"
            }
            401 => " (are the credentials in the kubeconfig valid, and have they expired?)",
            403 => {
                " (grant this user list and watch on pods; a node's own credentials have both if --node-name is that node)"
            }
            404 => " (is this the URL of the API server?)",
            _ => "",
        }
    }
}

/// A server's text on one line, without control characters.
fn on_one_line(text: &str) -> String {
    text.chars()
        .map(|char| if char.is_control() { char.escape_default().to_string() } else { char.to_string() })
        .collect()
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code =
            StatusCode::from_u16(self.code).map_or_else(|_| self.code.to_string(), |code| code.to_string());
        write!(f, "{code}")?;
        if !self.message.is_empty() {
            write!(f, ": {}", on_one_line(&self.message))?;
        } else if !self.reason.is_empty() {
            write!(f, ": {}", on_one_line(&self.reason))?;
        }
        f.write_str(self.hint())
    }
}
