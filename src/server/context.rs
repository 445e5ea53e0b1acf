//! The state that all handlers share, and how they read requests and write answers.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{FromRequestParts, Query, RawPathParams},
    http::request::Parts,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use super::{View, observe::metrics, status::ApiError};
use crate::history::Snapshot;

/// What every handler shares.
pub(super) struct Context {
    pub(super) view: View,
    /// The leave to read a large body.
    pub(super) large_bodies: Semaphore,
    /// The leave to watch the updates.
    pub(super) watchers: Arc<Semaphore>,
    /// What was asked and answered so far.
    pub(super) requests: metrics::Requests,
}

/// How long the history may take to say where the stream is. It may be waiting
/// for a disk that hangs, and then nobody should wait with it.
const HISTORY: Duration = Duration::from_secs(5);

/// What the history answers.
///
/// # Errors
/// 503 if it has ended, or does not answer.
pub(super) async fn answered<T>(asked: impl Future<Output = Option<T>>) -> Result<T, ApiError> {
    match timeout(HISTORY, asked).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(ApiError::stopping()),
        Err(_) => {
            let message = "the update history does not answer; is the disk of the state directory well?";
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message).retry_after(5))
        }
    }
}

impl Context {
    /// What all sources want, and where in the update stream that is.
    pub(super) async fn snapshot(&self) -> Result<Snapshot, ApiError> {
        answered(self.view.history.snapshot()).await
    }
}

/// Does work that takes long on a thread of its own, for the runtime has few.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    spawn_blocking(work).await.map_err(|_| {
        let message = "the agent failed at this request; its log says how";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    })
}

/// An answer in JSON.
pub(super) fn answer(value: &Value) -> Response {
    json_text(StatusCode::OK, format!("{value}\n")).into_response()
}

/// An answer of a text that is JSON already.
pub(super) fn json_text<T>(
    code: StatusCode,
    text: T,
) -> (StatusCode, [(http::HeaderName, HeaderValue); 1], T) {
    (code, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text)
}

/// What a request's path and query say.
pub(super) struct Params {
    path: Vec<(String, String)>,
    query: Vec<(String, String)>,
    method: Method,
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::bad_request(format!("the path cannot be read: {error}")))?;
        let path: Vec<_> = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        if let Some((name, value)) = path.iter().find(|(_, value)| value.contains('/')) {
            return Err(ApiError::bad_request(format!("the {name} {value:?} may not contain '/'")));
        }
        let Query(query) = Query::try_from_uri(&parts.uri)
            .map_err(|error| ApiError::bad_request(format!("the query cannot be read: {error}")))?;
        Ok(Self { path, query, method: parts.method.clone() })
    }
}

impl Params {
    /// A part of the path.
    pub(super) fn part(&self, name: &str) -> Option<&str> {
        self.path.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// A parameter of the query; of several the first, as at the API. Absent is empty.
    pub(super) fn option(&self, name: &str) -> &str {
        self.options(name).next().unwrap_or_default()
    }

    /// All values of a parameter.
    pub(super) fn options(&self, name: &str) -> impl Iterator<Item = &str> {
        self.query.iter().filter(move |(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// A parameter that is yes or no. As at the API everything but `0` and
    /// `false` is yes (`apimachinery/pkg/runtime/conversion.go`).
    pub(super) fn flag(&self, name: &str) -> bool {
        self.options(name).next().is_some_and(|value| !matches!(value, "0" | "false"))
    }

    /// A parameter that is a number.
    pub(super) fn number<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>, ApiError> {
        match self.option(name) {
            "" => Ok(None),
            text => {
                let bad = || ApiError::bad_request(format!("invalid {name} {text:?}: a number is expected"));
                text.parse().map(Some).map_err(|_| bad())
            }
        }
    }

    /// Whether nothing is to be changed: `dryRun=All`.
    pub(super) fn dry_run(&self) -> Result<bool, ApiError> {
        self.reads_dry_run(self.options("dryRun"))
    }

    /// Reads the values of `dryRun`, wherever they were said.
    pub(super) fn reads_dry_run<'v>(&self, values: impl Iterator<Item = &'v str>) -> Result<bool, ApiError> {
        let mut dry = false;
        for value in values {
            if value != "All" {
                return Err(ApiError::no_such_value(self.options_kind(), "dryRun", value, &["All"]));
            }
            dry = true;
        }
        Ok(dry)
    }

    /// What the API calls the options of the request's verb.
    pub(super) fn options_kind(&self) -> &'static str {
        match self.method {
            Method::POST => "CreateOptions",
            Method::PUT => "UpdateOptions",
            Method::DELETE => "DeleteOptions",
            _ => "ListOptions",
        }
    }
}
