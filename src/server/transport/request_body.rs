//! Reads requests' bodies before their handlers run, within limits of size, time and number.

use std::{error::Error, iter, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{Method, StatusCode, header::EXPECT};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout, timeout_at},
};
use tower_http::catch_panic::CatchPanicLayer;

use super::{auth::is_review, limits::Limits};
use crate::server::{
    body::{OPTIONS_BODY, SMALL_BODY},
    slots::Watchers,
    stats::{ConnectionStats, RejectReason},
    status::ApiError,
};

/// How long the rest of a rejected body is read. Many clients send all of a body before they read
/// the response, and lose it if the connection ends before.
const DISCARD: Duration = Duration::from_secs(2);
/// When a client can retry after too many large bodies, in seconds.
const RETRY_AFTER: u64 = 1;

/// Reads bodies, of which so many large ones at a time.
#[derive(Debug)]
struct BodyReader {
    large: Semaphore,
    /// The permit of one more large body, for root and the agent's own user on a Unix socket: other clients that send
    /// slowly cannot lock them out.
    reserved: Semaphore,
    /// Bounds how many small bodies are decoded and answered. A slow client holds none of these; a
    /// body that waits for one is in memory already.
    small: Semaphore,
    limits: Limits,
    stats: ConnectionStats,
}

/// A router whose handlers receive whole bodies, and whose panics are responses.
pub fn read_bodies(router: Router, limits: &Limits, stats: ConnectionStats) -> Router {
    let large = Semaphore::new(limits.large_bodies);
    let small = Semaphore::new(limits.small_bodies);
    let (reserved, limits) = (Semaphore::new(1), limits.clone());
    let reader = Arc::new(BodyReader { large, reserved, small, limits, stats });
    router
        .layer(DefaultBodyLimit::disable())
        .layer(CatchPanicLayer::custom(|_| ApiError::internal().into_response()))
        .layer(middleware::from_fn_with_state(reader, read))
}

/// The permit of a body is held until its handler responds: it decodes the body.
async fn read(State(reader): State<Arc<BodyReader>>, request: Request, next: Next) -> Response {
    let (head, mut body) = request.into_parts();
    let privileged = head.extensions.get::<Watchers>().is_some_and(|watchers| watchers.privileged);
    let is_read = head.method == Method::GET || head.method == Method::HEAD;
    let limit = match head.method {
        // A caller that may write nothing takes no permit of a large body from those that may.
        _ if is_read || is_review(&head) => SMALL_BODY,
        Method::POST | Method::PUT | Method::PATCH => reader.limits.body,
        _ => reader.limits.body.min(OPTIONS_BODY),
    };
    match reader.read(&mut body, limit, privileged).await {
        Ok((body, _permit)) => next.run(Request::from_parts(head, body.into())).await,
        Err((why, error)) => {
            if let Some(why) = why {
                reader.stats.reject(why);
            }
            let waits = head.headers.contains_key(EXPECT);
            if !waits && error.code() != StatusCode::REQUEST_TIMEOUT {
                discard(&mut body).await;
            }
            error.into_response()
        }
    }
}

/// Reads the rest of a rejected request's body for [`DISCARD`] at most.
pub(super) async fn discard(body: &mut Body) {
    let _ = timeout(DISCARD, async { while let Some(Ok(_)) = body.frame().await {} }).await;
}

/// Why a body was not read.
type BodyRejection = (Option<RejectReason>, ApiError);

impl BodyReader {
    /// Reads a whole body of up to `limit` bytes.
    async fn read(
        &self,
        body: &mut Body,
        limit: usize,
        privileged: bool,
    ) -> Result<(Bytes, Option<SemaphorePermit<'_>>), BodyRejection> {
        // From `Content-Length`: the client need not send the body.
        if body.size_hint().lower() > limit as u64 {
            return Err(too_large(limit));
        }
        let Limits { body_time, pace, .. } = self.limits;
        let (mut bytes, mut permit, mut paced) = (Vec::new(), None, 0);
        let mut deadline = Instant::now() + body_time;
        loop {
            let frame = timeout_at(deadline, body.frame()).await.map_err(|_| self.too_slow())?;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|error| (None, incomplete(&error)))?.into_data() else { continue };
            bytes.extend_from_slice(&data);
            if bytes.len() > limit {
                return Err(too_large(limit));
            }
            if bytes.len() > SMALL_BODY && permit.is_none() {
                permit = Some(self.large(privileged).await.ok_or_else(too_many_large)?);
                // The client did not delay this.
                deadline = Instant::now() + body_time;
            }
            if bytes.len() - paced >= pace {
                (paced, deadline) = (bytes.len(), Instant::now() + body_time);
            }
        }
        if !bytes.is_empty() && permit.is_none() {
            permit = Some(self.permit(&self.small).await.ok_or_else(too_many)?);
        }
        Ok((bytes.into(), permit))
    }

    /// Waits for a permit of a large body.
    async fn large(&self, privileged: bool) -> Option<SemaphorePermit<'_>> {
        tokio::select! {
            biased;
            permit = self.permit(&self.large) => permit,
            permit = self.permit(&self.reserved), if privileged => permit,
        }
    }

    /// Waits for a permit, as long as for a part of a body.
    async fn permit<'s>(&self, permits: &'s Semaphore) -> Option<SemaphorePermit<'s>> {
        timeout(self.limits.body_time, permits.acquire()).await.ok()?.ok()
    }

    fn too_slow(&self) -> BodyRejection {
        let Limits { body_time, pace, .. } = &self.limits;
        let message =
            format!("the body is sent too slowly: send all of it, or {pace} bytes more, every {body_time:?}");
        let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message);
        (Some(RejectReason::BodyTimeout), error)
    }
}

fn too_large(limit: usize) -> BodyRejection {
    let hint = if limit <= OPTIONS_BODY { "send options only" } else { "send the pods in several requests" };
    let message = format!("the body is larger than {limit} bytes: {hint}");
    let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message);
    (Some(RejectReason::BodySize), error)
}

fn incomplete(error: &(dyn Error + 'static)) -> ApiError {
    // The innermost cause is the reason; the outer ones are "error reading a body".
    let causes = iter::successors(Some(error), |&error| error.source());
    let cause = causes.last().map(ToString::to_string).unwrap_or_default();
    ApiError::bad_request(format!("the body is incomplete: {cause}: send it again"))
}

fn too_many_large() -> BodyRejection {
    let message = "too many large bodies are sent at the same time: retry";
    (Some(RejectReason::LargeBodies), unavailable(message))
}

fn too_many() -> BodyRejection {
    (
        Some(RejectReason::SmallBodies),
        unavailable("too many requests with a body wait for their answers: retry"),
    )
}

fn unavailable(message: &str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message).retry_after(RETRY_AFTER)
}
