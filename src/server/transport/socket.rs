//! A client's socket: what moves on it is noted, and its end loses nothing.

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

use super::{limits::LINGER, listen::Stream, slots::Progress};

/// A client's socket.
pub(super) struct Socket {
    stream: Box<dyn Stream>,
    progress: Arc<Progress>,
    /// Runs from our end of the conversation to the client's.
    lingering: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// When it is cancelled, nobody lingers.
    ended: CancellationToken,
}

impl Socket {
    pub(super) fn new(stream: Box<dyn Stream>, progress: Arc<Progress>, ended: CancellationToken) -> Self {
        Self { stream, progress, lingering: None, ended }
    }

    /// Notes what became of a write.
    fn note<T>(&self, written: Poll<T>) -> Poll<T> {
        if written.is_ready() {
            self.progress.went();
        } else {
            self.progress.waits();
        }
        written
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.progress.came();
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Says that no more will come, and reads on until the client says so, too,
    /// for at most [`LINGER`] and not when the server stops. A socket that is
    /// closed with unread bytes in it is reset, and whoever was still sending a
    /// refused body would never read why.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            self.progress.over();
            let ended = self.ended.clone();
            self.lingering = Some(Box::pin(async move {
                let _ = timeout(LINGER, ended.cancelled()).await;
            }));
        }
        let mut scrap = [0; 8 * 1024];
        loop {
            let late = self.lingering.as_mut().is_none_or(|lingering| lingering.as_mut().poll(cx).is_ready());
            if late {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut scrap);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
