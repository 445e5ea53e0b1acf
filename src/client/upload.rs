//! Requests whose body is made while it is sent.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    Client, ClientError,
    body::{Body, Deadline},
    url,
};

/// A body that reports each of its frames.
struct Watched<B> {
    body: B,
    progress: watch::Sender<()>,
}

impl<B: HttpBody<Data = Bytes, Error = Infallible> + Unpin> HttpBody for Watched<B> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.progress.send_replace(());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Client {
    /// Sends a request with a body that is made while it is sent, and returns when the head of the
    /// response is there. A redirect is a response like any other.
    ///
    /// The client's time limit is for a time without progress: of the connection, of the body,
    /// and then of the response. A large body may take longer.
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// If there is no progress in time, or the connection fails.
    pub async fn stream<B>(&self, request: Request<B>) -> Result<Response<Body>, ClientError>
    where
        B: HttpBody<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
    {
        let (mut head, body) = request.into_parts();
        url::authorize(&mut head).ok_or_else(|| ClientError::invalid_url(&head.uri))?;
        let (peer, after) = (self.peer(&head.uri)?, self.settings.timeout);
        let (progress, mut steps) = watch::channel(());
        let request = Request::from_parts(head, Watched { body, progress }.boxed_unsync());
        let mut sending = pin!(self.send_once(&peer, request));
        let mut deadline = Instant::now() + after;
        loop {
            tokio::select! {
                biased;
                response = &mut sending => {
                    let deadline = Deadline { at: Instant::now() + after, after };
                    return Ok(response?.map(|incoming| Body::new(incoming, peer.clone(), deadline)));
                }
                Ok(()) = steps.changed() => deadline = Instant::now() + after,
                () = sleep_until(deadline) => return Err(ClientError::Timeout(peer.clone(), after)),
            }
        }
    }
}
