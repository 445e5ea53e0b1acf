//! fleet/N: the load of N agents on the one server that they get their pods from.
//!
//! `cargo bench --bench fleet`; a number as argument is the count of agents. All agents run in
//! this process, each with its own source and mux. With `PODMUX_KUBERNETES` (see
//! `tests/kubernetes/README.md`) the benchmark starts a real kube-apiserver and measures the
//! start of all agents at once, an idle time, changes, and an outage of the server. With nginx
//! in the path it measures a URL that all agents poll. The agents, the server and etcd share
//! the machine's cores; the CPU and memory figures are of one process each.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark panics on failure, prints its results, and is not a library"
)]

#[path = "support/cluster.rs"]
mod cluster;
#[path = "../tests/it/support/kubernetes.rs"]
mod kubernetes;
#[path = "../tests/it/support/plain.rs"]
mod plain;
mod support;

use std::{
    fs,
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use cluster::{Cluster, name, path};
use http::HeaderMap;
use kubernetes::Tls;
use podmux::{
    manifest::Preparation,
    mux::Mux,
    pod::{NodeName, PodKey, SecurityLevel, SourceName},
    source::{
        SourceStatus,
        api::{self, ApiHandle, ApiSource, Kubeconfig, ReflectorMetrics},
        url::{self, UrlHandle, UrlSource},
    },
    storage::Merged,
};
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use support::{PATIENCE, figures, number_argument, pod, wants_figures};
use tokio::{runtime::Runtime, sync::watch};
use tokio_util::sync::CancellationToken;

/// Pods of each node.
const PODS: usize = 10;
/// The interval at which the state of the agents is read.
const LOOK: Duration = Duration::from_millis(100);
/// The pause between two changes: a hundred a second.
const PACE: Duration = Duration::from_millis(10);

/// The extent of a run.
struct Size {
    agents: usize,
    /// How long nothing happens.
    idle: Duration,
    changes: usize,
    /// How long the server is down.
    outages: [Duration; 2],
    /// The interval at which a URL is polled.
    frequency: Duration,
}

fn main() {
    let seconds = Duration::from_secs;
    let size = if wants_figures() {
        let agents = number_argument().map_or(1_000, |agents| agents.try_into().unwrap());
        let outages = [seconds(0), seconds(60)];
        Size { agents, idle: seconds(60), changes: 1_000, outages, frequency: seconds(20) }
    } else {
        let outages = [seconds(0), Duration::from_millis(500)];
        Size { agents: 10, idle: LOOK, changes: 10, outages, frequency: seconds(1) }
    };
    let files = getrlimit(Resource::Nofile).current;
    let needed = 4 * size.agents as u64 + 100;
    assert!(files.is_none_or(|files| files >= needed), "ulimit -n {needed}: it is {files:?}");
    let runtime = Runtime::new().unwrap();
    if let Some(cluster) = Cluster::start("fleet") {
        watched(&runtime, cluster.of_nodes(size.agents), &size);
    }
    polled(&runtime, &size);
}

/// Measures the agents at a kube-apiserver.
fn watched(runtime: &Runtime, mut cluster: Cluster, size: &Size) {
    let Size { agents, idle, changes, .. } = *size;
    let title = |what: &str| format!("fleet/{agents} {what}");
    cluster.fill(agents * PODS);
    println!("{}: a pod is {} bytes as served, {PODS} pods a node", title("pods"), cluster.sizes().0);
    let server = apiserver();
    // The server without agents: idle, and with changes.
    thread::sleep(idle.min(Duration::from_secs(5)));
    let before = Used::by(server);
    thread::sleep(idle / 2);
    before.since(&title("without agents: apiserver"), idle / 2);
    let alone = Used::by(server);
    let (mut took, mut admin) = (Vec::new(), cluster.connect());
    let begin = Instant::now();
    for round in 0..changes {
        took.push(change(&mut admin, round, "alone"));
    }
    alone.each(&title("a change, without agents: apiserver"), changes, begin);
    figures(&title("a change, without agents: its response"), took);

    let fleet = begin_all(runtime, &cluster, agents, &title("start of all at once"));
    thread::sleep(idle.min(Duration::from_secs(5)));
    let (before, own, etcd) =
        (Used::by(server), Used::by(std::process::id()), Used::by(parent(server).unwrap()));
    thread::sleep(idle);
    before.since(&title("idle: apiserver"), idle);
    etcd.since(&title("idle: etcd"), idle);
    own.since(&title("idle: the agents"), idle);

    let before = Used::by(server);
    // The server has closed the idle connection.
    let mut seen = Vec::new();
    admin = cluster.connect();
    let begin = Instant::now();
    for round in 0..changes {
        let asked = Instant::now();
        change(&mut admin, round, "watched");
        runtime.block_on(fleet.agents[round % agents].has(round, "watched"));
        seen.push(asked.elapsed());
    }
    before.each(&title("a change: apiserver"), changes, begin);
    figures(&title("a change, from the patch to the agent's view"), seen);
    for outage in size.outages {
        let what = title(&format!("apiserver killed, {} s away", outage.as_secs()));
        restart(&cluster, &fleet, outage, &what);
    }
    fleet.stop.cancel();
    // The same with lists, as a server without WatchList has it.
    cluster.command("restart --feature-gates=WatchList=false");
    begin_all(runtime, &cluster, agents, &title("start of all at once, by LIST")).stop.cancel();
}

/// Starts all agents at once.
fn begin_all(runtime: &Runtime, cluster: &Cluster, agents: usize, what: &str) -> Fleet {
    let (before, own) = (Used::by(apiserver()), Used::by(std::process::id()));
    let begin = Instant::now();
    let fleet = Fleet::start(runtime, cluster, agents);
    let synced = runtime.block_on(fleet.synced());
    let whole = begin.elapsed();
    spread(&format!("{what}: until synced"), begin, synced);
    before.since(&format!("{what}: apiserver"), whole);
    own.since(&format!("{what}: the agents"), whole);
    fleet
}

/// Kills the server and starts it again while all agents retry.
fn restart(cluster: &Cluster, fleet: &Fleet, outage: Duration, what: &str) {
    let all = fleet.agents.len();
    cluster.command("kill");
    while fleet.counts().healthy > 0 {
        thread::sleep(LOOK);
    }
    let broken = fleet.counts();
    thread::sleep(outage);
    let down = fleet.counts();
    println!("{what:<70} {} failed attempts meanwhile", down.errors - broken.errors);
    let starts = Instant::now();
    let mut looks = Vec::new();
    thread::scope(|scope| {
        // The command returns some time after the server begins to respond.
        scope.spawn(|| cluster.command("start"));
        while looks.last().is_none_or(|(_, counts): &(Instant, Counts)| counts.healthy < all) {
            assert!(starts.elapsed() < 2 * PATIENCE, "not all agents recovered");
            thread::sleep(LOOK);
            looks.push((Instant::now(), fleet.counts()));
        }
    });
    let first = looks.iter().find(|(_, counts)| counts.watches > down.watches).unwrap().0;
    let back = |percent: usize| {
        let wanted = (all * percent).div_ceil(100);
        let at = looks.iter().find(|(_, counts)| counts.healthy >= wanted).unwrap().0;
        at.duration_since(first).as_secs_f64()
    };
    // Windows of one second over counts of each tenth.
    let windows = looks.windows(10).map(|window| window[9].1.watches - window[0].1.watches);
    let end = looks.last().unwrap().1;
    println!(
        "{what:<70} the first response after {:.1} s; half watch {:.1} s later, 95 % {:.1} s, all {:.1} s",
        first.duration_since(starts).as_secs_f64(),
        back(50),
        back(95),
        back(100),
    );
    println!(
        "{what:<70} {} watches started, at most {} a second; {} lists; {} failed attempts while it started",
        end.watches - down.watches,
        windows.max().unwrap_or_default(),
        end.lists - down.lists,
        end.errors - down.errors,
    );
    let used = Used { cpu: 0.0, rss_mib: 0.0, ..Used::by(apiserver()) };
    used.since(&format!("{what}: apiserver since its start"), starts.elapsed());
}

/// Changes a pod. Returns how long the response took.
fn change(admin: &mut Tls, round: usize, mark: &str) -> Duration {
    thread::sleep(PACE);
    let patch =
        json!({"metadata": {"labels": {"podmux.example/change": format!("{mark}-{round}")}}}).to_string();
    let begin = Instant::now();
    let answer =
        admin.ask_as("PATCH", &path(round), "application/merge-patch+json", patch.as_bytes()).unwrap();
    assert_eq!(answer.code, 200, "{}", answer.text());
    begin.elapsed()
}

/// An agent: a source and its merged view.
struct Agent<Handle> {
    handle: Handle,
    merged: watch::Receiver<Merged>,
}

impl<Handle> Agent<Handle> {
    /// Waits until it has so many pods, and returns the time.
    async fn has_pods(&self, count: usize) -> Instant {
        let mut merged = self.merged.clone();
        tokio::time::timeout(PATIENCE, merged.wait_for(|merged| merged.len() == count))
            .await
            .unwrap()
            .unwrap();
        Instant::now()
    }

    /// Waits until a pod has this change.
    async fn has(&self, round: usize, mark: &str) {
        let key = PodKey::new("bench", &name(round));
        let mark = format!("\"podmux.example/change\":\"{mark}-{round}\"");
        let mut merged = self.merged.clone();
        let changed = |merged: &Merged| {
            merged.get(&key).is_some_and(|entry| String::from_utf8_lossy(entry.pod().text()).contains(&mark))
        };
        tokio::time::timeout(PATIENCE, merged.wait_for(changed)).await.unwrap().unwrap();
    }
}

/// All agents.
struct Fleet {
    agents: Vec<Agent<(ApiHandle, ReflectorMetrics)>>,
    stop: CancellationToken,
}

/// The sums over all agents.
#[derive(Clone, Copy)]
struct Counts {
    watches: u64,
    lists: u64,
    errors: u64,
    /// How many of them watch without a failure.
    healthy: usize,
}

impl Fleet {
    fn start(runtime: &Runtime, cluster: &Cluster, count: usize) -> Self {
        let _runtime = runtime.enter();
        let stop = CancellationToken::new();
        let start = |number| {
            let (mux, turning) = Mux::new(&[SourceName::Api]);
            let kubeconfig = Kubeconfig::File(cluster.kubeconfig().into());
            let node = NodeName::new(&cluster.node(number)).unwrap();
            let channel = mux.channel(SourceName::Api).unwrap();
            let (proxies, pod_security) = (api::Proxies::default(), SecurityLevel::default());
            let config = api::Config { kubeconfig, proxies, pod_security };
            let (source, handle) = ApiSource::new(config, node, channel);
            let handle = (handle, source.metrics());
            tokio::spawn(turning.run());
            tokio::spawn(source.run(stop.clone()));
            Agent { handle, merged: mux.merged() }
        };
        let agents = (0..count).map(start).collect();
        Self { agents, stop }
    }

    /// Waits until each agent has all its pods, and returns the times.
    async fn synced(&self) -> Vec<Instant> {
        let mut synced = Vec::new();
        for agent in futures::future::join_all(self.agents.iter().map(|agent| agent.has_pods(PODS))).await {
            synced.push(agent);
        }
        synced
    }

    fn counts(&self) -> Counts {
        let mut all = Counts { watches: 0, lists: 0, errors: 0, healthy: 0 };
        for agent in &self.agents {
            let (handle, metrics) = &agent.handle;
            all.watches += metrics.watches.get();
            all.lists += metrics.lists.get();
            for kind in ["connect", "http", "broken", "error-event", "silent"] {
                all.errors += metrics.errors.get_or_create(&[("kind", kind.to_owned())]).get();
            }
            let SourceStatus { failing, reflector, .. } = handle.status().borrow().clone();
            all.healthy +=
                usize::from(failing.is_none() && reflector.is_some_and(|at| at.phase == "watching"));
        }
        all
    }
}

/// The resources that a process has used so far.
#[derive(Clone, Copy)]
struct Used {
    process: u32,
    cpu: f64,
    rss_mib: f64,
}

impl Used {
    fn by(process: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        // The third field follows the name in brackets.
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        let cpu = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        Self { process, cpu, rss_mib: support::status(process, "VmRSS") as f64 / 1024.0 }
    }

    /// Prints what the process has used since then.
    fn since(self, what: &str, time: Duration) {
        let now = Self::by(self.process);
        let (cpu, share) = (now.cpu - self.cpu, 100.0 * (now.cpu - self.cpu) / time.as_secs_f64().max(1e-3));
        println!(
            "{what:<70} {cpu:>8.2} s of CPU in {:.1} s ({share:.1} %)   RSS {:.0} MiB, {:+.0}",
            time.as_secs_f64(),
            now.rss_mib,
            now.rss_mib - self.rss_mib,
        );
    }

    /// Prints what the process has used for each of so many.
    fn each(self, what: &str, count: usize, begin: Instant) {
        let cpu = Self::by(self.process).cpu - self.cpu;
        let each = 1000.0 * cpu / count as f64;
        println!(
            "{what:<70} {each:>8.2} ms of CPU each   n {count} in {:.1} s",
            begin.elapsed().as_secs_f64()
        );
    }
}

/// The process of the kube-apiserver that this benchmark has started.
fn apiserver() -> u32 {
    let processes = fs::read_dir("/proc").unwrap();
    let mut numbers = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    let is_it = |number: u32| {
        let command = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        command.split(|byte| *byte == 0).nth(1) == Some(b"kube-apiserver")
            && parent(number).and_then(parent) == Some(std::process::id())
    };
    numbers.find(|number| is_it(*number)).expect("a kube-apiserver of this benchmark")
}

/// The parent of a process; nothing if it has ended.
fn parent(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    support::field(&status, "PPid").try_into().ok()
}

/// Prints how long after a moment each time is.
fn spread(what: &str, begin: Instant, at: Vec<Instant>) {
    let mut times: Vec<_> = at.into_iter().map(|at| at.duration_since(begin).as_secs_f64()).collect();
    times.sort_unstable_by(f64::total_cmp);
    let last = times.len() - 1;
    println!(
        "{what:<70} first {:.2} s   p50 {:.2} s   p95 {:.2} s   last {:.2} s",
        times[0],
        times[last / 2],
        times[last * 95 / 100],
        times[last]
    );
}

/// A running nginx. It ends when this is dropped.
struct Nginx {
    child: Child,
    url: String,
    directory: tempfile::TempDir,
}

impl Nginx {
    /// Starts nginx. Without one in the path it prints that and returns nothing.
    fn start() -> Option<Self> {
        if Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_err() {
            println!("fleet: polling skipped, there is no nginx in the path");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        // Another process could use the port first; then the benchmark fails.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path temp;"))
            .join(" ");
        let config = format!(
            "daemon off; master_process off; pid pid; error_log error.log; worker_rlimit_nofile 8192;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ {temporary} log_format it '$msec $status $bytes_sent'; access_log access.log it;\n\
             server {{ listen 127.0.0.1:{port}; root .; default_type application/json; }} }}\n"
        );
        fs::write(directory.path().join("nginx.conf"), config).unwrap();
        let prefix = directory.path().to_str().unwrap();
        let child = Command::new("nginx")
            .args(["-p", prefix, "-c", "nginx.conf", "-e", "error.log"])
            .spawn()
            .unwrap();
        Some(Self { child, url: format!("http://127.0.0.1:{port}/pods.json"), directory })
    }

    /// Replaces the pods in one step.
    fn serve(&self, round: usize) -> usize {
        let pods: Vec<Value> = (0..PODS).map(|number| pod(&name(number), round)).collect();
        let text = json!({"apiVersion": "v1", "kind": "PodList", "items": pods}).to_string();
        let at = |file: &str| self.directory.path().join(file);
        fs::write(at("staged"), &text).unwrap();
        fs::rename(at("staged"), at("pods.json")).unwrap();
        text.len()
    }

    /// Each request so far: its second, its status and the size of the response.
    fn requests(&self) -> Vec<(u64, u16, u64)> {
        let log = fs::read_to_string(self.directory.path().join("access.log")).unwrap();
        let read = |line: &str| {
            let fields: Vec<&str> = line.split([' ', '.']).collect();
            (fields[0].parse().unwrap(), fields[2].parse().unwrap(), fields[3].parse().unwrap())
        };
        log.lines().map(read).collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Measures the agents at a URL.
fn polled(runtime: &Runtime, size: &Size) {
    let Some(nginx) = Nginx::start() else { return };
    let agents = size.agents;
    let title = |what: &str| format!("fleet-url/{agents} {what}");
    let bytes = nginx.serve(0);
    println!("{}: {PODS} pods are {bytes} bytes", title("pods"));
    let stop = CancellationToken::new();
    let (before, own) = (Used::by(nginx.child.id()), Used::by(std::process::id()));
    let begin = Instant::now();
    let fleet: Vec<_> =
        (0..agents).map(|number| poller(runtime, &nginx.url, number, size.frequency, &stop)).collect();
    let waits = futures::future::join_all(fleet.iter().map(|agent| agent.has_pods(PODS)));
    let synced = runtime.block_on(waits);
    let whole = begin.elapsed();
    spread(&title("start of all at once until synced"), begin, synced);
    before.since(&title("start of all at once: nginx"), whole);
    own.since(&title("start of all at once: the agents"), whole);

    // After two rounds the polls of the agents are spread.
    thread::sleep(2 * size.frequency);
    let done = nginx.requests().len();
    let before = Used::by(nginx.child.id());
    let time = size.idle.max(3 * size.frequency);
    thread::sleep(time);
    before.since(&title("polled: nginx"), time);
    let requests = &nginx.requests()[done..];
    let unchanged = requests.iter().filter(|request| request.1 == 304).count();
    let sent: u64 = requests.iter().map(|request| request.2).sum();
    let mut per_second: Vec<usize> = Vec::new();
    for request in requests {
        let second = usize::try_from(request.0 - requests[0].0).unwrap();
        per_second.resize(per_second.len().max(second + 1), 0);
        per_second[second] += 1;
    }
    println!(
        "{:<70} {:.1} requests a second, at most {}; {unchanged} of {} were 304; {} bytes of response each",
        title("polled"),
        requests.len() as f64 / time.as_secs_f64(),
        per_second.iter().max().unwrap(),
        requests.len(),
        sent / requests.len() as u64,
    );
    let begin = Instant::now();
    nginx.serve(1);
    let mark = "\"podmux.example/round\":\"1\"";
    let delivered = runtime.block_on(futures::future::join_all(fleet.iter().map(|agent| async {
        let mut merged = agent.merged.clone();
        let has = |merged: &Merged| {
            merged.iter().any(|(_, entry)| String::from_utf8_lossy(entry.pod().text()).contains(mark))
        };
        tokio::time::timeout(PATIENCE, merged.wait_for(has)).await.unwrap().unwrap();
        Instant::now()
    })));
    spread(&title("a change until all have it"), begin, delivered);
    stop.cancel();
}

fn poller(
    runtime: &Runtime,
    url: &str,
    number: usize,
    frequency: Duration,
    stop: &CancellationToken,
) -> Agent<UrlHandle> {
    let _runtime = runtime.enter();
    let (mux, turning) = Mux::new(&[SourceName::Url]);
    let node = NodeName::new(&format!("node-{number:05}")).unwrap();
    let preparation = Preparation { source: SourceName::Url, node, generate: None, namespace: None };
    let config = url::Config {
        url: url.parse().unwrap(),
        headers: HeaderMap::new(),
        ca_file: None,
        client_certificate: None,
        sha256: None,
        check_frequency: frequency,
        pod_security: SecurityLevel::default(),
    };
    let (source, handle) = UrlSource::new(config, preparation, mux.channel(SourceName::Url).unwrap());
    tokio::spawn(turning.run());
    tokio::spawn(source.run(stop.clone()));
    Agent { handle, merged: mux.merged() }
}
