//! An API server under a real apiserver source, a real mux and one consumer, with time under control.

use std::{collections::BTreeMap, future::Future, mem, time::Duration};

use podmux::{
    mux::{Mux, Notify, Updates},
    pod::{NodeName, Op, Pod, PodUpdate, SourceName},
    source::{
        SourceFailing, SourceStatus,
        api::{ApiHandle, ApiSource, Config, Kubeconfig, Proxies},
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

/// How far the clock may jump at once.
const STRIDE: Duration = Duration::from_millis(500);
/// How long nothing may happen between two jumps, in real time: what is under way
/// between two sockets arrives meanwhile.
const BREATH: Duration = Duration::from_millis(1);

/// Runs a test over TCP and once more over TLS, each with a log of its own and
/// a clock that jumps when there is nothing to do.
pub fn over_both<F: Future<Output = ()>>(test: impl Fn(ApiServer, Log) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    for authority in [None, Some(&authority)] {
        println!("with TLS: {}", authority.is_some());
        collected(Builder::new_current_thread().start_paused(true), |log| async {
            let pacer = tokio::spawn(pace());
            let server = ApiServer::start(authority);
            test(server.clone(), log).await;
            assert_eq!(server.faults(), [""; 0]);
            pacer.abort();
        });
    }
}

/// Keeps the clock from running away from the sockets: a jump is made only when
/// nobody has anything to do, but a byte that is under way is nobody's yet.
async fn pace() {
    loop {
        // While a thread blocks, the clock stands.
        spawn_blocking(|| std::thread::sleep(BREATH)).await.unwrap();
        sleep(STRIDE).await;
    }
}

/// A source at work.
pub struct Reflected {
    pub server: ApiServer,
    pub handle: ApiHandle,
    pub mux: Mux,
    pub stop: CancellationToken,
    pub source: JoinHandle<()>,
    /// Where its kubeconfig is.
    _directory: TempDir,
    updates: Updates,
    /// What the updates have come to.
    told: BTreeMap<String, Value>,
    /// The updates as `OP name`, since the last look.
    heard: Vec<String>,
}

impl Reflected {
    /// A source that reflects a server.
    pub fn start(server: &ApiServer) -> Self {
        Self::start_with(server, &json!({}), |source| source)
    }

    /// A source with these credentials, that is given more than its settings.
    pub fn start_with(server: &ApiServer, user: &Value, more: impl FnOnce(ApiSource) -> ApiSource) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = Kubeconfig::File(server.kubeconfig(directory.path(), user));
        let config = Config { kubeconfig, proxies: Proxies::default() };
        let node = NodeName::new(NODE).unwrap();
        let (mux, turn) = Mux::new(&[SourceName::Api]);
        let (source, handle) = ApiSource::new(config, node, mux.channel(SourceName::Api).unwrap());
        let stop = CancellationToken::new();
        tokio::spawn(turn.run());
        let source = tokio::spawn(more(source).run(stop.clone()));
        let updates = mux.updates(Notify::Incremental);
        let (told, heard) = (BTreeMap::new(), Vec::new());
        Self {
            server: server.clone(),
            handle,
            mux,
            stop,
            source,
            _directory: directory,
            updates,
            told,
            heard,
        }
    }

    /// A source that has the pods of its server and watches.
    pub async fn at_work(server: &ApiServer) -> Self {
        let mut source = Self::start(server);
        source.converges().await;
        source.watches().await;
        source
    }

    fn take(&mut self, update: &PodUpdate) {
        let wanted = self.server.pods();
        for pod in update.pods.iter() {
            let key = pod.key().to_string();
            self.heard.push(format!("{} {}", update.op, pod.key().name()));
            let pod = plain(pod);
            match update.op {
                Op::Remove => {
                    let gone = self.told.remove(&key).expect("what is removed was told");
                    let uid = |pod: &Value| pod["metadata"]["uid"].clone();
                    let is_wanted = wanted.get(&key).is_some_and(|wanted| uid(wanted) == uid(&gone));
                    assert!(!is_wanted, "{key} was removed, and the server wants it");
                }
                Op::Add => assert!(self.told.insert(key, pod).is_none(), "ADD of a known pod"),
                _ => assert!(self.told.insert(key, pod).is_some(), "{} of an unknown pod", update.op),
            }
        }
    }

    /// Lets time pass.
    pub async fn pass(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        while let Ok(update) = tokio::time::timeout_at(end, self.updates.next()).await {
            self.take(&update.expect("the mux goes on"));
        }
    }

    /// Waits until what was told is what the server wants, for a minute at most.
    pub async fn converges(&mut self) {
        self.converges_within(Duration::from_mins(1)).await;
    }

    pub async fn converges_within(&mut self, time: Duration) {
        let converging = async {
            let mut merged = self.mux.merged();
            while !self.is_converged() {
                // A new version alone changes the view, and is told to nobody.
                tokio::select! {
                    update = self.updates.next() => self.take(&update.expect("the mux goes on")),
                    changed = merged.changed() => changed.expect("the mux goes on"),
                }
            }
        };
        if timeout(time, converging).await.is_err() {
            let wanted = wanted(&self.server);
            panic!(
                "not so within {time:?}: told {:#?}, wanted {:#?}, asked {:#?}, {:#?}",
                self.told,
                wanted,
                self.server.briefly(),
                self.status()
            );
        }
    }

    /// Whether all that the server wants has been told, and the view is the same.
    fn is_converged(&self) -> bool {
        let merged = self.mux.merged().borrow().clone();
        let view: BTreeMap<String, Value> =
            merged.iter().map(|(key, entry)| (key.to_string(), plain(entry.pod()))).collect();
        let wanted = wanted(&self.server);
        let is_seen = merged.state(SourceName::Api) == Some(SourceState::Synced);
        // A new version alone is told to nobody.
        let told = |pods: &BTreeMap<String, Value>| -> Vec<Value> {
            pods.values().cloned().map(versionless).collect()
        };
        is_seen && view == wanted && told(&self.told) == told(&wanted)
    }

    /// What was heard since the last look.
    pub fn heard(&mut self) -> Vec<String> {
        mem::take(&mut self.heard)
    }

    /// The image of a pod, as it was told.
    pub fn image(&self, name: &str) -> &str {
        let pod = self.told.get(&format!("default/{name}"));
        pod.map_or("", |pod| pod["spec"]["containers"][0]["image"].as_str().unwrap())
    }

    /// Waits until a pod that the server has just been given has gone all the way.
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

    /// The resource version that is known.
    pub fn version(&self) -> String {
        let version = self.status().reflector.expect("it has a reflector").resource_version;
        version.map_or_else(String::new, |version| version.to_string())
    }

    /// Waits for a state.
    pub async fn is(&self, what: &str, is: impl FnMut(&SourceStatus) -> bool) {
        let mut watch = self.handle.status();
        let Ok(status) = timeout(Duration::from_mins(2), watch.wait_for(is)).await else {
            panic!("it is not {what}: {:#?}, asked {:?}", self.status(), self.server.briefly());
        };
        drop(status.expect("the source goes on"));
    }

    /// Waits until it fails so.
    pub async fn fails(&self, wanted: &str) {
        let fails = |status: &SourceStatus| {
            status.failing.as_ref().is_some_and(|failing| failing.error.contains(wanted))
        };
        self.is(&format!("failing with {wanted:?}"), fails).await;
    }

    /// Waits until it watches and all is well.
    pub async fn watches(&self) {
        let watches = |status: &SourceStatus| {
            status.failing.is_none()
                && status.reflector.as_ref().is_some_and(|reflector| reflector.phase == "watching")
        };
        self.is("watching", watches).await;
        self.server.is_watched().await;
    }

    /// How many errors of a kind were counted.
    pub fn errors(&self, kind: &str) -> u64 {
        self.handle.metrics().errors.get_or_create(&[("kind", kind.to_owned())]).get()
    }

    /// What was refused, as `origin: reason`.
    pub fn rejections(&self) -> Vec<String> {
        let merged = self.mux.merged().borrow().clone();
        merged.rejections().map(|rejection| format!("{}: {}", rejection.origin, rejection.reason)).collect()
    }

    /// How many requests come while time passes.
    pub async fn requests_in(&mut self, time: Duration) -> usize {
        let requests = |server: &ApiServer| server.seen().len() + server.probes();
        let before = requests(&self.server);
        self.pass(time).await;
        requests(&self.server) - before
    }

    /// Stops it, and waits for its end.
    pub async fn end(self) {
        self.stop.cancel();
        soon(self.source).await.unwrap();
    }
}

/// The pods that a server wants, as they are compared.
fn wanted(server: &ApiServer) -> BTreeMap<String, Value> {
    let is_mirror = |pod: &Value| pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string();
    server
        .pods()
        .into_iter()
        .filter(|(_, pod)| !is_mirror(pod))
        .map(|(key, pod)| (key, compared(pod)))
        .collect()
}

/// A pod as it is compared: without what podmux adds.
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
