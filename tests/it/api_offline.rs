//! What an API server told last is there while it cannot be asked, and is said to be old.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    plain::Connection,
    process::{PATIENCE, Process, podmux, wait_for},
    random::Random,
    stream::Replica,
};

/// A cluster's API server, as far as it has pods and nothing goes wrong with it
/// but that it cannot be reached. It knows every event since its beginning.
struct Cluster {
    url: String,
    world: Arc<(Mutex<World>, Condvar)>,
}

#[derive(Default)]
struct World {
    uid: String,
    version: u64,
    pods: BTreeMap<String, Value>,
    events: Vec<(u64, String)>,
    /// The pods as they were at each version.
    history: BTreeMap<u64, String>,
    /// The version of the last event that was sent to a watch.
    sent: u64,
    /// The requests for pods: their queries.
    asked: Vec<String>,
    is_down: bool,
    /// It answers nothing but this code.
    refuses: Option<u16>,
}

impl World {
    fn new(uid: &str, version: u64) -> Self {
        let history = BTreeMap::from([(version, String::new())]);
        Self { uid: uid.to_owned(), version, history, ..Self::default() }
    }

    fn put(&mut self, name: &str, image: &str) {
        self.version += 1;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "default", "uid": format!("{}-{name}", self.uid),
                "resourceVersion": self.version.to_string(),
            },
            "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": image}]},
            "status": {"phase": "Pending"},
        });
        let is_new = self.pods.insert(name.to_owned(), pod.clone()).is_none();
        self.tell(if is_new { "ADDED" } else { "MODIFIED" }, &pod);
    }

    fn delete(&mut self, name: &str) {
        let Some(mut pod) = self.pods.remove(name) else { return };
        self.version += 1;
        pod["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.tell("DELETED", &pod);
    }

    fn tell(&mut self, kind: &str, pod: &Value) {
        self.events.push((self.version, json!({"type": kind, "object": pod}).to_string()));
        self.history.insert(self.version, self.images());
    }

    /// The pods as `name=image …`.
    fn images(&self) -> String {
        let image = |(name, pod): (&String, &Value)| format!("{name}={}", image(pod));
        self.pods.iter().map(image).collect::<Vec<_>>().join(" ")
    }
}

fn image(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap()
}

impl Cluster {
    fn start(world: World) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let world = Arc::new((Mutex::new(world), Condvar::new()));
        let theirs = Arc::downgrade(&world);
        thread::spawn(move || {
            for connection in listener.incoming() {
                let Some(world) = theirs.upgrade() else { return };
                thread::spawn(move || serve(&connection.unwrap(), &world.0, &world.1));
            }
        });
        Self { url, world }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.0.lock().unwrap()
    }

    /// Changes something, and has the watches hear of it.
    fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let done = change(&mut self.world());
        self.world.1.notify_all();
        done
    }

    /// Waits until a watch was told everything.
    fn told(&self) {
        let behind = |world: &mut World| world.sent < world.version;
        let (world, _) = self.world.1.wait_timeout_while(self.world(), PATIENCE, behind).unwrap();
        assert_eq!(world.sent, world.version, "nobody watches");
    }
}

impl Drop for Cluster {
    /// Ends its threads: the last connection finds nobody at home.
    fn drop(&mut self) {
        self.change(|world| world.is_down = true);
        drop(TcpStream::connect(self.url.trim_start_matches("http://")));
    }
}

/// Answers one request.
fn serve(connection: &TcpStream, world: &Mutex<World>, news: &Condvar) {
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    let Some(path) = lines.next().and_then(|line| Some(line.split(' ').nth(1)?.to_owned())) else { return };
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    let held = world.lock().unwrap();
    if held.is_down {
        return;
    }
    if let Some(code) = held.refuses {
        let _ = answer(connection, code, &json!({"kind": "Status", "status": "Failure", "code": code}));
        return;
    }
    // Whoever asked may be gone.
    let _ = match path.split_once('?') {
        Some(("/api/v1/pods", query)) => pods(connection, held, query, news, world),
        _ if path == "/api/v1/namespaces/kube-system" => {
            let body = json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": "kube-system", "uid": held.uid, "resourceVersion": "1"},
            });
            answer(connection, 200, &body)
        }
        _ => answer(
            connection,
            404,
            &json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}),
        ),
    };
}

fn answer(mut connection: &TcpStream, code: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} Said\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    connection.write_all(format!("{head}{body}").as_bytes())
}

/// A list, or a watch until it is down.
fn pods(
    mut connection: &TcpStream,
    mut held: MutexGuard<'_, World>,
    query: &str,
    news: &Condvar,
    world: &Mutex<World>,
) -> io::Result<()> {
    held.asked.push(query.to_owned());
    let field = |name: &str| query.split('&').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    let asked: u64 = field("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or_default();
    if asked > held.version {
        let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 504, "reason": "Timeout",
            "message": format!("Too large resource version: {asked}, current: {}", held.version),
            "details": {"causes": causes},
        });
        return answer(connection, 504, &body);
    }
    if field("watch") != Some("true") {
        let body = json!({
            "apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": held.version.to_string()},
            // Who asks for a pod without a name only wants to know how far the server is.
            "items": held.pods.values().filter(|_| !query.contains("metadata.name")).collect::<Vec<_>>(),
        });
        return answer(connection, 200, &body);
    }
    let (mut next, mut told) = (Vec::new(), asked);
    if field("sendInitialEvents") == Some("true") {
        next.extend(held.pods.values().map(|pod| json!({"type": "ADDED", "object": pod}).to_string()));
        let metadata = json!({
            "resourceVersion": held.version.to_string(), "annotations": {"k8s.io/initial-events-end": "true"},
        });
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        next.push(json!({"type": "BOOKMARK", "object": object}).to_string());
        told = held.version;
    }
    drop(held);
    connection.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    loop {
        for event in next {
            connection.write_all(format!("{:x}\r\n{event}\n\r\n", event.len() + 1).as_bytes())?;
        }
        let mut held = world.lock().unwrap();
        held.sent = held.sent.max(told);
        news.notify_all();
        let newest = |world: &World| world.events.last().map_or(0, |(version, _)| *version);
        held = news.wait_while(held, |world| !world.is_down && newest(world) <= told).unwrap();
        if held.is_down {
            return Ok(());
        }
        let is_new = |event: &&(u64, String)| event.0 > told;
        next = held.events.iter().filter(is_new).map(|(_, event)| event.clone()).collect();
        told = newest(&held);
    }
}

/// A node with a state directory.
struct Node {
    directory: TempDir,
    name: &'static str,
}

impl Node {
    /// One that speaks to a cluster.
    fn of(cluster: &Cluster) -> Self {
        let node = Self { directory: tempfile::tempdir().unwrap(), name: "node1" };
        node.configure(&cluster.url, &json!({}));
        node
    }

    fn at(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn configure(&self, url: &str, more: &Value) {
        let mut cluster = json!({"server": url});
        cluster.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(self.at("kubeconfig"), config.to_string()).unwrap();
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

/// A run of it.
struct Agent {
    process: Process,
    socket: PathBuf,
}

impl Agent {
    /// Waits until these pods have been told, as `name=image …`.
    fn holds(&self, expected: &str) -> &Self {
        self.process.holds(expected, |held| images(held) == expected);
        self
    }

    fn get(&self, path: &str) -> String {
        let mut connection = wait_for(|| Connection::unix(&self.socket).ok());
        connection.ask("GET", path, b"").unwrap().text()
    }

    /// Waits until `/sources` says this of the source.
    fn source(&self, what: impl Fn(&Value) -> bool) -> Value {
        wait_for(|| {
            let all: Value = serde_json::from_str(&self.get("/sources")).unwrap();
            let mut sources = all["items"].as_array().unwrap().iter();
            sources.find(|source| source["name"] == "api" && what(source)).cloned()
        })
    }

    /// Waits until it shows what an earlier run left.
    fn restored(&self) -> Value {
        self.source(|source| source["restored"].is_string())
    }

    /// Waits until it shows what the server says.
    fn synced(&self) -> Value {
        self.source(|source| source["state"] == "synced" && source["restored"].is_null())
    }

    /// Waits until it has asked, and nobody answered.
    fn failing(&self) -> Value {
        self.source(|source| source["failing"].is_object())
    }

    /// Every update so far, as `OP source COUNT`, without the empty ones.
    fn heard(&self) -> Vec<String> {
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

/// A cluster with the pods a and b, and a node that has heard of them and is stopped.
fn that_ran() -> (Cluster, Node) {
    let cluster = Cluster::start(World::new("one", 100));
    cluster.change(|world| {
        world.put("a", "i:1");
        world.put("b", "i:1");
    });
    let node = Node::of(&cluster);
    let agent = node.start();
    agent.holds("a=i:1 b=i:1");
    let log = agent.end(Signal::TERM);
    assert!(log.ends_with("stopped"), "{log}");
    cluster.change(|world| world.asked.clear());
    (cluster, node)
}

#[test]
fn the_last_listing_is_there_while_the_server_is_down_and_is_said_to_be_old() {
    let (cluster, node) = that_ran();
    cluster.change(|world| world.is_down = true);
    let agent = node.start();
    agent.holds("a=i:1 b=i:1");
    let told = agent.restored();
    assert_eq!((&told["pods"], &told["reflector"]["resourceVersion"]), (&json!(2), &json!("102")), "{told}");
    agent.failing();
    agent.process.logs("restored");
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

    // It does not become younger by being restored.
    let agent = node.start();
    agent.holds("a=i:1 b=i:1");
    assert_eq!(agent.restored()["restored"], told["restored"]);
    agent.failing();

    // What is gone goes with the live listing, and not before.
    assert_eq!(agent.heard(), ["ADD api 2"]);
    cluster.change(|world| {
        world.delete("a");
        world.put("b", "i:2");
        world.put("c", "i:1");
        world.is_down = false;
    });
    agent.holds("b=i:2 c=i:1");
    agent.synced();
    assert_eq!(agent.heard(), ["ADD api 2", "REMOVE api 1", "ADD api 1", "UPDATE api 1"]);
    assert!(agent.get("/readyz?verbose").contains("[+]source-api ok\n"));
    // The first request begins where the restored listing ended.
    assert!(cluster.world().asked[0].contains("&resourceVersion=102&"), "{:?}", cluster.world().asked);
    agent.process.logs("recovered");
    agent.end(Signal::TERM);
}

#[test]
fn a_listing_is_as_old_as_the_last_word_of_its_server() {
    let cluster = Cluster::start(World::new("one", 100));
    cluster.change(|world| world.put("a", "i:1"));
    let node = Node::of(&cluster);
    // Since when the next run says that its listing is old.
    let live = || {
        cluster.change(|world| world.is_down = true);
        let agent = node.start();
        let told = agent.restored()["restored"].as_str().unwrap().parse::<Timestamp>().unwrap();
        agent.failing();
        (agent, told)
    };
    // Who is stopped while it watches knows that all was so until then.
    let agent = node.start();
    agent.synced();
    let stopped = Timestamp::now();
    agent.end(Signal::TERM);
    let (agent, told) = live();
    assert!(told >= in_milliseconds(stopped), "{told}, and it was stopped at {stopped}");
    // Who watches on knows that all is as it was, though nothing happens.
    cluster.change(|world| world.is_down = false);
    agent.synced();
    cluster.change(|world| world.is_down = true);
    agent.failing();
    let again = Timestamp::now();
    cluster.change(|world| world.is_down = false);
    agent.source(|source| source["failing"].is_null());
    agent.end(Signal::KILL);
    let (agent, told) = live();
    assert!(told >= in_milliseconds(again), "{told}, and it was reached at {again}");
    agent.end(Signal::TERM);
}

/// A time as precise as it is told.
fn in_milliseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).unwrap()
}

#[test]
fn a_listing_that_has_not_changed_is_no_change() {
    let (cluster, node) = that_ran();
    let agent = node.start();
    agent.synced();
    assert_eq!(agent.heard(), ["ADD api 2"]);
    cluster.change(|world| world.put("b", "i:2"));
    agent.holds("a=i:1 b=i:2");
    assert_eq!(agent.heard(), ["ADD api 2", "UPDATE api 1"]);
    agent.end(Signal::TERM);
}

#[test]
fn an_empty_listing_is_a_listing_too() {
    let cluster = Cluster::start(World::new("one", 100));
    let node = Node::of(&cluster);
    let agent = node.start();
    agent.synced();
    agent.end(Signal::TERM);
    cluster.change(|world| world.is_down = true);
    let agent = node.start();
    let told = agent.restored();
    assert_eq!((&told["pods"], &told["reflector"]["resourceVersion"]), (&json!(0), &json!("100")), "{told}");
    agent.end(Signal::TERM);
}

#[test]
fn the_listing_of_another_server_is_discarded() {
    let (one, node) = that_ran();
    let other = Cluster::start(World::new("two", 500));
    other.change(|world| world.is_down = true);
    node.configure(&other.url, &json!({}));
    let agent = node.start();
    agent.process.logs("they are not restored");
    agent.failing();
    assert_eq!(agent.heard(), [""; 0]);
    other.change(|world| {
        world.put("z", "i:1");
        world.is_down = false;
    });
    agent.holds("z=i:1");
    assert!(!other.world().asked.iter().any(|query| query.contains("resourceVersion=102")));
    agent.end(Signal::TERM);

    // Nor does it come back with its server.
    one.change(|world| world.is_down = true);
    node.configure(&one.url, &json!({}));
    let agent = node.start();
    agent.failing();
    assert_eq!(agent.heard(), [""; 0]);
    agent.end(Signal::TERM);
}

#[test]
fn the_listing_of_a_server_that_another_ca_vouches_for_is_discarded() {
    let (cluster, node) = that_ran();
    cluster.change(|world| world.is_down = true);
    let ca = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap().cert.pem();
    fs::write(node.at("ca.pem"), ca).unwrap();
    node.configure(&cluster.url, &json!({"certificate-authority": node.at("ca.pem")}));
    let agent = node.start();
    agent.process.logs("they are not restored");
    agent.failing();
    assert_eq!(agent.heard(), [""; 0]);
    agent.end(Signal::TERM);
}

#[test]
fn the_listing_of_another_node_is_discarded() {
    let (cluster, mut node) = that_ran();
    cluster.change(|world| world.is_down = true);
    node.name = "node2";
    let agent = node.start();
    agent.failing();
    assert_eq!(agent.heard(), [""; 0]);
    agent.end(Signal::TERM);
}

#[test]
fn a_source_that_is_not_configured_any_more_leaves_nothing() {
    let (cluster, node) = that_ran();
    cluster.change(|world| world.is_down = true);
    let listen = format!("unix:{}", node.at("other"));
    let args = ["run", "--node-name", "node1", "--listen", &listen, "--state-dir", &node.at("state")];
    let other = Process::start(&mut podmux(&args));
    // It listens before it has looked at its state, and answers after that.
    wait_for(|| Connection::unix(Path::new(&node.at("other"))).ok()?.ask("GET", "/livez", b"").ok());
    other.signal(Signal::TERM);
    assert_eq!(other.ends().0, 0);
    let agent = node.start();
    agent.failing();
    assert_eq!(agent.heard(), [""; 0]);
    agent.end(Signal::TERM);
}

#[test]
fn a_kubeconfig_that_cannot_be_read_keeps_the_listing() {
    let (cluster, node) = that_ran();
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
    // When it is there at last, the server is the same one.
    cluster.change(|world| world.put("c", "i:1"));
    node.configure(&cluster.url, &json!({}));
    agent.holds("a=i:1 b=i:1 c=i:1");
    assert_eq!(agent.heard(), ["ADD api 2", "ADD api 1"]);
    agent.end(Signal::TERM);
}

#[test]
fn another_cluster_at_the_same_address_is_said_and_not_asked_for_what_the_first_one_had() {
    let (cluster, node) = that_ran();
    cluster.change(|world| {
        *world = World::new("two", 1000);
        world.put("b", "i:9");
    });
    let agent = node.start();
    agent.holds("b=i:9");
    agent.synced();
    agent.process.logs("another cluster");
    assert!(!cluster.world().asked.iter().any(|query| query.contains("resourceVersion=102")));
    // The pod b is another one: it was never the first cluster's.
    let held = agent.process.holds("b", |_| true);
    assert!(held.pods["default/b"].contains("two-b"), "{:?}", held.pods);
    agent.end(Signal::TERM);
}

#[test]
fn a_cluster_that_cannot_be_recognised_at_first_is_when_it_can() {
    for code in [401, 503] {
        let (cluster, node) = that_ran();
        cluster.change(|world| {
            *world = World::new("two", 1000);
            world.put("b", "i:9");
            world.refuses = Some(code);
        });
        let agent = node.start();
        agent.failing();
        cluster.change(|world| world.refuses = None);
        agent.holds("b=i:9");
        agent.process.logs("another cluster");
        assert!(!cluster.world().asked.iter().any(|query| query.contains("resourceVersion=102")));
        agent.end(Signal::TERM);
    }
}

/// Kills the agent at random moments of a stream of changes.
/// `PODMUX_KILLS=1000` does a thousand rounds.
#[test]
fn what_is_restored_after_a_kill_was_true_at_one_moment() {
    let rounds = env::var("PODMUX_KILLS").map_or(30, |rounds| rounds.parse().unwrap());
    let random = &mut Random::new(1);
    let cluster = Cluster::start(World::new("one", 100));
    let node = Node::of(&cluster);
    let mut least = 100;
    for round in 0..rounds {
        cluster.change(|world| world.is_down = false);
        let agent = node.start();
        agent.synced();
        for _ in 0..random.below(100) {
            let name = format!("p{}", random.below(12));
            cluster.change(|world| {
                let image = format!("i:{}", world.version);
                if random.once_in(4) { world.delete(&name) } else { world.put(&name, &image) }
            });
            cluster.told();
        }
        if random.once_in(2) {
            // In the middle of the last change, or of what follows from it.
            agent.holds(&cluster.world().images());
        }
        agent.end(Signal::KILL);

        cluster.change(|world| world.is_down = true);
        let agent = node.start();
        let told = agent.restored();
        let version: u64 = told["reflector"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        let then = cluster.world().history[&version].clone();
        agent.holds(&then);
        assert!(version >= least, "round {round}: {version}, and it was at {least} before");
        // What was live when an agent ended in good order is the least that the next one knows.
        agent.end(Signal::TERM);
        least = version;
    }
    assert!(least > 100 + rounds * 10, "it got no further than {least}");
}
