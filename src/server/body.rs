//! Bodies: how a request's is read, within its bounds, and how an answer's goes out in pieces.

use std::{
    convert::Infallible,
    iter::Peekable,
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

/// A body up to this size, in bytes, is read and decoded without further ado:
/// nearly all are. A larger one waits for one of [`LARGE_BODIES`].
pub const SMALL_BODY: usize = 64 * 1024;
/// How many large bodies are read and decoded at a time. Each costs up to 10 MiB,
/// and while it is decoded a multiple of that.
pub const LARGE_BODIES: usize = 2;
/// How many bytes go out at a time, unless a pod is larger.
const CHUNK: usize = 16 * 1024;

/// What a body's author says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// JSON, and nothing that is YAML only.
    Json,
    /// YAML, of which JSON is a part.
    Yaml,
    /// Nothing, or what curl says of any body: the text itself tells.
    Unknown,
    /// The same, and sent by `curl -d`, which takes the newlines of a file away.
    Form,
}

impl Format {
    /// Reads `Content-Type`, its parameters aside.
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
                "the content encoding {coding:?} is not known here: send the body as it is"
            )));
        }
        let Some(given) = text(CONTENT_TYPE) else { return Ok(Self::Unknown) };
        let media_type = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match &*media_type {
            "application/json" | "text/json" => Ok(Self::Json),
            "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml" | "text/vnd.yaml" => {
                Ok(Self::Yaml)
            }
            "" => Ok(Self::Unknown),
            "application/x-www-form-urlencoded" => Ok(Self::Form),
            _ => Err(unsupported(format!(
                "the media type {given:?} is not known here: send application/json or application/yaml"
            ))),
        }
    }
}

/// A request's body.
#[derive(Debug)]
pub(super) struct Input<'s> {
    /// The bytes.
    pub(super) text: Bytes,
    /// What they are said to be.
    pub(super) format: Format,
    /// The leave to be large, as long as it is.
    _large: Option<SemaphorePermit<'s>>,
}

impl<'s> Input<'s> {
    /// Reads a body to its end.
    ///
    /// # Errors
    /// 413 if it is larger than a manifest may be, 400 if it was cut off, 415 as
    /// [`Format::of`] says.
    pub(super) async fn read(
        headers: &HeaderMap,
        mut body: Body,
        large: &'s Semaphore,
    ) -> Result<Self, ApiError> {
        let format = Format::of(headers)?;
        let announced =
            headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > MAX_MANIFEST as u64) {
            return Err(too_large());
        }
        let (mut frames, mut length, mut permit) = (Vec::new(), 0, None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| cut_off(&error))?;
            let Ok(data) = frame.into_data() else { continue };
            length += data.len();
            if length > MAX_MANIFEST {
                return Err(too_large());
            }
            if length > SMALL_BODY && permit.is_none() {
                permit = Some(large.acquire().await.map_err(|_| ApiError::stopping())?);
            }
            frames.push(data);
        }
        // Whoever has read the body before us gives it in one piece, which is not copied.
        let text = if let [whole] = &frames[..] { whole.clone() } else { frames.concat().into() };
        Ok(Self { text, format, _large: permit })
    }
}

fn too_large() -> ApiError {
    let message = format!("the body is too large: {MAX_MANIFEST} bytes are the limit");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
}

fn cut_off(error: &axum::Error) -> ApiError {
    // Only the innermost cause says something: the outer ones say "error reading a body".
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    ApiError::bad_request(format!("the body was cut off: {cause}"))
}

/// Pods as the items of a JSON array, in pieces that are their own texts.
pub(super) fn items(pods: impl Iterator<Item = Arc<Pod>>) -> impl Iterator<Item = Bytes> {
    pods.enumerate().flat_map(|(index, pod)| {
        let comma: &'static [u8] = if index == 0 { b"" } else { b"," };
        [Bytes::from_static(comma), Bytes::from_owner(pod.text().clone())]
    })
}

/// Pieces as they go out: small ones together, large ones alone and uncopied.
pub(super) struct Chunks {
    pieces: Peekable<Box<dyn Iterator<Item = Bytes> + Send>>,
}

impl Chunks {
    /// The chunks of these pieces.
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

/// A body of a known length that goes out in pieces.
pub(super) struct Pieces {
    chunks: Chunks,
    left: u64,
}

impl Pieces {
    /// The body of these pieces, which have so many bytes together.
    pub(super) fn body(pieces: impl Iterator<Item = Bytes> + Send + 'static, length: usize) -> Body {
        Body::new(Self { chunks: Chunks::new(pieces), left: length as u64 })
    }
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.chunks.next();
        self.left -= chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Among an answer's extensions: it ends when those who feed it do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endless;
