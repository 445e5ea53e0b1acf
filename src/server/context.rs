//! What all handlers share, and how they read a request and write a response.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{FromRequestParts, Query, RawPathParams},
    http::request::Parts,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;
use tokio::{sync::Semaphore, time::timeout};

use super::{
    api::resource::Reading, body::SMALL_BODY, reads::Reads, requests::Requests, status::ApiError, view::View,
};
use crate::{
    duration::is_duration,
    history::{SeenPod, Snapshot},
    pod::{Entry, PodKey, SourceName},
    runtime::Observed,
    storage::SourceState,
};

/// The state that all handlers share.
pub(super) struct Context {
    pub(super) view: View,
    pub(super) requests: Requests,
    /// The bytes of [`DECODED`] that are free.
    decoding: Arc<Semaphore>,
    pub(super) reads: Reads,
}

/// How many bytes of large bodies are decoded at a time. While a body is decoded it takes a multiple
/// of its size.
const DECODED: usize = 10 * 1024 * 1024;

/// How long the history may take to answer. It may wait for a disk that hangs.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(5);

/// After how many seconds a client may ask again for what is not known while the state is not open.
pub(super) const STATE_RETRY: u64 = 5;

/// Waits for an answer of the history.
///
/// # Errors
/// 503 if it has ended or does not answer in time.
pub(super) async fn from_history<T>(answer: impl Future<Output = Option<T>>) -> Result<T, ApiError> {
    match timeout(HISTORY_TIMEOUT, answer).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(ApiError::stopping()),
        Err(_) => {
            let message = format!(
                "the update history did not answer within {HISTORY_TIMEOUT:?}: check the disk of the state directory"
            );
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message).retry_after(5))
        }
    }
}

impl Context {
    pub(super) fn new(view: View, requests: Requests) -> Self {
        let reads = Reads::new(view.host.threads.clone());
        Self { view, requests, decoding: Arc::new(Semaphore::new(DECODED)), reads }
    }

    /// The merged pod of this name.
    ///
    /// # Errors
    /// 404 if there is none. 503 if it may be a posted one, and these are not known: a client takes a 404 for a deletion.
    pub(super) fn entry(&self, key: &PodKey) -> Result<Entry, ApiError> {
        let merged = self.view.merged.borrow();
        if let Some(entry) = merged.get(key) {
            return Ok(entry.clone());
        }
        if merged.state(SourceName::Http) != Some(SourceState::Waiting) {
            return Err(ApiError::no_such_pod(key.name()));
        }
        let message = format!(
            "{:?} may be a posted pod: these are unknown until the state is open; see podmux get sources (GET /sources)",
            key.name()
        );
        Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
            .retry_after(STATE_RETRY))
    }

    /// The statuses that pods are read with now; without a runtime none.
    pub(super) fn observed(&self) -> Option<Observed> {
        self.view.observed.as_ref().map(|observed| observed.borrow().clone())
    }

    /// A pod with what is observed of it now.
    pub(super) fn seen(&self, entry: &Entry) -> SeenPod {
        SeenPod::new(entry, self.observed().as_ref())
    }

    /// How objects are read now, without a resourceVersion.
    pub(super) fn reading(&self) -> Reading {
        let (has_runtime, now) = (self.view.observed.is_some(), self.view.host.clock.now());
        Reading { has_runtime, version: None, now }
    }

    /// The merged pods and their number in the update stream.
    pub(super) async fn snapshot(&self) -> Result<Snapshot, ApiError> {
        // A client has this number, also if another source's pod hides the pod that was written: then no event has it.
        from_history(self.view.history.snapshot_after(self.view.posts.written())).await
    }

    /// Decodes a body of a length in bytes: off the runtime unless it is small, and large ones one
    /// after the other.
    pub(super) async fn decode<T: Send + 'static>(
        &self,
        length: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        if length <= SMALL_BODY {
            return Ok(work());
        }
        let share = u32::try_from(length.min(DECODED)).unwrap_or(u32::MAX);
        let permit =
            self.decoding.clone().acquire_many_owned(share).await.map_err(|_| ApiError::internal())?;
        // The work goes on when the client goes away, and keeps its share until it ends.
        self.blocking(move || {
            let _permit = permit;
            work()
        })
        .await
    }

    /// Collects what a request reads from many objects.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.reads.run(work).await.map_err(|_| ApiError::internal())
    }

    /// Runs work that takes long on a thread of its own: the runtime has few.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.view.host.threads.blocking(work).await.map_err(|_| ApiError::internal())
    }
}

/// A response of JSON.
pub(super) fn json_response(value: &Value) -> Response {
    json_text(StatusCode::OK, format!("{value}\n")).into_response()
}

/// A response whose text is JSON already.
pub(super) fn json_text<T>(
    code: StatusCode,
    text: T,
) -> (StatusCode, [(http::HeaderName, HeaderValue); 1], T) {
    (code, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text)
}

/// The path, query and headers of a request.
pub(super) struct Params {
    path: Vec<(String, String)>,
    query: Vec<(String, String)>,
    method: Method,
    pub(super) headers: HeaderMap,
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::bad_request(format!("invalid path: {error}")))?;
        let path: Vec<_> = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        if let Some((name, value)) = path.iter().find(|(_, value)| value.contains('/')) {
            return Err(ApiError::bad_request(format!("the {name} {value:?} may not contain '/'")));
        }
        if let Some((name, _)) = path.iter().find(|(_, value)| value.is_empty()) {
            let message = format!("the {name} in {} is empty", parts.uri.path());
            return Err(ApiError::new(StatusCode::NOT_FOUND, "NotFound", message));
        }
        let Query(query) = Query::try_from_uri(&parts.uri)
            .map_err(|error| ApiError::bad_request(format!("invalid query: {error}")))?;
        let params = Self { path, query, method: parts.method.clone(), headers: parts.headers.clone() };
        // A request takes as long as it takes, but clients learn what they sent. A watch has `timeoutSeconds`.
        let timeout = params.option("timeout");
        if !timeout.is_empty() && !params.flag("watch") && !is_duration(timeout) {
            let why = format!("invalid timeout specified in the request URL - invalid duration {timeout:?}");
            return Err(ApiError::bad_request(why));
        }
        Ok(params)
    }
}

impl Params {
    /// A part of the path.
    pub(super) fn part(&self, name: &str) -> Option<&str> {
        self.path.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// The namespaced object that the path names.
    pub(super) fn key(&self) -> PodKey {
        PodKey::new(self.part("namespace").unwrap_or_default(), self.part("name").unwrap_or_default())
    }

    /// The first value of a query parameter, as the API reads it; empty if absent.
    pub(super) fn option(&self, name: &str) -> &str {
        self.options(name).next().unwrap_or_default()
    }

    /// All values of a query parameter.
    pub(super) fn options(&self, name: &str) -> impl Iterator<Item = &str> {
        self.query.iter().filter(move |(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Refuses query parameters other than these.
    pub(super) fn allow(&self, known: &[&str]) -> Result<(), ApiError> {
        let unknown = self.query.iter().find(|(name, _)| !known.contains(&&**name));
        let Some((name, _)) = unknown else { return Ok(()) };
        let message = format!("unknown query parameter {name:?}; supported: {}", known.join(", "));
        Err(ApiError::bad_request(message))
    }

    /// A boolean query parameter. As in the API, everything but `0` and `false`, in any case, is true
    /// (`apimachinery/pkg/runtime/conversion.go`).
    pub(super) fn flag(&self, name: &str) -> bool {
        self.options(name).next().is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// A numeric query parameter. An empty one is no number, but for a resourceVersion, which is a text in the API.
    pub(super) fn number<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>, ApiError> {
        let given = self.options(name).next().filter(|text| !text.is_empty() || name != "resourceVersion");
        given.map(|text| text.parse().map_err(|_| ApiError::not_a_number(name, text))).transpose()
    }

    /// Whether the query has `dryRun=All`: nothing is changed.
    pub(super) fn dry_run(&self) -> Result<bool, ApiError> {
        self.parse_dry_run(self.options("dryRun"))
    }

    /// Parses values of `dryRun`, from the query or a body.
    pub(super) fn parse_dry_run<'v>(&self, values: impl Iterator<Item = &'v str>) -> Result<bool, ApiError> {
        let mut dry = false;
        for value in values {
            if value != "All" {
                return Err(self.no_such_value("dryRun", value, &["All"]));
            }
            dry = true;
        }
        Ok(dry)
    }

    /// 422: an option has an unsupported value.
    pub(super) fn no_such_value(&self, option: &str, value: &str, values: &[&str]) -> ApiError {
        let why = format!("Unsupported value: {value:?}: supported values: {}", values.join(", "));
        let error = ApiError::invalid(format!("{option}: {why}")).about(self.options_kind(), "");
        error.cause("FieldValueNotSupported", why, option)
    }

    /// 422: an option is invalid, for a reason of the API.
    pub(super) fn invalid_option(&self, option: &str, reason: &str, why: &str) -> ApiError {
        let kind = self.options_kind();
        let message = format!("{kind}.meta.k8s.io \"\" is invalid: {option}: {why}");
        ApiError::invalid(message).about(kind, "").in_group("meta.k8s.io").cause(reason, why, option)
    }

    /// The API's name for the options of the request's verb.
    pub(super) fn options_kind(&self) -> &'static str {
        match self.method {
            Method::POST => "CreateOptions",
            Method::PUT => "UpdateOptions",
            Method::PATCH => "PatchOptions",
            Method::DELETE => "DeleteOptions",
            _ => "ListOptions",
        }
    }
}
