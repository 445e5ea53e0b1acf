//! Requests whose body is made while it is sent.

use std::{convert::Infallible, pin::pin};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Body as HttpBody;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    Client, ClientError,
    body::{Body, Deadline},
    url,
};

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
        let body = body.inspect_frame(move |_| {
            progress.send_replace(());
        });
        let request = Request::from_parts(head, body.boxed_unsync());
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
