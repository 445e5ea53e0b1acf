//! Connections to servers in this process, which a simulation has in place of a network.

use std::{
    future::ready,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::io::DuplexStream;
use tower::{service_fn, util::BoxCloneSyncService};

use crate::host::Dial;

/// A connector that makes connections with a function.
pub(crate) type Simulated = BoxCloneSyncService<Uri, Joined, io::Error>;

/// Connects within this process.
pub(crate) fn simulated(dial: Arc<Dial>) -> Simulated {
    BoxCloneSyncService::new(service_fn(move |to: Uri| {
        let stream = dial(to.authority().map_or("", |authority| authority.as_str()));
        ready(stream.map(|stream| Joined(TokioIo::new(stream))))
    }))
}

/// A connection within this process.
pub(crate) struct Joined(TokioIo<DuplexStream>);

impl Connection for Joined {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Joined {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for Joined {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
