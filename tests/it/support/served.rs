//! The server's transport with a test router, and real clients.

use std::{
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Extension, Router, body::Body, routing::get};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Frame, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use podmux::{
    pod::NodeName,
    server::{
        Caller, Config, ConnectionStats, CredentialReload, Limits, Listen, PassedSocket, RejectReason,
        Server, StartError,
    },
    source::SourceFailing,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::process::PATIENCE;

/// A short limit for tests of timeouts.
pub const SOON: Duration = Duration::from_millis(200);

/// A running server.
pub struct Served {
    pub addresses: Vec<Listen>,
    pub stats: ConnectionStats,
    pub credentials: CredentialReload,
    /// Why an address is not bound yet.
    pub failing: watch::Receiver<Option<SourceFailing>>,
    pub work: Work,
    pub drain: CancellationToken,
    pub drained: CancellationToken,
    pub stop: CancellationToken,
    running: JoinHandle<()>,
}

/// The state of the test router's handlers.
#[derive(Clone)]
pub struct Work {
    /// `/wait` answers for each permit that is added.
    pub leave: Arc<Semaphore>,
    /// How many requests have reached `/wait`.
    pub waiting: Arc<AtomicU64>,
    /// How many bytes of `/endless` were polled.
    pub poured: Arc<AtomicU64>,
    /// How many streams of `/endless` are open.
    pub pouring: Arc<AtomicU64>,
}

/// Only one TCP port of loopback, for callers without credentials.
pub fn loopback() -> Config {
    let listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
    Config { listen, anonymous: true, ..Config::default() }
}

/// Only one Unix socket.
pub fn unix(path: &Path) -> Config {
    Config { listen: vec![Listen::Unix(path.to_owned())], ..Config::default() }
}

pub async fn bind(settings: &Config, limits: Limits) -> Result<Server, StartError> {
    Server::bind(settings, Vec::new(), NodeName::new("node1").unwrap(), limits).await
}

/// An error with its causes, as the program prints it.
pub fn chain(error: &StartError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl Served {
    pub async fn start(settings: &Config, limits: Limits) -> Self {
        Self::start_with(settings, Vec::new(), limits).await
    }

    /// With passed sockets.
    pub async fn start_with(settings: &Config, passed: Vec<PassedSocket>, limits: Limits) -> Self {
        let server = Server::bind(settings, passed, NodeName::new("node1").unwrap(), limits).await;
        Self::run(server.unwrap_or_else(|error| panic!("{}", chain(&error))))
    }

    /// Runs a server.
    pub fn run(server: Server) -> Self {
        let work = Work {
            leave: Arc::new(Semaphore::new(0)),
            waiting: Arc::default(),
            poured: Arc::default(),
            pouring: Arc::default(),
        };
        let (addresses, stats, credentials) =
            (server.addresses(), server.stats(), server.credential_reload());
        let (stop, drained, failing) = (CancellationToken::new(), server.drained(), server.failing());
        let drain = stop.child_token();
        let running = tokio::spawn(server.run(router(work.clone()), drain.clone(), stop.clone()));
        Self { addresses, stats, credentials, failing, work, drain, drained, stop, running }
    }

    pub fn address(&self) -> SocketAddr {
        match &self.addresses[0] {
            Listen::Tcp(address) => *address,
            Listen::Unix(path) => panic!("{}", path.display()),
        }
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).await.unwrap()
    }

    /// A GET over a new TCP connection.
    pub async fn get(&self, path: &str) -> Answer {
        ask(self.connect().await, get_of(path)).await
    }

    /// Waits until this many were rejected for a reason.
    pub async fn rejected(&self, why: RejectReason, times: u64) {
        until(&format!("{times} × {why:?}"), || self.stats.rejected(why) >= times).await;
        assert_eq!(self.stats.rejected(why), times, "{why:?}");
    }

    /// Stops it and waits for its end.
    pub async fn ends(self) {
        self.stop.cancel();
        timeout(PATIENCE, self.running).await.expect("the server does not end").unwrap();
    }
}

/// Waits until a condition holds.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn length(body: Bytes) -> String {
    body.len().to_string()
}

fn router(work: Work) -> Router {
    let (wait, endless) = (work.clone(), work);
    let wait = async move || {
        wait.waiting.fetch_add(1, Ordering::SeqCst);
        wait.leave.acquire().await.unwrap().forget();
        "done"
    };
    let endless = async move || {
        endless.pouring.fetch_add(1, Ordering::SeqCst);
        Body::new(Endless(endless))
    };
    Router::new()
        .route("/hello", get(async || "hello").post(length).delete(length))
        .route("/livez", get(async || "ok"))
        .route("/who", get(async |Extension(caller): Extension<Caller>| format!("{caller:?}")))
        .route("/wait", get(wait.clone()).post(async move |_: Bytes| wait().await))
        .route("/endless", get(endless))
        .route("/large", get(async || ".".repeat(1 << 20)))
        .route("/silent", get(async || Body::new(Silent)))
        .route("/panic", get(async || -> &'static str { panic!("for the test") }))
}

/// A body that always has more.
struct Endless(Work);

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        const PIECE: &[u8] = &[b'.'; 4096];
        self.0.poured.fetch_add(PIECE.len() as u64, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(PIECE)))))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.pouring.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body without any data and without an end.
struct Silent;

impl hyper::body::Body for Silent {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        Poll::Pending
    }
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub async fn read(response: Response<hyper::body::Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(text.to_vec()).unwrap();
        Self { status: head.status.as_u16(), headers: head.headers, text }
    }

    /// Status and body in a line.
    pub fn line(&self) -> String {
        format!("{} {}", self.status, self.text.trim_end())
    }
}

pub fn get_of(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).header("host", "localhost").body(Full::default()).unwrap()
}

pub fn post_of(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(path).header("host", "localhost").body(Full::new(body.into())).unwrap()
}

/// A client's end of HTTP/1.
pub async fn http1<S>(stream: S) -> conn::http1::SendRequest<Full<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (client, connection) = conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A client's end of HTTP/2.
pub async fn http2<S>(stream: S) -> conn::http2::SendRequest<Full<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    client
}

/// One request over HTTP/1 and its answer.
pub async fn ask<S>(stream: S, request: Request<Full<Bytes>>) -> Answer
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    try_ask(stream, request).await.unwrap()
}

/// The same where the connection may fail.
pub async fn try_ask<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Answer, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = async { Ok(Answer::read(http1(stream).await.send_request(request).await?).await) };
    timeout(PATIENCE, answer).await.expect("no answer")
}

/// One request over HTTP/2 and its answer.
pub async fn ask_http2<S>(stream: S, request: Request<Full<Bytes>>) -> Answer
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = async { Answer::read(http2(stream).await.send_request(request).await.unwrap()).await };
    timeout(PATIENCE, answer).await.expect("no answer")
}

/// Sends a text unchanged and reads until the server ends the connection.
pub async fn raw<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, text: &str) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    rest(stream).await
}

/// Reads until the server ends the connection.
pub async fn rest<S: AsyncRead + Unpin>(mut stream: S) -> String {
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection does not end");
    // A reset is an end as well.
    let _ = read;
    String::from_utf8_lossy(&answer).into_owned()
}

/// The status line and body of a raw response.
pub fn gist(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    format!("{} {}", head.lines().next().unwrap_or_default(), body.trim_end())
}
