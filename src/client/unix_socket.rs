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

/// Connects to one Unix socket, whatever the host of the URL is.
#[derive(Clone, Debug)]
pub(super) struct UnixConnector {
    path: Arc<Path>,
}

impl UnixConnector {
    pub(super) fn new(path: Arc<Path>) -> Self {
        Self { path }
    }
}

impl Service<Uri> for UnixConnector {
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
