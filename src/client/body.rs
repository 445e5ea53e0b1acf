//! The body of a response: whole, up to a size and a deadline, or in chunks or lines.

use std::{sync::Arc, time::Duration};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};

use super::error::ClientError;

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
    pub async fn whole(mut self, limit: usize) -> Result<Bytes, ClientError> {
        let too_large = |from: &Arc<str>| ClientError::TooLarge { from: from.clone(), limit };
        if self.incoming.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
            return Err(too_large(&self.from));
        }
        let (deadline, from) = (self.deadline, self.from.clone());
        let read = async {
            let mut whole = BytesMut::new();
            while let Some(chunk) = self.chunk().await {
                let chunk = chunk?;
                if chunk.len() > limit - whole.len() {
                    return Err(too_large(&self.from));
                }
                whole.extend_from_slice(&chunk);
            }
            Ok(whole.freeze())
        };
        let whole = timeout_at(deadline.at, read).await;
        whole.map_err(|_| ClientError::Timeout { to: from, after: deadline.after })?
    }

    /// The next chunk as it arrives, or nothing at the end. There is no deadline.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    ///
    /// # Errors
    /// If the connection breaks before the end.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, ClientError>> {
        loop {
            match self.incoming.frame().await? {
                Ok(frame) => {
                    // Trailers are ignored.
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(ClientError::in_body(&self.from, &error))),
            }
        }
    }

    /// The lines of the body as they arrive, each of at most `longest` bytes.
    pub fn lines(self, longest: usize) -> Lines {
        Lines { body: self, longest, buffer: BytesMut::new(), searched: 0, ended: false }
    }
}

/// The lines of a body that is still being received.
#[derive(Debug)]
pub struct Lines {
    body: Body,
    longest: usize,
    buffer: BytesMut,
    /// This many bytes of the buffer contain no end of a line.
    searched: usize,
    ended: bool,
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
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                if end > self.longest {
                    return Some(Err(self.too_long()));
                }
                let line = self.buffer.split_to(end).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                return Some(Ok(line));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > self.longest {
                return Some(Err(self.too_long()));
            }
            if self.ended {
                return (!self.buffer.is_empty()).then(|| {
                    self.searched = 0;
                    Ok(self.buffer.split().freeze())
                });
            }
            match self.body.chunk().await {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(error)) => {
                    self.end();
                    return Some(Err(error));
                }
                None => self.ended = true,
            }
        }
    }

    fn too_long(&mut self) -> ClientError {
        self.end();
        ClientError::TooLarge { from: self.body.from.clone(), limit: self.longest }
    }

    fn end(&mut self) {
        self.ended = true;
        self.buffer.clear();
        self.searched = 0;
    }
}
