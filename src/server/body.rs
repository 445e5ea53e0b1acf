//! Bodies: reads those of requests within limits, and sends those of responses in chunks.

use std::{
    convert::Infallible,
    error::Error,
    iter::{self, Peekable},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use http::{
    HeaderMap, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::status::ApiError;
use crate::{manifest::MAX_MANIFEST, pod::Pod};

/// The largest body, in bytes, that is read and decoded at once. A larger one waits for a
/// permit: see [`LARGE_BODIES`].
pub const SMALL_BODY: usize = 64 * 1024;
/// How many large bodies are read and decoded at a time. Each uses up to 10 MiB, and a
/// multiple of that while it is decoded.
pub const LARGE_BODIES: usize = 2;
/// The size of a chunk of a response, in bytes, unless a pod is larger.
const CHUNK: usize = 16 * 1024;

/// The format of a request's body, from its `Content-Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFormat {
    /// JSON; YAML is rejected.
    Json,
    /// YAML, which includes JSON; also if the header is absent.
    Yaml,
    /// What `curl -d` sends, which removes the newlines of a file: YAML.
    Form,
}

impl BodyFormat {
    /// Reads `Content-Type` without its parameters.
    ///
    /// # Errors
    /// 415 if it is neither JSON nor YAML, or the body is compressed.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let unsupported = |message: String| {
            ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
        };
        let text =
            |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        if let Some(coding) = text(CONTENT_ENCODING).filter(|coding| !coding.eq_ignore_ascii_case("identity"))
        {
            return Err(unsupported(format!(
                "unsupported content encoding {coding:?}: send the body uncompressed"
            )));
        }
        let Some(given) = text(CONTENT_TYPE) else { return Ok(Self::Yaml) };
        let media_type = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match &*media_type {
            "application/json" | "text/json" => Ok(Self::Json),
            "" | "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml"
            | "text/vnd.yaml" => Ok(Self::Yaml),
            "application/x-www-form-urlencoded" => Ok(Self::Form),
            _ => Err(unsupported(format!(
                "unsupported media type {given:?}: send application/json or application/yaml"
            ))),
        }
    }
}

/// A request's body.
#[derive(Debug)]
pub(super) struct RequestBody<'s> {
    pub(super) text: Bytes,
    pub(super) format: BodyFormat,
    /// The permit of a large body.
    _large: Option<SemaphorePermit<'s>>,
}

impl<'s> RequestBody<'s> {
    /// Reads a body to its end.
    ///
    /// # Errors
    /// 413 if it is larger than [`MAX_MANIFEST`], 400 if it ends early, 415 as for
    /// [`BodyFormat::of`].
    pub(super) async fn read(
        headers: &HeaderMap,
        mut body: Body,
        large: &'s Semaphore,
    ) -> Result<Self, ApiError> {
        let format = BodyFormat::of(headers)?;
        if exceeds(headers, MAX_MANIFEST) {
            return Err(too_large(MAX_MANIFEST));
        }
        let (mut frames, mut length, mut permit) = (Vec::new(), 0, None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| incomplete(&error))?;
            let Ok(data) = frame.into_data() else { continue };
            length += data.len();
            if length > MAX_MANIFEST {
                return Err(too_large(MAX_MANIFEST));
            }
            if length > SMALL_BODY && permit.is_none() {
                permit = Some(large.acquire().await.map_err(|_| ApiError::stopping())?);
            }
            frames.push(data);
        }
        // The transport has read the body already: it is one piece, which is not copied.
        let text = if let [whole] = &frames[..] { whole.clone() } else { frames.concat().into() };
        Ok(Self { text, format, _large: permit })
    }
}

/// Whether `Content-Length` is over a limit in bytes.
pub(super) fn exceeds(headers: &HeaderMap, limit: usize) -> bool {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    length.is_some_and(|length| length > limit as u64)
}

/// 413: a body is over a limit in bytes.
pub(super) fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is larger than {limit} bytes: send the pods in several requests");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
}

/// 400: a body ended early.
pub(super) fn incomplete(error: &(dyn Error + 'static)) -> ApiError {
    // The innermost cause is the reason; the outer ones are "error reading a body".
    let causes = iter::successors(Some(error), |&error| error.source());
    let cause = causes.last().map(ToString::to_string).unwrap_or_default();
    ApiError::bad_request(format!("the body is incomplete: {cause}: send it again"))
}

/// Pods as the items of a JSON array, without copying their texts.
pub(super) fn items(pods: impl Iterator<Item = Arc<Pod>> + Clone) -> impl Iterator<Item = Bytes> + Clone {
    pods.enumerate().flat_map(|(index, pod)| {
        let comma: &'static [u8] = if index == 0 { b"" } else { b"," };
        [Bytes::from_static(comma), Bytes::from_owner(pod.text().clone())]
    })
}

/// Pieces of text as chunks: small pieces are joined, large ones are not copied.
pub(super) struct Chunks {
    pieces: Peekable<Box<dyn Iterator<Item = Bytes> + Send>>,
}

impl Chunks {
    pub(super) fn new(pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Self {
        let pieces: Box<dyn Iterator<Item = Bytes> + Send> = Box::new(pieces);
        Self { pieces: pieces.peekable() }
    }
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut chunk = Vec::new();
        while let Some(piece) = self.pieces.next_if(|piece| chunk.len() + piece.len() <= CHUNK) {
            chunk.extend_from_slice(&piece);
        }
        if chunk.is_empty() { self.pieces.next() } else { Some(chunk.into()) }
    }
}

/// A response's body of a known length, sent in chunks.
pub(super) struct ChunkedBody {
    chunks: Chunks,
    remaining: u64,
}

impl ChunkedBody {
    /// A body of these pieces.
    pub(super) fn of(pieces: impl Iterator<Item = Bytes> + Clone + Send + 'static) -> Body {
        let remaining = pieces.clone().map(|piece| piece.len() as u64).sum();
        Body::new(Self { chunks: Chunks::new(pieces), remaining })
    }
}

impl hyper::body::Body for ChunkedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.chunks.next();
        self.remaining -= chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining)
    }
}

/// Marks a response as a stream without an end of its own, in its extensions. It ends when
/// its source ends, and the shutdown does not wait for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endless;
