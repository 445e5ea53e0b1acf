//! The agent within the memory of the package, in a real memory cgroup.
//!
//! By default files and API server have a tenth of the pods and of the limit; with `PODMUX_MEMORY=full`
//! they have all.

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    iter,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::{
    state_memory::{memory_high, pod, status},
    support::{
        apiserver::{self, Answer, ApiServer, NODE, RequestKind, Then, bookmark, event},
        kubernetes::not_tested,
        plain::Connection,
        process::{PATIENCE, Process, podmux, wait_for},
    },
};

/// What the agent needs without pods in an unoptimised build, in MiB.
const EMPTY: u64 = 36;
/// The number of requests with which the quota of posted pods is filled.
const REQUESTS: usize = 8;

/// The share of the full load: one part of this many.
fn parts() -> usize {
    if env::var_os("PODMUX_MEMORY").is_some_and(|load| load == "full") { 1 } else { 10 }
}

/// `Environment=` of the package.
fn environment() -> impl Iterator<Item = (String, String)> {
    let unit = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/podmux.service")).unwrap();
    let lines: Vec<String> =
        unit.lines().filter_map(|line| Some(line.strip_prefix("Environment=")?.to_owned())).collect();
    lines
        .into_iter()
        .map(|line| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap())
}

/// A cgroup with a limit of memory, which is removed at the end.
struct Cgroup {
    path: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    /// None if this process may not make one.
    fn new(limit: u64) -> Option<Self> {
        Self::make(limit)
            .inspect_err(|error| not_tested(&format!("no memory cgroup can be made: {error}")))
            .ok()
    }

    fn make(limit: u64) -> io::Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = Path::new("/sys/fs/cgroup");
        let is_v2 = root.join("cgroup.controllers").exists();
        let parent = if is_v2 { root.to_owned() } else { root.join("memory") };
        if is_v2 {
            fs::write(root.join("cgroup.subtree_control"), "+memory")?;
        } else if !parent.join("memory.limit_in_bytes").exists() {
            return Err(io::Error::other("there is no memory controller"));
        }
        let group = Self { path: parent.join(format!("podmux-test-{}-{number}", std::process::id())), is_v2 };
        fs::create_dir(&group.path)?;
        let file = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(group.path.join(file), (limit << 20).to_string())?;
        Ok(group)
    }

    /// How often the kernel killed a process in it.
    fn kills(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.path.join(file)).unwrap();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.unwrap().trim().parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // It is empty when the kernel has reaped the process.
        let begun = Instant::now();
        while fs::remove_dir(&self.path).is_err() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// An agent in a cgroup. Its state outlives a restart.
struct Node {
    // Before the cgroup, which has to be empty.
    agent: Option<Process>,
    cgroup: Cgroup,
    directory: TempDir,
    flags: Vec<String>,
}

impl Node {
    /// In the memory of the package, or a part of it.
    fn new(parts: usize) -> Option<Self> {
        let limit = EMPTY + (memory_high() - EMPTY) / parts as u64;
        let cgroup = Cgroup::new(limit)?;
        println!("{limit} MiB");
        Some(Self { agent: None, cgroup, directory: tempfile::tempdir().unwrap(), flags: Vec::new() })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn flag(&mut self, flag: &str, value: &Path) {
        self.flags.extend([flag.to_owned(), value.to_str().unwrap().to_owned()]);
    }

    /// Starts it, and waits until it has told every pod.
    fn start(&mut self, pods: usize) {
        let program = podmux(&[]).get_program().to_owned();
        let mut shell = Command::new("/bin/sh");
        shell
            .arg("-c")
            .arg("echo $$ >\"$0\"/cgroup.procs && exec \"$@\"")
            .arg(&self.cgroup.path)
            .arg(program);
        shell.args(["run", "--node-name", NODE, "--state-dir"]).arg(self.at("state"));
        shell.arg("--listen").arg(format!("unix:{}", self.at("s").display())).args(&self.flags).env_clear();
        shell.envs(environment());
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.agent = Some(Process::start(&mut shell));
        wait_for(|| {
            self.lives();
            (self.ask("GET", "/readyz", b"")? == 200).then_some(())
        });
        self.tells(pods);
    }

    fn agent(&self) -> &Process {
        self.agent.as_ref().unwrap()
    }

    /// Checks that it was not killed for its memory.
    fn lives(&self) {
        assert_eq!(self.cgroup.kills(), 0, "killed for its memory:\n{}", self.agent().stderr.text());
    }

    /// Waits until it has told every pod.
    fn tells(&self, pods: usize) {
        self.agent().holds("every pod", |replica| replica.pods.len() == pods);
        self.lives();
        println!("{} MiB at most", status(self.agent(), "VmHWM:"));
    }

    /// Waits until it has stored so much of what it restores at the next start.
    fn stores(&self, bytes: usize) {
        wait_for(|| {
            self.lives();
            let size = fs::metadata(self.at("state/state.redb")).unwrap().len();
            (size > bytes as u64).then_some(())
        });
    }

    /// Ends it as a crash does, and starts it again in the same cgroup.
    fn restart(&mut self, pods: usize) {
        let agent = self.agent.take().unwrap();
        agent.signal(Signal::KILL);
        agent.ends();
        self.start(pods);
    }

    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Option<u16> {
        ask(&self.at("s"), method, path, body)
    }
}

fn ask(socket: &Path, method: &str, path: &str, body: &[u8]) -> Option<u16> {
    Some(Connection::unix(socket).ok()?.ask(method, path, body).ok()?.code)
}

#[test]
fn a_hundred_thousand_manifests_fit_into_the_memory_of_the_package() {
    let Some(mut node) = Node::new(parts()) else { return };
    let pods = 100_000 / parts();
    let manifests = node.at("manifests");
    fs::create_dir(&manifests).unwrap();
    for number in 0..pods {
        fs::write(manifests.join(format!("{number}.json")), pod(number, 2000 / 72).to_string()).unwrap();
    }
    node.flag("--pod-manifest-path", &manifests);
    node.start(pods);
    node.stores(pods * 2000);
    node.restart(pods);
}

#[test]
fn lists_that_no_client_reads_fit_into_the_memory_of_the_package() {
    let Some(mut node) = Node::new(parts()) else { return };
    let pods = 50_000 / parts();
    let manifests = node.at("manifests");
    fs::create_dir(&manifests).unwrap();
    for number in 0..pods {
        fs::write(manifests.join(format!("{number}.json")), pod(number, 1).to_string()).unwrap();
    }
    node.flag("--pod-manifest-path", &manifests);
    node.start(pods);
    let ask = |accept: &str| {
        let mut stream = UnixStream::connect(node.at("s")).unwrap();
        write!(stream, "GET /api/v1/pods HTTP/1.1\r\nHost: h\r\nAccept: application/json{accept}\r\n\r\n")
            .unwrap();
        stream
    };
    let forms = iter::repeat_n(";as=Table;v=v1;g=meta.k8s.io", 20).chain(iter::repeat_n("", 60));
    let mut unread: Vec<UnixStream> = forms.map(ask).collect();
    for stream in &mut unread {
        let mut begin = [0; 15];
        stream.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200 OK");
    }
    node.lives();
    println!("{} MiB at most", status(node.agent(), "VmHWM:"));
}

#[test]
fn ten_thousand_pods_of_an_api_server_fit_into_the_memory_of_the_package() {
    let Some(mut node) = Node::new(parts()) else { return };
    let pods = 10_000 / parts();
    let (_runtime, server) = serve(pods);
    let kubeconfig = server.kubeconfig(node.directory.path(), &json!({}));
    node.flag("--kubeconfig", &kubeconfig);
    node.start(pods);
    node.stores(pods * 10_000);
    node.restart(pods);
}

/// A server with pods of 10 kB.
fn serve(pods: usize) -> (Runtime, ApiServer) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(async { ApiServer::start(None) });
    let mut body = Vec::new();
    for number in 0..pods {
        let mut bound = apiserver::pod(&format!("p{number}"), "i:1");
        bound["metadata"]["resourceVersion"] = "1".into();
        bound["spec"]["containers"] = pod(number, 10_000 / 72)["spec"]["containers"].take();
        body.extend(format!("{}\n", event("ADDED", &bound)).into_bytes());
    }
    body.extend(format!("{}\n", bookmark(1, true)).into_bytes());
    server.respond(RequestKind::WatchList, Answer::new(200, body, Then::Changes));
    (runtime, server)
}

#[test]
fn the_quota_of_posted_pods_and_a_rejected_list_fit_into_the_memory_of_the_package() {
    let Some(mut node) = Node::new(1) else { return };
    let pods = 1000;
    node.start(0);
    let list = |first: usize, pods: usize, bytes: usize| {
        let items: Vec<Value> = (first..first + pods).map(|number| pod(number, bytes / 72)).collect();
        json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()
    };
    let each = pods / REQUESTS;
    for first in (0..pods).step_by(each) {
        assert_eq!(node.ask("POST", "/pods", list(first, each, 60_000).as_bytes()), Some(201));
    }
    node.tells(pods);
    // Lists that cannot be taken, several at a time, and one that can.
    let (rejected, socket) = (list(pods, 5000, 1500), node.at("s"));
    thread::scope(|scope| {
        for method in ["POST", "PUT", "POST", "PUT"] {
            let (rejected, socket) = (rejected.as_bytes(), &socket);
            scope.spawn(move || assert_eq!(ask(socket, method, "/pods", rejected), Some(403)));
        }
    });
    assert_eq!(node.ask("POST", "/pods", list(0, each, 61_000).as_bytes()), Some(200));
    node.tells(pods);
    node.restart(pods);
}
