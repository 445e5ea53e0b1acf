//! Connections of every kind, as one type, and the pools that keep them.
//!
//! hyper's client is compiled once for each type of connection, so there is one.

use std::{error::Error, future::ready, path::Path, pin::Pin, sync::Arc, time::Duration};

use http::Uri;
use hyper::{
    body::Body,
    rt::{Read, Write},
};
use hyper_util::{
    client::legacy::{
        self,
        connect::{self, Connected, HttpConnector},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::net::UnixStream;
use tower::{Service, ServiceExt as _, service_fn, util::BoxCloneSyncService};

use crate::host::Dial;

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
/// How long a peer may acknowledge or read nothing of what was sent, unless it has more time to connect.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// How many bytes wait in a socket to be sent (the kernel takes twice as many). It would have some megabytes: a peer that
/// reads them slowly would seem to do nothing.
const SEND_BUFFER: usize = 128 * 1024;

/// Makes connections. Cheap to clone.
pub(crate) type Connector = BoxCloneSyncService<Uri, Connection, Box<dyn Error + Send + Sync>>;
/// A pool of connections, which are kept for a few seconds and reused.
pub(crate) type Pool<B> = legacy::Client<Connector, B>;

/// A pool of the connections that a connector makes.
pub(crate) fn pool<B: Body<Data: Send> + Send>(connector: Connector) -> Pool<B> {
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .http1_max_buf_size(MAX_HEAD)
        .build(connector)
}

/// A connector of any kind.
pub(crate) fn connector<C>(connector: C) -> Connector
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Read + Write + Send + 'static,
    C::Future: Send + 'static,
    C::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let connector = connector.map_response(|stream| -> Connection { Box::pin(stream) });
    BoxCloneSyncService::new(connector.map_err(Into::into))
}

/// Connects by TCP, so that a peer that is silently gone is noticed.
pub(crate) fn tcp(connect_timeout: Duration) -> Connector {
    let mut tcp = HttpConnector::new();
    // It carries https, too.
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(connect_timeout));
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED.max(connect_timeout)));
    tcp.set_send_buffer_size(Some(SEND_BUFFER));
    connector(tcp)
}

/// Connects to one Unix socket, whatever the host of the URL is.
pub(super) fn unix(path: Arc<Path>) -> Connector {
    connector(service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(&path).await.map(TokioIo::new) }
    }))
}

/// Connects to servers in this process, which a simulation has in place of a network.
pub(crate) fn simulated(dial: Arc<Dial>) -> Connector {
    connector(service_fn(move |to: Uri| {
        let stream = dial(to.authority().map_or("", |authority| authority.as_str()));
        ready(stream.map(TokioIo::new))
    }))
}

/// A connection, by whatever it was made.
pub(crate) type Connection = Pin<Box<dyn Stream>>;

/// What a connection consists of.
pub(crate) trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

impl connect::Connection for Connection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
