//! Requests' bodies: read to their end before anybody works on them, within bounds of size, time and memory.

use std::{error::Error, iter, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header::CONTENT_LENGTH};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

use super::{
    limits::{LINGER, Limits},
    stats::Refusal,
};
use crate::server::{body::SMALL_BODY, status::ApiError};

/// After how long it is worth another try when memory was short, in seconds.
const RETRY_AFTER: u64 = 1;

/// The memory for all requests' bodies: see [`Limits::large_bodies`].
#[derive(Debug)]
pub(super) struct Intake {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    limits: Limits,
}

/// A body that is there, with the memory that it takes.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) bytes: Bytes,
    _memory: Vec<OwnedSemaphorePermit>,
}

/// Why a body was not read.
pub(super) type NotRead = (Option<Refusal>, ApiError);

impl Intake {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            small: Arc::new(Semaphore::new(limits.small_bodies)),
            large: Arc::new(Semaphore::new(limits.large_bodies)),
            limits: limits.clone(),
        }
    }

    /// Reads a body to its end. Whoever reads it before any work begins can keep
    /// no part of the server waiting by sending it slowly.
    pub(super) async fn read(&self, headers: &HeaderMap, body: &mut Incoming) -> Result<Body, NotRead> {
        let announced =
            headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > self.limits.body as u64) {
            return Err(self.too_large());
        }
        let mut bytes = Vec::new();
        let mut memory: [Option<OwnedSemaphorePermit>; 2] = [None, None];
        let mut paced = 0;
        let mut deadline = Instant::now() + self.limits.body_time;
        loop {
            let frame = timeout_at(deadline, body.frame()).await.map_err(|_| self.too_slow())?;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|error| (None, cut_off(&error)))?.into_data() else { continue };
            if bytes.len() + data.len() > self.limits.body {
                return Err(self.too_large());
            }
            self.remember(&mut memory, bytes.len(), data.len()).ok_or_else(no_memory)?;
            bytes.extend_from_slice(&data);
            paced += data.len();
            if paced >= self.limits.pace {
                paced = 0;
                deadline = Instant::now() + self.limits.body_time;
            }
        }
        Ok(Body { bytes: bytes.into(), _memory: memory.into_iter().flatten().collect() })
    }

    /// Takes memory for some more bytes of a body, out of the share that they belong to.
    fn remember(
        &self,
        memory: &mut [Option<OwnedSemaphorePermit>; 2],
        held: usize,
        more: usize,
    ) -> Option<()> {
        let small = SMALL_BODY.saturating_sub(held).min(more);
        for (share, wanted, held) in [(&self.small, small, 0), (&self.large, more - small, 1)] {
            let permit = share.clone().try_acquire_many_owned(u32::try_from(wanted).ok()?).ok()?;
            match &mut memory[held] {
                Some(memory) => memory.merge(permit),
                none => *none = Some(permit),
            }
        }
        Some(())
    }

    fn too_large(&self) -> NotRead {
        let message = format!("the body is too large: {} bytes are the limit", self.limits.body);
        let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message);
        (Some(Refusal::BodySize), error)
    }

    fn too_slow(&self) -> NotRead {
        let Limits { body_time, pace, .. } = &self.limits;
        let message = format!(
            "the body comes too slowly: it has to end within {body_time:?}, or to bring {pace} bytes in that time"
        );
        (Some(Refusal::BodyTime), ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message))
    }
}

/// Reads what is left of a refused body, for at most [`LINGER`], and throws it
/// away. In HTTP/1 the socket does this when it is closed; in HTTP/2 the request
/// would be reset behind its answer, and curl 7.88 for one then tells its user
/// of the reset, and not of the answer.
pub(super) async fn discard(body: &mut Incoming) {
    let _ = timeout(LINGER, async { while let Some(Ok(_)) = body.frame().await {} }).await;
}

fn no_memory() -> NotRead {
    let message = "too many bodies are being read at once; try again";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
    (Some(Refusal::BodyMemory), error.retry_after(RETRY_AFTER))
}

fn cut_off(error: &hyper::Error) -> ApiError {
    // The innermost cause says what happened, the outer ones where.
    let chain = iter::successors(Some(error as &dyn Error), |&error| error.source());
    let cause = chain.last().map(ToString::to_string).unwrap_or_default();
    ApiError::bad_request(format!("the body was cut off: {cause}"))
}
