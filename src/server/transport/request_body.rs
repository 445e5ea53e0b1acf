//! Reads requests' bodies before their handlers run, within limits of size, time and memory.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

use super::limits::{LINGER, Limits};
use crate::server::{
    body::{SMALL_BODY, exceeds, incomplete, too_large},
    stats::RejectReason,
    status::ApiError,
};

/// When a client can retry after a lack of memory, in seconds.
const RETRY_AFTER: u64 = 1;

/// Reads bodies within the memory for all of them: see [`Limits::large_bodies`].
#[derive(Debug)]
pub(super) struct BodyReader {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    limits: Limits,
}

/// A whole body and the permits for its memory.
#[derive(Debug, Default)]
pub(super) struct ReceivedBody {
    pub(super) bytes: Bytes,
    _memory: Vec<OwnedSemaphorePermit>,
}

/// Why a body was not read.
pub(super) type BodyRejection = (Option<RejectReason>, ApiError);

impl BodyReader {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            small: Arc::new(Semaphore::new(limits.small_bodies)),
            large: Arc::new(Semaphore::new(limits.large_bodies)),
            limits: limits.clone(),
        }
    }

    /// Reads a whole body. A client that sends slowly blocks no handler.
    pub(super) async fn read(
        &self,
        headers: &HeaderMap,
        body: &mut Incoming,
    ) -> Result<ReceivedBody, BodyRejection> {
        if exceeds(headers, self.limits.body) {
            return Err(self.oversized());
        }
        let mut bytes = Vec::new();
        let mut memory: [Option<OwnedSemaphorePermit>; 2] = [None, None];
        let mut received = 0;
        let mut deadline = Instant::now() + self.limits.body_time;
        loop {
            let frame = timeout_at(deadline, body.frame()).await.map_err(|_| self.too_slow())?;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|error| (None, incomplete(&error)))?.into_data() else { continue };
            if bytes.len() + data.len() > self.limits.body {
                return Err(self.oversized());
            }
            self.reserve(&mut memory, bytes.len(), data.len()).ok_or_else(no_memory)?;
            bytes.extend_from_slice(&data);
            received += data.len();
            if received >= self.limits.pace {
                received = 0;
                deadline = Instant::now() + self.limits.body_time;
            }
        }
        Ok(ReceivedBody { bytes: bytes.into(), _memory: memory.into_iter().flatten().collect() })
    }

    /// Reserves memory for more bytes of a body, from the pool of its first bytes or the other one.
    fn reserve(
        &self,
        memory: &mut [Option<OwnedSemaphorePermit>; 2],
        held: usize,
        more: usize,
    ) -> Option<()> {
        let small = SMALL_BODY.saturating_sub(held).min(more);
        for (pool, wanted, held) in [(&self.small, small, 0), (&self.large, more - small, 1)] {
            let permit = pool.clone().try_acquire_many_owned(u32::try_from(wanted).ok()?).ok()?;
            match &mut memory[held] {
                Some(memory) => memory.merge(permit),
                none => *none = Some(permit),
            }
        }
        Some(())
    }

    fn oversized(&self) -> BodyRejection {
        (Some(RejectReason::BodySize), too_large(self.limits.body))
    }

    fn too_slow(&self) -> BodyRejection {
        let Limits { body_time, pace, .. } = &self.limits;
        let message =
            format!("the body is sent too slowly: send all of it, or {pace} bytes more, every {body_time:?}");
        let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message);
        (Some(RejectReason::BodyTimeout), error)
    }
}

/// Reads and discards the rest of a rejected body, for at most [`LINGER`]. In HTTP/1 the socket
/// does this when it is closed. In HTTP/2 the request would be reset after its response, and
/// curl 7.88 for example reports the reset instead of the response.
pub(super) async fn discard(body: &mut Incoming) {
    let _ = timeout(LINGER, async { while let Some(Ok(_)) = body.frame().await {} }).await;
}

fn no_memory() -> BodyRejection {
    let message = "too many bodies are sent at the same time: retry";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
    (Some(RejectReason::BodyMemory), error.retry_after(RETRY_AFTER))
}
