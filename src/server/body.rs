//! Bodies: the formats of requests', and those of responses in chunks.

use std::{convert::Infallible, iter::Peekable};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::{
    HeaderMap, HeaderName, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use serde_json::Value;

use super::{reads::Reads, status::ApiError};
use crate::{
    host::Cancelled,
    manifest::{
        protobuf::{self, MEDIA_TYPE},
        yaml,
    },
};

/// The largest body, in bytes, that is read without a permit and decoded on a thread of the
/// runtime. A larger one waits: see [`LARGE_BODIES`].
pub const SMALL_BODY: usize = 16 * 1024;
/// How many large bodies are read and decoded at a time: two for each core of a small node. More
/// cores do not raise it, because each uses up to 10 MiB, and a multiple of that while it is
/// decoded.
pub const LARGE_BODIES: usize = 4;
/// The largest body of options, in bytes, of verbs that take no pod.
pub(super) const OPTIONS_BODY: usize = 64 * 1024;
/// The size of a chunk of a response, in bytes, unless a pod is larger.
pub(super) const CHUNK: usize = 16 * 1024;

/// The format of a request's body, from its `Content-Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFormat {
    /// JSON; YAML is rejected.
    Json,
    /// YAML, which includes JSON; also if the header is absent.
    Yaml,
    /// What `curl -d` sends, which removes the newlines of a file: YAML.
    Form,
    /// Protobuf in the envelope of the API, which client-go sends.
    Protobuf,
}

impl BodyFormat {
    /// Parses a body that is no manifest, of a kind: an object.
    ///
    /// # Errors
    /// 400 if it cannot be parsed, or is no object.
    pub(super) fn parse(self, text: &[u8], kind: &str) -> Result<Value, ApiError> {
        let bad = |error: String| ApiError::bad_request(format!("invalid {kind}: {error}"));
        let value = match self {
            Self::Protobuf => protobuf::decode(text, kind).map_err(|problem| bad(problem.to_string()))?,
            Self::Json => serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?,
            Self::Yaml | Self::Form => {
                let text = str::from_utf8(text).map_err(|error| bad(error.to_string()))?;
                yaml::to_json(text).map_err(|problem| bad(problem.to_string()))?
            }
        };
        Some(value).filter(Value::is_object).ok_or_else(|| bad("must be an object".to_owned()))
    }

    /// Reads `Content-Type` without its parameters.
    ///
    /// # Errors
    /// 415 if it is none of these, or the body is compressed.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let unsupported = |message: String| {
            ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
        };
        let text =
            |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let is_coding = |coding: &String| !["", "identity"].contains(&&*coding.to_ascii_lowercase());
        if let Some(coding) = text(CONTENT_ENCODING).filter(is_coding) {
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
            MEDIA_TYPE => Ok(Self::Protobuf),
            _ => Err(unsupported(format!(
                "unsupported media type {given:?}: send application/json or application/yaml"
            ))),
        }
    }
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
        // Frames of watches are held: without what the buffer has beyond them.
        if chunk.is_empty() { self.pieces.next() } else { Some(chunk.into_boxed_slice().into()) }
    }
}

/// A response's body of these pieces and its length, sent in chunks.
pub(super) fn chunked(
    pieces: impl Iterator<Item = Bytes> + Clone + Send + 'static,
) -> ([(HeaderName, u64); 1], Body) {
    let length = pieces.clone().map(|piece| piece.len() as u64).sum();
    let chunks = Chunks::new(pieces).map(Ok::<_, Infallible>);
    ([(CONTENT_LENGTH, length)], Body::from_stream(stream::iter(chunks)))
}

/// A body of pieces that take long to make: each chunk of them is a read of its own when it is sent.
pub(super) fn made_by_chunk(reads: Reads, pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Body {
    let chunks = stream::try_unfold((reads, Chunks::new(pieces)), async |(reads, mut chunks)| {
        let (chunk, chunks) = reads.run(move || (chunks.next(), chunks)).await?;
        Ok::<_, Cancelled>(chunk.map(|chunk| (chunk, (reads, chunks))))
    });
    Body::from_stream(chunks)
}

/// Marks a response as a stream without an end of its own, in its extensions. It ends when
/// its source ends, and the shutdown does not wait for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endless;
