//! Makes all tasks from the settings, connects and starts them.
//!
//! The shutdown begins with the pending requests of the server. Then the order follows from who
//! holds what: the stop token ends the sources, they drop their channels, so the mux ends, so the
//! deliveries and the history end. The database ends when nothing that writes to it is left, and
//! the server when no delivery is left.

use std::{convert::Infallible, sync::Arc, time::Duration};

use anyhow::Context as _;
use futures_util::future::join_all;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    instance::{Instance, instance},
    shutdown::Shutdown,
    sources::{Parts, Retune, SOURCES, Started, Statuses},
    state::StateKeeper,
    status::AgentState,
};
use crate::{
    db::Sequence,
    events::{EventReader, Events},
    history::{Bounds, History, HistoryReader},
    host::{Clock, Host},
    mux::{Mux, MuxLoop, Notify},
    pod::{SecurityLevel, SourceName},
    runtime::{Gone, Observed, Opening, exec},
    server::{self, LastReload, Limits, PassedSocket, RuntimeView, Server, View},
    settings::{self, Settings},
    sink::{Acknowledged, SinkStatus},
    source::{
        StateWatch,
        api::ReflectorMetrics,
        http::{HttpSource, Posts, Release},
        last_good::LastGood,
    },
    supervise::{BoxError, Tasks},
};

/// How long a start waits for the sources before the pods of an earlier run are wanted.
const FIRST_READS: Duration = Duration::from_secs(2);

/// What a reload reaches.
pub(super) struct Handles {
    /// Sources, sinks, server and what is around them.
    parts: Vec<Retune>,
    /// The result of the last reload, for the server.
    reload: watch::Sender<LastReload>,
    /// Cancelled when the server has finished the requests that were pending at the shutdown.
    pub(super) finished: Option<CancellationToken>,
    clock: Clock,
}

impl Handles {
    /// Notes the result of a reload.
    pub(super) fn reloaded(&self, successful: bool) {
        self.reload.send_modify(|last| last.note(successful, self.clock.now()));
    }

    /// Adds something that settings are applied to.
    pub(super) fn add(&mut self, part: impl Fn(&Settings) + Send + Sync + 'static) {
        self.parts.push(Box::new(part));
    }

    /// Applies settings. All sources are rescanned.
    pub(super) fn retune(&self, settings: &Settings) {
        self.parts.iter().for_each(|part| part(settings));
    }
}

/// The agent, ready to run.
pub(super) struct Wired {
    pub(super) handles: Handles,
    pub(super) state: AgentState,
    pub(super) mux: Mux,
    /// What is observed of the pods, if they run here.
    pub(super) observed: Option<watch::Receiver<Observed>>,
    pub(super) sources: Statuses,
}

/// Makes and starts all tasks.
pub(super) async fn wire(
    settings: &Settings,
    passed: Vec<PassedSocket>,
    host: &Host,
    shutdown: &Shutdown,
    tasks: &mut Tasks,
) -> anyhow::Result<Wired> {
    // First of all: a start that fails here leaves the state untouched. A client that connects
    // now waits in the kernel.
    let server = if settings.server.listens() {
        let node = settings.node_name.clone();
        Some(Server::bind(&settings.server, passed, node, Limits::default()).await?.on(host.clone()))
    } else {
        None
    };
    let sources = SOURCES.iter().filter(|source| (source.is_configured)(settings));
    // A start without a listener does not forget what was posted.
    let has_http = server.is_some() || settings.state_dir.is_some();
    let http = has_http.then_some(SourceName::Http);
    let names: Vec<_> = sources.map(|source| source.name).chain(http).collect();
    let (mux, merging) = Mux::new(&names);
    let mut wiring = Wiring::new(settings, host, shutdown, tasks, mux).await?;
    wiring.sinks().await?;
    let gone = wiring.runtime().await?;
    wiring.sources()?;
    let posts = if has_http { Some(wiring.http_source(server.as_ref(), gone)?) } else { None };
    wiring.merge(merging);
    if let Some((server, posts)) = server.zip(posts) {
        wiring.server(server, posts);
    }
    let Wiring { mux, sources, sinks, runtime, observed, handles, .. } = wiring;
    let state = AgentState::new(mux.merged(), &sources, &sinks, runtime.as_ref());
    Ok(Wired { handles, state, mux, observed, sources })
}

/// A task that cannot fail.
async fn infallible(task: impl Future<Output = ()>) -> Result<(), BoxError> {
    task.await;
    Ok(())
}

/// The agent while it is made.
struct Wiring<'a> {
    settings: &'a Settings,
    host: &'a Host,
    shutdown: &'a Shutdown,
    tasks: &'a mut Tasks,
    mux: Mux,
    state: Option<StateWatch>,
    /// The numbers of all streams and resourceVersions.
    sequence: Sequence,
    acknowledged: Acknowledged,
    /// The ledger of a runtime that keeps one.
    ledger: Option<exec::StateWatch>,
    instance: Arc<str>,
    runtime: Option<RuntimeView>,
    observed: Option<watch::Receiver<Observed>>,
    sources: Statuses,
    sinks: Vec<watch::Receiver<SinkStatus>>,
    metrics: Option<ReflectorMetrics>,
    handles: Handles,
    /// Held by the history and all deliveries, so that the server ends after them.
    delivering: mpsc::Sender<Infallible>,
    delivered: Option<mpsc::Receiver<Infallible>>,
}

impl<'a> Wiring<'a> {
    async fn new(
        settings: &'a Settings,
        host: &'a Host,
        shutdown: &'a Shutdown,
        tasks: &'a mut Tasks,
        mux: Mux,
    ) -> anyhow::Result<Self> {
        let (mut state, mut ledger, mut parts): (_, _, Vec<Retune>) = (None, None, Vec::new());
        let sequence = Sequence::new(&host.random.uuid().simple().to_string(), host.clock.now());
        if let Some(path) = settings.state_dir.clone() {
            let mut keeper =
                StateKeeper::new(path, settings.node_name.clone(), host.clone(), sequence.clone());
            ledger = settings.runtime.is_some().then(|| keeper.ledger());
            let retry = keeper.retry.clone();
            parts.push(Box::new(move |_| retry.notify_one()));
            let (watch, task) = keeper.start(shutdown.stop.clone()).await?;
            tasks.spawn("db", task);
            state = Some(watch);
        }
        let (disk, directory, node) =
            (host.disk.clone(), settings.state_dir.clone(), settings.node_name.clone());
        let instance = host.threads.blocking(move || instance(&disk, directory.as_deref(), &node)).await?;
        let clock = host.clock.clone();
        let reload = watch::Sender::new(LastReload::at_start(clock.now()));
        let (delivering, delivered) = mpsc::channel(1);
        Ok(Self {
            settings,
            host,
            shutdown,
            tasks,
            mux,
            state,
            sequence,
            acknowledged: Arc::new(watch::Sender::default()),
            ledger,
            instance: instance.into(),
            runtime: None,
            observed: None,
            sources: Vec::new(),
            sinks: Vec::new(),
            metrics: None,
            handles: Handles { parts, reload, finished: None, clock },
            delivering,
            delivered: Some(delivered),
        })
    }

    async fn sinks(&mut self) -> anyhow::Result<()> {
        for sink in &self.settings.sinks {
            let name = sink.to_string();
            let updates = self.mux.updates(self.settings.notify);
            let (sequence, host) = (self.sequence.clone(), self.host.clone());
            let (sink, acknowledged) = (sink.clone(), self.acknowledged.clone());
            let instance = self.instance.clone();
            let open = move || sink.open_sink(updates, sequence, &instance, &acknowledged, host);
            let open = self.host.threads.blocking(open).await?.context("a runtime is not a sink")??;
            self.sinks.push(open.status);
            self.handles.add(move |_| (open.reload)());
            // Once the shutdown has begun, a reader that goes away is not a failure.
            let delivery = (open.run)(self.shutdown.finish.clone());
            let delivering = self.delivering.clone();
            self.tasks.spawn_with_heartbeat(format!("sink {name}"), async move {
                let _delivering = delivering;
                Ok(delivery.await?)
            });
        }
        Ok(())
    }

    /// Starts the pod workers of the runtime, if there is one. Returns which deletions are complete.
    async fn runtime(&mut self) -> anyhow::Result<Option<watch::Receiver<Gone>>> {
        let Some(settings::Runtime { kind, concurrency, directory, user_dir }) = &self.settings.runtime
        else {
            return Ok(None);
        };
        let (host, directory, name) = (self.host.clone(), directory.clone(), self.instance.clone());
        let claim = move || Instance::claim(&host, &directory, &name);
        let instance = self.host.threads.blocking(claim).await??;
        let opening = Opening {
            merged: self.mux.merged(),
            concurrency: *concurrency,
            directory: instance.directory.clone(),
            state: self.ledger.take().context("a runtime needs a state")?,
            boot: instance.boot.clone(),
            booted: instance.booted,
            instance: self.instance.clone(),
            user_dir: user_dir.clone(),
            host: self.host.clone(),
        };
        let open = kind.open_runtime(opening).context("a sink is not a runtime")?;
        self.observed = Some(open.observed);
        let name = kind.to_string();
        if self.settings.api.is_some() {
            info!(
                "pods of the API server run here; neither their status nor the end of their deletion is written back"
            );
        }
        self.runtime = Some(RuntimeView {
            name: name.as_str().into(),
            status: open.status,
            queue: open.queue,
            logs: open.logs,
        });
        let (workers, delivering) = ((open.run)(self.shutdown.stop.clone()), self.delivering.clone());
        self.tasks.spawn(format!("sink {name}"), async move {
            // No other agent of this instance begins before this one has let go of its pods.
            let _held = (delivering, instance);
            workers.await;
            Ok(())
        });
        Ok(Some(open.gone))
    }

    /// The last-known-good pods of a source.
    fn last_good(&self, source: SourceName) -> LastGood {
        let node = self.settings.node_name.clone();
        let Some(opening) = &self.state else { return LastGood::none(source, node) };
        let state = opening.borrow().clone();
        match state {
            Ok(state) => LastGood::new(source, node, state.db.clone(), &mut state.stored()),
            Err(_) => LastGood::none(source, node).later(opening.clone()),
        }
    }

    fn sources(&mut self) -> anyhow::Result<()> {
        for source in &SOURCES {
            let (last_good, stop) = (self.last_good(source.name), self.shutdown.stop.clone());
            if !(source.is_configured)(self.settings) {
                // The pods of a source that is configured again later are outdated then.
                self.tasks
                    .spawn(format!("outdated pods of {}", source.name), infallible(last_good.erase(stop)));
                continue;
            }
            let node = self.settings.node_name.clone();
            let channel = self.mux.channel(source.name).context("the channel of a source is in use")?;
            let host = self.host.clone();
            let parts = Parts { node, channel, last_good, stop, host };
            let started = (source.start)(self.settings, parts);
            let Started { run, status, retune, metrics } = started.context("a source is not configured")?;
            self.sources.push((source.name, status));
            self.handles.parts.push(retune);
            self.metrics = metrics.or(self.metrics.take());
            self.tasks.spawn(format!("source {}", source.name), infallible(run));
        }
        Ok(())
    }

    /// Starts the mux when each source with pods of the earlier run has read what is there now, but soon: what was
    /// removed meanwhile is not started, and what was changed starts as it is now.
    fn merge(&mut self, merging: MuxLoop) {
        let restoring = self.sources.iter().filter(|(source, _)| self.mux.is_restoring(*source));
        let first_reads = join_all(restoring.map(|(_, status)| {
            let mut status = status.clone();
            async move { status.wait_for(|status| status.last_success.is_some()).await.is_ok() }
        }));
        let stop = self.shutdown.stop.clone();
        self.tasks.spawn("mux", async move {
            let _ = stop.run_until_cancelled(timeout(FIRST_READS, first_reads)).await;
            merging.run().await;
            Ok(())
        });
    }

    /// The http source: the posted pods.
    fn http_source(
        &mut self,
        server: Option<&Server>,
        gone: Option<watch::Receiver<Gone>>,
    ) -> anyhow::Result<Posts> {
        let channel = self.mux.channel(SourceName::Http).context("the channel of a source is in use")?;
        let merged = self.mux.merged();
        let release = match gone {
            Some(gone) => Release::Runtime { gone, merged },
            None => Release::Sinks { acknowledged: self.acknowledged.subscribe(), merged },
        };
        let (source, posts) = HttpSource::new(self.state.clone(), self.sequence.clone(), channel, release);
        posts.retune(self.settings.http);
        let source = match server {
            Some(server) => source.with_listeners(server.failing()),
            None => source,
        };
        let stop = self.shutdown.stop.clone();
        self.tasks.spawn("source http", infallible(source.on(self.host.clone()).run(stop)));
        self.sources.push((SourceName::Http, posts.status()));
        self.sources.sort_by_key(|(name, _)| *name);
        let retuned = posts.clone();
        self.handles.add(move |settings| retuned.retune(settings.http));
        Ok(posts)
    }

    /// The history of updates and the server, which already listens.
    fn server(&mut self, server: Server, posts: Posts) {
        let reread = server.credential_reload();
        self.handles.add(move |settings| reread.now(&settings.server));
        self.handles.finished = Some(server.drained());
        let level = watch::Sender::new(self.settings.server.pod_security);
        let levels = level.subscribe();
        self.handles.add(move |settings| _ = level.send_replace(settings.server.pod_security));
        let router = server::router(self.view(posts, levels, &server));
        // It answers while the other tasks end: /readyz shows that the agent is stopping.
        let ended = CancellationToken::new();
        let (last, finish) = (ended.clone(), self.shutdown.finish.clone());
        let (delivered, mux) = (self.delivered.take(), self.mux.clone());
        self.tasks.spawn("server", async move {
            // No request is answered before the pods of the earlier run are merged.
            mux.turns().await;
            let idle = async {
                if let Some(mut delivered) = delivered {
                    delivered.recv().await;
                }
                last.cancel();
            };
            tokio::join!(server.run(router, finish, ended), idle);
            Ok(())
        });
    }

    fn view(&mut self, posts: Posts, pod_security: watch::Receiver<SecurityLevel>, server: &Server) -> View {
        let mux = self.mux.clone();
        View {
            node: self.settings.node_name.clone(),
            merged: self.mux.merged(),
            observed: self.observed.clone(),
            posts,
            pod_security,
            history: self.history(),
            events: self.events(),
            sources: self.sources.clone().into(),
            reflector: self.metrics.clone(),
            sinks: self.sinks.clone().into(),
            acknowledged: self.acknowledged.subscribe(),
            runtime: self.runtime.clone(),
            turns: Arc::new(move || {
                let mux = mux.clone();
                Box::pin(async move { mux.turns().await })
            }),
            stopping: self.shutdown.finish.clone(),
            started: self.handles.reload.borrow().succeeded,
            reload: self.handles.reload.subscribe(),
            connections: server.stats(),
            host: self.host.clone(),
        }
    }

    fn events(&mut self) -> EventReader {
        let (node, merged, host) = (self.settings.node_name.clone(), self.mux.merged(), self.host.clone());
        let (events, reader) = Events::new(node, merged, self.sources.clone(), self.sequence.clone(), host);
        let workers = self.runtime.as_ref().map(|runtime| runtime.status.clone());
        self.tasks.spawn("events", infallible(events.observing(self.observed.clone(), workers).run()));
        reader
    }

    fn history(&mut self) -> HistoryReader {
        let updates = self.mux.updates(Notify::Incremental);
        let (history, reader) = History::new(updates, self.sequence.clone(), Bounds::default());
        let history = history.on(self.host.clone()).observing(self.observed.clone());
        let delivering = self.delivering.clone();
        self.tasks.spawn_with_heartbeat("history", async move {
            let _delivering = delivering;
            history.run().await;
            Ok(())
        });
        reader
    }
}
