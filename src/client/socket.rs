//! Connections to a Unix socket.

use std::{
    future::Future,
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tower_service::Service;

/// Connects to one socket, whatever host is asked for.
#[derive(Clone, Debug)]
pub(super) struct Socket {
    path: Arc<Path>,
}

impl Socket {
    pub(super) fn new(path: Arc<Path>) -> Self {
        Self { path }
    }
}

impl Service<Uri> for Socket {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.path.clone();
        Box::pin(async move { UnixStream::connect(&path).await.map(TokioIo::new) })
    }
}
