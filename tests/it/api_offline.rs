//! The restored listing of the apiserver source while the server is down, and its age.

use std::{
    cell::Cell,
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::support::{
    apiserver::{self, Answer, ApiServer, NODE, ReceivedRequest, RequestKind, Then},
    kubeconfig::config,
    plain::Connection,
    process::{Process, podmux, wait_for},
    random::Random,
    stream::Replica,
};

/// An API server on a thread of its own.
struct Cluster {
    server: ApiServer,
    runtime: Runtime,
    uid: &'static str,
    is_down: Cell<bool>,
    /// How many requests came before the part of the test that counts them.
    ignored: Cell<usize>,
    /// The pods at each version, as `name=image …`.
    history: Mutex<BTreeMap<u64, String>>,
}

impl Cluster {
    /// A cluster without pods at a version. Its kube-system namespace has this UID.
    fn start(uid: &'static str, version: u64) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = {
            let _context = runtime.enter();
            ApiServer::start(None)
        };
        let (is_down, ignored, history) = (Cell::new(false), Cell::new(0), Mutex::default());
        let mut cluster = Self { server, runtime, uid, is_down, ignored, history };
        cluster.replace_by(uid, version);
        cluster
    }

    /// Puts another cluster without pods in its place.
    fn replace_by(&mut self, uid: &'static str, version: u64) {
        self.uid = uid;
        self.server.restore(version, &[]);
        self.identify();
        self.note();
    }

    /// Answers with the UID of the cluster.
    fn identify(&self) {
        let metadata = json!({"name": "kube-system", "uid": self.uid, "resourceVersion": "1"});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        self.server.respond_to_cluster_check(Answer::new(200, namespace.to_string(), Then::End));
    }

    fn put(&self, name: &str, image: &str) {
        let mut pod = apiserver::pod(name, image);
        pod["metadata"]["uid"] = format!("{}-{name}", self.uid).into();
        self.server.put(pod);
        self.note();
    }

    fn delete(&self, name: &str) {
        if self.server.pods().contains_key(&format!("default/{name}")) {
            self.server.delete(name);
            self.note();
        }
    }

    fn version(&self) -> u64 {
        self.server.version().parse().unwrap()
    }

    fn note(&self) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.insert(self.version(), self.images());
    }

    /// The pods as `name=image …`.
    fn images(&self) -> String {
        let pods = self.server.pods();
        let image =
            |(key, pod): (&String, &Value)| format!("{}={}", key.trim_start_matches("default/"), image(pod));
        pods.iter().map(image).collect::<Vec<_>>().join(" ")
    }

    fn down(&self) {
        self.server.down();
        self.is_down.set(true);
    }

    fn up(&self) {
        if self.is_down.replace(false) {
            let _context = self.runtime.enter();
            self.server.up();
        }
    }

    /// Waits until every change has been sent to a watch.
    fn wait_until_sent(&self) {
        wait_for(|| self.server.is_all_sent().then_some(()));
    }

    /// The requests for pods, without those before the test.
    fn requests(&self) -> Vec<ReceivedRequest> {
        self.server.received().split_off(self.ignored.get())
    }

    /// Whether a request was at the version of another cluster.
    fn was_asked_at(&self, version: &str) -> bool {
        self.requests().iter().any(|request| request.query("resourceVersion") == version)
    }
}

fn image(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap()
}

/// A node with a state directory.
struct Node {
    directory: TempDir,
    name: &'static str,
}

impl Node {
    /// A node of a cluster.
    fn of(cluster: &Cluster) -> Self {
        let node = Self { directory: tempfile::tempdir().unwrap(), name: NODE };
        node.configure(&cluster.server.url, &json!({}));
        node
    }

    fn at(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes the kubeconfig, with more fields of the cluster.
    fn configure(&self, url: &str, more: &Value) {
        let mut cluster = json!({"server": url});
        cluster.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fs::write(self.at("kubeconfig"), config(&cluster, &json!({})).to_string()).unwrap();
    }

    fn start(&self) -> Agent {
        let socket = PathBuf::from(self.at("socket"));
        let (listen, state, kubeconfig) =
            (format!("unix:{}", socket.display()), self.at("state"), self.at("kubeconfig"));
        let args = ["run", "--node-name", self.name, "--listen", &listen, "--state-dir", &state];
        let process = Process::start(podmux(&args).args(["--kubeconfig", &kubeconfig]));
        Agent { process, socket }
    }
}

/// A run of the agent.
struct Agent {
    process: Process,
    socket: PathBuf,
}

impl Agent {
    /// Waits until the sink has these pods, as `name=image …`.
    fn holds(&self, expected: &str) -> &Self {
        self.process.holds(expected, |held| images(held) == expected);
        self
    }

    fn get(&self, path: &str) -> String {
        let mut connection = wait_for(|| Connection::unix(&self.socket).ok());
        connection.ask("GET", path, b"").unwrap().text()
    }

    /// Waits for a status of the source in `/sources`.
    fn source(&self, what: impl Fn(&Value) -> bool) -> Value {
        wait_for(|| {
            let all: Value = serde_json::from_str(&self.get("/sources")).unwrap();
            let mut sources = all["items"].as_array().unwrap().iter();
            sources.find(|source| source["name"] == "api" && what(source)).cloned()
        })
    }

    /// Waits until the listing is restored.
    fn restored(&self) -> Value {
        self.source(|source| source["restored"].is_string())
    }

    /// Waits until the listing is live.
    fn synced(&self) -> Value {
        self.source(|source| source["state"] == "synced" && source["restored"].is_null())
    }

    /// Waits until a request has failed.
    fn failing(&self) -> Value {
        self.source(|source| source["failing"].is_object())
    }

    /// Every update so far, as `OP source COUNT`, without the empty ones.
    fn updates(&self) -> Vec<String> {
        let held = self.process.holds("anything", |_| true);
        let words = held.heard.iter().map(|line| line.split_once(' ').unwrap().1.to_owned());
        words.filter(|words| !words.ends_with(" 0")).collect()
    }

    fn end(self, signal: Signal) -> String {
        self.process.signal(signal);
        self.process.ends().1
    }
}

fn images(held: &Replica) -> String {
    let image = |(key, text): (&String, &String)| {
        let pod: Value = serde_json::from_str(text).unwrap();
        format!("{}={}", key.trim_start_matches("default/"), image(&pod))
    };
    held.pods.iter().map(image).collect::<Vec<_>>().join(" ")
}

/// A cluster with the pods a and b, and a node that has received them and is stopped.
fn stopped_node() -> (Cluster, Node) {
    let cluster = Cluster::start("one", 100);
    cluster.put("a", "i:1");
    cluster.put("b", "i:1");
    let node = Node::of(&cluster);
    let agent = node.start();
    agent.holds("a=i:1 b=i:1");
    let log = agent.end(Signal::TERM);
    assert!(log.ends_with("stopped"), "{log}");
    cluster.ignored.set(cluster.server.received().len());
    (cluster, node)
}

#[test]
fn a_start_waits_until_a_server_answers_that_was_away_for_a_moment() {
    let (cluster, node) = stopped_node();
    cluster.delete("a");
    let busy = Answer::status(503, "ServiceUnavailable", "not now");
    cluster.server.respond_times(1, RequestKind::WatchList, busy);
    let agent = node.start();
    agent.holds("b=i:1");
    assert_eq!(agent.updates(), ["ADD api 1"]);
    agent.end(Signal::TERM);
}

#[test]
fn the_last_listing_is_restored_while_the_server_is_down_and_shown_with_its_age() {
    let (cluster, node) = stopped_node();
    cluster.down();
    let agent = node.start();
    agent.holds("a=i:1 b=i:1");
    let source = agent.restored();
    assert_eq!(
        (&source["pods"], &source["reflector"]["resourceVersion"]),
        (&json!(2), &json!("102")),
        "{source}"
    );
    agent.failing();
    agent.process.logs("listing restored");
    assert!(
        agent.get("/readyz?verbose").contains("[+]source-api ok: restored, "),
        "{}",
        agent.get("/readyz?verbose")
    );
    let server = format!("unix:{}", agent.socket.display());
    let table = podmux(&["get", "sources", "--server", &server]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.lines().any(|line| line.starts_with("api") && line.contains(" old")), "{table}");
    agent.end(Signal::KILL);

    // Its age does not start again with the restore.
    let agent = node.start();
    agent.holds("a=i:1 b=i:1");
    assert_eq!(agent.restored()["restored"], source["restored"]);
    agent.failing();

    // Only the live listing removes a pod.
    assert_eq!(agent.updates(), ["ADD api 2"]);
    cluster.delete("a");
    cluster.put("b", "i:2");
    cluster.put("c", "i:1");
    cluster.up();
    agent.holds("b=i:2 c=i:1");
    agent.synced();
    assert_eq!(agent.updates(), ["ADD api 2", "REMOVE api 1", "ADD api 1", "UPDATE api 1"]);
    assert!(agent.get("/readyz?verbose").contains("[+]source-api ok\n"));
    // The first request is at the version of the restored listing.
    assert_eq!(cluster.requests()[0].query("resourceVersion"), "102", "{:?}", cluster.requests());
    agent.process.logs("recovered");
    agent.end(Signal::TERM);
}

#[test]
fn the_age_of_a_listing_counts_from_when_it_was_last_known_to_be_current() {
    let cluster = Cluster::start("one", 100);
    cluster.put("a", "i:1");
    let node = Node::of(&cluster);
    // The time that the next run shows for its listing.
    let live = || {
        cluster.down();
        let agent = node.start();
        let time = agent.restored()["restored"].as_str().unwrap().parse::<Timestamp>().unwrap();
        agent.failing();
        (agent, time)
    };
    // An agent that is stopped while it watches has a current listing until then.
    let agent = node.start();
    agent.synced();
    let stopped = Timestamp::now();
    agent.end(Signal::TERM);
    let (agent, time) = live();
    assert!(time >= in_milliseconds(stopped), "{time}, but it was stopped at {stopped}");
    // A watch confirms the listing even if no event arrives.
    cluster.up();
    agent.synced();
    cluster.down();
    agent.failing();
    let again = Timestamp::now();
    cluster.up();
    agent.source(|source| source["failing"].is_null());
    agent.end(Signal::KILL);
    let (agent, time) = live();
    assert!(time >= in_milliseconds(again), "{time}, but it was reached at {again}");
    agent.end(Signal::TERM);
}

/// A time with the precision of the status.
fn in_milliseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).unwrap()
}

#[test]
fn an_unchanged_listing_gives_no_update() {
    let (cluster, node) = stopped_node();
    let agent = node.start();
    agent.holds("a=i:1 b=i:1").synced();
    assert_eq!(agent.updates(), ["ADD api 2"]);
    cluster.put("b", "i:2");
    agent.holds("a=i:1 b=i:2");
    assert_eq!(agent.updates(), ["ADD api 2", "UPDATE api 1"]);
    agent.end(Signal::TERM);
}

#[test]
fn an_empty_listing_is_restored() {
    let cluster = Cluster::start("one", 100);
    let node = Node::of(&cluster);
    let agent = node.start();
    agent.synced();
    agent.end(Signal::TERM);
    cluster.down();
    let agent = node.start();
    let source = agent.restored();
    assert_eq!(
        (&source["pods"], &source["reflector"]["resourceVersion"]),
        (&json!(0), &json!("100")),
        "{source}"
    );
    agent.end(Signal::TERM);
}

#[test]
fn the_listing_of_another_server_is_discarded() {
    let (one, node) = stopped_node();
    let other = Cluster::start("two", 500);
    other.down();
    node.configure(&other.server.url, &json!({}));
    let agent = node.start();
    agent.process.logs("stored listing discarded");
    agent.failing();
    assert_eq!(agent.updates(), [""; 0]);
    other.put("z", "i:1");
    other.up();
    agent.holds("z=i:1");
    assert!(!other.was_asked_at("102"));
    agent.end(Signal::TERM);

    // It is not restored when its server is configured again.
    one.down();
    node.configure(&one.server.url, &json!({}));
    let agent = node.start();
    agent.failing();
    assert_eq!(agent.updates(), [""; 0]);
    agent.end(Signal::TERM);
}

#[test]
fn the_listing_of_a_server_with_another_ca_is_discarded() {
    let (cluster, node) = stopped_node();
    cluster.down();
    let ca = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap().cert.pem();
    fs::write(node.at("ca.pem"), ca).unwrap();
    node.configure(&cluster.server.url, &json!({"certificate-authority": node.at("ca.pem")}));
    let agent = node.start();
    let line = agent.process.logs("stored listing discarded");
    assert!(line.contains("with another CA"), "{line}");
    agent.failing();
    assert_eq!(agent.updates(), [""; 0]);
    agent.end(Signal::TERM);
}

#[test]
fn the_listing_of_another_node_is_discarded() {
    let (cluster, mut node) = stopped_node();
    cluster.down();
    node.name = "node2";
    let agent = node.start();
    agent.failing();
    assert_eq!(agent.updates(), [""; 0]);
    agent.end(Signal::TERM);
}

#[test]
fn the_listing_of_a_source_that_was_removed_from_the_settings_is_discarded() {
    let (cluster, node) = stopped_node();
    cluster.down();
    let listen = format!("unix:{}", node.at("other"));
    let args = ["run", "--node-name", NODE, "--listen", &listen, "--state-dir", &node.at("state")];
    let other = Process::start(&mut podmux(&args));
    // It listens before it reads its state, and responds after that.
    wait_for(|| Connection::unix(Path::new(&node.at("other"))).ok()?.ask("GET", "/livez", b"").ok());
    other.signal(Signal::TERM);
    assert_eq!(other.ends().0, 0);
    let agent = node.start();
    agent.failing();
    assert_eq!(agent.updates(), [""; 0]);
    agent.end(Signal::TERM);
}

#[test]
fn an_invalid_kubeconfig_keeps_the_listing() {
    let (cluster, node) = stopped_node();
    for broken in ["", "{", "apiVersion: v1\nkind: Config\n"] {
        fs::write(node.at("kubeconfig"), broken).unwrap();
        let agent = node.start();
        agent.holds("a=i:1 b=i:1");
        agent.failing();
        assert!(agent.restored()["failing"]["error"].as_str().unwrap().contains("kubeconfig"));
        agent.end(Signal::TERM);
    }
    fs::remove_file(node.at("kubeconfig")).unwrap();
    let agent = node.start();
    agent.holds("a=i:1 b=i:1");
    agent.failing();
    // With a valid kubeconfig the server is the same one.
    cluster.put("c", "i:1");
    node.configure(&cluster.server.url, &json!({}));
    agent.holds("a=i:1 b=i:1 c=i:1");
    assert_eq!(agent.updates(), ["ADD api 2", "ADD api 1"]);
    agent.end(Signal::TERM);
}

#[test]
fn another_cluster_at_the_same_address_is_logged_and_relisted_without_a_version() {
    let (mut cluster, node) = stopped_node();
    cluster.replace_by("two", 1000);
    cluster.put("b", "i:9");
    let agent = node.start();
    agent.holds("b=i:9");
    agent.synced();
    agent.process.logs("cluster changed");
    assert!(!cluster.was_asked_at("102"));
    // It is the other cluster's pod b.
    let held = agent.process.holds("b", |_| true);
    assert!(held.pods["default/b"].contains("two-b"), "{:?}", held.pods);
    agent.end(Signal::TERM);
}

/// The version of the watch means something else there.
#[test]
fn another_cluster_that_answers_after_an_outage_is_relisted() {
    let (mut cluster, node) = stopped_node();
    let agent = node.start();
    agent.holds("a=i:1 b=i:1");
    agent.synced();
    cluster.down();
    agent.failing();
    cluster.replace_by("two", 102);
    cluster.put("b", "i:9");
    cluster.up();
    agent.holds("b=i:9");
    agent.process.logs("cluster changed");
    agent.end(Signal::TERM);
}

/// Behind a load balancer the first cluster ends its watches regularly when it stops.
#[test]
fn another_cluster_that_answers_after_the_regular_end_of_a_watch_is_relisted() {
    let (mut cluster, node) = stopped_node();
    let agent = node.start();
    agent.holds("a=i:1 b=i:1");
    agent.synced();
    // A watch without events that ends at once would be a failure.
    cluster.put("a", "i:2");
    agent.holds("a=i:2 b=i:1");
    cluster.replace_by("two", 150);
    cluster.server.end_watches();
    cluster.put("b", "i:9");
    agent.holds("b=i:9");
    agent.process.logs("cluster changed");
    agent.end(Signal::TERM);
}

#[test]
fn a_cluster_that_cannot_be_identified_at_first_is_identified_later() {
    for code in [401, 408, 429, 503] {
        let (mut cluster, node) = stopped_node();
        cluster.replace_by("two", 1000);
        cluster.put("b", "i:9");
        let error = Answer::status(code, "", "");
        cluster.server.respond_to_cluster_check(error.clone());
        cluster.server.respond_always(error);
        let agent = node.start();
        agent.failing();
        cluster.identify();
        // The rejected requests do not count.
        cluster.ignored.set(cluster.server.received().len());
        cluster.server.respond_normally();
        agent.holds("b=i:9");
        agent.process.logs("cluster changed");
        assert!(!cluster.was_asked_at("102"));
        agent.end(Signal::TERM);
    }
}

/// Kills the agent at random moments of a stream of changes. `PODMUX_KILLS=1000` does a
/// thousand rounds.
#[test]
fn the_listing_restored_after_a_kill_is_one_that_the_server_had() {
    let rounds = env::var("PODMUX_KILLS").map_or(30, |rounds| rounds.parse().unwrap());
    let random = &mut Random::new(1);
    let cluster = Cluster::start("one", 100);
    let node = Node::of(&cluster);
    let mut least = 100;
    for round in 0..rounds {
        cluster.up();
        let agent = node.start();
        agent.synced();
        for _ in 0..random.below(100) {
            let name = format!("p{}", random.below(12));
            if random.once_in(4) {
                cluster.delete(&name);
            } else {
                cluster.put(&name, &format!("i:{}", cluster.version()));
            }
            cluster.wait_until_sent();
        }
        if random.once_in(2) {
            // Kill after the last change was delivered; else possibly while it is processed.
            agent.holds(&cluster.images());
        }
        agent.end(Signal::KILL);

        cluster.down();
        let agent = node.start();
        let source = agent.restored();
        let version: u64 = source["reflector"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        let then = cluster.history.lock().unwrap()[&version].clone();
        agent.holds(&then);
        assert!(version >= least, "round {round}: version {version} after {least}");
        // The next run restores at least what this run had.
        agent.end(Signal::TERM);
        least = version;
    }
    assert!(least > 100 + rounds * 10, "the last version is {least}");
}
