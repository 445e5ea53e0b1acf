//! An API server that has pods of its own and does what a test tells it, over real connections.

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
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket},
    sync::{mpsc, watch},
    time::{Instant, Sleep, sleep},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{files::soon, web::Authority};

/// The node whose pods are asked for.
pub const NODE: &str = "node";
/// The length of what stands in a pod's managedFields, which nobody wants.
const MANAGED: usize = 200;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    /// A watch that begins with the listing.
    WatchList,
    /// A list, or its first page.
    List,
    /// A page that is not the first.
    Page,
    /// A list of nothing, which is answered if the server has come as far as the
    /// version. Then it is not noted: it comes before a watch and is of no weight.
    Probe,
    /// A watch from a version on.
    Watch,
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub ask: Ask,
    pub query: BTreeMap<String, String>,
    pub authorization: String,
    /// When, by tokio's clock.
    pub at: Instant,
}

impl Asked {
    /// A part of the query, or nothing.
    pub fn query(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// As `Watch 7`: what for, and from which version on; `-` if none is named.
    pub fn brief(&self) -> String {
        let version = self.query.get("resourceVersion").filter(|version| !version.is_empty());
        format!("{:?} {}", self.ask, version.map_or("-", String::as_str))
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// What the pods of the server make of it.
    Honest,
    Reply(Reply),
    /// None, ever; the connection stays open.
    Mute,
    /// None; the connection is closed.
    HangUp,
}

/// An answer that is no matter of pods.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
    then: Then,
}

/// What comes after the part of an answer that is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The end, in good order.
    End,
    /// The connection is closed under the reader.
    Break,
    /// Nothing; the connection stays open.
    Hang,
    /// The changes of the server's pods from now on.
    Changes,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Bytes>, then: Then) -> Self {
        Self::Reply(Reply { status, headers: Vec::new(), body: body.into(), then })
    }

    /// A refusal.
    pub fn status(code: u16, reason: &str, message: &str) -> Self {
        Self::new(code, status(code, reason, message).to_string(), Then::End)
            .header("Content-Type", "application/json")
    }

    /// What a server says of a version that it has not reached.
    pub fn too_large() -> Self {
        Self::new(504, too_large().to_string(), Then::End)
    }

    /// What a server says of a version that it has forgotten.
    pub fn expired() -> Self {
        Self::status(410, "Expired", "too old resource version: 1 (7)")
    }

    /// A watch with these events, and what comes then.
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

/// A value a line, as a watch has them.
fn lines(values: &[Value]) -> Vec<u8> {
    values.iter().flat_map(|value| format!("{value}\n").into_bytes()).collect()
}

/// A pod that is bound to the node, as its server has it.
pub fn pod(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("{name}-1"),
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "managedFields": [{"manager": "x".repeat(MANAGED), "operation": "Update"}],
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": image}]},
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

/// What a test has said about the answers to come.
struct Rule {
    ask: Option<Ask>,
    answer: Answer,
    /// For ever without a number.
    left: Option<usize>,
}

/// A bit of an answer's body.
#[derive(Clone)]
enum Bit {
    Bytes(Bytes),
    Break,
}

#[derive(Default)]
struct State {
    /// The version of the last change.
    version: u64,
    pods: BTreeMap<String, Value>,
    /// The events that are remembered, with their versions.
    past: VecDeque<(u64, Bytes)>,
    /// The version after which the past is remembered.
    oldest: u64,
    /// The watches that stand.
    watches: Vec<mpsc::UnboundedSender<Bit>>,
    /// What a list in pages was at its first page.
    pages: Vec<Value>,
    rules: Vec<Rule>,
    /// What is answered to who asks which cluster it is.
    cluster: Option<Answer>,
    /// How often somebody asked that.
    cluster_asks: usize,
    /// The only token that is let in, if one is wanted.
    token: Option<String>,
    knows_watch_list: bool,
    /// How often it was asked whether it has come as far as a version.
    probes: usize,
    /// What nobody who knows the API would ask for.
    faults: Vec<String>,
}

impl State {
    fn change(&mut self, kind: &str, mut pod: Value) -> Value {
        self.version += 1;
        pod["metadata"]["resourceVersion"] = self.version.to_string().into();
        let line = Bytes::from(format!("{}\n", event(kind, &pod)));
        self.past.push_back((self.version, line.clone()));
        self.tell(&Bit::Bytes(line));
        pod
    }

    fn tell(&mut self, bit: &Bit) {
        self.watches.retain(|watch| watch.send(bit.clone()).is_ok());
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

    fn rule(&mut self, ask: Ask) -> Answer {
        let rule = self.rules.iter().position(|rule| rule.ask.is_none_or(|wanted| wanted == ask));
        let Some(at) = rule else { return Answer::Honest };
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

    /// Which cluster it is. Not everybody may know.
    fn cluster(&mut self) -> Option<Reply> {
        self.cluster_asks += 1;
        let forbidden = || Answer::status(403, "Forbidden", "namespaces \"kube-system\" is forbidden");
        match self.cluster.clone().unwrap_or_else(forbidden) {
            Answer::Reply(reply) => Some(reply),
            _ => None,
        }
    }

    /// What the pods make of a request.
    fn honest(&mut self, asked: &Asked) -> (Reply, Option<Duration>) {
        let json = |status, value: Value, then| {
            let body = if then == Then::End { value.to_string() } else { String::new() };
            Reply { status, headers: Vec::new(), body: body.into(), then }
        };
        let version = asked.query("resourceVersion").parse::<u64>().ok();
        if version > Some(self.version) {
            return (json(504, too_large(), Then::End), None);
        }
        let timeout = asked.query("timeoutSeconds").parse().ok().map(Duration::from_secs);
        let reply = match asked.ask {
            Ask::List => {
                let limit = asked.query("limit").parse().unwrap_or(usize::MAX);
                self.pages = self.pods.values().map(item).collect();
                self.page(0, limit)
            }
            Ask::Probe => {
                let nothing = self.list_of(&[], "");
                Reply { body: nothing.to_string().into(), ..json(200, Value::Null, Then::End) }
            }
            Ask::Page => {
                let at = asked.query("continue").strip_prefix("from ").and_then(|at| at.parse().ok());
                self.page(at.unwrap_or_default(), asked.query("limit").parse().unwrap_or(usize::MAX))
            }
            Ask::Watch if version.is_some_and(|version| version < self.oldest) => {
                return (json(410, status(410, "Expired", "too old resource version"), Then::End), None);
            }
            Ask::Watch => {
                let version = version.unwrap_or(self.version);
                let past = self.past.iter().filter(|(at, _)| *at > version);
                let body: Vec<u8> = past.flat_map(|(_, line)| line.to_vec()).collect();
                Reply { body: body.into(), ..json(200, Value::Null, Then::Changes) }
            }
            Ask::WatchList if !self.knows_watch_list => {
                let said =
                    "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                return (json(422, status(422, "Invalid", said), Then::End), None);
            }
            Ask::WatchList => {
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

    /// Finds fault with a request that no API server would be asked.
    fn judge(&mut self, path: &str, asked: &Asked) {
        let watches = matches!(asked.ask, Ask::Watch | Ask::WatchList);
        let rules = [
            (path == "/api/v1/pods", "the path"),
            (
                asked.query("fieldSelector").starts_with(&format!("spec.nodeName={NODE}")),
                "the field selector",
            ),
            (!watches || asked.query("allowWatchBookmarks") == "true", "bookmarks are wanted"),
            (
                !watches || (300..=600).contains(&asked.query("timeoutSeconds").parse().unwrap_or(0)),
                "the timeout",
            ),
            (
                asked.ask != Ask::WatchList || asked.query("resourceVersionMatch") == "NotOlderThan",
                "a WatchList has to say which version it matches",
            ),
            (
                asked.ask != Ask::Page || asked.query("resourceVersion").is_empty(),
                "a continued list has no version of its own",
            ),
            (asked.ask != Ask::Watch || !asked.query("resourceVersion").is_empty(), "a watch from somewhere"),
        ];
        let faults =
            rules.iter().filter(|(is_right, _)| !is_right).map(|(_, what)| format!("{what}: {asked:?}"));
        self.faults.extend(faults);
    }
}

/// A pod as the item of a list, which has no type of its own.
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

/// The server. It ends with the test. Clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    pub url: String,
    address: SocketAddr,
    /// Holds the port while the server is down.
    _port: Option<Arc<TcpSocket>>,
    tls: Option<(TlsAcceptor, PathBuf)>,
    state: Arc<Mutex<State>>,
    seen: watch::Sender<Vec<Asked>>,
    /// Whether everything stands still while the connections stay open.
    frozen: watch::Sender<bool>,
    stop: Arc<Mutex<CancellationToken>>,
}

impl ApiServer {
    /// On a port of the loopback; with TLS if there is a CA for it.
    pub fn start(authority: Option<&Authority>) -> Self {
        let port = socket("127.0.0.1:0".parse().unwrap());
        let server = Self::new(port.local_addr().unwrap(), Some(port), authority);
        server.up();
        server
    }

    /// On a listener that was made elsewhere.
    pub fn on(listener: TcpListener, authority: Option<&Authority>) -> Self {
        let server = Self::new(listener.local_addr().unwrap(), None, authority);
        server.serve(listener);
        server
    }

    fn new(address: SocketAddr, port: Option<TcpSocket>, authority: Option<&Authority>) -> Self {
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

    /// Listens.
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
                // The kernel's clock does not jump: nothing may wait for it.
                stream.set_nodelay(true).unwrap();
                tokio::spawn(stop.run_until_cancelled_owned(async move {
                    match &server.tls {
                        None => server.talk(stream).await,
                        // A handshake may fail; that is the test's affair.
                        Some((acceptor, _)) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                server.talk(stream).await;
                            }
                        }
                    }
                }));
            }
        });
    }

    /// Closes all connections; from now on they are refused.
    pub fn down(&self) {
        self.stop.lock().unwrap().cancel();
        self.state().watches.clear();
    }

    /// Stands still: nothing is read, written or accepted, and nothing is closed.
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    async fn talk(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| self.clone().answer(request));
        let mut connection =
            pin!(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        let mut frozen = self.frozen.subscribe();
        tokio::select! {
            biased;
            // It stays so: there is no thaw.
            () = async { drop(frozen.wait_for(|frozen| *frozen).await) } => std::future::pending().await,
            // Connections that break are what some tests are about.
            _ = &mut connection => {}
        }
    }

    async fn answer(self, request: Request<Incoming>) -> io::Result<Response<Told>> {
        let asked = asked(&request);
        if request.uri().path() == "/api/v1/namespaces/kube-system" {
            let Some(reply) = self.state().cluster() else { return std::future::pending().await };
            let body = self.body(&reply, None);
            return Ok(Response::builder().status(reply.status).body(body).unwrap());
        }
        let (reply, timeout) = {
            let mut state = self.state();
            state.judge(request.uri().path(), &asked);
            let is_known =
                state.token.as_ref().is_none_or(|token| asked.authorization == format!("Bearer {token}"));
            let answer = if is_known {
                state.rule(asked.ask)
            } else {
                Answer::status(401, "Unauthorized", "Unauthorized")
            };
            match answer {
                Answer::Honest => {
                    let (reply, timeout) = state.honest(&asked);
                    (Some(reply), timeout)
                }
                Answer::Reply(reply) => (Some(reply), None),
                Answer::Mute => (None, None),
                Answer::HangUp => {
                    drop(state);
                    self.see(asked);
                    return Err(io::Error::other("as the test wants it"));
                }
            }
        };
        let Some(reply) = reply else {
            self.see(asked);
            return std::future::pending().await;
        };
        let body = self.body(&reply, timeout);
        let mut response = Response::builder().status(reply.status);
        for (name, value) in &reply.headers {
            response = response.header(name, value);
        }
        // Whoever waits for the request finds its watch standing.
        if asked.ask != Ask::Probe || reply.status != 200 {
            self.see(asked);
        }
        Ok(response.body(body).unwrap())
    }

    /// A probe is a question of its own, before the request that is meant.
    fn see(&self, asked: Asked) {
        if asked.ask == Ask::Probe {
            self.state().probes += 1;
            return;
        }
        self.seen.send_modify(|seen| seen.push(asked));
    }

    fn body(&self, reply: &Reply, timeout: Option<Duration>) -> Told {
        let (bits, told) = mpsc::unbounded_channel();
        if !reply.body.is_empty() {
            bits.send(Bit::Bytes(reply.body.clone())).unwrap();
        }
        let mut open = None;
        match reply.then {
            Then::End => {}
            Then::Break => bits.send(Bit::Break).unwrap(),
            Then::Hang => open = Some(bits),
            Then::Changes => self.state().watches.push(bits),
        }
        let until = timeout.map(|timeout| Box::pin(sleep(timeout)));
        Told { bits: told, open, until, breaks: false, flushed: false }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A kubeconfig for it, with these credentials.
    pub fn kubeconfig(&self, directory: &Path, user: &Value) -> PathBuf {
        let mut cluster = json!({"server": self.url});
        if let Some((_, ca_file)) = &self.tls {
            cluster["certificate-authority"] = ca_file.to_str().unwrap().into();
        }
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "cluster", "user": "user"}}],
        });
        let path = directory.join("kubeconfig");
        // JSON is YAML too.
        fs::write(&path, config.to_string()).unwrap();
        path
    }
}

/// What a test says and asks.
impl ApiServer {
    /// From now on this is the answer, before anything else that was said.
    pub fn say(&self, ask: Ask, answer: Answer) {
        self.state().rules.insert(0, Rule { ask: Some(ask), answer, left: None });
    }

    /// Whatever is asked, this is the answer.
    pub fn say_always(&self, answer: Answer) {
        self.state().rules.insert(0, Rule { ask: None, answer, left: None });
    }

    /// This is the answer so many times, after what was said before.
    pub fn say_times(&self, times: usize, ask: Ask, answer: Answer) {
        self.state().rules.push(Rule { ask: Some(ask), answer, left: Some(times) });
    }

    /// From now on this is the answer to who asks which cluster it is: none, or a reply.
    pub fn say_of_the_cluster(&self, answer: Answer) {
        self.state().cluster = Some(answer);
    }

    /// Whatever was said before, from now on the pods count.
    pub fn be_honest(&self) {
        self.state().rules.clear();
    }

    /// It is a server that does not know how to stream a listing.
    pub fn forget_watch_lists(&self) {
        self.state().knows_watch_list = false;
    }

    /// Only who has this token is let in.
    pub fn want_token(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    /// A pod is there, or is another now.
    pub fn put(&self, pod: Value) {
        let mut state = self.state();
        let key = key(&pod);
        let kind = if state.pods.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        let pod = state.change(kind, pod);
        state.pods.insert(key, pod);
    }

    /// A pod is gone.
    pub fn delete(&self, name: &str) {
        let mut state = self.state();
        let pod = state.pods.remove(&format!("default/{name}")).unwrap();
        state.change("DELETED", pod);
    }

    /// A bookmark for all who watch. Time has passed elsewhere, as it were.
    pub fn bookmark(&self) {
        let mut state = self.state();
        state.version += 1;
        let line = Bytes::from(format!("{}\n", bookmark(state.version, false)));
        state.tell(&Bit::Bytes(line));
    }

    /// Sends something to all who watch.
    pub fn send(&self, bytes: impl Into<Bytes>) {
        self.state().tell(&Bit::Bytes(bytes.into()));
    }

    /// Sends an event to all who watch, that is nothing of the server's pods.
    pub fn send_event(&self, event: &Value) {
        self.send(format!("{event}\n"));
    }

    /// Ends all watches in good order.
    pub fn end_watches(&self) {
        self.state().watches.clear();
    }

    /// Breaks all connections of watches.
    pub fn break_watches(&self) {
        let mut state = self.state();
        state.tell(&Bit::Break);
        state.watches.clear();
    }

    /// Forgets what happened up to now: no watch can begin before it.
    pub fn compact(&self) {
        let mut state = self.state();
        state.past.clear();
        state.oldest = state.version;
    }

    /// Goes back to an older state, as if etcd had been restored: these pods, at this version.
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

    /// A list as it would be answered.
    pub fn list(&self) -> Value {
        self.state().list()
    }

    /// The pods that are wanted, by `namespace/name`.
    pub fn pods(&self) -> BTreeMap<String, Value> {
        self.state().pods.clone()
    }

    /// How many watches stand.
    pub fn watches(&self) -> usize {
        self.state().watches.iter().filter(|watch| !watch.is_closed()).count()
    }

    /// The requests that came so far.
    pub fn seen(&self) -> Vec<Asked> {
        self.seen.borrow().clone()
    }

    /// How often it was asked whether it has come as far as a version; no other count has that in it.
    pub fn probes(&self) -> usize {
        self.state().probes
    }

    /// How often it was asked which cluster it is; no other count has that in it.
    pub fn asked_of_the_cluster(&self) -> usize {
        self.state().cluster_asks
    }

    /// The requests that came so far, in short.
    pub fn briefly(&self) -> Vec<String> {
        self.seen.borrow().iter().map(Asked::brief).collect()
    }

    /// How many requests came, of a kind.
    pub fn count(&self, ask: Ask) -> usize {
        self.seen.borrow().iter().filter(|asked| asked.ask == ask).count()
    }

    /// Waits until somebody watches.
    pub async fn is_watched(&self) {
        drop(soon(self.seen.subscribe().wait_for(|_| self.watches() > 0)).await.unwrap());
    }

    /// Waits until so many requests have come, and gives them.
    pub async fn asked(&self, times: usize) -> Vec<Asked> {
        soon(self.seen.subscribe().wait_for(|seen| seen.len() >= times)).await.unwrap().clone()
    }

    /// Waits until so many requests of a kind have come.
    pub async fn asked_for(&self, times: usize, ask: Ask) {
        let count = |seen: &Vec<Asked>| seen.iter().filter(|asked| asked.ask == ask).count();
        soon(self.seen.subscribe().wait_for(|seen| count(seen) >= times)).await.unwrap();
    }

    /// What was asked for that no API server would be asked.
    pub fn faults(&self) -> Vec<String> {
        self.state().faults.clone()
    }
}

/// A socket whose port may be had again at once.
fn socket(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

fn asked(request: &Request<Incoming>) -> Asked {
    let query: BTreeMap<String, String> = request
        .uri()
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), unescaped(value)))
        .collect();
    let has = |name: &str, value: &str| query.get(name).is_some_and(|found| found == value);
    let ask = match (has("watch", "true"), has("sendInitialEvents", "true")) {
        (true, true) => Ask::WatchList,
        (true, false) => Ask::Watch,
        (false, _) if query.contains_key("continue") => Ask::Page,
        _ if has("fieldSelector", &format!("spec.nodeName={NODE},metadata.name=-")) => Ask::Probe,
        (false, _) => Ask::List,
    };
    let authorization = request.headers().get("authorization");
    let authorization = authorization.map_or("", |value| value.to_str().unwrap()).to_owned();
    Asked { ask, query, authorization, at: Instant::now() }
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

/// A body that is told bit by bit.
struct Told {
    bits: mpsc::UnboundedReceiver<Bit>,
    /// Held so that the body does not end.
    open: Option<mpsc::UnboundedSender<Bit>>,
    until: Option<Pin<Box<Sleep>>>,
    breaks: bool,
    flushed: bool,
}

impl Body for Told {
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
            match ready!(self.bits.poll_recv(context)) {
                None => return Poll::Ready(None),
                Some(Bit::Bytes(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(Bit::Break) => self.breaks = true,
            }
        }
        if mem::replace(&mut self.flushed, true) {
            return Poll::Ready(Some(Err(io::Error::other("as the test wants it"))));
        }
        // What was sent before goes out before the connection does.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
