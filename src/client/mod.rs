//! The one HTTP client of the program: HTTP/1.1 over TCP, TLS or a Unix socket.
//!
//! Every request has a deadline and every body a bound. What can go wrong comes
//! back as a [`ClientError`] that says what to do about it; the values of headers
//! and the passwords of URLs are in no error and in no `Debug`.

mod body;
mod error;
mod redirect;
mod socket;
mod tls;

use std::{
    fmt::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, Uri,
    header::AUTHORIZATION,
    request::Parts,
    uri::{Authority, Scheme},
};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::{
    sync::OnceCell,
    task,
    time::{Instant, timeout_at},
};

pub(crate) use self::tls::{NoTls, config as tls_config};
pub use self::{
    body::{Body, Lines},
    error::ClientError,
};
use self::{socket::Socket, tls::Tls};
use crate::certificate_files::CertificateFiles;

/// How many answers of a request may be redirects, as with Go's `http.Client`.
const MAX_REDIRECTS: usize = 10;
/// The largest head of an answer, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// For how long an unused connection is kept: less than servers keep it, so that
/// none is closed under a request.
const IDLE: Duration = Duration::from_secs(4);
/// A connection on which nothing happens for so long is asked whether it still stands,
const KEEPALIVE: Duration = Duration::from_secs(15);
/// again after so long,
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// and so often before it is given up.
const KEEPALIVE_RETRIES: u32 = 3;
/// How long what was sent may stay unacknowledged by the other machine.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// How a client connects, and whom it trusts.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// The CAs that it trusts, as PEM, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// Who it is, where a server wants to know.
    pub identity: Option<CertificateFiles>,
    /// The Unix socket through which it speaks to whatever host a URL names,
    /// as `curl --unix-socket` does. Plain HTTP only.
    pub socket: Option<PathBuf>,
    /// How long connecting to one address may take.
    pub connect_timeout: Duration,
    /// How long it may take from the request to the answer's head, redirects
    /// included, and to the end of a body that is read whole.
    pub timeout: Duration,
    /// Whether redirects are followed, or given back as they are.
    pub follow_redirects: bool,
}

impl Default for ClientSettings {
    /// The system's CAs, TCP, ten seconds for everything, redirects given back.
    fn default() -> Self {
        let timeout = Duration::from_secs(10);
        Self {
            ca_file: None,
            identity: None,
            socket: None,
            connect_timeout: timeout,
            timeout,
            follow_redirects: false,
        }
    }
}

type Pool<C, B = Full<Bytes>> = legacy::Client<C, B>;

/// The client. Connections are kept for a few seconds and used again.
pub struct Client {
    settings: ClientSettings,
    route: Route,
}

/// The way out.
enum Route {
    Socket(Arc<Path>, Box<Pool<Socket>>),
    Net(Box<Net>),
}

struct Net {
    plain: Pool<HttpConnector>,
    tls: Arc<Tls>,
    /// Made with the first https request: reading the system's CAs takes its time.
    secure: OnceCell<Pool<HttpsConnector<HttpConnector>>>,
}

/// Whether a client could be made with these files. It reads them and nothing
/// else, and blocks.
///
/// # Errors
/// What is wrong with them.
pub fn check(ca_file: Option<&Path>, identity: Option<&CertificateFiles>) -> Result<(), ClientError> {
    let tls = Tls::read(ca_file, identity)?;
    // Without files there is nothing to go wrong, and the system's CAs take their time.
    if ca_file.is_some() || identity.is_some() { tls.config().map(drop) } else { Ok(()) }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Client {
    /// A client. It reads the files that the settings name now, and never again;
    /// the system's CAs are read when they are needed.
    ///
    /// # Errors
    /// If a file cannot be read or has not in it what it should.
    pub fn new(settings: ClientSettings) -> Result<Self, ClientError> {
        let route = match &settings.socket {
            Some(path) => {
                let path: Arc<Path> = path.as_path().into();
                Route::Socket(path.clone(), Box::new(pool(Socket::new(path))))
            }
            None => Route::Net(Box::new(Net {
                plain: pool(tcp(settings.connect_timeout)),
                tls: Arc::new(Tls::read(settings.ca_file.as_deref(), settings.identity.as_ref())?),
                secure: OnceCell::new(),
            })),
        };
        Ok(Self { settings, route })
    }

    /// Sends a request to its URI, which is absolute, and waits for the answer's
    /// head. Any status is an answer. A user and password in the URI become an
    /// `Authorization` header, unless there is one.
    ///
    /// # Cancel safety
    /// Once polled the request may reach the server even if the future is
    /// dropped; the connection is then closed.
    ///
    /// # Errors
    /// If there was no answer in time.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, ClientError> {
        let deadline = Deadline { at: Instant::now() + self.settings.timeout, after: self.settings.timeout };
        let (mut head, mut body) = request.into_parts();
        for _ in 0..MAX_REDIRECTS {
            authorize(&mut head)?;
            let to = self.peer(&head.uri)?;
            let asked = Request::from_parts(head.clone(), Full::new(body.clone()));
            let answer = timeout_at(deadline.at, self.once(&to, asked)).await;
            let answer =
                answer.map_err(|_| ClientError::Timeout { to: to.clone(), after: deadline.after })??;
            if let Some(location) = redirect::location(&answer).filter(|_| self.settings.follow_redirects) {
                redirect::follow(&mut head, &mut body, answer.status(), location)?;
                continue;
            }
            return Ok(answer.map(|incoming| Body::new(incoming, to, deadline)));
        }
        Err(ClientError::TooManyRedirects { to: self.peer(&head.uri)?, limit: MAX_REDIRECTS })
    }

    /// Sends a request once.
    async fn once(
        &self,
        to: &Arc<str>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ClientError> {
        let secure = request.uri().scheme() == Some(&Scheme::HTTPS);
        let answer = match &self.route {
            Route::Socket(..) if secure => return Err(ClientError::no_url(request.uri())),
            Route::Socket(_, pool) => pool.request(request).await,
            Route::Net(net) if !secure => net.plain.request(request).await,
            Route::Net(net) => {
                let pool = net.secure.get_or_try_init(|| self.secured(&net.tls)).await?;
                pool.request(request).await
            }
        };
        answer.map_err(|error| match &self.route {
            Route::Socket(path, _) => ClientError::at_socket(path, &error),
            Route::Net(_) => ClientError::at_peer(to, self.settings.connect_timeout, &error),
        })
    }

    async fn secured(&self, tls: &Arc<Tls>) -> Result<Pool<HttpsConnector<HttpConnector>>, ClientError> {
        let tls = tls.clone();
        let config = task::spawn_blocking(move || tls.config()).await;
        let config = config.map_err(|error| ClientError::Roots(error.into()))??;
        let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1();
        Ok(pool(connector.wrap_connector(tcp(self.settings.connect_timeout))))
    }

    /// To whom a URI leads, for reading.
    fn peer(&self, uri: &Uri) -> Result<Arc<str>, ClientError> {
        let default = match uri.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            _ => return Err(ClientError::no_url(uri)),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| ClientError::no_url(uri))?;
        Ok(match &self.route {
            Route::Socket(path, _) => path.to_string_lossy().into(),
            Route::Net(_) => format!("{host}:{}", uri.port_u16().unwrap_or(default)).into(),
        })
    }
}

/// When an answer must be complete.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    after: Duration,
}

/// Connections that are kept for a few seconds and used again.
pub(crate) fn pool<C, B>(connector: C) -> Pool<C, B>
where
    C: legacy::connect::Connect + Clone,
    B: hyper::body::Body + Send,
    B::Data: Send,
{
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .http1_max_buf_size(MAX_HEAD)
        .build(connector)
}

/// Connections on which a silent end of the other side is noticed.
pub(crate) fn tcp(connect_timeout: Duration) -> HttpConnector {
    let mut connector = HttpConnector::new();
    // What is encrypted goes through it too.
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(connect_timeout));
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    connector
}

/// A text as one segment of a path, or as one value of a query: every byte that
/// is not plain is escaped (RFC 3986, 2.3).
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to memory cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// A URL as it may be shown: without user, password and query, which may be secret.
#[must_use]
pub fn shown(url: &Uri) -> String {
    let scheme = url.scheme_str().map(|scheme| format!("{scheme}://")).unwrap_or_default();
    let authority = url.authority().map_or("", |authority| without_user(authority.as_str()).1);
    format!("{scheme}{authority}{}", url.path())
}

/// Splits `user:password@host:port` into the user with the password, and the rest.
fn without_user(authority: &str) -> (Option<&str>, &str) {
    authority.rsplit_once('@').map_or((None, authority), |(user, rest)| (Some(user), rest))
}

/// Takes user and password out of a request's URI and into its header.
fn authorize(head: &mut Parts) -> Result<(), ClientError> {
    let Some((Some(user), rest)) = head.uri.authority().map(|authority| without_user(authority.as_str()))
    else {
        return Ok(());
    };
    let user = decode_percent(user);
    let user = if user.contains(&b':') { user } else { [&user[..], b":"].concat() };
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(user)))
        .map_err(|_| ClientError::no_url(&head.uri))?;
    value.set_sensitive(true);
    let mut parts = head.uri.clone().into_parts();
    parts.authority = Some(Authority::try_from(rest).map_err(|_| ClientError::no_url(&head.uri))?);
    head.uri = Uri::from_parts(parts).map_err(|_| ClientError::no_url(&head.uri))?;
    head.headers.entry(AUTHORIZATION).or_insert(value);
    Ok(())
}

/// `%41` is `A`; what only looks like that stays as it is.
fn decode_percent(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..2).filter(|digits| first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = byte.map_or(after, |_| &after[2..]);
    }
    bytes
}
