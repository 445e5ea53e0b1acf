//! A web server with scripted answers, over real connections.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fs,
    future::Future,
    io, mem,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, UnixListener},
    sync::watch,
    time::sleep,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::files::soon;

/// A port that refuses connections while the socket is kept: it is bound and does not listen.
pub fn refusing() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The client certificate as DER; empty if there is none.
    pub certificate: Bytes,
}

impl Seen {
    /// The value of a header, or the empty text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// One step of sending a body.
#[derive(Clone, Debug)]
pub enum Step {
    Send(Bytes),
    Pause(Duration),
    /// Waits until the gate is opened.
    Until(watch::Receiver<bool>),
    /// The connection is closed.
    Break,
    Hang,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    steps: Vec<Step>,
    length: Option<u64>,
    mute: bool,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let length = Some(body.len() as u64);
        Self { status, headers: Vec::new(), steps: vec![Step::Send(body)], length, mute: false }
    }

    pub fn ok(body: impl Into<Bytes>) -> Self {
        Self::new(200, body)
    }

    /// A redirect.
    pub fn to(status: u16, location: &str) -> Self {
        Self::new(status, "moved").header("Location", location)
    }

    /// A body in parts. Without a length it is sent in chunks.
    pub fn steps(length: Option<u64>, steps: Vec<Step>) -> Self {
        Self { steps, length, ..Self::ok("") }
    }

    /// The request is read and never answered.
    pub fn mute() -> Self {
        Self { mute: true, ..Self::ok("") }
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

type Script = Box<dyn FnMut(&Seen) -> Reply + Send>;

/// The server. It ends with the test.
pub struct Web {
    /// The URL without a trailing slash.
    pub url: String,
    script: Arc<Mutex<Script>>,
    seen: watch::Receiver<Vec<Seen>>,
    _stop: DropGuard,
}

impl Web {
    /// On a port of the loopback interface.
    pub async fn start(reply: Reply) -> Self {
        Self::start_at("127.0.0.1:0", reply).await
    }

    /// On an address; port 0 is a free one.
    pub async fn start_at(address: &str, reply: Reply) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        Self::serve(url, reply, Door::Tcp(listener))
    }

    /// With TLS, under the name `localhost`.
    pub async fn start_tls(config: ServerConfig, reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self::serve(url, reply, Door::Tls(listener, acceptor))
    }

    /// On a Unix socket.
    pub fn start_unix(path: &Path, reply: Reply) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        Self::serve("http://localhost".to_owned(), reply, Door::Unix(listener))
    }

    fn serve(url: String, reply: Reply, door: Door) -> Self {
        let script: Script = Box::new(move |_| reply.clone());
        let script = Arc::new(Mutex::new(script));
        let (see, seen) = watch::channel(Vec::new());
        let stop = CancellationToken::new();
        let (play, stopped) = (script.clone(), stop.clone());
        tokio::spawn(async move {
            while let Some(stream) = stopped.run_until_cancelled(door.accept()).await {
                // Some tests expect a failed handshake.
                let Ok((stream, certificate)) = stream else { continue };
                tokio::spawn(stopped.clone().run_until_cancelled_owned(talk(
                    stream,
                    certificate,
                    play.clone(),
                    see.clone(),
                )));
            }
        });
        Self { url, script, seen, _stop: stop.drop_guard() }
    }

    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Answers every request from now on with this.
    pub fn say(&self, reply: Reply) {
        self.play(move |_| reply.clone());
    }

    /// Answers every request from now on with the result of this.
    pub fn play(&self, script: impl FnMut(&Seen) -> Reply + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    /// Waits for so many requests, and returns them.
    pub async fn asked(&self, times: usize) -> Vec<Seen> {
        soon(self.seen.clone().wait_for(|seen| seen.len() >= times)).await.unwrap().clone()
    }
}

/// A listener.
enum Door {
    Tcp(TcpListener),
    Tls(TcpListener, TlsAcceptor),
    Unix(UnixListener),
}

trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<C: AsyncRead + AsyncWrite + Unpin + Send> Connection for C {}

impl Door {
    /// A connection and the client certificate.
    async fn accept(&self) -> io::Result<(Box<dyn Connection>, Bytes)> {
        Ok(match self {
            Self::Tcp(listener) => (Box::new(listener.accept().await?.0), Bytes::new()),
            Self::Tls(listener, acceptor) => {
                let stream = acceptor.accept(listener.accept().await?.0).await?;
                let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                let shown = shown.map_or_else(Bytes::new, |own| Bytes::copy_from_slice(own));
                (Box::new(stream), shown)
            }
            Self::Unix(listener) => (Box::new(listener.accept().await?.0), Bytes::new()),
        })
    }
}

async fn talk(
    stream: Box<dyn Connection>,
    certificate: Bytes,
    script: Arc<Mutex<Script>>,
    see: watch::Sender<Vec<Seen>>,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let (script, see, certificate) = (script.clone(), see.clone(), certificate.clone());
        async move {
            let (head, body) = request.into_parts();
            let body =
                body.collect().await.map_or_else(|_| Bytes::new(), http_body_util::Collected::to_bytes);
            let seen = Seen {
                method: head.method.to_string(),
                path: head.uri.to_string(),
                headers: head.headers,
                body,
                certificate,
            };
            let reply = script.lock().unwrap()(&seen);
            see.send_modify(|all| all.push(seen));
            if reply.mute {
                std::future::pending::<()>().await;
            }
            let mut response = Response::builder().status(reply.status);
            for (name, value) in &reply.headers {
                response = response.header(name, value);
            }
            let body = Steps { left: reply.steps.into(), length: reply.length, pause: None, flushed: false };
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    // Some tests break connections.
    drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}

/// A body that follows its steps.
struct Steps {
    left: VecDeque<Step>,
    length: Option<u64>,
    pause: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    flushed: bool,
}

impl Body for Steps {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match self.left.pop_front() {
                None => return Poll::Ready(None),
                Some(Step::Send(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(Step::Pause(pause)) => self.pause = Some(Box::pin(sleep(pause))),
                Some(Step::Until(mut gate)) => {
                    self.pause = Some(Box::pin(async move { drop(gate.wait_for(|open| *open).await) }));
                }
                Some(Step::Break) if !mem::replace(&mut self.flushed, true) => {
                    // What was sent before must arrive before the connection is closed.
                    self.left.push_front(Step::Break);
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Step::Break) => return Poll::Ready(Some(Err(io::Error::other("as the test wants it")))),
                Some(Step::Hang) => {
                    self.left.push_front(Step::Hang);
                    return Poll::Pending;
                }
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// A certificate authority and its files.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: rustls::pki_types::CertificateDer<'static>,
    directory: PathBuf,
    /// Its certificate as PEM.
    pub ca_file: PathBuf,
}

impl Authority {
    /// An authority with its files in a directory, under a name.
    pub fn new(directory: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        let ca_file = directory.join(format!("{name}.pem"));
        fs::write(&ca_file, cert.pem()).unwrap();
        let der = cert.der().clone();
        Self { issuer: Issuer::new(params, key), der, directory: directory.to_owned(), ca_file }
    }

    fn issue(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (rcgen::Certificate, KeyPair) {
        self.issue_with(name, purpose, |_| ())
    }

    fn issue_with(
        &self,
        name: &str,
        purpose: ExtendedKeyUsagePurpose,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages.push(purpose);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// The configuration of a server with a certificate for a name. With a CA for clients it
    /// requires client certificates.
    pub fn server(&self, name: &str, clients: Option<&Self>) -> ServerConfig {
        Self::configured(self.issue(name, ExtendedKeyUsagePurpose::ServerAuth), clients)
    }

    /// The same with a certificate that was valid in the year 2000 only.
    pub fn outdated_server(&self, name: &str) -> ServerConfig {
        Self::configured(self.issue_with(name, ExtendedKeyUsagePurpose::ServerAuth, outdated), None)
    }

    /// The same with a certificate that is that of a CA.
    pub fn server_that_is_a_ca(&self, name: &str) -> ServerConfig {
        let is_ca = |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self::configured(self.issue_with(name, ExtendedKeyUsagePurpose::ServerAuth, is_ca), None)
    }

    fn configured(issued: (rcgen::Certificate, KeyPair), clients: Option<&Self>) -> ServerConfig {
        let (cert, key) = issued;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.der.clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        builder.with_single_cert(vec![cert.der().clone()], key).unwrap()
    }

    /// A server whose certificate is of version 1 of X.509, as `openssl x509 -req` makes it: rustls reads nothing of it.
    pub fn server_of_version_1() -> ServerConfig {
        let text = include_bytes!("version_1.pem");
        let certificate = CertificateDer::from_pem_slice(text).unwrap();
        let key = ring::sign::any_supported_type(&PrivateKeyDer::from_pem_slice(text).unwrap()).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        builder
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key))))
    }

    /// The files of a client certificate and its key.
    pub fn client(&self, name: &str) -> (PathBuf, PathBuf) {
        self.files(name, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// The files of a server certificate and its key.
    pub fn server_files(&self, name: &str) -> (PathBuf, PathBuf) {
        self.files(name, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client certificate that was valid in the year 2000 only.
    pub fn outdated_client(&self, name: &str) -> (PathBuf, PathBuf) {
        self.write(name, self.issue_with(name, ExtendedKeyUsagePurpose::ClientAuth, outdated))
    }

    /// A certificate of a server that has signed it itself.
    pub fn self_signed_files(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
        self.write(name, (certificate, key))
    }

    /// A server certificate that was valid in the year 2000 only.
    pub fn outdated_server_files(&self, name: &str) -> (PathBuf, PathBuf) {
        self.write(name, self.issue_with(name, ExtendedKeyUsagePurpose::ServerAuth, outdated))
    }

    /// A server certificate that is valid from the year 9000 on.
    pub fn future_server_files(&self, name: &str) -> (PathBuf, PathBuf) {
        let future = |params: &mut CertificateParams| {
            params.not_before = rcgen::date_time_ymd(9000, 1, 1);
            params.not_after = rcgen::date_time_ymd(9000, 12, 31);
        };
        self.write(name, self.issue_with(name, ExtendedKeyUsagePurpose::ServerAuth, future))
    }

    fn files(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (PathBuf, PathBuf) {
        self.write(name, self.issue(name, purpose))
    }

    fn write(&self, name: &str, (cert, key): (rcgen::Certificate, KeyPair)) -> (PathBuf, PathBuf) {
        let files = ["crt", "key"].map(|end| self.directory.join(format!("{name}.{end}")));
        fs::write(&files[0], cert.pem()).unwrap();
        fs::write(&files[1], key.serialize_pem()).unwrap();
        files.into()
    }
}

fn outdated(params: &mut CertificateParams) {
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(2000, 12, 31);
}
