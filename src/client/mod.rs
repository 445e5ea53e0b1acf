//! The one HTTP client of the program: HTTP/1.1 over TCP, TLS or a Unix socket.
//!
//! Every request has a deadline and every body a size limit. An error is a
//! [`ClientError`] that says what to do about it. No error and no `Debug` output contains
//! the value of a header or the password of a URL.

mod body;
mod config;
mod connection;
mod error;
mod redirect;
mod tls;
mod upload;
mod url;

use std::{
    convert::Infallible,
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri, header::ETAG, uri::Scheme};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, ext::on_informational};
use hyper_rustls::HttpsConnectorBuilder;
use tokio::{
    sync::{Notify, OnceCell},
    time::{Instant, timeout_at},
};

use self::{
    body::Deadline,
    connection::{Pool, unix},
    redirect::MAX_REQUESTS,
    tls::TlsFiles,
};
pub(crate) use self::{
    body::content_coding,
    connection::{Connector, connector, pool, simulated, tcp},
    error::causes,
    redirect::{absolute, following},
    tls::{TlsError, config as tls_config},
};
pub use self::{
    body::{Body, Lines},
    config::{ClientSettings, Redirects},
    error::ClientError,
    url::{escaped, escaped_path, has_valid_port, is_loopback, parse_url, shown},
};
pub use crate::pem::PemError;
use crate::{certificate_files::CertificateFiles, host::Host};

/// How many 1xx responses may precede a response. Go bounds their bytes.
const MAX_INTERIM: usize = 100;

/// An HTTP client. It keeps connections for a few seconds and reuses them.
pub struct Client {
    settings: ClientSettings,
    host: Host,
    plain: Pool<Outgoing>,
    /// Absent for a Unix socket and within this process.
    secure: Option<Secure>,
}

/// The body of a request.
type Outgoing = UnsyncBoxBody<Bytes, Infallible>;

/// Connections with TLS.
struct Secure {
    files: Arc<TlsFiles>,
    /// Made for the first https request, because reading the system's CAs takes time.
    pool: OnceCell<Pool<Outgoing>>,
}

/// Whether a client can be made with these files. It reads the files and connects to
/// nothing. It blocks.
///
/// # Errors
/// If a file cannot be read or used.
pub fn check(ca_file: Option<&Path>, identity: Option<&CertificateFiles>) -> Result<(), ClientError> {
    let tls = TlsFiles::read(&Host::default().disk, ca_file, identity, false)?;
    // Without files only the system's CAs are left, which take time and are seldom broken.
    if ca_file.is_some() || identity.is_some() { tls.config().map(drop) } else { Ok(()) }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Client {
    /// A client on the real machine. See [`on`](Self::on).
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub fn new(settings: ClientSettings) -> Result<Self, ClientError> {
        Self::on(&Host::default(), settings)
    }

    /// A client. It reads the files of the settings once, here; the system's CAs are read
    /// when they are needed. It blocks.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub fn on(host: &Host, settings: ClientSettings) -> Result<Self, ClientError> {
        let (connector, secure) = match (&settings.socket, host.network.dial()) {
            (Some(path), _) => (unix(path.as_path().into()), None),
            (None, Some(dial)) => (simulated(dial), None),
            (None, None) => {
                let (ca_file, identity) = (settings.ca_file.as_deref(), settings.identity.as_ref());
                let files = TlsFiles::read(&host.disk, ca_file, identity, settings.accepts_any_server)?;
                if ca_file.is_some() || identity.is_some() {
                    // A certificate and a key may not belong together.
                    files.config()?;
                }
                let secure = Secure { files: Arc::new(files), pool: OnceCell::new() };
                (tcp(settings.connect_timeout), Some(secure))
            }
        };
        Ok(Self { settings, host: host.clone(), plain: pool(connector), secure })
    }

    /// Sends a request to its URI, which is absolute, and returns when the head of the
    /// response is there, whatever its status is. A user and a password in the URI become
    /// an `Authorization` header, unless the request has one.
    ///
    /// # Cancel safety
    /// After the first poll the request may reach the server even if the future is
    /// dropped; the connection is then closed.
    ///
    /// # Errors
    /// If no response arrives in time.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, ClientError> {
        self.send_within(request, self.settings.timeout).await
    }

    /// Sends a request as [`send`](Self::send) does, with a time limit of its own.
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// If no response arrives in time.
    pub async fn send_within(
        &self,
        request: Request<Bytes>,
        after: Duration,
    ) -> Result<Response<Body>, ClientError> {
        let deadline = Deadline { at: Instant::now() + after, after };
        let (mut head, mut body) = request.into_parts();
        for followed in 0..MAX_REQUESTS {
            url::authorize(&mut head).ok_or_else(|| ClientError::invalid_url(&head.uri))?;
            let peer = self.peer(&head.uri)?;
            let request = Request::from_parts(head.clone(), Full::new(body.clone()).boxed_unsync());
            let response = timeout_at(deadline.at, self.send_once(&peer, request)).await;
            let mut response = response.map_err(|_| ClientError::Timeout(peer.clone(), deadline.after))??;
            let location = redirect::location(&response);
            let is_followed = |to: &&[u8]| redirect::is_followed(self.settings.redirects, &head.uri, to);
            if let Some(location) = location.filter(is_followed) {
                let trusts_host = self.settings.redirects == Redirects::SameHost;
                redirect::follow(&mut head, &mut body, response.status(), location, trusts_host)?;
                continue;
            }
            if followed > 0 {
                // It is not of the URL that was asked for.
                response.headers_mut().remove(ETAG);
            }
            return Ok(response.map(|incoming| Body::new(incoming, peer, deadline)));
        }
        Err(ClientError::TooManyRedirects(self.peer(&head.uri)?, MAX_REQUESTS - 1))
    }

    async fn send_once(
        &self,
        peer: &Arc<str>,
        mut request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, ClientError> {
        // hyper skips these, however many there are.
        let (too_many, interim) = (Arc::new(Notify::new()), AtomicUsize::new(0));
        let exceeded = too_many.clone();
        on_informational(&mut request, move |_| {
            if interim.fetch_add(1, Ordering::Relaxed) == MAX_INTERIM {
                exceeded.notify_one();
            }
        });
        let pool = if request.uri().scheme() == Some(&Scheme::HTTPS) {
            let secure = self.secure.as_ref().ok_or_else(|| ClientError::invalid_url(request.uri()))?;
            secure.pool.get_or_try_init(|| Box::pin(self.secure_pool(&secure.files))).await?
        } else {
            &self.plain
        };
        let response = tokio::select! {
            biased;
            () = too_many.notified() => {
                let why = format!("more than {MAX_INTERIM} responses of 1xx");
                return Err(ClientError::Protocol(peer.clone(), why.into()));
            }
            response = pool.request(request) => response,
        };
        let (socket, timeout) = (self.settings.socket.as_deref(), self.settings.connect_timeout);
        response.map_err(|error| ClientError::from_client(peer, socket, timeout, &error))
    }

    async fn secure_pool(&self, files: &Arc<TlsFiles>) -> Result<Pool<Outgoing>, ClientError> {
        let files = files.clone();
        let config = self.host.threads.blocking(move || files.config()).await;
        let config = config.map_err(|error| ClientError::Roots(std::io::Error::other(error)))??;
        let https = HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1();
        Ok(pool(connector(https.wrap_connector(tcp(self.settings.connect_timeout)))))
    }

    /// The server that a URI leads to, for messages: host and port, or the path of the socket.
    fn peer(&self, uri: &Uri) -> Result<Arc<str>, ClientError> {
        let default = match uri.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            _ => return Err(ClientError::invalid_url(uri)),
        };
        let host = uri.host().filter(|host| !host.is_empty() && has_valid_port(uri));
        let host = host.ok_or_else(|| ClientError::invalid_url(uri))?;
        Ok(match &self.settings.socket {
            Some(path) => path.to_string_lossy().into(),
            None => format!("{host}:{}", uri.port_u16().unwrap_or(default)).into(),
        })
    }
}
