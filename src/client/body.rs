//! The body of an answer: whole, up to a bound and a deadline, or bit by bit.

use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout_at;

use super::{ClientError, Deadline};

/// The body of an answer that is still being received.
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

    /// Reads it to its end, which must come within the client's time, counted
    /// from the request.
    ///
    /// # Errors
    /// If it is larger than `limit` bytes (noticed as soon as that is known), if
    /// it takes too long, or if the connection breaks before its end.
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

    /// The next bit as it came; nothing at the end. There is no deadline.
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
                    // Trailers say nothing to us.
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(ClientError::in_body(&self.from, &error))),
            }
        }
    }

    /// Its lines, as they come, each of at most `longest` bytes.
    #[must_use]
    pub fn lines(self, longest: usize) -> Lines {
        Lines { body: self, longest, held: BytesMut::new(), searched: 0, ended: false }
    }
}

/// The lines of a body that is still being received.
#[derive(Debug)]
pub struct Lines {
    body: Body,
    longest: usize,
    held: BytesMut,
    /// So much of what is held has no line's end in it.
    searched: usize,
    /// There is nothing more to receive.
    ended: bool,
}

impl Lines {
    /// The next line without its `\n`; nothing at the end. What stands after the
    /// last `\n` is a line too, if the body ended as it should. There is no deadline.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    ///
    /// # Errors
    /// If a line is too long, or if the connection breaks before the end. There
    /// is nothing more to read then.
    pub async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        loop {
            if let Some(end) = self.held[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                if end > self.longest {
                    return Some(Err(self.too_long()));
                }
                let line = self.held.split_to(end).freeze();
                self.held.advance(1);
                self.searched = 0;
                return Some(Ok(line));
            }
            self.searched = self.held.len();
            if self.held.len() > self.longest {
                return Some(Err(self.too_long()));
            }
            if self.ended {
                return (!self.held.is_empty()).then(|| {
                    self.searched = 0;
                    Ok(self.held.split().freeze())
                });
            }
            match self.body.chunk().await {
                Some(Ok(chunk)) => self.held.extend_from_slice(&chunk),
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
        self.held.clear();
        self.searched = 0;
    }
}
