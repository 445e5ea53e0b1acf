//! The server's router over a real socket, with a real mux, history and posted set.

use std::{
    fmt::Write as _,
    future::pending,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex},
};

use axum::{Extension, Router, body::Body};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use jiff::Timestamp;
use podmux::{
    db::Sequence,
    events::Events,
    history::{Bounds, History, HistoryReader},
    host::{Clock, Host, Threads},
    mux::{Mux, Notify, SourceChannel},
    pod::{Listing, ListingBuilder, NodeName, Origin, Prepared, RejectionReason, SecurityLevel, SourceName},
    runtime::Observed,
    server::{
        ConnectionStats, LastReload, Limits, MAX_WATCHERS, RuntimeView, View, Watchers, read_bodies, router,
    },
    sink::SinkStatus,
    source::{
        SourceStatus,
        api::ReflectorMetrics,
        http::{HttpSource, Posts, Release},
    },
    storage::{Delivered, Merged},
};
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use super::{
    files::soon,
    state::{Disk, State},
};

/// The options of a test.
pub struct Setup {
    /// How much history is held.
    pub bounds: Bounds,
    /// Whether the file source is synced.
    pub file_synced: bool,
    /// Where posted pods are stored; in memory if absent.
    pub disk: Option<Disk>,
    /// Whether the merge loop runs.
    pub turns: bool,
    /// Whether the history runs.
    pub history: bool,
    /// The level that posted pods may not exceed.
    pub pod_security: SecurityLevel,
    /// The metrics of the reflector; with them there is an api source.
    pub reflector: Option<ReflectorMetrics>,
    /// The threads for work that takes long.
    pub threads: Threads,
    /// What is observed of the pods; without it there is no runtime.
    pub observed: Option<watch::Receiver<Observed>>,
    /// Makes the runtime from the merged view; without it there is none.
    pub runtime: Option<StartRuntime>,
}

type StartRuntime = Box<dyn FnOnce(watch::Receiver<Merged>) -> RuntimeView + Send>;

impl Default for Setup {
    fn default() -> Self {
        Self {
            bounds: Bounds::default(),
            file_synced: true,
            disk: None,
            turns: true,
            history: true,
            pod_security: SecurityLevel::default(),
            reflector: None,
            threads: Threads::default(),
            observed: None,
            runtime: None,
        }
    }
}

/// With an api source, whose reflector has counted nothing.
pub fn with_api() -> Setup {
    Setup { reflector: Some(ReflectorMetrics::default()), ..Setup::default() }
}

/// With a runtime that observes nothing, so that pods are read as their sources have them.
pub fn with_idle_runtime() -> Setup {
    Setup { observed: Some(watch::channel(Observed::default()).1), ..Setup::default() }
}

/// A running server with a posted set and a file source that the test controls.
pub struct TestServer {
    pub address: SocketAddr,
    /// The same server without a connection.
    pub router: Router,
    pub posts: Posts,
    pub history: HistoryReader,
    /// The numbers of the history and of the posted pods.
    pub sequence: Sequence,
    pub file_status: watch::Sender<SourceStatus>,
    pub api_status: watch::Sender<SourceStatus>,
    pub sink_status: watch::Sender<SinkStatus>,
    pub reload: watch::Sender<LastReload>,
    pub stopping: CancellationToken,
    pub stop: CancellationToken,
    file: Mutex<Option<(SourceChannel, ListingBuilder)>>,
    api: Mutex<Option<(SourceChannel, ListingBuilder)>>,
    /// What the only sink has acknowledged: nothing, so that a pod that is deleted gracefully stays
    /// for its grace.
    pub acknowledged: watch::Sender<Vec<Delivered>>,
    /// Whether the mux merges what the sources publish.
    pub merging: watch::Sender<bool>,
    /// The tasks and the state.
    _held: (JoinSet<()>, Option<State>),
}

impl TestServer {
    pub async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    #[expect(clippy::too_many_lines, reason = "one field of the view after the other")]
    pub async fn with(setup: Setup) -> Self {
        let node = NodeName::new("node1").unwrap();
        let (mux, turning) = {
            let api = setup.reflector.as_ref().map(|_| SourceName::Api);
            Mux::new(&[SourceName::File, SourceName::Http].into_iter().chain(api).collect::<Vec<_>>())
        };
        let (acknowledged, seen) = watch::channel(vec![Delivered::default()]);
        let channel = mux.channel(SourceName::Http).unwrap();
        let mut state = setup.disk.as_ref().map(|disk| State::open_on(disk).unwrap());
        let opened = state.as_mut().map(|state| state.watch(&node));
        let sequence = Sequence::after("run", 0);
        let release = Release::Sinks { acknowledged: seen, merged: mux.merged() };
        let (source, posts) = HttpSource::new(opened, sequence.clone(), channel, release);
        let updates = mux.updates(Notify::Incremental);
        let (history, reader) = History::new(updates, sequence.clone(), setup.bounds);
        let history = history.observing(setup.observed.clone());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let merging = watch::Sender::new(true);
        tasks.spawn(while_open(turning.run(), merging.subscribe()));
        tasks.spawn(source.run(stop.clone()));
        tasks.spawn(async move {
            if setup.history {
                history.run().await;
            }
            pending::<()>().await;
        });

        let file_status = watch::Sender::new(SourceStatus::default());
        let api_status = watch::Sender::new(SourceStatus::default());
        let sink_status = watch::Sender::new(SinkStatus { name: "test".to_owned(), ..SinkStatus::default() });
        let stopping = CancellationToken::new();
        let reload = watch::Sender::new(LastReload::at_start(Clock::default().now()));
        let mut sources =
            vec![(SourceName::File, file_status.subscribe()), (SourceName::Http, posts.status())];
        if setup.reflector.is_some() {
            sources.push((SourceName::Api, api_status.subscribe()));
        }
        let turning = mux.clone();
        let runtime = setup.runtime.map(|start| start(mux.merged()));
        // Higher numbers than those of the history, which tests know.
        let numbers = Sequence::after("run", 1 << 40);
        let (events, event_reader) =
            Events::new(node.clone(), mux.merged(), sources.clone(), numbers, Host::default());
        let workers = runtime.as_ref().map(|runtime| runtime.status.clone());
        tasks.spawn(events.observing(setup.observed.clone(), workers).run());
        let view = View {
            reflector: setup.reflector,
            node,
            merged: mux.merged(),
            observed: setup.observed,
            pod_security: watch::channel(setup.pod_security).1,
            posts: posts.clone(),
            history: reader.clone(),
            events: event_reader,
            sources: sources.into(),
            sinks: Arc::new([sink_status.subscribe()]),
            acknowledged: acknowledged.subscribe(),
            runtime,
            turns: Arc::new(move || {
                let turning = turning.clone();
                Box::pin(async move { if setup.turns { turning.turns().await } else { pending().await } })
            }),
            stopping: stopping.clone(),
            started: reload.borrow().succeeded,
            reload: reload.subscribe(),
            connections: ConnectionStats::default(),
            host: Host { threads: setup.threads, ..Host::default() },
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = view.connections.clone();
        let router = read_bodies(router(view), &Limits::default(), connections)
            .layer(Extension(Watchers::new(MAX_WATCHERS)));
        tasks.spawn(serve(listener, router.clone()));
        let channel = |source| Some((mux.channel(source)?, ListingBuilder::new(source)));
        let server = Self {
            address,
            posts,
            history: reader,
            sequence,
            router,
            file_status,
            api_status,
            sink_status,
            reload,
            stopping,
            stop,
            file: Mutex::new(channel(SourceName::File)),
            api: Mutex::new(channel(SourceName::Api)),
            acknowledged,
            merging,
            _held: (tasks, state),
        };
        if setup.file_synced {
            server.file(|_| ()).await;
        }
        if setup.history && setup.turns {
            // It has numbers for the beginning, before the first write takes one.
            soon(server.history.snapshot()).await;
        }
        server
    }

    /// Edits the file source's listing, publishes it and waits until it is merged.
    pub async fn file<T>(&self, edit: impl FnOnce(&mut ListingBuilder) -> T) -> T {
        publish(&self.file, ListingBuilder::listing, edit).await
    }

    /// Edits and publishes the api source's listing as live,
    pub async fn api<T>(&self, edit: impl FnOnce(&mut ListingBuilder) -> T) -> T {
        publish(&self.api, ListingBuilder::listing, edit).await
    }

    /// or as restored.
    pub async fn api_restored<T>(&self, edit: impl FnOnce(&mut ListingBuilder) -> T) -> T {
        publish(&self.api, ListingBuilder::restored_listing, edit).await
    }

    /// Adds a pod to the file source.
    pub async fn file_pod(&self, path: &str, pod: Prepared) {
        self.file(|file| file.put(&Origin::from(path), vec![pod], Timestamp::UNIX_EPOCH)).await;
    }

    /// Adds a rejection to the file source.
    pub async fn file_rejects(&self, path: &str, why: RejectionReason) {
        self.file(|file| file.reject(&Origin::from(path), why)).await;
    }

    /// Ends the sources, and with them the mux and the history.
    pub async fn end_sources(&self) {
        self.stop.cancel();
        drop((self.file.lock().unwrap().take(), self.api.lock().unwrap().take()));
        soon(async { while self.history.snapshot().await.is_some() {} }).await;
    }

    /// Sends a request and reads the whole response: `ask("PUT /pods", …)`.
    pub async fn ask(&self, line: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        soon(async {
            let answer = self.open(line, headers, body).await;
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.unwrap().to_bytes().to_vec();
            Reply { code: parts.status.as_u16(), headers: parts.headers, body }
        })
        .await
    }

    /// The same without a connection, for tests with paused time: it would advance while the test
    /// waits for a socket.
    pub async fn ask_inside(&self, line: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Reply {
        let (parts, body) = self.open_inside(line, headers, body).await.into_parts();
        let body = soon(body.collect()).await.unwrap().to_bytes().to_vec();
        Reply { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub async fn open_inside(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Response<Body> {
        let request = request(line, headers, body.into());
        soon(self.router.clone().call(request)).await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.ask(&format!("GET {path}"), &[], "").await
    }

    /// Sends a request on a new connection, and does not read the response's body.
    pub async fn open(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        let request = request(line, headers, Full::new(body.into()));
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }
}

/// Works only while it is open.
async fn while_open(work: impl Future<Output = ()>, mut open: watch::Receiver<bool>) {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            () = async { drop(open.wait_for(|open| !*open).await) } => drop(open.wait_for(|open| *open).await),
            () = &mut work => return,
        }
    }
}

async fn publish<T>(
    source: &Mutex<Option<(SourceChannel, ListingBuilder)>>,
    listing: impl FnOnce(&mut ListingBuilder) -> Listing,
    edit: impl FnOnce(&mut ListingBuilder) -> T,
) -> T {
    let (channel, mut builder) = source.lock().unwrap().take().expect("one edit at a time");
    let result = edit(&mut builder);
    channel.publish(listing(&mut builder));
    assert!(soon(channel.merged()).await);
    *source.lock().unwrap() = Some((channel, builder));
    result
}

fn request<B>(line: &str, headers: &[(&str, &str)], body: B) -> Request<B> {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path).header("host", "podmux");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}

async fn serve(listener: TcpListener, router: Router) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let router = router.clone();
        connections.spawn(async move {
            let service = TowerToHyperService::new(router);
            // A client may close its connection at any time.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// A whole response.
pub struct Reply {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The values of a header.
    pub fn header(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    /// The content of a golden file: code, some headers and the indented body.
    pub fn golden(&self) -> String {
        let mut text = format!("{}\n", self.code);
        for name in ["content-type", "allow", "retry-after", "warning"] {
            for value in self.header(name) {
                writeln!(text, "{name}: {value}").unwrap();
            }
        }
        format!("{text}\n{:#}\n", self.json())
    }

    /// The names of the pods of a list.
    pub fn names(&self) -> Vec<String> {
        let list = self.json();
        let items = list["items"].as_array().unwrap_or_else(|| panic!("no list: {}", self.text()));
        items.iter().map(name).collect()
    }
}

fn name(pod: &Value) -> String {
    format!(
        "{}/{}",
        pod["metadata"]["namespace"].as_str().unwrap(),
        pod["metadata"]["name"].as_str().unwrap()
    )
}

/// A manifest to post.
pub fn manifest(name: &str) -> String {
    format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"{name}\"}},\"spec\":{{\"containers\":[{{\"name\":\"c\",\"image\":\"i:1\"}}]}}}}"
    )
}
