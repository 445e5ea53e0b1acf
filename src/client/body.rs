//! The body of a response: whole, up to a size and a deadline, or in chunks or lines.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use http::{HeaderMap, HeaderValue, header::CONTENT_ENCODING};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};
use tokio_util::{
    codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead},
    io::StreamReader,
};

use super::error::ClientError;

/// The content coding of a response, if it has one. The names of codings ignore case; `identity` and an empty value are
/// none.
pub(crate) fn content_coding(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get_all(CONTENT_ENCODING).iter().find(|value| {
        let coding = value.as_bytes().trim_ascii();
        !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity")
    })
}

/// When a response must be complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) at: Instant,
    /// The time limit that leads to it, for messages.
    pub(super) after: Duration,
}

/// The body of a response that is still being received.
#[derive(Debug)]
pub struct Body {
    incoming: Incoming,
    from: Arc<str>,
    deadline: Deadline,
}

impl Body {
    pub(super) fn new(incoming: Incoming, from: Arc<str>, deadline: Deadline) -> Self {
        Self { incoming, from, deadline }
    }

    /// Reads the body to its end, within the client's time limit, which starts with the
    /// request.
    ///
    /// # Errors
    /// If the body is larger than `limit` bytes (as soon as that is known), if the time
    /// limit passes, or if the connection breaks.
    pub async fn whole(self, limit: usize) -> Result<Bytes, ClientError> {
        let Self { incoming, from, deadline } = self;
        if incoming.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
            return Err(ClientError::TooLarge(from, limit));
        }
        match timeout_at(deadline.at, Limited::new(incoming, limit).collect()).await {
            Ok(Ok(whole)) => Ok(whole.to_bytes()),
            Ok(Err(error)) => Err(match error.downcast_ref() {
                Some(error) => ClientError::in_body(&from, error),
                None => ClientError::TooLarge(from, limit),
            }),
            Err(_) => Err(ClientError::Timeout(from, deadline.after)),
        }
    }

    /// The next chunk as it arrives, or nothing at the end. There is no deadline.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    ///
    /// # Errors
    /// If the connection breaks before the end.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, ClientError>> {
        // Trailers are ignored.
        let chunk = (&mut self.incoming).into_data_stream().next().await?;
        Some(chunk.map_err(|error| ClientError::in_body(&self.from, &error)))
    }

    /// The lines of the body as they arrive, each of at most `longest` bytes.
    pub fn lines(self, longest: usize) -> Lines {
        let from = self.from.clone();
        let chunks = stream::unfold(self, async |mut body| {
            let chunk = body.chunk().await?.map_err(io::Error::other);
            Some((chunk, body))
        });
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), Vec::new(), longest);
        Lines { lines: FramedRead::new(StreamReader::new(chunks.boxed()), codec), from }
    }
}

/// The lines of a body that is still being received.
pub struct Lines {
    lines: FramedRead<StreamReader<BoxStream<'static, io::Result<Bytes>>, Bytes>, AnyDelimiterCodec>,
    from: Arc<str>,
}

impl Lines {
    /// The next line without its `\n`, or nothing at the end. Text after the last `\n` is
    /// a line, too, if the body ends regularly. There is no deadline.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    ///
    /// # Errors
    /// If a line is too long, or if the connection breaks before the end. No line follows
    /// an error.
    pub async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        let line = self.lines.next().await?;
        Some(line.map_err(|error| match error {
            AnyDelimiterCodecError::Io(error) => {
                error.downcast().unwrap_or_else(|_| ClientError::CutOff(self.from.clone()))
            }
            AnyDelimiterCodecError::MaxChunkLengthExceeded => {
                ClientError::TooLarge(self.from.clone(), self.lines.decoder().max_length())
            }
        }))
    }
}
