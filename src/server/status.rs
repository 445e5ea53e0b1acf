//! What went wrong, as Kubernetes tells it: `Status` objects.

use axum::response::{IntoResponse, Response};
use http::{
    HeaderValue, StatusCode,
    header::{ALLOW, CONTENT_TYPE, RETRY_AFTER},
};
use serde::Serialize;

/// How many bytes of the message are told, and of each cause's. A refused body
/// may hold a key of a megabyte, and nobody reads on that far.
const MAX_MESSAGE: usize = 4096;
/// How many causes are told; decoding finds no more than 100 errors a text.
const MAX_CAUSES: usize = 200;

/// An answer other than the one that was asked for: a `v1.Status` with the code
/// and the reason that kube-apiserver has for it
/// (`apimachinery/pkg/api/errors/errors.go`).
///
/// As a response it is JSON with that code, and with `Retry-After` or `Allow` if
/// they were given.
#[derive(Clone, Debug)]
pub struct ApiError {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Box<Details>,
    allow: Option<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Cause {
    reason: String,
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    field: String,
}

/// The object as it is written, in the API's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'e> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Metadata,
    #[serde(rename = "status")]
    outcome: &'static str,
    message: &'e str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'e Details>,
    code: u16,
}

#[derive(Serialize)]
struct Metadata {}

impl ApiError {
    /// An error with a code, the API's word for it and a text that says what is
    /// wrong and how to mend it.
    #[must_use]
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        let message = cut(message.into());
        Self { code, reason, message, details: Box::default(), allow: None }
    }

    /// 400: the request cannot be understood.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 422: of a verb's options (`CreateOptions`) one has a value that there is not.
    #[must_use]
    pub fn no_such_value(options: &'static str, option: &str, value: &str, values: &[&str]) -> Self {
        let why = format!("Unsupported value: {value:?}: supported values: {}", values.join(", "));
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", format!("{option}: {why}"))
            .about(options, "")
            .cause("FieldValueNotSupported", why, option)
    }

    /// 404: there is no such pod.
    #[must_use]
    pub fn no_such_pod(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("pods {name:?} not found")).about("pods", name)
    }

    /// 503: the agent is stopping.
    #[must_use]
    pub fn stopping() -> Self {
        let message = "the agent is stopping; try again when it is back";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message).retry_after(1)
    }

    /// The same about an object: `details.kind` (`pods`) and `details.name`.
    #[must_use]
    pub fn about(mut self, kind: &'static str, name: &str) -> Self {
        self.details.kind = kind;
        name.clone_into(&mut self.details.name);
        self
    }

    /// The same with one more cause. `field` may be empty.
    #[must_use]
    pub fn cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        if self.details.causes.len() < MAX_CAUSES {
            let (message, field) = (cut(message.into()), cut(field.to_owned()));
            self.details.causes.push(Cause { reason: reason.to_owned(), message, field });
        }
        self
    }

    /// The same with the time after which it is worth another try, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.details.retry_after_seconds = Some(seconds);
        self
    }

    /// The same with the methods that would have been right (for a 405).
    #[must_use]
    pub fn allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    /// Its HTTP status code.
    #[must_use]
    pub fn code(&self) -> StatusCode {
        self.code
    }

    /// The `Status` object, without a newline.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let status = Status {
            kind: "Status",
            api_version: "v1",
            metadata: Metadata {},
            outcome: "Failure",
            message: &self.message,
            reason: self.reason,
            details: (*self.details != Details::default()).then_some(&self.details),
            code: self.code.as_u16(),
        };
        // Writing texts and numbers to memory cannot fail.
        serde_json::to_vec(&status).unwrap_or_default()
    }
}

/// A text that is not longer than a message may be, cut between two characters.
fn cut(mut text: String) -> String {
    if text.len() > MAX_MESSAGE {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE - '…'.len_utf8()));
        text.push('…');
    }
    text
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut body = self.to_json();
        body.push(b'\n');
        let mut response = (self.code, [(CONTENT_TYPE, json)], body).into_response();
        if let Some(seconds) = self.details.retry_after_seconds {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if let Some(methods) = self.allow {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
        }
        response
    }
}
