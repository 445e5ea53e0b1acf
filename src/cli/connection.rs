//! Requests to the running agent: its address, the credentials, responses and streams.

use std::{
    fmt::Write as _,
    io, iter,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use clap::{
    ValueHint,
    builder::{StringValueParser, TypedValueParser},
};
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT, WARNING},
};
use serde_json::Value;
use tokio::runtime;

use super::{
    failure::Failure,
    output::text,
    status::Status,
    terminal::{Escaped, YELLOW, print_error, styled},
    unreachable::{no_socket, unreachable},
};
use crate::{
    certificate_files::CertificateFiles,
    client::{Body, Client, ClientSettings, Lines, escaped, is_loopback, parse_url},
    host::Disk,
    settings::{Environment, SERVER_VARIABLE, SYSTEM_SOCKET, state_dir_of, user_socket},
    telemetry::colours,
};

/// The variable with the path of the token file. The agent reads the same one.
const TOKEN_VARIABLE: &str = "PODMUX_TOKEN_FILE";
/// The time limit for a whole response, without the upload of a large body. A write waits for a disk, and a page of
/// large pods may take long on a slow network.
const TIMEOUT: Duration = Duration::from_mins(1);
/// The lowest rate of an upload, in bytes a second, as the agent demands it.
const UPLOAD_RATE: u64 = 512 * 1024 / 10;
/// How many objects a page of a list has, like kubectl's: it bounds the size of a response.
const PAGE: &str = "500";
/// The maximum size of a response that is read whole, in bytes: a page of the largest pods
/// that manifests of 10 MiB make.
const MAX_RESPONSE: usize = 512 << 20;
/// The maximum length of a line of the update stream, in bytes: 100,000 pods of 3 kB.
const MAX_LINE: usize = 512 << 20;
/// The maximum size of a token file, in bytes.
const MAX_TOKEN_FILE: u64 = 64 << 10;

/// The form of responses: objects,
pub(super) const JSON: &str = "application/json";
/// or tables, as kubectl asks for them.
pub(super) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// The flags of the connection to the agent.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct ConnectionArgs {
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "The agent's address: http://HOST:PORT, https://HOST:PORT or unix:PATH\n\
                [default: the first that exists of unix:/run/podmux/podmux.sock and \
                unix:$XDG_RUNTIME_DIR/podmux/podmux.sock] \
                [env: PODMUX_SERVER]"
    )]
    server: Option<String>,

    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        help = "A file with the bearer token\n\
                [default: that of the state directory (PODMUX_STATE_DIR), for https on this machine] \
                [env: PODMUX_TOKEN_FILE]"
    )]
    token_file: Option<PathBuf>,

    /// The CA certificates (PEM) that verify the agent's certificate, instead of the system's [default:
    /// that of the state directory, for https on this machine]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ca_file: Option<PathBuf>,

    /// The client certificate (PEM); requires --client-key
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "client_key")]
    client_cert: Option<PathBuf>,

    /// The private key (PEM) of --client-cert
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "client_cert")]
    client_key: Option<PathBuf>,
}

/// The address of the agent.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    /// `http://HOST:PORT`, without a slash at its end.
    base: String,
    socket: Option<PathBuf>,
}

impl Address {
    fn parse(text: &str) -> Result<Self, anyhow::Error> {
        let invalid =
            || anyhow!("invalid address {text:?}: use http://HOST:PORT, https://HOST:PORT or unix:PATH");
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let socket = (!path.is_empty()).then(|| PathBuf::from(path)).ok_or_else(invalid)?;
            // A request needs a host, but any host reaches the socket.
            return Ok(Self { base: "http://localhost".to_owned(), socket: Some(socket) });
        }
        if text.contains('@') {
            return Err(anyhow!("the address holds a user or a password: give --token-file FILE instead"));
        }
        let uri = parse_url(text).map_err(|_| invalid())?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        match (uri.scheme_str(), uri.authority()) {
            (Some(scheme @ ("http" | "https")), Some(authority))
                if path == "/" && !uri.host().unwrap_or_default().is_empty() =>
            {
                Ok(Self { base: format!("{scheme}://{authority}"), socket: None })
            }
            _ => Err(invalid()),
        }
    }

    /// The socket of the agent on this machine.
    fn find(environment: &Environment) -> Result<Self, anyhow::Error> {
        let sockets = iter::once(SYSTEM_SOCKET.into()).chain(user_socket(environment));
        let sockets: Vec<PathBuf> = sockets.collect();
        // One that this user may not look at exists, too.
        let found = sockets.iter().find(|socket| socket.try_exists().unwrap_or(true));
        let found = found.ok_or_else(|| no_socket(&sockets))?;
        Ok(Self { base: "http://localhost".to_owned(), socket: Some(found.clone()) })
    }

    /// Whether requests go to this machine over TCP.
    fn is_loopback(&self) -> bool {
        let uri = self.base.parse::<Uri>().unwrap_or_default();
        self.socket.is_none() && uri.host().is_some_and(is_loopback)
    }

    /// Whether requests leave this machine without encryption.
    fn is_in_clear_text(&self) -> bool {
        self.socket.is_none() && self.base.starts_with("http://") && !self.is_loopback()
    }

    /// The file that the agent of this machine has made for its clients, if this user may read it.
    fn made(&self, name: &str, environment: &Environment, disk: &Disk) -> Option<PathBuf> {
        let state = state_dir_of(environment)?;
        let file = state.join("auth").join(name);
        let is_for_it = self.base.starts_with("https://") && self.is_loopback();
        (is_for_it && disk.read(&file, MAX_TOKEN_FILE).is_ok()).then_some(file)
    }
}

/// A client of the agent's API.
pub(super) struct Connection {
    client: Client,
    base: String,
    token: Option<HeaderValue>,
    colour: bool,
    prints_warnings: bool,
}

impl Connection {
    /// Reads the flags and the files that they name. Nothing is sent.
    pub(super) fn new(args: &ConnectionArgs, environment: &Environment) -> Result<Self, Failure> {
        let variable = environment.get(SERVER_VARIABLE).filter(|value| !value.is_empty());
        let address = match (&args.server, variable) {
            (Some(server), _) => Address::parse(server).context("--server").map_err(Failure::Refused),
            (None, Some(server)) => Address::parse(server).context(SERVER_VARIABLE).map_err(Failure::Refused),
            (None, None) => Address::find(environment).map_err(Failure::Failed),
        };
        Self::to(address?, args, environment).map_err(Failure::Refused)
    }

    fn to(address: Address, args: &ConnectionArgs, environment: &Environment) -> Result<Self, anyhow::Error> {
        let disk = Disk::default();
        let variable = |name| environment.get(name).filter(|value| !value.is_empty());
        let made = |name| address.made(name, environment, &disk);
        let ca_file = args.ca_file.clone().or_else(|| made("ca.crt"));
        let token_file = args.token_file.clone().or_else(|| variable(TOKEN_VARIABLE).map(PathBuf::from));
        // With a client certificate no token is needed.
        let token_file = token_file.or_else(|| made("token").filter(|_| args.client_cert.is_none()));
        let token = token_file.map(|path| {
            token(&disk, &path).with_context(|| format!("cannot use the token file {}", path.display()))
        });
        let token = token.transpose()?;
        if token.is_some() && address.is_in_clear_text() {
            return Err(anyhow!(
                "the token would be sent in clear text to {}: use https, or a tunnel to a local port",
                address.base
            ));
        }
        let identity = args.client_cert.clone().zip(args.client_key.clone());
        let client = Client::new(ClientSettings {
            ca_file,
            identity: identity.map(|(certificate, key)| CertificateFiles { certificate, key }),
            socket: address.socket,
            timeout: TIMEOUT,
            ..ClientSettings::default()
        })?;
        let colour = colours(&io::stderr(), environment);
        Ok(Self { client, base: address.base, token, colour, prints_warnings: true })
    }

    /// The connection without the warnings of the agent.
    pub(super) fn without_warnings(self) -> Self {
        Self { prints_warnings: false, ..self }
    }

    /// Gets an object.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.get_as(path, JSON).await
    }

    /// Gets an object in a form.
    pub(super) async fn get_as(&self, path: &str, accept: &'static str) -> Result<Value, Failure> {
        read(path, self.send(Method::GET, path, accept, None).await?).await
    }

    /// Gets a list in a form, and its items. A table has none.
    pub(super) async fn list(
        &self,
        path: &str,
        query: &[(&str, &str)],
        accept: &'static str,
    ) -> Result<(Value, Vec<Value>), Failure> {
        let mut list = self.get_as(&with_query(path, query), accept).await?;
        match list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Ok((list, items)),
            _ if list["rows"].is_array() => Ok((list, Vec::new())),
            _ => Err(Failure::Failed(anyhow!(
                "the response to {path} is not a list (is this a podmux agent?)"
            ))),
        }
    }

    /// Reads a list page by page into objects, and returns its resourceVersion.
    pub(super) async fn pages<T>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        accept: &'static str,
        objects: &mut Vec<T>,
        mut read: impl FnMut(Value, Vec<Value>) -> Result<Vec<T>, Failure>,
    ) -> Result<String, Failure> {
        let (mut next, mut limit) = (String::new(), Some(("limit", PAGE)));
        loop {
            let rest = (!next.is_empty()).then_some(("continue", &*next));
            let query: Vec<_> = query.iter().copied().chain(limit).chain(rest).collect();
            let (page, items) = match self.list(path, &query, accept).await {
                // The first pages have expired: list everything in one response.
                Err(Failure::Server(status)) if status.code == 410 && !next.is_empty() => {
                    objects.clear();
                    (next, limit) = (String::new(), None);
                    continue;
                }
                page => page?,
            };
            text(&page["metadata"]["continue"]).clone_into(&mut next);
            let version = text(&page["metadata"]["resourceVersion"]).to_owned();
            objects.append(&mut read(page, items)?);
            if next.is_empty() {
                return Ok(version);
            }
        }
    }

    /// The events of a pod, the newest last. Those without a UID are of its name.
    pub(super) async fn events_of(&self, pod: &Value) -> Result<Vec<Value>, Failure> {
        let [namespace, name, uid] = ["namespace", "name", "uid"].map(|field| text(&pod["metadata"][field]));
        let path = format!("/api/v1/namespaces/{}/events", escaped(namespace));
        let fields = format!("involvedObject.kind=Pod,involvedObject.name={name}");
        let (_, mut events) = self.list(&path, &[("fieldSelector", &*fields)], JSON).await?;
        events.retain(|event| ["", uid].contains(&text(&event["involvedObject"]["uid"])));
        events.sort_by(|one, other| text(&one["lastTimestamp"]).cmp(text(&other["lastTimestamp"])));
        Ok(events)
    }

    /// Sends a request, with a body and its media type if it has one.
    pub(super) async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<Value, Failure> {
        read(path, self.send(method, path, JSON, body).await?).await
    }

    /// Gets a stream of lines in a form.
    pub(super) async fn lines(&self, path: &str, accept: &'static str) -> Result<Lines, Failure> {
        Ok(self.stream(path, accept).await?.lines(MAX_LINE))
    }

    /// Whether the agent is shutting down, or does not answer any more.
    pub(super) async fn is_stopping(&self) -> bool {
        match self.stream("/readyz?verbose", JSON).await {
            Ok(_) => false,
            Err(Failure::Server(status)) => status.message.contains("shutting down"),
            Err(_) => true,
        }
    }

    /// Gets a stream of bytes in a form.
    pub(super) async fn stream(&self, path: &str, accept: &'static str) -> Result<Body, Failure> {
        self.send(Method::GET, path, accept, None).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<Body, Failure> {
        let is_write = method != Method::GET;
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        request = request.header(USER_AGENT, concat!("podmux/", env!("CARGO_PKG_VERSION")));
        request = request.header(ACCEPT, accept);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let (media_type, body) = body.unzip();
        if let Some(media_type) = media_type {
            request = request.header(CONTENT_TYPE, media_type);
        }
        let body = body.unwrap_or_default();
        let within = TIMEOUT + Duration::from_secs(body.len() as u64 / UPLOAD_RATE);
        let request = request.body(body).map_err(Failure::refused)?;
        let response = self.client.send_within(request, within).await;
        let response = response.map_err(|error| unreachable(error, is_write))?;
        for warning in warnings(response.headers()).filter(|_| self.prints_warnings) {
            print_error(format_args!("{} {}", styled(self.colour, YELLOW, "Warning:"), Escaped(&warning)));
        }
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let body = body.whole(MAX_RESPONSE).await.map_err(Failure::failed)?;
        Err(Failure::Server(Status::read(head.status.as_u16(), &body)))
    }
}

/// Reads a response of JSON.
async fn read(path: &str, body: Body) -> Result<Value, Failure> {
    let body = body.whole(MAX_RESPONSE).await.map_err(Failure::failed)?;
    serde_json::from_slice(&body)
        .with_context(|| format!("the response to {path} is not JSON (is this a podmux agent?)"))
        .map_err(Failure::Failed)
}

/// Runs an asynchronous command.
pub(super) fn block_on<F: Future<Output = Result<u8, Failure>>>(command: F) -> Result<u8, Failure> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let ended = runtime.block_on(command);
    // A name that is still being resolved is not waited for.
    runtime.shutdown_background();
    ended
}

/// Reads a token file with the agent's rules.
fn token(disk: &Disk, path: &Path) -> Result<HeaderValue, anyhow::Error> {
    let text = disk.read(path, MAX_TOKEN_FILE)?;
    let token = text.trim_ascii();
    if token.is_empty() || !token.iter().all(u8::is_ascii_graphic) {
        return Err(anyhow!("it must contain one token of printable ASCII characters and nothing else"));
    }
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", token].concat())?;
    value.set_sensitive(true);
    Ok(value)
}

/// The texts of the `Warning:` headers (RFC 7234, 5.5).
fn warnings(headers: &HeaderMap) -> impl Iterator<Item = String> {
    let values = headers.get_all(WARNING).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    values.map(|value| {
        // CODE AGENT "TEXT", with a backslash before each quote and backslash of the text.
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

/// A path with query parameters.
pub(super) fn with_query(path: &str, query: &[(&str, &str)]) -> String {
    let mut whole = path.to_owned();
    for (index, (name, value)) in query.iter().enumerate() {
        whole.push(if index == 0 { '?' } else { '&' });
        let _ = write!(whole, "{name}={}", escaped(value));
    }
    whole
}

/// The value of `--namespace`. It is empty in scripts with a variable that is not set.
pub(super) fn namespace() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().map(|text| if text.is_empty() { "default".to_owned() } else { text })
}

/// The path of one pod.
pub(super) fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", escaped(namespace), escaped(name))
}
