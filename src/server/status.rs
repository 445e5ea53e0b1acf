//! Errors as Kubernetes' `Status` objects.

use axum::{
    Extension,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde::Serialize;
use serde_json::{Map, Value};

/// The maximal length of a message, in bytes: a rejected body may have a key of a megabyte.
const MAX_MESSAGE: usize = 4096;
/// The maximal number of causes. Decoding reports at most 100 errors of a text.
const MAX_CAUSES: usize = 200;

/// An error response: a `v1.Status` with kube-apiserver's code and reason
/// (`apimachinery/pkg/api/errors/errors.go`).
///
/// The response is JSON, with the header `Retry-After` if it is set.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename = "Status", rename_all = "camelCase")]
pub struct ApiError {
    api_version: &'static str,
    /// Empty, or the `continue` of an expired page.
    metadata: Map<String, Value>,
    status: Outcome,
    message: String,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Box<StatusDetails>>,
    code: u16,
    /// The `Warning` headers of the response.
    #[serde(skip)]
    warnings: Option<Box<HeaderMap>>,
}

/// Whether a request succeeded. A text would make each error larger.
#[derive(Clone, Copy, Debug, Serialize)]
enum Outcome {
    Failure,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusDetails {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<StatusCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
struct StatusCause {
    reason: String,
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    field: String,
}

impl ApiError {
    /// An error with a code, the API's reason, and a message: what is wrong and what to do next.
    ///
    /// Errors about the request itself have empty details, as those of an API server: kubectl 1.36 and older
    /// dereference the details of a 404.
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        let has_details = matches!(
            code,
            StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::NOT_ACCEPTABLE
                | StatusCode::UNSUPPORTED_MEDIA_TYPE
        );
        Self {
            api_version: "v1",
            metadata: Map::new(),
            status: Outcome::Failure,
            message: cut(message.into()),
            reason,
            details: has_details.then(Box::default),
            code: code.as_u16(),
            warnings: None,
        }
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 422: an object or an option is invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    /// 400: a parameter is not a number.
    pub fn not_a_number(name: &str, value: &str) -> Self {
        Self::bad_request(format!("invalid {name} {value:?}: must be a number"))
    }

    /// 404: the pod does not exist.
    pub fn no_such_pod(name: &str) -> Self {
        Self::not_found("pods", name)
    }

    /// 404: the object of a resource does not exist.
    pub fn not_found(resource: &'static str, name: &str) -> Self {
        let message = format!("{resource} {name:?} not found");
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(resource, name)
    }

    /// 500: a handler panicked.
    pub fn internal() -> Self {
        let message = "the agent failed to handle this request: see the agent's log";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// 503: the agent is shutting down.
    pub fn stopping() -> Self {
        let message = "the agent is shutting down: retry when it has restarted";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message).retry_after(1)
    }

    /// Begins the message with this text.
    #[must_use]
    pub fn prefixed(mut self, prefix: &str) -> Self {
        self.message = cut(format!("{prefix}{}", self.message));
        self
    }

    /// Sets `details.kind` (`pods`) and `details.name`.
    #[must_use]
    pub fn about(mut self, kind: &'static str, name: &str) -> Self {
        let details = self.details.get_or_insert_default();
        (details.kind, details.name) = (kind, name.to_owned());
        self
    }

    /// Sets `details.group`, the API group of the kind.
    #[must_use]
    pub fn in_group(mut self, group: &'static str) -> Self {
        self.details.get_or_insert_default().group = group;
        self
    }

    /// Sets `metadata.continue`: a token with which the client can read the rest of an expired list.
    #[must_use]
    pub fn continued(mut self, token: String) -> Self {
        self.metadata.insert("continue".to_owned(), token.into());
        self
    }

    /// Adds a cause. `field` may be empty.
    #[must_use]
    pub fn cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        let causes = &mut self.details.get_or_insert_default().causes;
        if causes.len() < MAX_CAUSES {
            let (message, field) = (cut(message.into()), cut(field.to_owned()));
            causes.push(StatusCause { reason: reason.to_owned(), message, field });
        }
        self
    }

    /// Sets after how many seconds the client can retry.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = Some(seconds);
        self
    }

    /// Adds the warnings about the request to the response.
    #[must_use]
    pub fn warned(mut self, warnings: &HeaderMap) -> Self {
        self.warnings = Some(warnings).filter(|warnings| !warnings.is_empty()).cloned().map(Box::new);
        self
    }

    /// What is wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The HTTP status code.
    pub fn code(&self) -> StatusCode {
        StatusCode::from_u16(self.code).unwrap_or_default()
    }

    /// The `Status` object, without a newline.
    pub fn to_json(&self) -> Vec<u8> {
        // Writing texts and numbers to memory cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Cuts a text to the maximal length of a message, between two characters.
fn cut(mut text: String) -> String {
    if text.len() > MAX_MESSAGE {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE - '…'.len_utf8()));
        text.push('…');
    }
    text
}

impl IntoResponse for ApiError {
    fn into_response(mut self) -> Response {
        let warnings = self.warnings.take().map(|warnings| *warnings).unwrap_or_default();
        let retry_after = self.details.as_ref().and_then(|details| details.retry_after_seconds);
        let retry_after = retry_after.map(|seconds| [(RETRY_AFTER, HeaderValue::from(seconds))]);
        // The API's answer to a caller without credentials names the scheme.
        let scheme = (self.code() == StatusCode::UNAUTHORIZED).then_some([(WWW_AUTHENTICATE, "Bearer")]);
        let body = [&*self.to_json(), b"\n"].concat();
        let (code, json) = (self.code(), [(CONTENT_TYPE, "application/json")]);
        // For a client of protobuf it is encoded again.
        (code, json, retry_after, scheme, warnings, Extension(self), body).into_response()
    }
}
