//! A real apiserver source on a scripted API server, with a real mux, one consumer and a paused clock.

use std::{collections::BTreeMap, future::Future, mem, time::Duration};

use podmux::{
    mux::{Mux, Notify, Updates},
    pod::{NodeName, Op, Pod, PodUpdate, SecurityLevel, SourceName},
    source::{
        SourceFailing, SourceStatus,
        api::{ApiHandle, ApiSource, Config, Kubeconfig, Proxies, ReflectorMetrics},
    },
    storage::SourceState,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    runtime::Builder,
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    apiserver::{ApiServer, NODE},
    files::soon,
    logs::{Log, collected},
    web::Authority,
};

/// The longest jump of the paused clock.
const STRIDE: Duration = Duration::from_millis(500);
/// The real time between two jumps, in which data arrives at the sockets.
const BREATH: Duration = Duration::from_millis(1);

/// Runs a test over TCP, over TLS, and with protobuf, each with its own log and a paused clock.
pub fn over_both<F: Future<Output = ()>>(test: impl Fn(ApiServer, Log) -> F) {
    over(&[(false, false), (true, false), (false, true)], test);
}

/// Runs a long test over TLS, and with protobuf.
pub fn over_tls_and_protobuf<F: Future<Output = ()>>(test: impl Fn(ApiServer, Log) -> F) {
    over(&[(true, false), (false, true)], test);
}

/// Runs a test over TLS, because credentials are sent over nothing else.
pub fn over_tls<F: Future<Output = ()>>(test: impl Fn(ApiServer, Log) -> F) {
    over(&[(true, false)], test);
}

fn over<F: Future<Output = ()>>(ways: &[(bool, bool)], test: impl Fn(ApiServer, Log) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    for (is_tls, is_protobuf) in ways.iter().copied() {
        println!("with TLS: {is_tls}, with protobuf: {is_protobuf}");
        let authority = Some(&authority).filter(|_| is_tls);
        collected(Builder::new_current_thread().start_paused(true), |log| async {
            let pacer = tokio::spawn(pace());
            let server = ApiServer::start(authority);
            if is_protobuf {
                server.speak_protobuf(true);
            }
            test(server.clone(), log).await;
            assert_eq!(server.invalid_requests(), [""; 0]);
            pacer.abort();
        });
    }
}

/// Slows the paused clock down. It jumps whenever all tasks wait, even while data is on its
/// way between two sockets.
async fn pace() {
    loop {
        // The clock does not jump while a thread blocks.
        spawn_blocking(|| std::thread::sleep(BREATH)).await.unwrap();
        sleep(STRIDE).await;
    }
}

/// A running source.
pub struct Reflected {
    pub server: ApiServer,
    pub handle: ApiHandle,
    pub metrics: ReflectorMetrics,
    pub mux: Mux,
    pub stop: CancellationToken,
    pub source: JoinHandle<()>,
    config: Config,
    /// Contains the kubeconfig.
    _directory: TempDir,
    updates: Updates,
    /// The delivered view.
    delivered: BTreeMap<String, Value>,
    /// The new updates, as `OP name`.
    new: Vec<String>,
}

impl Reflected {
    /// Starts a source.
    pub fn start(server: &ApiServer) -> Self {
        Self::start_with(server, &json!({}), |source| source)
    }

    /// Starts a source with these credentials, after a change by the test.
    pub fn start_with(server: &ApiServer, user: &Value, more: impl FnOnce(ApiSource) -> ApiSource) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = Kubeconfig::File(server.kubeconfig(directory.path(), user));
        let config =
            Config { kubeconfig, proxies: Proxies::default(), pod_security: SecurityLevel::default() };
        let node = NodeName::new(NODE).unwrap();
        let (mux, turn) = Mux::new(&[SourceName::Api]);
        let (source, handle) = ApiSource::new(config.clone(), node, mux.channel(SourceName::Api).unwrap());
        let metrics = source.metrics();
        let stop = CancellationToken::new();
        tokio::spawn(turn.run());
        let source = tokio::spawn(more(source).run(stop.clone()));
        let updates = mux.updates(Notify::Incremental);
        let (delivered, new) = (BTreeMap::new(), Vec::new());
        Self {
            server: server.clone(),
            handle,
            metrics,
            mux,
            stop,
            source,
            config,
            _directory: directory,
            updates,
            delivered,
            new,
        }
    }

    /// Starts a source and waits until it has the server's pods and watches.
    pub async fn watching(server: &ApiServer) -> Self {
        let mut source = Self::start(server);
        source.converges().await;
        source.wait_for_watch().await;
        source
    }

    fn apply(&mut self, update: &PodUpdate) {
        let wanted = self.server.pods();
        for pod in update.pods.iter() {
            let key = pod.key().to_string();
            self.new.push(format!("{} {}", update.op, pod.key().name()));
            let pod = plain(pod);
            match update.op {
                Op::Remove => {
                    let gone = self.delivered.remove(&key).expect("REMOVE of an unknown pod");
                    let uid = |pod: &Value| pod["metadata"]["uid"].clone();
                    let is_wanted = wanted.get(&key).is_some_and(|wanted| uid(wanted) == uid(&gone));
                    assert!(!is_wanted, "{key} was removed, but the server wants it");
                }
                Op::Add => assert!(self.delivered.insert(key, pod).is_none(), "ADD of a known pod"),
                _ => assert!(self.delivered.insert(key, pod).is_some(), "{} of an unknown pod", update.op),
            }
        }
    }

    /// Sets the level that pods may not exceed, as a reload does.
    pub fn set_level(&self, pod_security: SecurityLevel) {
        self.handle.retune(Config { pod_security, ..self.config.clone() });
    }

    /// Lets time pass.
    pub async fn pass(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        while let Ok(update) = tokio::time::timeout_at(end, self.updates.next()).await {
            self.apply(&update.expect("the mux goes on"));
        }
    }

    /// Waits until the delivered view is the server's, for a minute at most.
    pub async fn converges(&mut self) {
        self.converges_within(Duration::from_mins(1)).await;
    }

    pub async fn converges_within(&mut self, time: Duration) {
        let converging = async {
            let mut merged = self.mux.merged();
            while !self.is_converged() {
                // A change of the resource version changes the merged view but gives no update.
                tokio::select! {
                    update = self.updates.next() => self.apply(&update.expect("the mux goes on")),
                    changed = merged.changed() => changed.expect("the mux goes on"),
                }
            }
        };
        if timeout(time, converging).await.is_err() {
            let wanted = wanted(&self.server);
            panic!(
                "not converged within {time:?}: delivered {:#?}, wanted {:#?}, requests {:#?}, {:#?}",
                self.delivered,
                wanted,
                self.server.summaries(),
                self.status()
            );
        }
    }

    /// Whether the delivered view and the merged view are the server's.
    fn is_converged(&self) -> bool {
        let merged = self.mux.merged().borrow().clone();
        let view: BTreeMap<String, Value> =
            merged.iter().map(|(key, entry)| (key.to_string(), plain(entry.pod()))).collect();
        let wanted = wanted(&self.server);
        let is_synced = merged.state(SourceName::Api) == Some(SourceState::Synced);
        // A change of the resource version alone gives no update.
        let without_version = |pods: &BTreeMap<String, Value>| -> Vec<Value> {
            pods.values().cloned().map(versionless).collect()
        };
        is_synced && view == wanted && without_version(&self.delivered) == without_version(&wanted)
    }

    /// The updates since the last call, as `OP name`.
    pub fn updates(&mut self) -> Vec<String> {
        mem::take(&mut self.new)
    }

    /// The image of a delivered pod.
    pub fn image(&self, name: &str) -> &str {
        let pod = self.delivered.get(&format!("default/{name}"));
        pod.map_or("", |pod| pod["spec"]["containers"][0]["image"].as_str().unwrap())
    }

    /// Adds a pod to the server and waits until it is delivered.
    pub async fn marker(&mut self, name: &str) {
        self.server.put(super::apiserver::pod(name, "marker"));
        self.converges().await;
    }

    pub fn status(&self) -> SourceStatus {
        self.handle.status().borrow().clone()
    }

    pub fn failing(&self) -> Option<SourceFailing> {
        self.status().failing
    }

    pub fn phase(&self) -> &'static str {
        self.status().reflector.expect("it has a reflector").phase
    }

    /// The resource version in the status.
    pub fn version(&self) -> String {
        let version = self.status().reflector.expect("it has a reflector").resource_version;
        version.map_or_else(String::new, |version| version.to_string())
    }

    /// Waits for a status.
    pub async fn wait_until(&self, what: &str, is: impl FnMut(&SourceStatus) -> bool) {
        let mut watch = self.handle.status();
        let Ok(status) = timeout(Duration::from_mins(2), watch.wait_for(is)).await else {
            panic!("it is not {what}: {:#?}, requests {:?}", self.status(), self.server.summaries());
        };
        drop(status.expect("the source goes on"));
    }

    /// Waits for an error that contains a text.
    pub async fn wait_for_failure(&self, wanted: &str) {
        let fails = |status: &SourceStatus| {
            status.failing.as_ref().is_some_and(|failing| failing.error.contains(wanted))
        };
        self.wait_until(&format!("failing with {wanted:?}"), fails).await;
    }

    /// Waits until it watches without a failure.
    pub async fn wait_for_watch(&self) {
        let watches = |status: &SourceStatus| {
            status.failing.is_none()
                && status.reflector.as_ref().is_some_and(|reflector| reflector.phase == "watching")
        };
        self.wait_until("watching", watches).await;
        self.server.wait_for_watch().await;
    }

    /// How many errors of a kind were counted.
    pub fn errors(&self, kind: &str) -> u64 {
        self.metrics.errors.get_or_create(&[("kind", kind.to_owned())]).get()
    }

    /// The rejections, as `origin: reason`.
    pub fn rejections(&self) -> Vec<String> {
        let merged = self.mux.merged().borrow().clone();
        merged.rejections().map(|rejection| format!("{}: {}", rejection.origin, rejection.reason)).collect()
    }

    /// How many requests come while time passes.
    pub async fn requests_in(&mut self, time: Duration) -> usize {
        let requests = |server: &ApiServer| server.received().len() + server.probes();
        let before = requests(&self.server);
        self.pass(time).await;
        requests(&self.server) - before
    }

    /// Stops the source and waits for its end.
    pub async fn stop(self) {
        self.stop.cancel();
        soon(self.source).await.unwrap();
    }
}

/// The server's pods in the form that is compared, without mirror pods.
fn wanted(server: &ApiServer) -> BTreeMap<String, Value> {
    let is_mirror = |pod: &Value| pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string();
    server
        .pods()
        .into_iter()
        .filter(|(_, pod)| !is_mirror(pod))
        .map(|(key, pod)| (key, compared(pod)))
        .collect()
}

/// A pod without the annotations that podmux adds.
fn plain(pod: &Pod) -> Value {
    let text = pod.text();
    assert!(!String::from_utf8_lossy(text).contains("managedFields"));
    let mut pod: Value = serde_json::from_slice(text).unwrap();
    let annotations = &mut pod["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/config.source"], "api");
    let annotations = annotations.as_object_mut().unwrap();
    annotations.retain(|name, _| !name.starts_with("kubernetes.io/config.s"));
    if annotations.is_empty() {
        pod["metadata"].as_object_mut().unwrap().remove("annotations");
    }
    pod
}

fn versionless(mut pod: Value) -> Value {
    pod["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    pod
}

fn compared(mut pod: Value) -> Value {
    pod["metadata"].as_object_mut().unwrap().remove("managedFields");
    pod
}
