//! Serves one connection: TLS if configured, HTTP/1 or HTTP/2, and each request.

use std::{
    convert::Infallible,
    future::pending,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, response::Response};
use bytes::Bytes;
use http::{
    HeaderValue, Request, Version,
    header::{CONNECTION, EXPECT},
};
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
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tower_service::Service as _;
use tracing::debug;

use super::{
    activity::{ActiveRequest, Activity},
    auth::{self, ClientInfo},
    credentials::Credentials,
    limits::{HEAD, Limits, SEND_BUFFER, STREAMS, WINDOW},
    listen,
    request_body::discard,
    socket::ClientSocket,
};
use crate::{
    host::Clock,
    pod::NodeName,
    server::{
        body::Endless,
        slots::{Slot, Slots, Watchers},
        stats::{ConnectionStats, RejectReason},
    },
};

/// How long a connection may take to close after a timeout.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the drain waits for the first request of a connection, which its client may have
/// sent already.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// How long a drained or stopped idle HTTP/1 connection is read: a request that its client has
/// sent already would be lost.
const NEXT_REQUEST: Duration = Duration::from_millis(100);

/// What the connections of a listener share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) router: Router,
    pub(super) node: NodeName,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) credentials: watch::Receiver<Arc<Credentials>>,
    pub(super) stats: ConnectionStats,
    /// Cancelled when no new requests are accepted.
    pub(super) stop: CancellationToken,
    /// Cancelled when the drain begins.
    pub(super) drain: CancellationToken,
    /// Tracks what the drain waits for: connections that it ends, and requests that have begun.
    pub(super) begun: TaskTracker,
    /// Whether the listener's socket is passed: the drain ends its connections.
    pub(super) passed: bool,
    /// The listener's slots.
    pub(super) slots: Arc<Slots>,
    pub(super) watchers: Arc<Slots>,
}

impl Shared {
    /// Waits until the drain ends the listener's connections.
    pub(super) async fn drained(&self) {
        if !self.passed {
            pending::<()>().await;
        }
        self.drain.cancelled().await;
    }
}

/// A connection that has a slot.
pub(super) struct Connection {
    pub(super) incoming: listen::Incoming,
    pub(super) privileged: bool,
    pub(super) slot: Slot,
    /// On a passed socket, for the drain.
    pub(super) begun: Option<TaskTrackerToken>,
}

/// Serves a connection until it ends. On a passed socket, it ends in the drain.
pub(super) async fn serve(connection: Connection, shared: Arc<Shared>) {
    let Connection { incoming: listen::Incoming { stream, local, .. }, privileged, slot, begun } = connection;
    let Shared { stats, limits, stop, slots, .. } = &*shared;
    let _counted = stats.connected();
    let activity = Activity::new();
    let socket = ClientSocket::new(stream, activity.clone());
    let tls = shared.credentials.borrow().tls.clone().filter(|_| local.is_some());
    let served = Served { activity: activity.clone(), privileged, slot, shared: shared.clone() };
    let Some(tls) = tls else {
        return served.http(socket, ClientInfo { local, has_certificate: false }, begun).await;
    };
    let drain_timeout = async {
        shared.drained().await;
        sleep(FIRST_REQUEST).await;
    };
    let handshake = tokio::select! {
        handshake = TlsAcceptor::from(tls.config).accept(socket) => handshake,
        why = activity.expired(limits, slots, &served.slot) => {
            return if why.is_some() { stats.reject(RejectReason::Handshake) };
        }
        () = drain_timeout => return,
        () = stop.cancelled() => return,
    };
    match handshake {
        Ok(socket) => {
            // A certificate that the client CA has not signed fails the handshake.
            let has_certificate = socket.get_ref().1.peer_certificates().is_some();
            served.http(socket, ClientInfo { local, has_certificate }, begun).await;
        }
        Err(error) => {
            stats.reject(RejectReason::Handshake);
            debug!(%error, "TLS handshake failed");
        }
    }
}

/// A connection that is served.
struct Served {
    activity: Arc<Activity>,
    privileged: bool,
    slot: Slot,
    shared: Arc<Shared>,
}

impl Served {
    /// Answers requests until the connection ends, times out, is drained or is stopped.
    async fn http<S>(&self, socket: S, client: ClientInfo, begun: Option<TaskTrackerToken>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { activity, slot, shared, .. } = self;
        let Shared { stats, limits, stop, slots, .. } = &**shared;
        let watchers = Watchers::of(shared.watchers.clone(), self.privileged);
        let service = service_fn(|request: Request<Incoming>| {
            let active = activity.request(request.version());
            let answer = answer(request, client, watchers.clone(), active, shared.clone());
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let http = http();
        let mut connection = pin!(http.serve_connection(TokioIo::new(socket), service));
        // The connection is polled first: what the client has sent is read before it ends.
        let first_request = tokio::select! {
            biased;
            ended = connection.as_mut() => return log_end(ended),
            why = activity.expired(limits, slots, slot) => {
                if let Some(why) = why {
                    stats.reject(why);
                }
                connection.as_mut().graceful_shutdown();
                return tokio::select! {
                    ended = connection.as_mut() => log_end(ended),
                    () = sleep(CLOSE_TIMEOUT) => {}
                };
            }
            () = shared.drained() => FIRST_REQUEST,
            () = stop.cancelled() => NEXT_REQUEST,
        };
        // A shutdown before a request that was sent is read would lose it.
        tokio::select! {
            biased;
            ended = connection.as_mut() => return log_end(ended),
            () = activity.sent_request_read(NEXT_REQUEST) => {}
            () = sleep(first_request) => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            ended = connection.as_mut() => return log_end(ended),
            () = activity.requests_answered() => drop(begun),
        }
        // The remaining streams end with their sources; the caller has a deadline for them.
        log_end(connection.await);
    }
}

fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        debug!(%error, "connection failed");
    }
}

fn http() -> auto::Builder<Streams> {
    let mut http = auto::Builder::new(Streams::default());
    // hyper's timeout includes the time between two requests: `Activity` separates them.
    http.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEAD);
    http.http2()
        .timer(TokioTimer::new())
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

/// Answers one request: authenticates the caller and runs the handler.
async fn answer(
    request: Request<Incoming>,
    client: ClientInfo,
    watchers: Watchers,
    mut active: ActiveRequest,
    shared: Arc<Shared>,
) -> Response {
    let begun = (!shared.drain.is_cancelled()).then(|| shared.begun.token());
    let (mut head, body) = request.into_parts();
    let (method, path, version) = (head.method.clone(), head.uri.path().to_owned(), head.version);
    let credentials = shared.credentials.borrow().clone();
    let mut response = match auth::authenticate(&head, client, &shared.node, &credentials) {
        Err(denied) => {
            shared.stats.reject(denied.reason);
            if !head.headers.contains_key(EXPECT) {
                discard(&mut Body::new(body)).await;
            }
            denied.response()
        }
        Ok(caller) => {
            head.extensions.insert(caller);
            head.extensions.insert(watchers);
            let Ok(response) = shared.router.clone().call(Request::from_parts(head, Body::new(body))).await;
            response
        }
    };
    debug!(%method, path, status = response.status().as_u16(), "request answered");
    // The client must not send another request here; HTTP/2 has a frame for it.
    if version < Version::HTTP_2 && shared.passed && shared.drain.is_cancelled() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    // An endless stream ends with its source, which does not wait for the drain.
    let endless = response.extensions().get::<Endless>().is_some();
    if endless {
        active.set_endless();
    }
    let begun = begun.filter(|_| !endless);
    response.map(|body| Body::new(TrackedBody { body, active, _begun: begun }))
}

/// A response's body that records its progress; the request ends with it.
struct TrackedBody {
    body: Body,
    active: ActiveRequest,
    _begun: Option<TaskTrackerToken>,
}

impl hyper::body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // The next chunk is polled when the previous one is sent.
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.active.chunk(matches!(frame, Poll::Ready(Some(_))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
