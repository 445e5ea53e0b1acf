//! A client's socket: records its progress, and reads pending input before it closes.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{limits::LINGER, listen::ByteStream, slots::Progress};

/// A client's socket.
pub(super) struct ClientSocket {
    stream: Box<dyn ByteStream>,
    progress: Arc<Progress>,
    /// The wait for the client's end, after ours.
    lingering: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Ends the wait.
    stop: CancellationToken,
}

impl ClientSocket {
    pub(super) fn new(stream: Box<dyn ByteStream>, progress: Arc<Progress>, stop: CancellationToken) -> Self {
        Self { stream, progress, lingering: None, stop }
    }

    /// Records the result of a write.
    fn record<T>(&self, written: Poll<T>) -> Poll<T> {
        if written.is_ready() {
            self.progress.sent();
        } else {
            self.progress.send_blocked();
        }
        written
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.progress.received();
        }
        read
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.record(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.record(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Closes our side, and discards input until the client closes its side, for at most
    /// [`LINGER`] and not while the server stops. A socket that is closed with unread input is
    /// reset: a client that still sends a rejected body would not read the response.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            self.progress.closing();
            let stop = self.stop.clone();
            self.lingering = Some(Box::pin(async move {
                let _ = timeout(LINGER, stop.cancelled()).await;
            }));
        }
        let mut discarded = [0; 8 * 1024];
        loop {
            let timed_out =
                self.lingering.as_mut().is_none_or(|lingering| lingering.as_mut().poll(cx).is_ready());
            if timed_out {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut discarded);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
