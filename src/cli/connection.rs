//! The running agent from here: its address, who we say we are, questions and answers.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, IsTerminal as _, Read as _, Write as _},
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use clap::ValueHint;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT, WARNING},
};
use serde_json::Value;
use tokio::runtime;

use super::{
    Failure,
    status::Status,
    terminal::{Shown, YELLOW, colours, styled},
};
use crate::{
    certificate_files::CertificateFiles,
    client::{Body, Client, ClientSettings, Lines, escaped},
    settings::{Environment, SERVER_VARIABLE},
};

/// The variable that names the token's file; the agent reads the same one.
const TOKEN_VARIABLE: &str = "PODMUX_TOKEN_FILE";
/// Where the packaged agent listens,
const SOCKET: &str = "/run/podmux/podmux.sock";
/// and where one listens that was told nothing.
const ADDRESS: &str = "http://127.0.0.1:10240";
/// How long an answer may take, to its end: a write waits for a disk, a page
/// of large pods for the wire.
const ANSWER: Duration = Duration::from_mins(1);
/// The largest answer that is read whole, in bytes: a page of the largest pods
/// that a manifest of 10 MiB makes.
const LARGEST: usize = 512 << 20;
/// The longest line of an update stream, in bytes: 100,000 pods of 3 kB.
const LONGEST: usize = 512 << 20;
/// The largest token file, in bytes: a token is a word.
const TOKEN: u64 = 64 << 10;

/// How to reach the agent.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct ConnectionArgs {
    /// The agent: http://HOST:PORT, https://HOST:PORT or unix:PATH
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "The agent: http://HOST:PORT, https://HOST:PORT or unix:PATH\n\
                [default: unix:/run/podmux/podmux.sock if it is there, else http://127.0.0.1:10240] \
                [env: PODMUX_SERVER]"
    )]
    server: Option<String>,

    /// A file with the token that the agent wants
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        help = "A file with the token that the agent wants\n[env: PODMUX_TOKEN_FILE]"
    )]
    token_file: Option<PathBuf>,

    /// The CA of the agent's certificate, if it is none of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ca_file: Option<PathBuf>,

    /// A certificate that says who you are, with --client-key
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "client_key")]
    client_cert: Option<PathBuf>,

    /// The private key of --client-cert
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "client_cert")]
    client_key: Option<PathBuf>,
}

/// Where the agent is.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    /// `http://HOST:PORT`, without a slash at its end.
    base: String,
    socket: Option<PathBuf>,
}

impl Address {
    fn parse(text: &str) -> Result<Self, anyhow::Error> {
        let wrong = || {
            anyhow!("{text:?} is no address: http://HOST:PORT, https://HOST:PORT or unix:PATH is expected")
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let socket = (!path.is_empty()).then(|| PathBuf::from(path)).ok_or_else(wrong)?;
            // What is said as the host does not matter on a socket, but it must be one.
            return Ok(Self { base: "http://localhost".to_owned(), socket: Some(socket) });
        }
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        match (uri.scheme_str(), uri.authority()) {
            (Some(scheme @ ("http" | "https")), Some(authority))
                if path == "/" && !uri.host().unwrap_or_default().is_empty() =>
            {
                Ok(Self { base: format!("{scheme}://{authority}"), socket: None })
            }
            _ => Err(wrong()),
        }
    }

    /// Whether everybody on the way can read what is sent there.
    fn is_open(&self) -> bool {
        let host = self.base.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
        let host = host.unwrap_or_default();
        let ip: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let local = host == "localhost" || ip.is_some_and(|ip| ip.is_loopback());
        self.socket.is_none() && self.base.starts_with("http://") && !local
    }
}

/// A way to ask the agent.
pub(super) struct Connection {
    client: Client,
    base: String,
    token: Option<HeaderValue>,
    colour: bool,
}

/// What came back: what was asked for, or the server's refusal.
pub(super) type Answer<T> = Result<T, Status>;

impl Connection {
    /// Settles how the agent is reached; nothing is asked yet.
    pub(super) fn new(args: &ConnectionArgs, environment: &Environment) -> Result<Self, Failure> {
        Self::settle(args, environment).map_err(Failure::Refused)
    }

    fn settle(args: &ConnectionArgs, environment: &Environment) -> Result<Self, anyhow::Error> {
        let said = environment.get(SERVER_VARIABLE).filter(|said| !said.is_empty());
        let address = match (&args.server, said) {
            (Some(server), _) => Address::parse(server).context("--server")?,
            (None, Some(server)) => Address::parse(server).context(SERVER_VARIABLE)?,
            (None, None) if Path::new(SOCKET).exists() => Address::parse(&format!("unix:{SOCKET}"))?,
            (None, None) => Address::parse(ADDRESS)?,
        };
        let named = environment.get(TOKEN_VARIABLE).filter(|said| !said.is_empty()).map(PathBuf::from);
        let token_file = args.token_file.as_ref().or(named.as_ref());
        let token =
            token_file.map(|path| token(path).with_context(|| format!("the token file {}", path.display())));
        let token = token.transpose()?;
        if token.is_some() && address.is_open() {
            let base = &address.base;
            return Err(anyhow!(
                "the token would be readable on the way to {base}: use https, or a tunnel to a local port"
            ));
        }
        let identity = args.client_cert.clone().zip(args.client_key.clone());
        let client = Client::new(ClientSettings {
            ca_file: args.ca_file.clone(),
            identity: identity.map(|(certificate, key)| CertificateFiles { certificate, key }),
            socket: address.socket,
            timeout: ANSWER,
            ..ClientSettings::default()
        })?;
        let colour = colours(&io::stderr(), environment);
        Ok(Self { client, base: address.base, token, colour })
    }

    /// Asks for an object.
    pub(super) async fn get(&self, path: &str) -> Result<Answer<Value>, Failure> {
        self.ask(Method::GET, path, None).await
    }

    /// Asks for something to be done, with a body and its media type.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<Answer<Value>, Failure> {
        let (head, body) = self.send(method, path, body).await?.into_parts();
        let body = body.whole(LARGEST).await.map_err(|error| Failure::Failed(error.into()))?;
        if !head.status.is_success() {
            return Ok(Err(Status::read(head.status.as_u16(), &body)));
        }
        let object = serde_json::from_slice(&body);
        let object =
            object.with_context(|| format!("what {path} answered is no JSON; is this a podmux agent?"));
        object.map(Ok).map_err(Failure::Failed)
    }

    /// Asks for a stream of lines.
    pub(super) async fn lines(&self, path: &str) -> Result<Answer<Stream>, Failure> {
        let (head, body) = self.send(Method::GET, path, None).await?.into_parts();
        if head.status.is_success() {
            return Ok(Ok(Stream(body.lines(LONGEST))));
        }
        let body = body.whole(LARGEST).await.map_err(|error| Failure::Failed(error.into()))?;
        Ok(Err(Status::read(head.status.as_u16(), &body)))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<Response<Body>, Failure> {
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = method;
        let uri = format!("{}{path}", self.base).parse();
        *request.uri_mut() = uri.map_err(|error: http::uri::InvalidUri| Failure::Refused(error.into()))?;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("podmux/", env!("CARGO_PKG_VERSION"))));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        if let Some((media_type, body)) = body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
            *request.body_mut() = body;
        }
        let response = self.client.send(request).await.map_err(|error| Failure::Failed(error.into()))?;
        for warning in warnings(response.headers()) {
            self.say(&format!("{} {}", styled(self.colour, YELLOW, "Warning:"), Shown(&warning)));
        }
        Ok(response)
    }

    /// Tells what the server refused; `doing` says at what.
    pub(super) fn refused(&self, status: &Status, doing: Option<&str>) {
        self.say(&status.told(doing));
        if status.code == 401 {
            self.say("podmux: say who you are with --token-file, or with --client-cert and --client-key");
        }
    }

    /// A line on standard error.
    #[allow(clippy::unused_self, reason = "who speaks here speaks of a connection")]
    pub(super) fn say(&self, line: &str) {
        // If standard error is closed, nobody wants to hear.
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// The lines of an update stream.
pub(super) struct Stream(Lines);

impl Stream {
    /// The next line; nothing when the server has ended the stream.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        self.0.next().await.transpose().map_err(|error| Failure::Failed(error.into()))
    }
}

/// Runs a command that waits for the network.
pub(super) fn block_on<F: Future<Output = Result<u8, Failure>>>(command: F) -> Result<u8, Failure> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::Failed(error.into()))?.block_on(command)
}

/// The token in a file: one word, as the agent reads it.
fn token(path: &Path) -> Result<HeaderValue, anyhow::Error> {
    let mut text = Vec::new();
    File::open(path)?.take(TOKEN).read_to_end(&mut text)?;
    let token = text.trim_ascii();
    if token.is_empty() || !token.iter().all(u8::is_ascii_graphic) {
        return Err(anyhow!("one word of printable ASCII is needed in it, and nothing else"));
    }
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", token].concat())?;
    value.set_sensitive(true);
    Ok(value)
}

/// What the server warns of: the texts of its `Warning:` headers (RFC 7234, 5.5).
fn warnings(headers: &HeaderMap) -> impl Iterator<Item = String> {
    let values = headers.get_all(WARNING).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    values.map(|value| {
        // CODE AGENT "TEXT", with backslashes before quotes and backslashes in it.
        let quoted = value.split_once('"').map_or("", |(_, rest)| rest);
        let mut text = String::new();
        let mut characters = quoted.chars();
        while let Some(character) = characters.next() {
            match character {
                '"' => break,
                '\\' => text.extend(characters.next()),
                other => text.push(other),
            }
        }
        if text.is_empty() { value.into_owned() } else { text }
    })
}

/// A path with what is asked of it.
pub(super) fn with_query(path: &str, query: &[(&str, &str)]) -> String {
    let mut whole = path.to_owned();
    for (index, (name, value)) in query.iter().enumerate() {
        whole.push(if index == 0 { '?' } else { '&' });
        let _ = write!(whole, "{name}={}", escaped(value));
    }
    whole
}

/// How far a command with many steps is, on a terminal and only there.
pub(super) struct Progress {
    of: usize,
    shown: bool,
}

impl Progress {
    /// Nothing is shown where results go to the same terminal: they tell it themselves.
    pub(super) fn new(of: usize) -> Self {
        Self { of, shown: of > 1 && io::stderr().is_terminal() && !io::stdout().is_terminal() }
    }

    /// So much is done.
    pub(super) fn step(&self, done: usize, what: &str) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K{done} of {} {what}", self.of);
        }
    }

    /// Takes it away again.
    pub(super) fn end(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
