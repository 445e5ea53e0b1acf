//! Who talks to whom: every task of the agent, made from the settings and given to the crew.
//!
//! The end begins with what the server has in hand: only when that is finished are
//! the others told. Their order follows from who holds what: the stop token ends the
//! sources, they drop their channels, so the mux ends, so the deliveries and the
//! history end. The database ends when nobody who writes to it is left, and the
//! server when nobody is left who hands updates over.

use std::{convert::Infallible, sync::Arc};

use anyhow::Context as _;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Ends,
    levels::{Level, Levels},
};
use crate::{
    client::Identity,
    clock,
    db::{self, Db, Sequence, Stored},
    history::{Bounds, History, HistoryReader},
    host::Host,
    manifest::Preparation,
    mux::{Mux, Notify},
    pod::SourceName,
    server::{
        self, ConnectionStats, CredentialReload, LastReload, Limits, Probe, Server, SinkFailing, SinkStatus,
        View,
    },
    settings::{self, FileSettings, Kubeconfig, PassedSocket, ProxySettings, Settings, SinkSetting},
    sink::{Acknowledged, Delivery, DeliveryStatus, Jsonl, Reopen},
    source::{
        SourceFailing, SourceStatus,
        api::{self, ApiHandle, ApiSource},
        file::{self, FileHandle, FileSource, FileStatus, Noticing},
        http::{HttpSource, Posts},
        last_good::LastGood,
        url::{self, Tuning, UrlHandle, UrlSource},
    },
    supervise::Tasks,
};

/// The stream of `/updates` among those that have durable numbers.
const UPDATES: &str = "/updates";

/// Those who can be told something while the agent runs.
pub(super) struct Handles {
    file: Option<FileHandle>,
    url: Option<UrlHandle>,
    api: Option<ApiHandle>,
    /// The server, if there is one.
    server: Option<ServerHandle>,
    /// What the server shows of the last reload.
    reload: watch::Sender<LastReload>,
    /// The files of updates.
    updates: Vec<Reopen>,
}

/// What can be done with the server while it runs.
struct ServerHandle {
    /// Reads token and certificates again.
    reread: CredentialReload,
    /// Cancelled when it has finished what was in hand.
    finished: CancellationToken,
}

impl Handles {
    /// Notes that the settings have been read, and whether they could be used.
    pub(super) fn reloaded(&self, successful: bool) {
        self.reload.send_modify(|last| last.note(successful, clock::now()));
    }

    /// Tells everybody what the settings say now. Everything is looked at anew.
    pub(super) fn retune(&self, settings: &Settings) {
        if let (Some(file), Some(settings)) = (&self.file, &settings.file) {
            file.retune(settings.check_frequency, on_invalid(settings));
        }
        if let (Some(url), Some(settings)) = (&self.url, &settings.url) {
            url.retune(Tuning {
                check_frequency: settings.check_frequency,
                headers: settings.headers.clone(),
                ca_file: settings.ca_file.clone(),
                identity: identity(settings),
                sha256: settings.sha256,
            });
        }
        if let (Some(api), Some(given)) = (&self.api, &settings.kubeconfig) {
            api.retune(kubeconfig(given));
        }
        for file in &self.updates {
            file.now();
        }
        if let Some(server) = &self.server {
            server.reread.now(&settings.server);
        }
    }

    /// Cancelled when the server has finished what was in hand when it was asked to.
    pub(super) fn finished(&self) -> Option<CancellationToken> {
        self.server.as_ref().map(|server| server.finished.clone())
    }
}

/// What was made: those who can be told something, and those who can be looked at.
pub(super) struct Wired {
    pub(super) handles: Handles,
    pub(super) levels: Levels,
    pub(super) mux: Mux,
}

/// Makes everything and starts it, in a process that was `started` then.
///
/// # Errors
/// If something cannot be used as it was given; nothing has been delivered then.
pub(super) async fn wire(
    settings: &Settings,
    passed: Vec<PassedSocket>,
    started: Timestamp,
    ends: &Ends,
    crew: &mut Tasks,
) -> anyhow::Result<Wired> {
    // What is refused here leaves the state untouched; who connects already waits in the kernel.
    let server = if settings.server.listens() {
        let node = settings.node_name.clone();
        Some(Server::bind(&settings.server, passed, node, Limits::default()).await?)
    } else {
        None
    };
    let (mux, turning) = Mux::new(&configured(settings));
    let mut wiring = Wiring::new(settings, ends, crew, mux).await?;
    let updates = wiring.sinks()?;
    let file = wiring.file().await?;
    let url = wiring.url().await?;
    let api = wiring.api().await?;
    let reload = watch::Sender::new(LastReload::at_start(started));
    let handles = Handles { file, url, api, server: None, reload, updates };
    let server = server.map(|server| wiring.http(&handles, server)).transpose()?;
    wiring.crew.spawn("mux", async {
        turning.run().await;
        Ok(())
    });
    let Wiring { mux, levels, .. } = wiring;
    Ok(Wired { handles: Handles { server, ..handles }, levels, mux })
}

/// Which sources there are. What can be posted to is a source.
fn configured(settings: &Settings) -> Vec<SourceName> {
    let sources = [
        (SourceName::File, settings.file.is_some()),
        (SourceName::Http, settings.server.listens()),
        (SourceName::Url, settings.url.is_some()),
        (SourceName::Api, settings.kubeconfig.is_some()),
    ];
    sources.into_iter().filter_map(|(source, configured)| configured.then_some(source)).collect()
}

/// Everything that the tasks are made of.
struct Wiring<'a> {
    settings: &'a Settings,
    stop: &'a CancellationToken,
    finish: &'a CancellationToken,
    crew: &'a mut Tasks,
    mux: Mux,
    db: Option<Db>,
    stored: Stored,
    acknowledged: Acknowledged,
    sinks: Vec<Probe<SinkStatus>>,
    levels: Levels,
    /// Held by all who hand updates over; nobody ever sends.
    busy: mpsc::Sender<Infallible>,
    idle: Option<mpsc::Receiver<Infallible>>,
}

impl<'a> Wiring<'a> {
    async fn new(
        settings: &'a Settings,
        Ends { finish, stop }: &'a Ends,
        crew: &'a mut Tasks,
        mux: Mux,
    ) -> anyhow::Result<Self> {
        let (mut db, mut stored) = (None, Stored::default());
        if let Some(dir) = &settings.state_dir {
            // The check of all that is in it may take its time; meanwhile more of it is asked for.
            let dir = dir.clone();
            let (way, writer, found) =
                tokio::task::spawn_blocking(move || db::open(&Host::default(), &dir)).await??;
            // A plain thread for blocking work: the disk may take its time.
            crew.spawn("db", async { Ok(tokio::task::spawn_blocking(|| writer.run()).await?) });
            (db, stored) = (Some(way), found);
        }
        let (busy, idle) = mpsc::channel(1);
        let (acknowledged, sinks) = (Arc::new(watch::Sender::default()), Vec::new());
        let levels =
            Levels { merged: Level::new(mux.merged(), Clone::clone), sources: Vec::new(), sinks: Vec::new() };
        Ok(Self {
            settings,
            stop,
            finish,
            crew,
            mux,
            db,
            stored,
            acknowledged,
            sinks,
            levels,
            busy,
            idle: Some(idle),
        })
    }

    /// The numbers of a stream: they go on from the last run if there is state.
    fn numbers(&self, stream: &str) -> Sequence {
        self.db
            .as_ref()
            .map_or_else(Sequence::fleeting, |db| Sequence::durable(stream, db.clone(), &self.stored))
    }

    fn sinks(&mut self) -> anyhow::Result<Vec<Reopen>> {
        let mut files = Vec::new();
        for sink in &self.settings.sinks {
            let (name, jsonl, numbers) = match sink {
                // Its reader starts from nothing each time, and so does it.
                SinkSetting::Stdout => ("jsonl".to_owned(), Jsonl::stdout()?, Sequence::fleeting()),
                SinkSetting::File(path) => {
                    let name = format!("jsonl={}", path.display());
                    let numbers = self.numbers(&name);
                    (name, Jsonl::file(path)?, numbers)
                }
            };
            let updates = self.mux.updates(self.settings.notify);
            files.push(jsonl.reopen());
            let (delivery, status) = Delivery::new(&name, jsonl, updates);
            let delivery = delivery.numbered(numbers).reporting(&self.acknowledged);
            // From the first step on, a reader that goes away is no failure.
            let (stop, busy) = (self.finish.clone(), self.busy.clone());
            self.levels.sinks.push(Level::new(status.clone(), {
                let name = name.clone();
                move |status| sink_status(&name, status)
            }));
            self.sinks.push(Arc::new({
                let name = name.clone();
                move || sink_status(&name, &status.borrow())
            }));
            self.crew.spawn_with_heartbeat(format!("sink {name}"), async move {
                let _busy = busy;
                Ok(delivery.run(stop).await?)
            });
        }
        Ok(files)
    }

    fn preparation(&self, source: SourceName) -> Preparation {
        Preparation { source, node: self.settings.node_name.clone(), generate: None, namespace: None }
    }

    /// What a source gave when all was well with it.
    fn last_good(&mut self, source: SourceName) -> LastGood {
        let node = self.settings.node_name.clone();
        match &self.db {
            Some(db) => LastGood::new(source, node, db.clone(), &mut self.stored),
            None => LastGood::none(source, node),
        }
    }

    /// What a source left that is not configured any more is not to come back
    /// when it is configured again.
    async fn forget(&mut self, source: SourceName) {
        let mut good = self.last_good(source);
        good.clear();
        good.finish().await;
    }

    async fn file(&mut self) -> anyhow::Result<Option<FileHandle>> {
        let Some(given) = &self.settings.file else {
            self.forget(SourceName::File).await;
            return Ok(None);
        };
        let channel = self.mux.channel(SourceName::File).context("the file source has its channel")?;
        let settings = file::FileSettings {
            check_frequency: given.check_frequency,
            on_invalid: on_invalid(given),
            ..file::FileSettings::new(&given.path, self.preparation(SourceName::File))
        };
        let (source, handle) = FileSource::new(settings, channel);
        let source = source.with_last_good(self.last_good(SourceName::File));
        let path = given.path.display().to_string();
        let level = Level::new(handle.status(), move |status| file_status(&path, status));
        self.levels.sources.push((SourceName::File, level));
        let stop = self.stop.clone();
        self.crew.spawn("source file", async {
            source.run(stop).await;
            Ok(())
        });
        Ok(Some(handle))
    }

    async fn url(&mut self) -> anyhow::Result<Option<UrlHandle>> {
        let Some(given) = &self.settings.url else {
            self.forget(SourceName::Url).await;
            return Ok(None);
        };
        let channel = self.mux.channel(SourceName::Url).context("the url source has its channel")?;
        let settings = url::UrlSettings {
            headers: given.headers.clone(),
            ca_file: given.ca_file.clone(),
            identity: identity(given),
            sha256: given.sha256,
            check_frequency: given.check_frequency,
            ..url::UrlSettings::new(given.url.uri().clone(), self.preparation(SourceName::Url))
        };
        let (source, handle) = UrlSource::new(settings, channel);
        let source = source.with_last_good(self.last_good(SourceName::Url));
        self.levels.sources.push((SourceName::Url, Level::new(handle.watch(), Clone::clone)));
        let stop = self.stop.clone();
        self.crew.spawn("source url", async {
            source.run(stop).await;
            Ok(())
        });
        Ok(Some(handle))
    }

    async fn api(&mut self) -> anyhow::Result<Option<ApiHandle>> {
        let Some(given) = &self.settings.kubeconfig else {
            self.forget(SourceName::Api).await;
            return Ok(None);
        };
        let channel = self.mux.channel(SourceName::Api).context("the api source has its channel")?;
        let settings =
            api::ApiSettings { kubeconfig: kubeconfig(given), node: self.settings.node_name.clone() };
        let (source, handle) = ApiSource::new(settings, channel);
        let source = source.with_proxies(proxies(&self.settings.proxies));
        let source = source.with_last_good(self.last_good(SourceName::Api));
        self.levels.sources.push((SourceName::Api, Level::new(handle.watch(), Clone::clone)));
        let stop = self.stop.clone();
        self.crew.spawn("source api", async {
            source.run(stop).await;
            Ok(())
        });
        Ok(Some(handle))
    }

    /// The posted set, the history of updates and the server, which listens already.
    fn http(&mut self, handles: &Handles, server: Server) -> anyhow::Result<ServerHandle> {
        let channel = self.mux.channel(SourceName::Http).context("the http source has its channel")?;
        let node = &self.settings.node_name;
        let acknowledged = self.acknowledged.subscribe();
        let (source, posts) = HttpSource::new(node, self.db.clone(), &self.stored, channel, acknowledged)?;
        let stop = self.stop.clone();
        self.crew.spawn("source http", async {
            source.run(stop).await;
            Ok(())
        });
        self.levels.sources.push((SourceName::Http, Level::new(posts.watch(), Clone::clone)));
        let handle = ServerHandle { reread: server.credential_reload(), finished: server.drained() };
        let view = View { connections: server.stats(), ..self.view(posts, handles) };
        let router = server::router(view);
        // It goes on answering while the others end: /readyz says that it is stopping.
        let ended = CancellationToken::new();
        let (idle, last, finish) = (self.idle.take(), ended.clone(), self.finish.clone());
        self.crew.spawn("server", async move {
            let idle = async {
                if let Some(mut idle) = idle {
                    idle.recv().await;
                }
                last.cancel();
            };
            tokio::join!(server.run(router, finish, ended), idle);
            Ok(())
        });
        Ok(handle)
    }

    fn view(&mut self, posts: Posts, handles: &Handles) -> View {
        let mut sources: Vec<(SourceName, Probe<SourceStatus>)> = Vec::new();
        if let (Some(handle), Some(given)) = (&handles.file, &self.settings.file) {
            let (status, path) = (handle.status(), given.path.display().to_string());
            sources.push((SourceName::File, Arc::new(move || file_status(&path, &status.borrow()))));
        }
        let stored = posts.clone();
        sources.push((SourceName::Http, Arc::new(move || stored.status())));
        if let Some(url) = handles.url.clone() {
            sources.push((SourceName::Url, Arc::new(move || url.status())));
        }
        if let Some(api) = handles.api.clone() {
            sources.push((SourceName::Api, Arc::new(move || api.status())));
        }
        let mux = self.mux.clone();
        View {
            node: self.settings.node_name.clone(),
            merged: self.mux.merged(),
            posts,
            history: self.history(),
            sources: sources.into(),
            reflector: handles.api.as_ref().map(ApiHandle::metrics),
            sinks: std::mem::take(&mut self.sinks).into(),
            turns: Arc::new(move || {
                let mux = mux.clone();
                Box::pin(async move { mux.turns().await })
            }),
            stopping: self.finish.clone(),
            started: handles.reload.borrow().succeeded,
            reload: handles.reload.subscribe(),
            connections: ConnectionStats::default(),
            host: crate::host::Host::default(),
        }
    }

    fn history(&mut self) -> HistoryReader {
        let updates = self.mux.updates(Notify::Incremental);
        let (history, reader) = History::new(updates, self.numbers(UPDATES), Bounds::default());
        let busy = self.busy.clone();
        self.crew.spawn_with_heartbeat("history", async move {
            let _busy = busy;
            Ok(history.run().await?)
        });
        reader
    }
}

fn sink_status(name: &str, delivery: &DeliveryStatus) -> SinkStatus {
    SinkStatus {
        name: name.to_owned(),
        acknowledged: delivery.acknowledged,
        busy_since: delivery.busy_since,
        failing: delivery.failing.as_ref().map(|failing| SinkFailing {
            since: failing.since,
            attempts: failing.attempts,
            next_attempt: failing.next_attempt,
            error: failing.error.clone(),
        }),
    }
}

fn file_status(path: &str, status: &FileStatus) -> SourceStatus {
    let noticing = match &status.noticing {
        Noticing::Starting => "the first scan is under way".to_owned(),
        Noticing::Watching => "watching".to_owned(),
        Noticing::Polling { why } => format!("scanning each second: {why}"),
    };
    let unkept = status.unkept.as_ref().map(|why| format!("; not kept for the next start: {why}"));
    SourceStatus {
        target: path.to_owned(),
        detail: format!("{noticing}; {} manifests{}", status.files, unkept.unwrap_or_default()),
        last_success: status.last_scan.filter(|_| status.error.is_none()),
        failing: status.error.clone().zip(status.failing_since).map(|(error, since)| SourceFailing {
            since,
            attempts: 1,
            error,
            // What is wrong with manifests is in the listing.
            quotes: false,
        }),
        ..SourceStatus::default()
    }
}

/// What the file source calls what the settings say.
fn on_invalid(given: &FileSettings) -> file::OnInvalid {
    match given.on_invalid {
        settings::OnInvalid::Keep => file::OnInvalid::Keep,
        settings::OnInvalid::Remove => file::OnInvalid::Remove,
    }
}

/// Who this node is to the URL's server.
pub(super) fn identity(given: &settings::UrlSettings) -> Option<Identity> {
    let files = given.client_certificate.as_ref()?;
    Some(Identity { cert_file: files.certificate.clone(), key_file: files.key.clone() })
}

/// What the apiserver source calls what the settings say.
pub(super) fn kubeconfig(given: &Kubeconfig) -> api::Kubeconfig {
    match given.clone() {
        Kubeconfig::File(path) => api::Kubeconfig::File(path),
        Kubeconfig::InCluster { host, port } => api::Kubeconfig::InCluster(api::InCluster::new(host, port)),
    }
}

pub(super) fn proxies(given: &ProxySettings) -> api::Proxies {
    let ProxySettings { https, http, no } = given.clone();
    api::Proxies { https, http, no }
}
