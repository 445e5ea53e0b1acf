//! Serves one connection: TLS if configured, HTTP/1 or HTTP/2, and each request.

use std::{
    convert::Infallible,
    future::pending,
    io, mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Version,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT},
};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{
    io::InspectReader,
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tower_service::Service as _;
use tracing::debug;

use super::{
    activity::{ActiveRequest, Activity},
    auth::{self, Peer},
    client_certificate::ClientCertificate,
    credentials::Credentials,
    limits::{HEAD, Limits, SEND_BUFFER, STREAMS, WINDOW},
    listen::ByteStream,
    request_body::discard,
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

    /// Waits for a slot; none after the stop.
    pub(super) async fn slot(&self, privileged: bool) -> Option<Slot> {
        self.stop.run_until_cancelled(self.slots.acquire(privileged)).await.flatten()
    }
}

/// Serves a connection that has a slot until it ends. On a passed socket, it ends in the drain,
/// which waits for `begun`.
pub(super) async fn serve(
    (stream, peer): (Box<dyn ByteStream>, Peer),
    privileged: bool,
    slot: Slot,
    begun: Option<TaskTrackerToken>,
    shared: Arc<Shared>,
) {
    let _counted = shared.stats.connected();
    let activity = Activity::new();
    let receiving = activity.clone();
    let stream = Box::new(InspectReader::new(stream, move |bytes: &[u8]| {
        if !bytes.is_empty() {
            receiving.received();
        }
    }));
    let secured = secured(stream, peer, &activity, &slot, &shared).await;
    let Some((stream, certificate)) = secured else { return };
    let certificate = certificate.map(Arc::new);
    let watchers = Watchers { slots: shared.watchers.clone(), privileged };
    let service = service_fn(|request: Request<Incoming>| {
        let active = activity.request(request.version());
        let answer = answer(request, (peer, certificate.clone()), watchers.clone(), active, shared.clone());
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let http = http();
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    // The connection is polled first: what the client has sent is read before it ends.
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        why = end(&activity, &slot, &shared) => {
            if let Err(Some(why)) = why {
                shared.stats.reject(why);
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = overdue(why, &activity, &slot, begun, &shared) => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection failed");
    }
}

/// The stream of a connection, after the TLS handshake if it has one that succeeds in time, and
/// the client's certificate.
async fn secured(
    stream: Box<dyn ByteStream>,
    peer: Peer,
    activity: &Activity,
    slot: &Slot,
    shared: &Shared,
) -> Option<(Box<dyn ByteStream>, Option<ClientCertificate>)> {
    let credentials = shared.credentials.borrow().clone();
    if credentials.plain || matches!(peer, Peer::Unix(_)) {
        return Some((stream, None));
    }
    let handshake = async {
        let Some(tls) = &credentials.tls else { return Err(io::Error::other("it could not be made yet")) };
        TlsAcceptor::from(tls.config.clone()).accept(stream).await
    };
    let failed = tokio::select! {
        done = handshake => match done {
            Ok(stream) => {
                // A certificate that the client CA has not signed fails the handshake.
                let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
                let certificate = chain.map(|chain| ClientCertificate::new(chain, credentials.clone()));
                return Some((Box::new(stream), certificate));
            }
            Err(error) => {
                debug!(%error, "TLS handshake failed");
                true
            }
        },
        why = end(activity, slot, shared) => matches!(why, Err(Some(_))),
    };
    if failed {
        shared.stats.reject(RejectReason::Handshake);
    }
    None
}

/// Waits until a connection has to end: because of its client, for a reason that is counted if
/// there is one, or because the server drains or stops.
async fn end(activity: &Activity, slot: &Slot, shared: &Shared) -> Result<(), Option<RejectReason>> {
    let first_request = tokio::select! {
        why = activity.expired(&shared.limits, &shared.slots, slot) => return Err(why),
        () = shared.drained() => FIRST_REQUEST,
        () = shared.stop.cancelled() => NEXT_REQUEST,
    };
    // A shutdown before a request that was sent is read would lose it.
    let _ = timeout(first_request, activity.sent_request_read(NEXT_REQUEST)).await;
    Ok(())
}

/// Waits until a connection that has to end, and does not end by itself, is closed.
async fn overdue(
    why: Result<(), Option<RejectReason>>,
    activity: &Activity,
    slot: &Slot,
    mut begun: Option<TaskTrackerToken>,
    shared: &Shared,
) {
    if matches!(why, Err(Some(_))) {
        return sleep(CLOSE_TIMEOUT).await;
    }
    // In HTTP/2 requests can still arrive, and have the promise of an answer.
    let more = if activity.awaits_head() { Duration::ZERO } else { CLOSE_TIMEOUT };
    if timeout(more, activity.requests_answered()).await.is_err() && activity.is_idle() {
        begun = None;
        // One that gives way for another connection has had its time.
        if why.is_ok() {
            sleep(CLOSE_TIMEOUT).await;
        }
        if activity.is_idle() {
            return;
        }
    }
    let answered = async {
        activity.requests_answered().await;
        drop(begun);
        // Endless streams end with their sources; the listener has a deadline for them.
        pending::<()>().await;
    };
    tokio::select! {
        () = answered => {}
        why = activity.expired(&shared.limits, &shared.slots, slot) => {
            if let Some(why) = why {
                shared.stats.reject(why);
            }
            sleep(CLOSE_TIMEOUT).await;
        }
    }
}

fn http() -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
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

/// Answers one request: authenticates the caller and runs the handler.
async fn answer(
    request: Request<Incoming>,
    (peer, certificate): (Peer, Option<Arc<ClientCertificate>>),
    watchers: Watchers,
    mut active: ActiveRequest,
    shared: Arc<Shared>,
) -> Response {
    let begun = (!shared.drain.is_cancelled()).then(|| shared.begun.token());
    let (mut head, body) = request.into_parts();
    let (method, path, version) = (head.method.clone(), head.uri.path().to_owned(), head.version);
    let credentials = shared.credentials.borrow().clone();
    let now = shared.clock.now();
    let has_certificate = certificate.is_some_and(|certificate| certificate.is_valid(&credentials, now));
    let mut response = match auth::authenticate(&head, peer, has_certificate, &shared.node, &credentials) {
        Err((why, error)) => {
            shared.stats.reject(why);
            let waits = head.headers.contains_key(EXPECT);
            // The rest of the body may take its time.
            drop(head);
            if !waits {
                discard(&mut Body::new(body)).await;
            }
            error.into_response()
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
    // axum has removed the body, and gives that of a stream the length 0.
    if method == Method::HEAD && response.headers().get(CONTENT_LENGTH).is_some_and(|length| length == "0") {
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    // An endless stream ends with its source, which does not wait for the drain.
    let endless = response.extensions().get::<Endless>().is_some();
    if endless {
        active.set_endless();
    }
    let begun = begun.filter(|_| !endless);
    response.map(|body| Body::new(TrackedBody { body, rest: Bytes::new(), active, _begun: begun }))
}

/// A response's body that records its progress; the request ends with it.
///
/// hyper drops it when it has the last chunk, so a large one is sent in parts: a client that reads none of them has a
/// request.
struct TrackedBody {
    body: Body,
    /// The rest of a large chunk.
    rest: Bytes,
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
        let frame = if self.rest.is_empty() {
            Pin::new(&mut self.body).poll_frame(cx)
        } else {
            Poll::Ready(Some(Ok(Frame::data(mem::take(&mut self.rest)))))
        };
        self.active.chunk(matches!(frame, Poll::Ready(Some(_))));
        let mut part = |mut chunk: Bytes| {
            self.rest = chunk.split_off(chunk.len().min(SEND_BUFFER as usize));
            chunk
        };
        frame.map_ok(|frame| frame.map_data(&mut part))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
