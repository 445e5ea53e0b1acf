//! The webhook sink: POSTs each update to a URL.

use std::{
    borrow::Cow,
    convert::Infallible,
    error::Error,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderValue, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT},
    uri::Scheme,
};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use jiff::{Timestamp, fmt::rfc2822};
use ring::hmac;
use sha2::{Digest as _, Sha256};
use tokio::{sync::watch, time::timeout};
use tracing::warn;

use super::{
    contract::{Sink, SinkError},
    opening::{OpenSink, Opening, SinkKind},
};
use crate::{
    certificate_files::CertificateFiles,
    client::{self, Body, Client, ClientError, ClientSettings, is_loopback, parse_url, shown},
    duration,
    error_chain::chain,
    hex::hex,
    host::{Cancelled, Disk, FileKind, Host, Stamp},
    kind::{Given, Kind, KindOption, OpenError},
    outage::Outage,
    pod::{SequencedUpdate, quantity},
};

/// The entry of this sink in the registry.
pub(super) const KIND: SinkKind = SinkKind {
    kind: Kind {
        name: "webhook",
        syntax: "webhook=URL",
        options: &[
            option(
                TOKEN_FILE,
                "FILE",
                "The bearer token that is sent; the file is read again when it changes",
            ),
            option(
                HMAC_FILE,
                "FILE",
                "The key of the HMAC-SHA256 of each body, which is sent as Podmux-Signature; read again when it changes",
            ),
            option(
                "ca-file",
                "FILE",
                "The certificate authorities (PEM) that verify the server, instead of the system's",
            ),
            option(CERT_FILE, "FILE", "The client certificate (PEM)"),
            option("key-file", "FILE", "The private key (PEM) of that certificate"),
            option(
                "max-bytes",
                "BYTES",
                "The most bytes of pods in one body, 10Mi by default; a larger update comes in several",
            ),
            option("timeout", "DURATION", "The longest time without progress of a request, 30s by default"),
        ],
        shown: |target| target.parse().map(|url| shown(&url)).unwrap_or_default(),
        accepts: |given| Config::of(given).map(drop),
        check: |given, host| {
            let config = Config::of(given).map_err(|error| failed(given, error))?;
            config.check(host).map_err(|error| failed(given, error))
        },
    },
    open,
};

const fn option(name: &'static str, value: &'static str, help: &'static str) -> KindOption {
    KindOption { name, value, help }
}

/// An error about the sink's options and their files.
fn failed(given: &Given, error: impl Into<Box<dyn Error + Send + Sync>>) -> OpenError {
    let target = given.target.as_deref().map(KIND.kind.shown).unwrap_or_default();
    OpenError::Options(format!("{}={target}", KIND.kind.name), error.into())
}

fn open(given: &Given, opening: Opening) -> Result<OpenSink, OpenError> {
    let config = Config::of(given).map_err(|error| failed(given, error))?;
    config.check_kinds(&opening.host.disk).map_err(|error| failed(given, error))?;
    let sequence = opening.sequence.clone();
    let sink = hex(&Sha256::digest(&opening.name)[..SINK_DIGEST]);
    let key = format!("{}-{}-{sink}", opening.instance, sequence.run());
    let (reload, reloads) = watch::channel(());
    let webhook = Webhook::new(config, key, opening.host.clone(), reloads);
    Ok(opening.deliver(webhook, sequence, move || reload.send_replace(())))
}

/// The options with the files of the secrets.
const TOKEN_FILE: &str = "token-file";
const HMAC_FILE: &str = "hmac-file";
/// The option with the file of the client certificate.
const CERT_FILE: &str = "cert-file";
/// The default of `max-bytes`: what many servers and proxies accept, and little in memory.
const MAX_BYTES: usize = 10 << 20;
/// The default of `timeout`.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest `timeout`.
const LONGEST_TIMEOUT: Duration = Duration::from_hours(1);
/// The bounds of the delay that a server may ask for: an error must not stop the stream for hours.
const LONGEST_DELAY: Duration = Duration::from_mins(10);
/// The largest file with a token or a key, in bytes.
const MAX_SECRET: u64 = 64 * 1024;
/// The size of the blocks in which a body is sent.
const BLOCK: usize = 64 * 1024;
/// The number of bytes of an answer that are read, so that the connection can be used again.
const MAX_ANSWER: usize = 4096;
/// How long they are waited for: the status is known already.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of bytes of the digest of the sink's name in an idempotency key.
const SINK_DIGEST: usize = 4;
/// The `User-Agent` header.
const AGENT: &str = concat!("podmux/", env!("CARGO_PKG_VERSION"));

/// The settings of a webhook.
#[derive(Clone)]
struct Config {
    url: Uri,
    token: Option<PathBuf>,
    key: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    identity: Option<CertificateFiles>,
    max_bytes: usize,
    timeout: Duration,
}

impl Config {
    /// Errors do not repeat the URL: it may hold a secret.
    fn of(given: &Given) -> Result<Self, String> {
        let identity = match (given.path(CERT_FILE), given.path("key-file")) {
            (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
            (None, None) => None,
            _ => return Err("a certificate and its key need each other: give cert-file and key-file".into()),
        };
        let bytes = given.options.get("max-bytes").map(|text| {
            let number = quantity::bytes(text).map_err(|error| format!("max-bytes: {error}"))?;
            let number = usize::try_from(number).ok().filter(|number| *number > 0);
            number.ok_or_else(|| format!("max-bytes: {text:?} holds no pod: write it like 10Mi"))
        });
        let bounds = Duration::from_millis(100)..=LONGEST_TIMEOUT;
        let timeout = given.options.get("timeout").map(|text| duration::read(text, &bounds));
        Ok(Self {
            url: url(given.target.as_deref().unwrap_or_default())?,
            token: given.path(TOKEN_FILE),
            key: given.path(HMAC_FILE),
            ca_file: given.path("ca-file"),
            identity,
            max_bytes: bytes.transpose()?.unwrap_or(MAX_BYTES),
            timeout: timeout.transpose().map_err(|error| format!("timeout: {error}"))?.unwrap_or(TIMEOUT),
        })
    }

    /// Reads all files. It blocks.
    fn check(&self, host: &Host) -> Result<(), WebhookError> {
        self.check_kinds(&host.disk)?;
        Secrets::new(self).refresh(host)?;
        Ok(client::check(self.ca_file.as_deref(), self.identity.as_ref())?)
    }

    /// Looks for what can never be read: a file may appear later, and a directory does not become
    /// a file. It blocks.
    fn check_kinds(&self, disk: &Disk) -> Result<(), WebhookError> {
        let identity = self.identity.as_ref();
        let files = [
            (TOKEN_FILE, self.token.as_ref()),
            (HMAC_FILE, self.key.as_ref()),
            ("ca-file", self.ca_file.as_ref()),
            (CERT_FILE, identity.map(|files| &files.certificate)),
            ("key-file", identity.map(|files| &files.key)),
        ];
        for (option, path) in files.into_iter().filter_map(|(option, path)| Some((option, path?))) {
            if disk.attributes(path, true).is_ok_and(|found| found.kind == FileKind::Directory) {
                return Err(WebhookError::File(option, path.clone(), io::ErrorKind::IsADirectory.into()));
            }
        }
        Ok(())
    }

    fn client(&self, host: &Host) -> Result<Client, ClientError> {
        let settings = ClientSettings {
            ca_file: self.ca_file.clone(),
            identity: self.identity.clone(),
            connect_timeout: self.timeout,
            timeout: self.timeout,
            ..ClientSettings::default()
        };
        Client::on(host, settings)
    }
}

fn url(text: &str) -> Result<Uri, String> {
    let invalid = |problem: &str| format!("{problem}: write webhook=https://HOST:PORT/PATH");
    let url = parse_url(text).map_err(invalid)?;
    let host = url.host().filter(|host| !host.is_empty()).ok_or_else(|| invalid("the URL has no host"))?;
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(
            "the URL holds a user or a password: put a token into a file, and give token-file=FILE".into()
        );
    }
    if url.scheme() == Some(&Scheme::HTTPS) || (url.scheme() == Some(&Scheme::HTTP) && is_loopback(host)) {
        Ok(url)
    } else if url.scheme() == Some(&Scheme::HTTP) {
        Err("http is not encrypted, and pods may hold secrets: use https (http only to 127.0.0.0/8, [::1] or localhost)".into())
    } else {
        Err(invalid("the URL does not begin with https://"))
    }
}

/// Why an update was not acknowledged.
#[derive(Debug, thiserror::Error)]
enum WebhookError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{0}: cannot read {path} (does it exist, and may podmux read it?)", path = .1.display())]
    File(&'static str, PathBuf, #[source] io::Error),
    #[error("{0}: {path} is empty", path = .1.display())]
    Empty(&'static str, PathBuf),
    #[error("the token in {} has characters that a header cannot have", .0.display())]
    Token(PathBuf),
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
    #[error("the request was not prepared")]
    Cancelled(#[from] Cancelled),
    // Without the answer's text, which may repeat values of pods.
    #[error("the server answered {status}{hint}")]
    Status { status: StatusCode, hint: Cow<'static, str>, delay: Option<Duration> },
}

fn hint(status: StatusCode, config: &Config) -> Cow<'static, str> {
    let hint = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return credentials(config).into(),
        StatusCode::NOT_FOUND => " (is the path right?)",
        StatusCode::PAYLOAD_TOO_LARGE => " (set max-bytes to what the server accepts)",
        status if status.is_redirection() => " (redirects are not followed: give the URL that it leads to)",
        _ => "",
    };
    hint.into()
}

/// What to do if the server does not accept the credentials.
fn credentials(config: &Config) -> String {
    let options = [
        (TOKEN_FILE, config.token.is_some()),
        (HMAC_FILE, config.key.is_some()),
        (CERT_FILE, config.identity.is_some()),
    ];
    let set: Vec<&str> = options.iter().filter(|(_, is_set)| *is_set).map(|(option, _)| *option).collect();
    if set.is_empty() {
        let names = options.map(|(option, _)| option).join(", ");
        return format!(" (it wants credentials: give what it asks for of {names})");
    }
    format!(" (does it accept what is in {}?)", set.join(" and "))
}

impl From<WebhookError> for SinkError {
    fn from(error: WebhookError) -> Self {
        match error {
            WebhookError::Status { delay: Some(delay), .. } => Self::RetryAfter(error.into(), delay),
            error => Self::retry(error),
        }
    }
}

/// A file with a secret, which is read again when it changes. Its previous content stays in effect
/// while it cannot be read.
struct SecretFile {
    option: &'static str,
    path: PathBuf,
    read: Option<(Stamp, Arc<[u8]>)>,
    outage: Outage,
}

impl SecretFile {
    fn new(option: &'static str, path: &Path) -> Self {
        Self { option, path: path.to_owned(), read: None, outage: Outage::default() }
    }

    /// The content without the line end behind it. It blocks.
    fn content(&mut self, host: &Host) -> Result<Arc<[u8]>, WebhookError> {
        match self.read(&host.disk) {
            Ok(content) => {
                self.outage.recovered();
                Ok(content)
            }
            Err(error) => match &self.read {
                Some((_, previous)) => {
                    warn_once(&mut self.outage, &error, host);
                    Ok(previous.clone())
                }
                None => Err(error),
            },
        }
    }

    fn read(&mut self, disk: &Disk) -> Result<Arc<[u8]>, WebhookError> {
        let failed = |error| WebhookError::File(self.option, self.path.clone(), error);
        let stamp = disk.stamp(&self.path).map_err(failed)?;
        if let Some((_, content)) = self.read.as_ref().filter(|(read, _)| *read == stamp) {
            return Ok(content.clone());
        }
        let bytes = disk.read(&self.path, MAX_SECRET).map_err(failed)?;
        let content = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let content: Arc<[u8]> = content.strip_suffix(b"\r").unwrap_or(content).into();
        if content.is_empty() {
            return Err(WebhookError::Empty(self.option, self.path.clone()));
        }
        self.read = Some((stamp, content.clone()));
        Ok(content)
    }
}

/// Logs that a file of the sink cannot be read again.
fn warn_once(outage: &mut Outage, error: &(dyn Error + 'static), host: &Host) {
    let error = chain(error);
    if outage.failed(&error, host.clock.now()) {
        warn!(error, "file of a sink not read again; its previous content stays in effect");
    }
}

/// The secrets of a webhook.
struct Secrets {
    token: Option<SecretFile>,
    key: Option<SecretFile>,
}

impl Secrets {
    fn new(config: &Config) -> Self {
        let file = |option, path: &Option<PathBuf>| path.as_deref().map(|path| SecretFile::new(option, path));
        Self { token: file(TOKEN_FILE, &config.token), key: file(HMAC_FILE, &config.key) }
    }

    /// The token and the key, as they are now. It blocks.
    fn refresh(&mut self, host: &Host) -> Result<(Option<HeaderValue>, Option<hmac::Key>), WebhookError> {
        let token = self.token.as_mut().map(|file| {
            let text = [b"Bearer ", &*file.content(host)?].concat();
            let mut value =
                HeaderValue::from_bytes(&text).map_err(|_| WebhookError::Token(file.path.clone()))?;
            value.set_sensitive(true);
            Ok::<_, WebhookError>(value)
        });
        let key = self.key.as_mut().map(|file| file.content(host));
        let key = key.transpose()?.map(|key| hmac::Key::new(hmac::HMAC_SHA256, &key));
        Ok((token.transpose()?, key))
    }
}

/// What requests need: the client and the secrets. Used on threads for blocking work.
struct Tools {
    secrets: Secrets,
    client: Option<Arc<Client>>,
    outage: Outage,
}

impl Tools {
    /// A client with the certificates of the files, or else with the previous ones. It blocks.
    fn client(&mut self, config: &Config, host: &Host, is_stale: bool) -> Result<Arc<Client>, ClientError> {
        match &self.client {
            Some(client) if !is_stale => return Ok(client.clone()),
            _ => {}
        }
        let client = match (config.client(host), &self.client) {
            (Ok(client), _) => {
                self.outage.recovered();
                Arc::new(client)
            }
            (Err(error), Some(previous)) => {
                warn_once(&mut self.outage, &error, host);
                previous.clone()
            }
            (Err(error), None) => return Err(error),
        };
        self.client = Some(client.clone());
        Ok(client)
    }
}

/// What one request needs.
struct Ready {
    client: Arc<Client>,
    token: Option<HeaderValue>,
    signature: Option<String>,
}

/// A sink that POSTs each update. An answer of 2xx acknowledges it.
///
/// * The certificates are read again after a failure and at a reload, the token and the key when
///   their files change.
/// * The idempotency key is the same for all attempts at one update, and no other update ever has it.
struct Webhook {
    config: Config,
    /// The idempotency key without its number.
    key: String,
    host: Host,
    // Locked only on threads for blocking work.
    tools: Arc<Mutex<Tools>>,
    /// Whether the certificates are to be read again.
    stale: bool,
    reloads: watch::Receiver<()>,
}

impl Webhook {
    fn new(config: Config, key: String, host: Host, reloads: watch::Receiver<()>) -> Self {
        let tools = Tools { secrets: Secrets::new(&config), client: None, outage: Outage::default() };
        Self { config, key, host, tools: Arc::new(Mutex::new(tools)), stale: false, reloads }
    }

    async fn post(&mut self, update: &SequencedUpdate) -> Result<(), WebhookError> {
        let update = Arc::new(update.clone());
        let is_stale = self.reloads.borrow_and_update().has_changed() || self.stale;
        let Ready { client, token, signature } = self.ready(update.clone(), is_stale).await?;
        let mut request = Request::post(&self.config.url)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, AGENT)
            .header("Idempotency-Key", format!("{}-{}", self.key, update.seq));
        if let Some(token) = &token {
            request = request.header(AUTHORIZATION, token);
        }
        if let Some(signature) = signature {
            request = request.header("Podmux-Signature", signature);
        }
        let answer = client.stream(request.body(UpdateBody::new(update))?).await?;
        let (status, delay) = (answer.status(), self.delay(&answer));
        skip(answer.into_body()).await;
        if status.is_success() {
            return Ok(());
        }
        Err(WebhookError::Status { status, hint: hint(status, &self.config), delay })
    }

    /// Reads the files and signs the update.
    async fn ready(&self, update: Arc<SequencedUpdate>, is_stale: bool) -> Result<Ready, WebhookError> {
        let (tools, config, host) = (self.tools.clone(), self.config.clone(), self.host.clone());
        let work = move || {
            let mut tools = tools.lock().unwrap_or_else(PoisonError::into_inner);
            let (token, key) = tools.secrets.refresh(&host)?;
            let client = tools.client(&config, &host, is_stale)?;
            let signature = key.map(|key| format!("sha256={}", sign(&key, &update)));
            Ok(Ready { client, token, signature })
        };
        self.host.threads.blocking(work).await?
    }

    /// The delay that the server asks for.
    fn delay(&self, answer: &Response<Body>) -> Option<Duration> {
        let may_ask =
            matches!(answer.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let value = answer.headers().get(RETRY_AFTER).filter(|_| may_ask)?.to_str().ok()?.trim();
        let delay = value.parse().map(Duration::from_secs).ok().or_else(|| {
            let at: Timestamp = rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
            Some(at.duration_since(self.host.clock.now()).try_into().unwrap_or_default())
        });
        delay.map(|delay| delay.min(LONGEST_DELAY))
    }
}

impl Sink for Webhook {
    async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        let posted = self.post(update).await;
        // A new certificate may mend it.
        self.stale = posted.is_err();
        posted.map_err(SinkError::from)
    }

    fn max_bytes(&self) -> usize {
        self.config.max_bytes
    }
}

/// The HMAC-SHA256 of an update's body.
fn sign(key: &hmac::Key, update: &SequencedUpdate) -> String {
    let mut context = hmac::Context::with_key(key);
    update.line().for_each(|piece| context.update(&piece));
    hex(context.sign().as_ref())
}

/// Reads an answer, as far as it comes soon: the connection can be used again then.
async fn skip(mut body: Body) {
    let reading = async {
        let mut left = MAX_ANSWER;
        while let Some(Ok(chunk)) = body.chunk().await
            && left > chunk.len()
        {
            left -= chunk.len();
        }
    };
    // Whether it ended matters to the connection only.
    drop(timeout(ANSWER_TIMEOUT, reading).await);
}

/// The line of an update as a body. It is made in blocks while it is sent: a line may have 300 MB.
struct UpdateBody {
    update: Arc<SequencedUpdate>,
    /// The next piece of the line.
    next: usize,
    /// What is left of the pieces that were made.
    made: Bytes,
    /// The number of bytes that are left.
    left: u64,
}

impl UpdateBody {
    fn new(update: Arc<SequencedUpdate>) -> Self {
        let left = update.line().map(|piece| piece.len() as u64).sum();
        Self { update, next: 0, made: Bytes::new(), left }
    }
}

impl HttpBody for UpdateBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self { update, next, made, left } = &mut *self;
        if made.is_empty() {
            let mut pieces = BytesMut::new();
            while pieces.len() < BLOCK
                && let Some(piece) = update.piece(*next)
            {
                pieces.extend_from_slice(&piece);
                *next += 1;
            }
            *made = pieces.freeze();
        }
        let block = made.split_to(made.len().min(BLOCK));
        *left -= block.len() as u64;
        Poll::Ready((!block.is_empty()).then(|| Ok(Frame::data(block))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
