//! Connections by TCP and to Unix sockets, and the pools that keep them.

use std::{io, path::Path, sync::Arc, time::Duration};

use http::Uri;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connect, HttpConnector},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::net::UnixStream;
use tower::{service_fn, util::BoxCloneSyncService};

/// The largest head of a response, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// How long an unused connection is kept. Servers keep it longer, so that a request
/// rarely meets a connection that is being closed.
const IDLE: Duration = Duration::from_secs(4);
/// TCP keepalive: an idle connection is probed after this time,
const KEEPALIVE: Duration = Duration::from_secs(15);
/// then at this interval,
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// and is given up after this many probes without an answer.
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent data may stay unacknowledged by the peer.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// A pool of connections, which are kept for a few seconds and reused.
pub(crate) type Pool<C, B> = Client<C, B>;

/// A pool of the connections that a connector makes.
pub(crate) fn pool<C, B>(connector: C) -> Pool<C, B>
where
    C: Connect + Clone,
    B: hyper::body::Body + Send,
    B::Data: Send,
{
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .http1_max_buf_size(MAX_HEAD)
        .build(connector)
}

/// Connects by TCP, so that a peer that is silently gone is noticed.
pub(crate) fn tcp(connect_timeout: Duration) -> HttpConnector {
    let mut connector = HttpConnector::new();
    // It carries https, too.
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(connect_timeout));
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    connector
}

/// Connects to one Unix socket, whatever the host of the URL is.
pub(super) type UnixConnector = BoxCloneSyncService<Uri, TokioIo<UnixStream>, io::Error>;

/// The connector of a Unix socket.
pub(super) fn unix(path: Arc<Path>) -> UnixConnector {
    BoxCloneSyncService::new(service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(&path).await.map(TokioIo::new) }
    }))
}
