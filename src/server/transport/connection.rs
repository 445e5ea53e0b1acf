//! One connection: TLS if there is any, HTTP/1 or 2, and each of its requests.

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
use http::{HeaderValue, Request, StatusCode, Version, header::CONNECTION, request::Parts};
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
    auth::{self, Way},
    credentials::Credentials,
    hands::{Hand, Hands},
    intake::{self, Intake},
    limits::{HEAD, Limits, SEND_BUFFER, STREAMS, WINDOW},
    listen,
    slots::{Asked, Progress, Slot},
    socket::Socket,
    stats::{ConnectionStats, Refusal},
};
use crate::pod::NodeName;
use crate::server::{body::Endless, status::ApiError};

/// After how long a silent HTTP/2 client is asked whether it is still there, and
/// how long it has to say so.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// How long a connection that is told to end has for its last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a connection whose request has not been read yet is given for it
/// when the server is to finish: its client may have sent it already.
const FIRST_WORDS: Duration = Duration::from_secs(1);
/// How long an HTTP/1 connection that is idle then is still read: what its client
/// has sent already may not have been seen yet, and would be thrown away.
const NEXT_WORDS: Duration = Duration::from_millis(100);

/// What every connection shares.
pub(super) struct Shared {
    pub(super) router: Router,
    pub(super) node: NodeName,
    pub(super) limits: Limits,
    pub(super) credentials: watch::Receiver<Arc<Credentials>>,
    pub(super) intake: Intake,
    pub(super) stats: ConnectionStats,
    /// Cancelled when no new requests are to be taken.
    pub(super) stop: CancellationToken,
    /// For the requests, that they are waited for.
    pub(super) hands: Hands,
}

/// Serves a connection to its end, or until another takes its slot. With a hand,
/// it is to end when the server is to finish.
pub(super) async fn serve(incoming: listen::Incoming, slot: Slot, hand: Option<Hand>, shared: Arc<Shared>) {
    let _counted = shared.stats.connected();
    tokio::select! {
        () = slot.lost() => {}
        () = talk(incoming, slot.progress.clone(), hand, &shared) => {}
    }
}

async fn talk(incoming: listen::Incoming, progress: Arc<Progress>, hand: Option<Hand>, shared: &Arc<Shared>) {
    let listen::Incoming { stream, reached } = incoming;
    let Shared { stats, limits, stop, .. } = &**shared;
    let socket = Socket::new(stream, progress.clone(), stop.clone());
    let tls = shared.credentials.borrow().tls.clone().filter(|_| reached.is_some());
    let Some(tls) = tls else {
        return speak(socket, Way { reached, certified: false }, &progress, hand, shared).await;
    };
    let too_late = async {
        to_finish(hand.as_ref()).await;
        sleep(FIRST_WORDS).await;
    };
    let shaken = tokio::select! {
        shaken = TlsAcceptor::from(tls.config).accept(socket) => shaken,
        _ = progress.overdue(limits) => return stats.refuse(Refusal::Handshake),
        () = too_late => return,
        () = stop.cancelled() => return,
    };
    match shaken {
        Ok(socket) => {
            // The handshake fails if there is one and the client CA has not signed it.
            let certified = socket.get_ref().1.peer_certificates().is_some();
            speak(socket, Way { reached, certified }, &progress, hand, shared).await;
        }
        Err(error) => {
            stats.refuse(Refusal::Handshake);
            debug!(%error, "no TLS connection came about");
        }
    }
}

/// Waits until a connection is to be finished; one without a hand never is.
async fn to_finish(hand: Option<&Hand>) {
    match hand {
        Some(hand) => hand.finish.cancelled().await,
        None => pending().await,
    }
}

/// Answers requests until the connection ends, asks for nothing or is to stop.
async fn speak<S>(socket: S, way: Way, progress: &Arc<Progress>, hand: Option<Hand>, shared: &Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let http = http();
    let finish = hand.as_ref().map(|hand| hand.finish.clone());
    let service = service_fn(|request: Request<Incoming>| {
        let (progress, shared, finish) = (progress.clone(), shared.clone(), finish.clone());
        async move {
            let version = request.version();
            let mut response = answer(request, way, &progress, &shared).await;
            // The client is told before it sends another here; in HTTP/2 a frame tells it.
            if version < Version::HTTP_2 && finish.is_some_and(|finish| finish.is_cancelled()) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(socket), service));
    // What has been sent is read before the connection is told to end.
    tokio::select! {
        biased;
        ended = connection.as_mut() => return log_end(ended),
        why = progress.overdue(&shared.limits) => {
            if let Some(why) = why {
                shared.stats.refuse(why);
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => return log_end(ended),
                () = sleep(LAST_WORDS) => return,
            }
        }
        () = to_finish(hand.as_ref()) => {
            // Before a request that was sent is there, an ending would lose it.
            tokio::select! {
                biased;
                ended = connection.as_mut() => return log_end(ended),
                () = progress.has_asked(NEXT_WORDS) => {}
                () = sleep(FIRST_WORDS) => {}
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => return log_end(ended),
                () = progress.has_been_answered() => drop(hand),
            }
        }
        () = shared.stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    // What is left are requests that had begun; whoever stops us has a deadline for them.
    log_end(connection.await);
}

fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        debug!(%error, "a connection ended");
    }
}

fn http() -> auto::Builder<Streams> {
    let mut http = auto::Builder::new(Streams::default());
    // The time for headers is ours to watch: hyper's does not begin with the connection.
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

/// The tasks of an HTTP/2 connection's requests; they end with it.
#[derive(Clone, Default)]
struct Streams(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while streams.try_join_next().is_some() {}
        streams.spawn(stream);
    }
}

/// Answers one request: who asks, then the whole body, then the work.
async fn answer(request: Request<Incoming>, way: Way, progress: &Arc<Progress>, shared: &Shared) -> Response {
    let (asked, hand) = (progress.asked(request.version()), shared.hands.take());
    let (mut head, mut body) = request.into_parts();
    let (method, path, version) = (head.method.clone(), head.uri.path().to_owned(), head.version);
    let response = match let_in(&mut head, &mut body, way, shared).await {
        Err((why, response)) => {
            if let Some(why) = why {
                shared.stats.refuse(why);
            }
            if version == Version::HTTP_2 {
                intake::discard(&mut body).await;
            }
            response
        }
        Ok(body) => {
            let _working = progress.working();
            let request = Request::from_parts(head, Body::from(body.bytes.clone()));
            let mut router = shared.router.clone();
            Unpanicked(Box::pin(async move { router.call(request).await })).await
        }
    };
    debug!(%method, path, status = response.status().as_u16(), "answered");
    // A stream ends when those who feed it do, and they do not wait for it.
    let endless = response.extensions().get::<Endless>().is_some();
    let hand = hand.filter(|_| !endless);
    if endless {
        asked.has_no_end();
    }
    response.map(|body| Body::new(Answering { body, asked, _hand: hand }))
}

/// Finds out who asks, and reads the whole body if they may.
async fn let_in(
    head: &mut Parts,
    body: &mut Incoming,
    way: Way,
    shared: &Shared,
) -> Result<intake::Body, (Option<Refusal>, Response)> {
    let credentials = shared.credentials.borrow().clone();
    let caller = auth::admit(head, way, &shared.node, &credentials)
        .map_err(|denied| (Some(denied.why), denied.response()))?;
    head.extensions.insert(caller);
    shared.intake.read(&head.headers, body).await.map_err(|(why, error)| (why, error.into_response()))
}

/// A handler's answer; if it panics, that is an answer, too, and only its own request's.
struct Unpanicked(Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>);

impl Future for Unpanicked {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        // A future that has panicked is not polled again.
        let polled: Result<_, Box<dyn Any + Send>> =
            catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)));
        polled.map_or_else(
            |_| {
                let message = "the agent failed at this request; its log says how";
                let code = StatusCode::INTERNAL_SERVER_ERROR;
                Poll::Ready(ApiError::new(code, "InternalError", message).into_response())
            },
            |polled| polled.map(|Ok(response)| response),
        )
    }
}

/// An answer on its way; the request ends with it.
struct Answering {
    body: Body,
    asked: Asked,
    _hand: Option<Hand>,
}

impl hyper::body::Body for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Who asks for a piece has sent those before.
        self.asked.taken();
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(Some(_))) {
            self.asked.given();
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
