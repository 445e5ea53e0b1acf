//! What each part of the node holds: the sources, the agent, two consumers of its streams, and podman.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fmt::Debug,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use podmux_machine::{
    appended::Appended,
    machine::Machine,
    plain::{Answer, Connection},
};
use serde_json::{Value, json};

use super::{
    INTERVAL, World,
    faults::Fault,
    lock,
    workload::{KEPT, MANIFESTS, Worker, spec_of},
};

/// All pods of the agent.
const PODS: &str = "/api/v1/pods";
/// All pods that the API server has bound to the node.
const BOUND: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode1";
/// The file of the update stream.
const UPDATES: &str = "/var/log/podmux/updates.jsonl";
/// What every consumer may forget about.
const SEEN: &str = "kubernetes.io/config.seen";

type Pods = BTreeMap<String, Value>;

/// The consumers, and what was noticed of the agent so far.
pub struct Views {
    replay: Replay,
    watch: Watch,
    /// The process of each pod that never changes.
    kept: BTreeMap<String, Value>,
    /// How many processes of containers podman does not know any more.
    forgotten: u64,
    /// The most memory of its own that the agent has had at rest, in KiB.
    memory: u64,
    /// The limit of the unit, in KiB.
    limit: u64,
    /// How often the agent was seen with a version that had expired at the API server, at rest.
    expired: u64,
}

impl Views {
    pub fn new(machine: &Machine) -> Self {
        let limit = machine.number("MemoryHigh") >> 10;
        Self {
            replay: Replay::default(),
            watch: Watch::start(machine.socket()),
            kept: BTreeMap::new(),
            forgotten: 0,
            memory: 0,
            limit,
            expired: 0,
        }
    }

    /// Compares everything with what the sources hold. The error is the first difference.
    pub fn compare(&mut self, world: &World, workers: &[Worker]) -> Result<(), String> {
        let machine = world.machine;
        let ready = get(machine, "/readyz").map(drop);
        states(machine, "/sources", "synced").and(states(machine, "/sinks", "current")).and(ready)?;
        let listed = items(&get(machine, PODS)?.json());
        let source = |pod: &Value| pod["metadata"]["annotations"]["kubernetes.io/config.source"].clone();
        let shown: BTreeMap<_, _> = listed
            .iter()
            .map(|(key, pod)| (key.clone(), brief(pod, source(pod).as_str().unwrap())))
            .collect();
        let wanted = wanted(world, workers)?;
        same("the agent has, the sources hold", &shown, &wanted)?;
        self.replay.read(world);
        let streamed = listed.iter().map(|(key, pod)| (key.clone(), (source(pod), streamed(pod)))).collect();
        same("the replay of the file has, the agent has", &self.replay.pods, &streamed)?;
        same("the watch has, the agent has", &lock(&self.watch.pods), &listed)?;
        self.runs(machine, &listed)?;
        self.forgotten(world)
    }

    /// Checks that each container's process belongs to a container that podman knows. A podman that is killed while it
    /// makes a container forgets that it has made it.
    fn forgotten(&mut self, world: &World) -> Result<(), String> {
        let counts = world.machine.ok("pgrep -c conmon; podman ps --quiet | wc -l");
        let counts: Vec<u64> = counts.lines().map(|count| count.parse().unwrap()).collect();
        self.forgotten = counts[0].saturating_sub(counts[1]);
        let may_be = world.count(Fault::PodmanKilled.name()) + world.count(Fault::PodmanRestarts.name());
        if self.forgotten > may_be {
            Err(format!("podman has forgotten {} containers", self.forgotten))
        } else {
            Ok(())
        }
    }

    /// Compares what podman runs with the agent's pods.
    fn runs(&mut self, machine: &Machine, listed: &Pods) -> Result<(), String> {
        let podman = |arguments: &str| {
            let output = machine.run(&format!("podman {arguments} --format json"));
            serde_json::from_str::<Vec<Value>>(&output.stdout).map_err(|error| format!("{error}: {output:?}"))
        };
        let label = |of: &Value, name: &str| text(&of["Labels"][format!("podmux.{name}")]);
        let key = |of: &Value| format!("{}/{}", label(of, "namespace"), label(of, "name"));
        let uid = |pod: &Value| text(&pod["metadata"]["uid"]);
        let pods: Vec<_> = podman("pod ps")?.iter().map(|pod| (key(pod), label(pod, "uid"))).collect();
        // An API server that is killed while it deletes a pod leaves it marked, and the agent has stopped it.
        let runs = |(_, pod): &(&String, &Value)| pod["metadata"]["deletionTimestamp"].is_null();
        let listed: Vec<_> = listed.iter().filter(runs).collect();
        let wanted: Vec<_> = listed.iter().map(|(key, pod)| ((*key).clone(), uid(pod))).collect();
        same_all("podman has the pods, the agent has", pods, wanted)?;
        let containers = podman("ps --all --filter label=podmux.container")?;
        let (running, ended): (Vec<_>, Vec<_>) =
            containers.iter().partition(|container| container["State"] == "running");
        let runs = running.iter().map(|container| {
            (key(container), label(container, "uid"), spec_of(&container["Command"]).to_owned())
        });
        let wanted = listed.iter().map(|(key, pod)| {
            let arguments = &pod["spec"]["containers"][0]["args"];
            ((*key).clone(), uid(pod), spec_of(arguments).to_owned())
        });
        same_all("podman runs, the agent has", runs.collect(), wanted.collect())?;
        if let Some(waiting) = ended.iter().find(|container| container["State"] != "exited") {
            return Err(format!("a container neither runs nor has ended: {waiting}"));
        }
        let is_kept = |container: &&&Value| KEPT.iter().any(|name| key(container).contains(name));
        let kept = running.iter().filter(is_kept).map(|container| (key(container), container["Pid"].clone()));
        let kept: BTreeMap<_, _> = kept.collect();
        if self.kept.is_empty() {
            self.kept.clone_from(&kept);
        }
        same("the processes of pods that never change are, they were", &kept, &self.kept)
    }

    /// Checks what no fault excuses: the agent's memory, its log, and how it ended.
    pub fn check(&mut self, world: &World) {
        let agent = world.machine.agent().unwrap_or_else(|| world.fail("the agent does not run"));
        let status = fs::read_to_string(format!("/proc/{}/status", agent.as_raw_nonzero())).unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        self.memory = self.memory.max(memory.trim().trim_end_matches(" kB").parse().unwrap());
        if self.memory > self.limit {
            world.fail(&format!("the agent has {} KiB of memory; its limit is {}", self.memory, self.limit));
        }
        let metrics = get(world.machine, "/metrics").unwrap_or_else(|error| world.fail(&error)).text();
        let is_expired = |line: &&str| line.contains("kind=\"expired\"") && !line.ends_with(" 0");
        self.expired += u64::from(metrics.lines().any(|line| is_expired(&line)));
        // The agent reports errors and panics, systemd how it ended.
        let errors = world.machine.journal("--priority=err");
        let journal = world.machine.journal("--output=cat");
        let is_end = |line: &&str| {
            let is_kill = line.contains("code=killed, status=9/KILL");
            line.contains("Main process exited") && !is_kill || line.contains("Watchdog timeout")
        };
        let mut bad =
            errors.lines().filter(|line| line.contains(" podmux[")).chain(journal.lines().filter(is_end));
        if let Some(line) = bad.next() {
            world.fail(&format!("the journal has: {line}"));
        }
    }

    pub fn summary(&self) -> String {
        let (memory, limit) = (self.memory >> 10, self.limit >> 10);
        let (updates, events) = (self.replay.updates, self.watch.events.load(Ordering::Relaxed));
        let (expired, forgotten) = (self.expired, self.forgotten);
        let relists = self.watch.lists.load(Ordering::Relaxed);
        format!(
            "{updates} updates in the file, {events} events and {relists} lists of the watch, \
             {memory} MiB of {limit}, an expired version at {expired} rests, {forgotten} containers that a killed \
             podman has forgotten"
        )
    }

    /// Checks that the effects of faults were seen, however they have met.
    pub fn has_seen_all(&self) {
        assert!(self.replay.went_back > 0, "the agent's clock never went back");
        assert!(self.watch.lists.load(Ordering::Relaxed) > 1, "the watch has seen no restart of the agent");
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        self.watch.stop.store(true, Ordering::SeqCst);
    }
}

/// What the sources hold: the directory, the acknowledged posts, the API server.
fn wanted(world: &World, workers: &[Worker]) -> Result<BTreeMap<String, String>, String> {
    let mut wanted = BTreeMap::new();
    for entry in fs::read_dir(world.machine.path(MANIFESTS)).unwrap() {
        let pod: Value = serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap();
        wanted.insert(format!("{}-node1", key(&pod)), brief(&pod, "file"));
    }
    for (name, version) in workers.iter().filter_map(Worker::posted).flatten() {
        wanted.insert(format!("default/{name}"), format!("http {} {}", version.label, version.spec));
    }
    let bound = items(&world.apiserver.try_ask("GET", BOUND, &Value::Null)?);
    wanted.extend(bound.iter().map(|(key, pod)| (key.clone(), brief(pod, "api"))));
    Ok(wanted)
}

fn get(machine: &Machine, path: &str) -> Result<Answer, String> {
    let answer = machine.ask("GET", path, b"").map_err(|error| format!("{path}: {error}"))?;
    if answer.code == 200 { Ok(answer) } else { Err(format!("{path}: {}", answer.text())) }
}

/// Checks that all sources or sinks have this state and do not fail. A source that is not configured has its own.
fn states(machine: &Machine, path: &str, state: &str) -> Result<(), String> {
    let list = get(machine, path)?.json();
    let items = list["items"].as_array().unwrap();
    let is_well = |item: &&Value| item["state"] == state && item["failing"].is_null();
    match items.iter().find(|item| !is_well(item)) {
        Some(item) => Err(format!("{path}: {item}")),
        None => Ok(()),
    }
}

/// Compares two views; the error has what differs.
fn same<T: Debug + PartialEq>(
    what: &str,
    ours: &BTreeMap<String, T>,
    theirs: &BTreeMap<String, T>,
) -> Result<(), String> {
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let differ = keys.into_iter().filter(|key| ours.get(*key) != theirs.get(*key));
    let differ: Vec<_> =
        differ.map(|key| format!("{key}: {:?}, {:?}", ours.get(key), theirs.get(key))).collect();
    if differ.is_empty() { Ok(()) } else { Err(format!("{what}: {}", differ.join("; "))) }
}

/// Compares two lists in any order.
fn same_all<T: Debug + Ord>(what: &str, mut ours: Vec<T>, mut theirs: Vec<T>) -> Result<(), String> {
    ours.sort();
    theirs.sort();
    if ours == theirs { Ok(()) } else { Err(format!("{what}: {ours:?}, {theirs:?}")) }
}

fn text(word: &Value) -> String {
    word.as_str().unwrap_or_default().to_owned()
}

fn key(pod: &Value) -> String {
    let word = |field: &str| pod["metadata"][field].as_str().unwrap();
    format!("{}/{}", word("namespace"), word("name"))
}

/// `SOURCE LABEL SPEC`, in the numbers of the work.
fn brief(pod: &Value, source: &str) -> String {
    let label = pod["metadata"]["labels"]["version"].as_str().unwrap_or_default();
    format!("{source} {label} {}", spec_of(&pod["spec"]["containers"][0]["args"]))
}

/// The pods of a list by `namespace/name`, without their type, which items of a list may lack.
fn items(list: &Value) -> Pods {
    list["items"].as_array().unwrap().iter().map(|pod| (key(pod), untyped(pod))).collect()
}

fn untyped(pod: &Value) -> Value {
    let mut pod = pod.clone();
    for field in ["apiVersion", "kind"] {
        pod.as_object_mut().unwrap().remove(field);
    }
    pod
}

/// What of a pod makes an update.
fn streamed(pod: &Value) -> Value {
    const METADATA: [&str; 6] =
        ["uid", "labels", "deletionTimestamp", "deletionGracePeriodSeconds", "name", "namespace"];
    let metadata = METADATA.map(|field| pod["metadata"][field].clone());
    let mut annotations = pod["metadata"]["annotations"].clone();
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove(SEEN);
    }
    json!([metadata, annotations, pod["spec"]])
}

/// A consumer of the file of the update stream, as docs/stream.md says, over all runs of the agent.
#[derive(Default)]
struct Replay {
    /// The source and the content of each pod.
    pods: BTreeMap<String, (Value, Value)>,
    position: Appended,
    updates: u64,
    /// How many lines have broken off.
    torn: u64,
    /// The number of the last line.
    number: u64,
    /// How often a line had a lower time than the line before.
    went_back: u64,
    time: String,
}

impl Replay {
    fn read(&mut self, world: &World) {
        for line in self.position.lines(&world.machine.path(UPDATES)) {
            self.take(world, &line);
        }
    }

    fn take(&mut self, world: &World, line: &[u8]) {
        let Ok(line) = serde_json::from_slice::<Value>(line) else {
            // An agent that was killed may leave the beginning of a line.
            self.torn += 1;
            let kills = world.count(Fault::AgentKilled.name()) + world.count(Fault::KilledOnSlowDisk.name());
            if self.torn > kills {
                world.fail(&format!("no update: {}", String::from_utf8_lossy(line)));
            }
            return;
        };
        let (number, time) = (line["seq"].as_u64().unwrap(), line["time"].as_str().unwrap().to_owned());
        if number <= self.number {
            world.fail(&format!("after number {} came {line}", self.number));
        }
        self.number = number;
        self.updates += 1;
        self.went_back += u64::from(time < self.time);
        self.time = time;
        let (op, source) = (line["op"].as_str().unwrap(), &line["source"]);
        let pods: BTreeMap<String, (Value, Value)> = line["pods"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| (key(pod), (source.clone(), streamed(pod))))
            .collect();
        let before: Vec<String> = self.pods.keys().cloned().collect();
        match op {
            "REMOVE" => self.pods.retain(|key, _| !pods.contains_key(key)),
            "SET" => self.pods.retain(|key, held| held.0 != *source || pods.contains_key(key)),
            _ => {}
        }
        let is_kept = |key: &&String| KEPT.iter().any(|name| key.contains(name));
        if before.iter().filter(is_kept).any(|key| !self.pods.contains_key(key)) {
            world.fail(&format!("{op} takes away a pod that is always wanted: {line}"));
        }
        if op != "REMOVE" {
            self.pods.extend(pods);
        }
    }
}

/// A client of a watch, as client-go's reflector: it continues after a break, and lists when it cannot.
#[derive(Clone, Default)]
struct Watch {
    pods: Arc<Mutex<Pods>>,
    events: Arc<AtomicU64>,
    lists: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn start(socket: PathBuf) -> Self {
        let watch = Self::default();
        let thread = watch.clone();
        thread::spawn(move || {
            let mut version = None;
            while !thread.stop.load(Ordering::SeqCst) {
                // It ends when the agent does, and with an error that is answered by a list.
                let _ = thread.follow(&socket, &mut version);
                thread::sleep(INTERVAL);
            }
        });
        watch
    }

    fn follow(&self, socket: &Path, version: &mut Option<String>) -> io::Result<Infallible> {
        let from = match version {
            Some(from) => from,
            None => version.insert(self.list(socket)?),
        };
        let path = format!("{PODS}?watch=1&allowWatchBookmarks=true&resourceVersion={from}");
        let connection = Connection::unix(socket)?;
        // An error that is a response: the version is not held any more.
        let lines = connection.lines(&path);
        *version =
            version.take().filter(|_| !matches!(&lines, Err(error) if error.kind() == io::ErrorKind::Other));
        let mut lines = lines?;
        loop {
            let event: Value = serde_json::from_str(&lines.next()?).map_err(io::Error::other)?;
            let object = &event["object"];
            match event["type"].as_str().unwrap() {
                "ADDED" | "MODIFIED" => drop(lock(&self.pods).insert(key(object), untyped(object))),
                "DELETED" => drop(lock(&self.pods).remove(&key(object))),
                "BOOKMARK" => {}
                _ => {
                    *version = None;
                    return Err(io::Error::other(event.to_string()));
                }
            }
            *version = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
            self.events.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Replaces all pods by those of a list. Returns its version.
    fn list(&self, socket: &Path) -> io::Result<String> {
        let answer = Connection::unix(socket)?.ask("GET", PODS, b"")?;
        if answer.code != 200 {
            return Err(io::Error::other(answer.text()));
        }
        let list = answer.json();
        *lock(&self.pods) = items(&list);
        self.lists.fetch_add(1, Ordering::Relaxed);
        Ok(list["metadata"]["resourceVersion"].as_str().unwrap().to_owned())
    }
}
