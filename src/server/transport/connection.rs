//! Serves one connection: TLS if configured, HTTP/1 or HTTP/2, and each request.

use std::{
    any::Any,
    convert::Infallible,
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{HeaderValue, Request, Version, header::CONNECTION, request::Parts};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    rt::Executor,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::JoinSet,
    time::sleep,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;
use tracing::debug;

use super::{
    auth::{self, ClientInfo, Peer},
    credentials::Credentials,
    drain::{DrainGuard, DrainGuards},
    limits::{HEAD, Limits, SEND_BUFFER, STREAMS, WINDOW},
    listen,
    request_body::{BodyReader, ReceivedBody, discard},
    slots::{ActiveRequest, Progress, Slot},
    socket::ClientSocket,
};
use crate::{
    host::Clock,
    pod::NodeName,
    server::{
        body::Endless,
        stats::{ConnectionStats, RejectReason},
        status::ApiError,
    },
};

/// HTTP/2 keepalive: the idle time before a PING, and the timeout of its answer.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// How long a connection may take to close after a timeout.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the drain waits for the first request of a connection, which its client may have
/// sent already.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// How long the drain reads an idle HTTP/1 connection: a request that its client has sent
/// already would be lost.
const NEXT_REQUEST: Duration = Duration::from_millis(100);

/// What all connections share.
pub(super) struct Shared {
    pub(super) router: Router,
    pub(super) node: NodeName,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) credentials: watch::Receiver<Arc<Credentials>>,
    pub(super) bodies: BodyReader,
    pub(super) stats: ConnectionStats,
    /// Cancelled when no new requests are accepted.
    pub(super) stop: CancellationToken,
    /// The guards of the requests that the drain waits for.
    pub(super) guards: DrainGuards,
}

/// Serves a connection until it ends or is evicted. With a guard, it ends in the drain.
pub(super) async fn serve(
    incoming: listen::Incoming,
    slot: Slot,
    guard: Option<DrainGuard>,
    shared: Arc<Shared>,
) {
    let _counted = shared.stats.connected();
    tokio::select! {
        () = slot.evicted() => {}
        () = serve_stream(incoming, slot.progress.clone(), guard, &shared) => {}
    }
}

async fn serve_stream(
    incoming: listen::Incoming,
    progress: Arc<Progress>,
    guard: Option<DrainGuard>,
    shared: &Arc<Shared>,
) {
    let listen::Incoming { stream, peer } = incoming;
    let Shared { stats, limits, stop, .. } = &**shared;
    let socket = ClientSocket::new(stream, progress.clone(), stop.clone());
    let credentials = shared.credentials.borrow().clone();
    if matches!(peer, Peer::Unix(_)) || credentials.plain {
        return serve_http(socket, ClientInfo { peer, has_certificate: false }, &progress, guard, shared)
            .await;
    }
    // It could not be made yet.
    let Some(tls) = credentials.tls.clone() else { return stats.reject(RejectReason::Handshake) };
    let drain_timeout = async {
        drain_begins(guard.as_ref()).await;
        sleep(FIRST_REQUEST).await;
    };
    let handshake = tokio::select! {
        handshake = TlsAcceptor::from(tls.config).accept(socket) => handshake,
        _ = progress.timed_out(limits) => return stats.reject(RejectReason::Handshake),
        () = drain_timeout => return,
        () = stop.cancelled() => return,
    };
    match handshake {
        Ok(socket) => {
            // A certificate that the client CA has not signed fails the handshake.
            let has_certificate = socket.get_ref().1.peer_certificates().is_some();
            serve_http(socket, ClientInfo { peer, has_certificate }, &progress, guard, shared).await;
        }
        Err(error) => {
            stats.reject(RejectReason::Handshake);
            debug!(%error, "TLS handshake failed");
        }
    }
}

/// Waits until the drain begins; without a guard it never does.
async fn drain_begins(guard: Option<&DrainGuard>) {
    match guard {
        Some(guard) => guard.drain.cancelled().await,
        None => pending().await,
    }
}

/// Answers requests until the connection ends, times out, is drained or is stopped.
async fn serve_http<S>(
    socket: S,
    client: ClientInfo,
    progress: &Arc<Progress>,
    guard: Option<DrainGuard>,
    shared: &Arc<Shared>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let http = http();
    let drain = guard.as_ref().map(|guard| guard.drain.clone());
    let service = service_fn(|request: Request<Incoming>| {
        let (progress, shared, drain) = (progress.clone(), shared.clone(), drain.clone());
        async move {
            let version = request.version();
            let mut response = answer(request, client, &progress, &shared).await;
            // The client must not send another request here; HTTP/2 has a frame for it.
            if version < Version::HTTP_2 && drain.is_some_and(|drain| drain.is_cancelled()) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(socket), service));
    // The connection is polled first: what the client has sent is read before it ends.
    tokio::select! {
        biased;
        ended = connection.as_mut() => return log_end(ended),
        why = progress.timed_out(&shared.limits) => {
            if let Some(why) = why {
                shared.stats.reject(why);
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => return log_end(ended),
                () = sleep(CLOSE_TIMEOUT) => return,
            }
        }
        () = drain_begins(guard.as_ref()) => {
            // A shutdown before a request that was sent is read would lose it.
            tokio::select! {
                biased;
                ended = connection.as_mut() => return log_end(ended),
                () = progress.sent_request_read(NEXT_REQUEST) => {}
                () = sleep(FIRST_REQUEST) => {}
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => return log_end(ended),
                () = progress.requests_answered() => drop(guard),
            }
        }
        () = shared.stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    // The remaining requests are answered; the caller has a deadline for them.
    log_end(connection.await);
}

fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        debug!(%error, "connection failed");
    }
}

fn http() -> auto::Builder<Streams> {
    let mut http = auto::Builder::new(Streams::default());
    // hyper's timeout does not begin with the connection: `Progress` has its own.
    http.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEAD);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(HEAD).unwrap_or(u32::MAX))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(SEND_BUFFER as usize);
    http
}

/// The tasks of an HTTP/2 connection's requests, which end with the connection.
#[derive(Clone, Default)]
struct Streams(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while streams.try_join_next().is_some() {}
        streams.spawn(stream);
    }
}

/// Answers one request: authenticates the caller, reads the whole body, runs the handler.
async fn answer(
    request: Request<Incoming>,
    client: ClientInfo,
    progress: &Arc<Progress>,
    shared: &Shared,
) -> Response {
    let (active, guard) = (progress.request(request.version()), shared.guards.get());
    let (mut head, mut body) = request.into_parts();
    let (method, path, version) = (head.method.clone(), head.uri.path().to_owned(), head.version);
    let response = match receive(&mut head, &mut body, client, shared).await {
        Err((why, response)) => {
            if let Some(why) = why {
                shared.stats.reject(why);
            }
            if version == Version::HTTP_2 {
                discard(&mut body).await;
            }
            response
        }
        Ok(body) => {
            let _handling = progress.handling();
            let request = Request::from_parts(head, Body::from(body.bytes.clone()));
            let mut router = shared.router.clone();
            CatchPanic(Box::pin(async move { router.call(request).await })).await
        }
    };
    debug!(%method, path, status = response.status().as_u16(), "request answered");
    // An endless stream ends with its source, which does not wait for the drain.
    let endless = response.extensions().get::<Endless>().is_some();
    let guard = guard.filter(|_| !endless);
    if endless {
        active.set_endless();
    }
    response.map(|body| Body::new(TrackedBody { body, active, _guard: guard }))
}

/// Authenticates the caller and reads the whole body.
async fn receive(
    head: &mut Parts,
    body: &mut Incoming,
    client: ClientInfo,
    shared: &Shared,
) -> Result<ReceivedBody, (Option<RejectReason>, Response)> {
    let credentials = shared.credentials.borrow().clone();
    let caller = auth::authenticate(head, client, &shared.node, &credentials)
        .map_err(|denied| (Some(denied.reason), denied.response()))?;
    head.extensions.insert(caller);
    shared.bodies.read(&head.headers, body).await.map_err(|(why, error)| (why, error.into_response()))
}

/// Answers 500 if a handler panics. Other requests are not affected.
struct CatchPanic(Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>);

impl Future for CatchPanic {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        // A future that has panicked is not polled again.
        let polled: Result<_, Box<dyn Any + Send>> =
            catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)));
        polled.map_or_else(
            |_| Poll::Ready(ApiError::internal().into_response()),
            |polled| polled.map(|Ok(response)| response),
        )
    }
}

/// A response's body that records its progress; the request ends with it.
struct TrackedBody {
    body: Body,
    active: ActiveRequest,
    _guard: Option<DrainGuard>,
}

impl hyper::body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // The next chunk is polled when the previous one is sent.
        self.active.chunk_sent();
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(Some(_))) {
            self.active.chunk_queued();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
