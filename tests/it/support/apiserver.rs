//! A scripted API server with pods, over real connections.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    future::Future as _,
    io, mem,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use hyper::{
    body::{Body, Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use podmux::{manifest::protobuf, pod::Prepared};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket},
    sync::{mpsc, watch},
    time::{Instant, Sleep, sleep},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{files::soon, kubeconfig::config, web::Authority};

/// The most chunks that wait to be sent to one watch.
const MAX_CHUNKS: usize = 1 << 20;
/// The node of the pods.
pub const NODE: &str = "node";
/// The length of the text in a pod's managedFields, which podmux drops.
const MANAGED_FIELDS: usize = 200;

/// The kind of a request for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestKind {
    /// A watch that begins with the listing.
    WatchList,
    /// A list, or its first page.
    List,
    /// A page after the first.
    Page,
    /// An empty list that checks whether the server has reached a version. It is counted
    /// apart from the other requests.
    Probe,
    /// A watch from a version.
    Watch,
}

/// A request that the server received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub kind: RequestKind,
    pub query: BTreeMap<String, String>,
    pub authorization: String,
    /// The header `Accept`.
    pub accept: String,
    /// When it arrived, by tokio's clock.
    pub at: Instant,
}

impl ReceivedRequest {
    /// A parameter of the query; empty without it.
    pub fn query(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// The kind and the version, as `Watch 7`; `-` without a version.
    pub fn summary(&self) -> String {
        let version = self.query.get("resourceVersion").filter(|version| !version.is_empty());
        format!("{:?} {}", self.kind, version.map_or("-", String::as_str))
    }
}

/// How the server answers a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// As an API server with these pods.
    Normal,
    Reply(Reply),
    /// Never; the connection stays open.
    Never,
    /// The connection is closed without a response.
    HangUp,
}

/// A response that the test sets.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
    then: Then,
}

/// What follows the body of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The regular end.
    End,
    /// The connection breaks.
    Break,
    /// Nothing; the connection stays open.
    Hang,
    /// The changes of the server's pods.
    Changes,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Bytes>, then: Then) -> Self {
        Self::Reply(Reply { status, headers: Vec::new(), body: body.into(), then })
    }

    /// A `Status` with an error.
    pub fn status(code: u16, reason: &str, message: &str) -> Self {
        Self::new(code, status(code, reason, message).to_string(), Then::End)
            .header("Content-Type", "application/json")
    }

    /// The error for a version that the server has not reached.
    pub fn too_large() -> Self {
        Self::new(504, too_large().to_string(), Then::End)
    }

    /// The error for a version that the server no longer knows.
    pub fn expired() -> Self {
        Self::status(410, "Expired", "too old resource version: 1 (7)")
    }

    /// A watch with these events.
    pub fn events(events: &[Value], then: Then) -> Self {
        Self::new(200, lines(events), then)
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Self::Reply(reply) = &mut self {
            reply.headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }
}

/// A `Status`.
pub fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn too_large() -> Value {
    let message = "Too large resource version";
    let mut status = status(504, "Timeout", &format!("{message}: 9, current: 7"));
    status["details"] = json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": message}],
        "retryAfterSeconds": 1,
    });
    status
}

/// An event of a watch.
pub fn event(kind: &str, object: &Value) -> Value {
    json!({ "type": kind, "object": object })
}

/// One value a line, as in a watch.
fn lines(values: &[Value]) -> Vec<u8> {
    values.iter().flat_map(|value| format!("{value}\n").into_bytes()).collect()
}

/// A pod that is bound to the node, in the form of the server.
pub fn pod(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("{name}-1"),
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "managedFields": [{"manager": "x".repeat(MANAGED_FIELDS), "operation": "Update"}],
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": image, "resources": {}}]},
        "status": {"phase": "Pending"},
    })
}

fn key(pod: &Value) -> String {
    format!(
        "{}/{}",
        pod["metadata"]["namespace"].as_str().unwrap(),
        pod["metadata"]["name"].as_str().unwrap()
    )
}

/// How to answer some requests.
struct Rule {
    /// Every kind if there is none.
    kind: Option<RequestKind>,
    answer: Answer,
    /// How many times; without limit if there is none.
    left: Option<usize>,
}

/// A part of a body.
#[derive(Clone)]
enum Chunk {
    Bytes(Bytes),
    Break,
}

#[derive(Default)]
struct State {
    /// The version of the last change.
    version: u64,
    pods: BTreeMap<String, Value>,
    /// The events that the server remembers, with their versions.
    past: VecDeque<(u64, Bytes)>,
    /// The version from which it remembers events.
    oldest: u64,
    /// The open watches, and the version that each of them begins after.
    watches: Vec<(u64, mpsc::Sender<Chunk>)>,
    /// The items of the list whose pages are being requested.
    pages: Vec<Value>,
    rules: Vec<Rule>,
    /// The answer to a request for the kube-system namespace.
    cluster: Option<Answer>,
    /// How often that was requested.
    cluster_checks: usize,
    /// The only accepted token, if one is required.
    token: Option<String>,
    knows_watch_list: bool,
    /// Whether it answers in protobuf if a client asks for that first.
    speaks_protobuf: bool,
    /// How many probes came.
    probes: usize,
    /// What is wrong with the requests.
    faults: Vec<String>,
}

impl State {
    fn change(&mut self, kind: &str, mut pod: Value) -> Value {
        self.version += 1;
        pod["metadata"]["resourceVersion"] = self.version.to_string().into();
        let line = Bytes::from(format!("{}\n", event(kind, &pod)));
        self.past.push_back((self.version, line.clone()));
        self.send_current(line);
        pod
    }

    /// Sends a line of the current version. As with a kube-apiserver, a watch from a future version gets nothing.
    fn send_current(&mut self, line: Bytes) {
        let (version, chunk) = (self.version, Chunk::Bytes(line));
        self.watches.retain(|(after, watch)| *after >= version || watch.try_send(chunk.clone()).is_ok());
    }

    fn send(&mut self, chunk: &Chunk) {
        self.watches.retain(|(_, watch)| watch.try_send(chunk.clone()).is_ok());
    }

    fn list(&self) -> Value {
        let items: Vec<Value> = self.pods.values().map(item).collect();
        self.list_of(&items, "")
    }

    fn list_of(&self, items: &[Value], token: &str) -> Value {
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if !token.is_empty() {
            metadata["continue"] = token.into();
        }
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items})
    }

    fn rule(&mut self, kind: RequestKind) -> Answer {
        let rule = self.rules.iter().position(|rule| rule.kind.is_none_or(|wanted| wanted == kind));
        let Some(at) = rule else { return Answer::Normal };
        let rule = &mut self.rules[at];
        let answer = rule.answer.clone();
        if let Some(left) = &mut rule.left {
            *left -= 1;
            if *left == 0 {
                self.rules.remove(at);
            }
        }
        answer
    }

    /// The kube-system namespace, which the client may not read by default.
    fn cluster(&mut self) -> Answer {
        self.cluster_checks += 1;
        let forbidden = || Answer::status(403, "Forbidden", "namespaces \"kube-system\" is forbidden");
        self.cluster.clone().unwrap_or_else(forbidden)
    }

    /// The normal answer to a request.
    fn normal(&mut self, asked: &ReceivedRequest) -> (Reply, Option<Duration>) {
        let json = |status, value: Value, then| {
            let body = if then == Then::End { value.to_string() } else { String::new() };
            Reply { status, headers: Vec::new(), body: body.into(), then }
        };
        let version = asked.query("resourceVersion").parse::<u64>().ok();
        // A watch from a future version is accepted, as by an API server whose etcd was restored.
        if version > Some(self.version) && asked.kind != RequestKind::Watch {
            return (json(504, too_large(), Then::End), None);
        }
        let timeout = asked.query("timeoutSeconds").parse().ok().map(Duration::from_secs);
        let reply = match asked.kind {
            RequestKind::List => {
                let limit = asked.query("limit").parse().unwrap_or(usize::MAX);
                self.pages = self.pods.values().map(item).collect();
                self.page(0, limit)
            }
            RequestKind::Probe => {
                let nothing = self.list_of(&[], "");
                Reply { body: nothing.to_string().into(), ..json(200, Value::Null, Then::End) }
            }
            RequestKind::Page => {
                let at = asked.query("continue").strip_prefix("from ").and_then(|at| at.parse().ok());
                self.page(at.unwrap_or_default(), asked.query("limit").parse().unwrap_or(usize::MAX))
            }
            RequestKind::Watch if version.is_some_and(|version| version < self.oldest) => {
                return (json(410, status(410, "Expired", "too old resource version"), Then::End), None);
            }
            RequestKind::Watch => {
                let version = version.unwrap_or(self.version);
                let past = self.past.iter().filter(|(at, _)| *at > version);
                let body: Vec<u8> = past.flat_map(|(_, line)| line.to_vec()).collect();
                Reply { body: body.into(), ..json(200, Value::Null, Then::Changes) }
            }
            RequestKind::WatchList if !self.knows_watch_list => {
                let message =
                    "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                return (json(422, status(422, "Invalid", message), Then::End), None);
            }
            RequestKind::WatchList => {
                let mut events: Vec<Value> = self.pods.values().map(|pod| event("ADDED", pod)).collect();
                events.push(bookmark(self.version, true));
                Reply { body: lines(&events).into(), ..json(200, Value::Null, Then::Changes) }
            }
        };
        (reply, timeout)
    }

    fn page(&self, from: usize, limit: usize) -> Reply {
        let to = from.saturating_add(limit).min(self.pages.len());
        let token = if to < self.pages.len() { format!("from {to}") } else { String::new() };
        let list = self.list_of(&self.pages[from..to], &token);
        Reply { status: 200, headers: Vec::new(), body: list.to_string().into(), then: Then::End }
    }

    /// Notes what is wrong with a request.
    fn validate(&mut self, path: &str, asked: &ReceivedRequest) {
        let watches = matches!(asked.kind, RequestKind::Watch | RequestKind::WatchList);
        let rules = [
            (path == "/api/v1/pods", "the path"),
            (
                asked.query("fieldSelector").starts_with(&format!("spec.nodeName={NODE}")),
                "the field selector",
            ),
            (!watches || asked.query("allowWatchBookmarks") == "true", "no bookmarks"),
            (
                !watches || (300..=600).contains(&asked.query("timeoutSeconds").parse().unwrap_or(0)),
                "the timeout",
            ),
            (
                asked.kind != RequestKind::WatchList || asked.query("resourceVersionMatch") == "NotOlderThan",
                "a WatchList without resourceVersionMatch",
            ),
            (
                asked.kind != RequestKind::Page || asked.query("resourceVersion").is_empty(),
                "a continued list with a version",
            ),
            (
                asked.kind != RequestKind::Watch || !asked.query("resourceVersion").is_empty(),
                "a watch without a version",
            ),
        ];
        let faults =
            rules.iter().filter(|(is_right, _)| !is_right).map(|(_, what)| format!("{what}: {asked:?}"));
        self.faults.extend(faults);
    }
}

/// A pod as an item of a list, which has no type.
fn item(pod: &Value) -> Value {
    let mut item = pod.clone();
    for field in ["apiVersion", "kind"] {
        item.as_object_mut().unwrap().remove(field);
    }
    item
}

/// A bookmark.
pub fn bookmark(version: u64, ends_initial_events: bool) -> Value {
    let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    if ends_initial_events {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    event("BOOKMARK", &json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata}))
}

/// The server. It ends with the test's runtime. Clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    pub url: String,
    address: SocketAddr,
    /// Keeps the port while the server is down.
    _port: Option<Arc<TcpSocket>>,
    tls: Option<(TlsAcceptor, PathBuf)>,
    state: Arc<Mutex<State>>,
    seen: watch::Sender<Vec<ReceivedRequest>>,
    /// Whether it neither reads nor writes while its connections stay open.
    frozen: watch::Sender<bool>,
    /// Closes all connections.
    pub stop: Arc<Mutex<CancellationToken>>,
}

impl ApiServer {
    /// On a port of the loopback; with TLS if there is a CA for it.
    pub fn start(authority: Option<&Authority>) -> Self {
        let port = socket("127.0.0.1:0".parse().unwrap());
        let server = Self::new(port.local_addr().unwrap(), Some(port), authority);
        server.up();
        server
    }

    /// Answers in protobuf from now on, if a client asks for that first, or in JSON. What is no JSON of an API server stays
    /// as it is.
    pub fn speak_protobuf(&self, is_spoken: bool) {
        self.state().speaks_protobuf = is_spoken;
    }

    /// On a listener of the test.
    pub fn on(listener: TcpListener, authority: Option<&Authority>) -> Self {
        let server = Self::new(listener.local_addr().unwrap(), None, authority);
        server.serve(listener);
        server
    }

    /// A server that does not listen yet.
    pub fn new(address: SocketAddr, port: Option<TcpSocket>, authority: Option<&Authority>) -> Self {
        let tls = authority.map(|authority| {
            let config = authority.server(&address.ip().to_string(), None);
            (TlsAcceptor::from(Arc::new(config)), authority.ca_file.clone())
        });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let state = State { version: 1, knows_watch_list: true, ..State::default() };
        Self {
            url: format!("{scheme}://{address}"),
            address,
            _port: port.map(Arc::new),
            tls,
            state: Arc::new(Mutex::new(state)),
            seen: watch::Sender::new(Vec::new()),
            frozen: watch::Sender::new(false),
            stop: Arc::default(),
        }
    }

    /// Listens again.
    pub fn up(&self) {
        let listener = socket(self.address).listen(64).unwrap();
        self.serve(listener);
    }

    fn serve(&self, listener: TcpListener) {
        let stop = CancellationToken::new();
        *self.stop.lock().unwrap() = stop.clone();
        let server = self.clone();
        tokio::spawn(async move {
            while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
                let (server, stop) = (server.clone(), stop.clone());
                let (stream, _) = accepted.unwrap();
                // Without a delay in the kernel, whose clock is not paused.
                stream.set_nodelay(true).unwrap();
                tokio::spawn(stop.run_until_cancelled_owned(async move {
                    match &server.tls {
                        None => server.serve_connection(stream).await,
                        // Some tests make the handshake fail.
                        Some((acceptor, _)) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                server.serve_connection(stream).await;
                            }
                        }
                    }
                }));
            }
        });
    }

    /// Closes all connections and refuses new ones.
    pub fn down(&self) {
        self.stop.lock().unwrap().cancel();
        self.state().watches.clear();
    }

    /// Stops reading, writing and accepting, and closes nothing.
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    /// Goes on after a freeze.
    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    pub async fn serve_connection(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| self.clone().answer(request));
        let mut connection =
            pin!(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        let mut frozen = self.frozen.subscribe();
        loop {
            tokio::select! {
                biased;
                _ = frozen.wait_for(|frozen| *frozen) => {}
                // Some tests break the connection.
                _ = &mut connection => return,
            }
            let _ = frozen.wait_for(|frozen| !*frozen).await;
        }
    }

    async fn answer(self, request: Request<Incoming>) -> io::Result<Response<ScriptedBody>> {
        let asked = asked(&request);
        if request.uri().path() == "/api/v1/namespaces/kube-system" {
            let answer = self.state().cluster();
            let reply = match answer {
                Answer::Reply(reply) => reply,
                Answer::HangUp => return Err(io::Error::other("broken by the test")),
                Answer::Normal | Answer::Never => return std::future::pending().await,
            };
            let body = self.body(&reply, None, 0);
            return Ok(Response::builder().status(reply.status).body(body).unwrap());
        }
        let (reply, timeout, after) = {
            let mut state = self.state();
            state.validate(request.uri().path(), &asked);
            let is_known =
                state.token.as_ref().is_none_or(|token| asked.authorization == format!("Bearer {token}"));
            let answer = if is_known {
                state.rule(asked.kind)
            } else {
                Answer::status(401, "Unauthorized", "Unauthorized")
            };
            match answer {
                Answer::Normal => {
                    let (reply, timeout) = state.normal(&asked);
                    let after =
                        if asked.kind == RequestKind::Watch { asked.query("resourceVersion") } else { "" };
                    (Some(reply), timeout, after.parse().unwrap_or_default())
                }
                Answer::Reply(reply) => (Some(reply), None, 0),
                Answer::Never => (None, None, 0),
                Answer::HangUp => {
                    drop(state);
                    self.note(asked);
                    return Err(io::Error::other("broken by the test"));
                }
            }
        };
        let Some(reply) = reply else {
            self.note(asked);
            return std::future::pending().await;
        };
        let accept = request.headers().get("accept").map_or("", |accept| accept.to_str().unwrap());
        let is_wanted = self.state().speaks_protobuf && accept.starts_with(protobuf::MEDIA_TYPE);
        let is_protobuf = is_wanted && (reply.body.is_empty() || in_protobuf(&reply.body).is_some());
        let body = ScriptedBody { is_protobuf, ..self.body(&reply, timeout, after) };
        let mut response = Response::builder().status(reply.status);
        for (name, value) in &reply.headers {
            if !is_protobuf || name != "Content-Type" {
                response = response.header(name, value);
            }
        }
        if is_protobuf {
            response = response.header("Content-Type", protobuf::MEDIA_TYPE);
        }
        // After the watch is registered, so that a test that waits for the request finds it.
        if asked.kind != RequestKind::Probe || reply.status != 200 {
            self.note(asked);
        }
        Ok(response.body(body).unwrap())
    }

    fn note(&self, asked: ReceivedRequest) {
        if asked.kind == RequestKind::Probe {
            self.state().probes += 1;
            return;
        }
        self.seen.send_modify(|seen| seen.push(asked));
    }

    fn body(&self, reply: &Reply, timeout: Option<Duration>, after: u64) -> ScriptedBody {
        let (sender, chunks) = mpsc::channel(MAX_CHUNKS);
        if !reply.body.is_empty() {
            sender.try_send(Chunk::Bytes(reply.body.clone())).ok().unwrap();
        }
        let mut open = None;
        match reply.then {
            Then::End => {}
            Then::Break => sender.try_send(Chunk::Break).ok().unwrap(),
            Then::Hang => open = Some(sender),
            Then::Changes => self.state().watches.push((after, sender)),
        }
        let until = timeout.map(|timeout| Box::pin(sleep(timeout)));
        ScriptedBody { chunks, open, until, breaks: false, flushed: false, is_protobuf: false }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Writes a kubeconfig for the server, with these credentials.
    pub fn kubeconfig(&self, directory: &Path, user: &Value) -> PathBuf {
        let mut cluster = json!({"server": self.url});
        if let Some((_, ca_file)) = &self.tls {
            cluster["certificate-authority"] = ca_file.to_str().unwrap().into();
        }
        let path = directory.join("kubeconfig");
        fs::write(&path, config(&cluster, user).to_string()).unwrap();
        path
    }
}

/// The test's side of the server.
impl ApiServer {
    /// Answers requests of a kind so, from now on, whatever was set before.
    pub fn respond(&self, kind: RequestKind, answer: Answer) {
        self.state().rules.insert(0, Rule { kind: Some(kind), answer, left: None });
    }

    /// Answers all requests so, whatever was set before.
    pub fn respond_always(&self, answer: Answer) {
        self.state().rules.insert(0, Rule { kind: None, answer, left: None });
    }

    /// Answers so many requests of a kind so, after what was set before.
    pub fn respond_times(&self, times: usize, kind: RequestKind, answer: Answer) {
        self.state().rules.push(Rule { kind: Some(kind), answer, left: Some(times) });
    }

    /// Answers requests for the kube-system namespace so.
    pub fn respond_to_cluster_check(&self, answer: Answer) {
        self.state().cluster = Some(answer);
    }

    /// Answers all requests as an API server.
    pub fn respond_normally(&self) {
        self.state().rules.clear();
    }

    /// Knows a `WatchList`, or rejects it as an old server does.
    pub fn know_watch_lists(&self, is_known: bool) {
        self.state().knows_watch_list = is_known;
    }

    /// Accepts this token only.
    pub fn require_token(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    /// Adds or changes a pod.
    pub fn put(&self, pod: Value) {
        let mut state = self.state();
        let key = key(&pod);
        let kind = if state.pods.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        let pod = state.change(kind, pod);
        state.pods.insert(key, pod);
    }

    /// Deletes a pod.
    pub fn delete(&self, name: &str) {
        let mut state = self.state();
        let pod = state.pods.remove(&format!("default/{name}")).unwrap();
        state.change("DELETED", pod);
    }

    /// Loses a pod, without an event.
    pub fn forget(&self, name: &str) {
        self.state().pods.remove(&format!("default/{name}")).unwrap();
    }

    /// Sends a bookmark with a newer version to all watches.
    pub fn bookmark(&self) {
        let mut state = self.state();
        state.version += 1;
        let line = Bytes::from(format!("{}\n", bookmark(state.version, false)));
        state.send_current(line);
    }

    /// Sends bytes to all watches.
    pub fn send(&self, bytes: impl Into<Bytes>) {
        self.state().send(&Chunk::Bytes(bytes.into()));
    }

    /// Sends an event to all watches that does not change the server's pods.
    pub fn send_event(&self, event: &Value) {
        self.send(format!("{event}\n"));
    }

    /// Ends all watches regularly.
    pub fn end_watches(&self) {
        self.state().watches.clear();
    }

    /// Breaks the connections of all watches.
    pub fn break_watches(&self) {
        let mut state = self.state();
        state.send(&Chunk::Break);
        state.watches.clear();
    }

    /// Forgets the past events, so that no watch can start before now.
    pub fn compact(&self) {
        let mut state = self.state();
        state.past.clear();
        state.oldest = state.version;
    }

    /// Replaces the pods and the version, as if etcd had been restored.
    pub fn restore(&self, version: u64, pods: &[Value]) {
        let mut state = self.state();
        (state.version, state.oldest) = (version, 0);
        state.past.clear();
        state.pods.clear();
        for pod in pods {
            let mut pod = pod.clone();
            pod["metadata"]["resourceVersion"] = version.to_string().into();
            state.pods.insert(key(&pod), pod);
        }
    }

    /// The version of the last change.
    pub fn version(&self) -> String {
        self.state().version.to_string()
    }

    /// The response to a list.
    pub fn list(&self) -> Value {
        self.state().list()
    }

    /// The server's pods, by `namespace/name`.
    pub fn pods(&self) -> BTreeMap<String, Value> {
        self.state().pods.clone()
    }

    /// Whether there is a watch and every change has been sent to it.
    pub fn is_all_sent(&self) -> bool {
        let state = self.state();
        let mut open = state.watches.iter().filter(|(_, watch)| !watch.is_closed()).peekable();
        open.peek().is_some() && open.all(|(_, watch)| watch.capacity() == watch.max_capacity())
    }

    /// How many watches are open.
    pub fn watches(&self) -> usize {
        self.state().watches.iter().filter(|(_, watch)| !watch.is_closed()).count()
    }

    /// The requests so far, without probes.
    pub fn received(&self) -> Vec<ReceivedRequest> {
        self.seen.borrow().clone()
    }

    /// How many probes came.
    pub fn probes(&self) -> usize {
        self.state().probes
    }

    /// How often the kube-system namespace was requested.
    pub fn cluster_checks(&self) -> usize {
        self.state().cluster_checks
    }

    /// The summaries of the requests so far, without probes.
    pub fn summaries(&self) -> Vec<String> {
        self.seen.borrow().iter().map(ReceivedRequest::summary).collect()
    }

    /// How many requests of a kind came.
    pub fn count(&self, kind: RequestKind) -> usize {
        self.seen.borrow().iter().filter(|asked| asked.kind == kind).count()
    }

    /// Waits until a watch is open.
    pub async fn wait_for_watch(&self) {
        drop(soon(self.seen.subscribe().wait_for(|_| self.watches() > 0)).await.unwrap());
    }

    /// Waits for so many requests, and returns all.
    pub async fn requests(&self, times: usize) -> Vec<ReceivedRequest> {
        soon(self.seen.subscribe().wait_for(|seen| seen.len() >= times)).await.unwrap().clone()
    }

    /// Waits for so many requests of a kind.
    pub async fn wait_for(&self, times: usize, kind: RequestKind) {
        let count = |seen: &Vec<ReceivedRequest>| seen.iter().filter(|asked| asked.kind == kind).count();
        soon(self.seen.subscribe().wait_for(|seen| count(seen) >= times)).await.unwrap();
    }

    /// What was wrong with the requests.
    pub fn invalid_requests(&self) -> Vec<String> {
        self.state().faults.clone()
    }
}

/// A socket whose port can be reused at once.
fn socket(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

fn asked(request: &Request<Incoming>) -> ReceivedRequest {
    let query: BTreeMap<String, String> = request
        .uri()
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), unescaped(value)))
        .collect();
    let has = |name: &str, value: &str| query.get(name).is_some_and(|found| found == value);
    let kind = match (has("watch", "true"), has("sendInitialEvents", "true")) {
        (true, true) => RequestKind::WatchList,
        (true, false) => RequestKind::Watch,
        (false, _) if query.contains_key("continue") => RequestKind::Page,
        _ if has("fieldSelector", &format!("spec.nodeName={NODE},metadata.name=-")) => RequestKind::Probe,
        (false, _) => RequestKind::List,
    };
    let header =
        |name: &str| request.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let (authorization, accept) = (header("authorization"), header("accept"));
    ReceivedRequest { kind, query, authorization, accept, at: Instant::now() }
}

fn unescaped(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

/// A body whose chunks come from the server's state.
struct ScriptedBody {
    chunks: mpsc::Receiver<Chunk>,
    /// Kept so that the body does not end.
    open: Option<mpsc::Sender<Chunk>>,
    until: Option<Pin<Box<Sleep>>>,
    breaks: bool,
    flushed: bool,
    /// Whether JSON of an API server is sent as protobuf.
    is_protobuf: bool,
}

/// The protobuf of JSON, if this is what an API server sends: a list, a status, or events one after the other.
fn in_protobuf(json: &[u8]) -> Option<Bytes> {
    let values: Vec<Value> =
        serde_json::Deserializer::from_slice(json).into_iter().collect::<Result<_, _>>().ok()?;
    let encoded: Option<Vec<Vec<u8>>> = values.iter().map(value_in_protobuf).collect();
    Some(encoded?.concat().into())
}

fn value_in_protobuf(value: &Value) -> Option<Vec<u8>> {
    match (value["type"].as_str(), &value["object"]) {
        (Some(kind), _) if value.get("object").is_none() => return Some(protobuf::frame(kind, b"")),
        (Some(kind), object) if object["kind"] == "Pod" || object["kind"].is_null() => {
            return Some(protobuf::frame(kind, &enveloped("Pod", &pod_in_protobuf(object))));
        }
        (Some(kind), object) => return Some(protobuf::frame(kind, &object_in_protobuf(object))),
        // A frame with no message in it.
        (None, _) if !value.is_object() => return Some(b"\0\0\0\x02\xff\xff".to_vec()),
        (None, _) => {}
    }
    match value["kind"].as_str()? {
        "PodList" => {
            let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": value["metadata"]});
            let mut message = protobuf::message(&list)?;
            for item in value["items"].as_array()? {
                message.extend(field(2, &pod_in_protobuf(item)));
            }
            Some(enveloped("PodList", &message))
        }
        _ => Some(object_in_protobuf(value)),
    }
}

/// An object of a kind that protobuf is not known of has the message of a pod.
fn object_in_protobuf(object: &Value) -> Vec<u8> {
    let kind = object["kind"].as_str().unwrap_or_default();
    protobuf::encode(object).unwrap_or_else(|| enveloped(kind, &pod_in_protobuf(object)))
}

/// The message of a pod. What cannot be decoded in JSON cannot be decoded in protobuf: it is cut off.
fn pod_in_protobuf(pod: &Value) -> Vec<u8> {
    let typed =
        json!({"kind": "Pod", "metadata": pod["metadata"], "spec": pod["spec"], "status": pod["status"]});
    let mut message = protobuf::message(&typed).unwrap();
    if Prepared::from_server(pod.to_string().as_bytes()).is_err() {
        message.extend(b"\x12\x7f");
    }
    message
}

fn enveloped(kind: &str, message: &[u8]) -> Vec<u8> {
    let types = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    [protobuf::MAGIC, &field(1, &types), &field(2, message), b"\x1a\0\x22\0"].concat()
}

/// A field of a message.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let (mut head, mut length) = (vec![number << 3 | 2], value.len());
    while length >= 0x80 {
        head.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    head.push(u8::try_from(length).unwrap());
    [&head, value].concat()
}

impl Body for ScriptedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let _ = &self.open;
        if !self.breaks {
            if let Some(until) = &mut self.until
                && until.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(None);
            }
            match ready!(self.chunks.poll_recv(context)) {
                None => return Poll::Ready(None),
                Some(Chunk::Bytes(bytes)) => {
                    let encoded = if self.is_protobuf { in_protobuf(&bytes) } else { None };
                    return Poll::Ready(Some(Ok(Frame::data(encoded.unwrap_or(bytes)))));
                }
                Some(Chunk::Break) => self.breaks = true,
            }
        }
        if mem::replace(&mut self.flushed, true) {
            return Poll::Ready(Some(Err(io::Error::other("broken by the test"))));
        }
        // Give the connection time to send the earlier chunks.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
