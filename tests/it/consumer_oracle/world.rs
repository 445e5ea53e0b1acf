//! The agent as a process, its sources, and its consumers.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::Command,
    sync::{Arc, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::{
    exec::Exec,
    follower::{Follower, Style},
    model::{Images, MARKER, Model, Settings, pod},
    output::{Stdout, Tail},
    podman,
    receiver::Receiver,
    replay::{Held, Law, Numbering, Pods, Reader, Upheaval, compared},
    runs::{Runs, image},
};
use crate::support::{
    apiserver::ApiServer,
    plain::{Answer, Connection},
    process::{PATIENCE, Process, podmux},
    random::Random,
    web::{Reply, Web},
};

/// The consumers.
pub const CONSUMERS: &str = "stdout file newcomer lines run events webhook";
/// The runtimes: consumers that run pods. They need a state.
pub const EXEC: &str = "exec";
pub const PODMAN: &str = "podman";
/// The faults that may happen; the last ones only beside a runtime.
pub const FAULTS: &str =
    "disk stdout rotation cut receiver source restart state configuration node clock program kill reboot";
/// The most images that a round uses.
const IMAGES: u32 = 100;
/// The size of the disk of the output file.
const DISK: &str = "size=8m";

/// How a world is made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub consumers: String,
    pub faults: String,
    pub settings: Settings,
}

impl Plan {
    pub fn new(seed: u64, consumers: &str) -> Self {
        let (consumers, faults) = (consumers.to_owned(), FAULTS.to_owned());
        Self { seed, consumers, faults, settings: Settings::default() }
    }

    fn may(&self, fault: &str) -> bool {
        self.faults.split_whitespace().any(|word| word == fault)
    }

    pub fn has(&self, consumer: &str) -> bool {
        self.consumers.split_whitespace().any(|word| word == consumer)
    }
}

/// Everything of one case.
pub struct World {
    pub(super) directory: TempDir,
    pub(super) runtime: Runtime,
    pub(super) plan: Plan,
    pub law: Arc<Law>,
    pub model: Model,
    pub settings: Settings,
    pub web: Web,
    pub api: ApiServer,
    pub agent: Option<Process>,
    /// A copy of the state directory, and the posted pods in it.
    pub(super) copy: Option<Images>,
    pub stdout: Option<Stdout>,
    pub tail: Option<Tail>,
    pub followers: Vec<Follower>,
    pub receiver: Option<Receiver>,
    /// The runtime, if there is one.
    pub runs: Option<Box<dyn Runs>>,
    pub(super) images: u32,
    /// The last image that the runtime has.
    provided: u32,
    pub(super) api_is_down: bool,
    /// How far the clock of the agent is behind, in seconds.
    pub behind: u64,
    steps: Vec<String>,
    round: u64,
    /// How the consumers differ from what is wanted, when that was looked at last.
    differences: String,
}

impl World {
    /// A world whose agent does not run yet. Call it inside a mount namespace: it has a disk of its own.
    pub fn new(plan: Plan) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("manifests")).unwrap();
        fs::create_dir(at("disk")).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", DISK, "tmpfs"]).arg(at("disk")).status();
        assert!(mounted.unwrap().success());
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let web = runtime.block_on(Web::start(Reply::new(500, "not yet")));
        let api = runtime.block_on(async { ApiServer::start(None) });
        let law: Arc<Law> = Arc::default();
        // Only with state and clock gone back at the same time may a number come again, in another run.
        let numbering =
            if clock_library(plan.seed).is_some() { Numbering::InRun } else { Numbering::OverRuns };
        let follow = |(name, style)| {
            let ends = plan.may("cut").then(|| Random::new(plan.seed));
            Follower::start(name, &law, &at("s"), style, numbering("/updates".to_owned()), ends)
        };
        let followers = [("lines", Style::Bare), ("run", Style::OfRun), ("events", Style::Events)];
        let mut world = Self {
            followers: followers.into_iter().filter(|(name, _)| plan.has(name)).map(follow).collect(),
            tail: (plan.has("file") || plan.has("newcomer"))
                .then(|| Tail::new(&at("disk").join("updates.jsonl"), &law)),
            receiver: plan.has("webhook").then(|| Receiver::start(&law, plan.seed)),
            runs: match () {
                () if plan.has(EXEC) => Some(Box::new(Exec::new(at("exec"), &law, plan.seed))),
                () if plan.has(PODMAN) => podman::Pods::new(at("runtime"), &law, plan.seed)
                    .map(|pods| Box::new(pods) as Box<dyn Runs>),
                () => None,
            },
            directory,
            runtime,
            law,
            model: Model::default(),
            settings: plan.settings.clone(),
            plan,
            web,
            api,
            agent: None,
            copy: None,
            stdout: None,
            images: 0,
            provided: 0,
            api_is_down: false,
            behind: 0,
            steps: Vec::new(),
            round: 0,
            differences: String::new(),
        };
        // The directory is never empty: an empty one that comes back may be a volume that is not mounted.
        world.write_file("always");
        world.serve_url();
        world
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Whether such a fault may happen.
    pub fn may(&self, fault: &str) -> bool {
        self.plan.may(fault)
    }

    /// Notes a step, for the report.
    pub fn note(&mut self, step: impl Into<String>) {
        let step = step.into();
        if env::var_os("PODMUX_CONSUMER_TRACE").is_some() {
            println!("{step}");
        }
        self.steps.push(step);
        self.runs.iter_mut().for_each(|runs| runs.read());
    }

    pub fn begin_round(&mut self, round: u64) {
        self.round = round;
        let last = self.images + IMAGES;
        let images: Vec<String> = (self.provided + 1..=last).map(|image| format!("i:{image}")).collect();
        self.runs.iter_mut().for_each(|runs| runs.provide(&images));
        self.provided = last;
        self.note(format!("-- round {round}"));
    }

    /// Fails with all that is known.
    pub fn fail(&self, what: &str) -> ! {
        let mut report = format!(
            "round {} of PODMUX_CONSUMER_SEED={}: {what}\nsteps:\n  {}\n{:?}\n",
            self.round,
            self.plan.seed,
            self.steps.join("\n  "),
            self.settings,
        );
        self.readers(|reader| writeln!(report, "{}", reader.report()).unwrap());
        self.runs.iter().for_each(|runs| writeln!(report, "{}", runs.report()).unwrap());
        let answer = self.ask("GET", "/pods", "").ok().filter(|_| self.runs.is_some());
        for pod in answer.iter().filter_map(|answer| answer.json()["items"].as_array().cloned()).flatten() {
            writeln!(report, "{} is {}", pod_key(&pod), pod["status"]).unwrap();
        }
        let log = self.agent.as_ref().map(|agent| agent.stderr.text()).unwrap_or_default();
        let from = log.len().saturating_sub(3000);
        let log = log.get(from..).unwrap_or(&log);
        panic!("{report}the agent's log ends with:\n{log}");
    }

    /// Each consumer.
    fn readers(&self, mut with: impl FnMut(&Reader)) {
        let guards =
            self.stdout.iter().map(Stdout::reader).chain(self.followers.iter().map(Follower::reader));
        let guards = guards.chain(self.receiver.iter().map(Receiver::reader));
        guards.for_each(|reader: MutexGuard<'_, Reader>| with(&reader));
        self.tail.iter().for_each(|tail| with(&tail.reader));
    }

    /// Waits until something is seen, as long as no rule is broken.
    pub fn wait_for<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let (begun, mut was_unblocked) = (Instant::now(), false);
        loop {
            let seen = look(self);
            self.runs.iter_mut().for_each(|runs| runs.read());
            let faults = self.law.faults();
            if !faults.is_empty() {
                self.fail(&faults.join("\n"));
            }
            if let Some(seen) = seen {
                return seen;
            }
            if begun.elapsed() > PATIENCE / 6 && !was_unblocked {
                was_unblocked = true;
                self.runs.iter().for_each(|runs| runs.unblock());
            }
            if begun.elapsed() > PATIENCE {
                self.fail(&format!("never: {what}\n{}", self.differences));
            }
            thread::sleep(Duration::from_millis(3));
        }
    }
}

impl Drop for World {
    /// Nothing stays: a directory with a mounted disk could not be removed.
    fn drop(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.signal(Signal::KILL);
            self.stdout = None;
            agent.ends();
        }
        self.runs.iter_mut().for_each(|runs| runs.kill_all());
        let unmounted = Command::new("umount").arg(self.at("disk")).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || thread::panicking());
    }
}

/// The agent.
impl World {
    fn command(&self) -> Command {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let mut args: Vec<String> = ["run", "--node-name", self.settings.node].map(str::to_owned).into();
        let mut set = |flag: &str, value: String| args.extend([format!("--{flag}"), value]);
        set("listen", format!("unix:{}", text(self.at("s"))));
        let state = if self.settings.has_state { text(self.at("state")) } else { "none".to_owned() };
        set("state-dir", state);
        set("notify", self.settings.notify.to_owned());
        set("shutdown-grace", "500ms".to_owned());
        if self.settings.file {
            set("pod-manifest-path", text(self.at("manifests")));
            set("file-check-frequency", "100ms".to_owned());
        }
        if self.settings.url {
            set("manifest-url", self.web.at("/pods"));
            set("http-check-frequency", "100ms".to_owned());
        }
        if self.settings.api {
            let user = json!({"token": "t"});
            set("kubeconfig", text(self.api.kubeconfig(self.directory.path(), &user)));
        }
        set("sink", "jsonl".to_owned());
        if let Some(tail) = &self.tail {
            set("sink", format!("jsonl={}", tail.path().display()));
        }
        if let Some(receiver) = &self.receiver {
            set("sink", format!("webhook={},max-bytes=2Ki", receiver.url));
        }
        if let Some(runs) = &self.runs {
            set("sink", runs.sink());
        }
        let mut command = podmux(&args.iter().map(String::as_str).collect::<Vec<_>>());
        command.env("RUNTIME_DIRECTORY", self.at("runtime"));
        if let Some(library) = clock_library(self.plan.seed) {
            command.env("LD_PRELOAD", library).env("FAKETIME", format!("-{}s", self.behind));
            command.env("DONT_FAKE_MONOTONIC", "1");
        }
        command
    }

    /// Starts the agent and waits until it answers.
    pub fn start(&mut self) {
        let mut command = self.command();
        let (stdout, pipe) = Stdout::open(&self.law);
        let agent = Process::start(command.stdout(pipe));
        // The parent's end of the pipe.
        drop(command);
        self.stdout = Some(stdout);
        self.agent = Some(agent);
        self.wait_for("an answer", |world| {
            world.ask("GET", "/livez", "").ok().filter(|answer| answer.code == 200)
        });
    }

    pub fn end(&mut self, signal: Signal) {
        let Some(agent) = self.agent.take() else { return };
        agent.signal(signal);
        agent.ends();
        self.tail.iter_mut().for_each(Tail::may_tear);
        if !self.settings.has_state {
            // Posted pods are lost.
            self.unwanted("http");
            self.model.posts.clear();
        }
    }

    /// The machine starts again: every process ends, and what is not on a disk is lost.
    pub fn reboot(&mut self) {
        self.law.happened(Upheaval::Reboot);
        self.end(Signal::KILL);
        let Some(runs) = &mut self.runs else { return };
        runs.reboot();
        // It is not there if the agent has not been started yet.
        let _ = fs::remove_dir_all(self.at("runtime"));
    }

    /// Asks the running agent.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> std::io::Result<Answer> {
        Connection::unix(&self.at("s"))?.ask(method, path, body.as_bytes())
    }

    pub(super) fn answer(&self, method: &str, path: &str, body: &str) -> Answer {
        let answer = self.ask(method, path, body);
        answer.unwrap_or_else(|error| self.fail(&format!("{method} {path}: {error}")))
    }
}

/// The library that sets back the agent's clock, of Debian's package `libfaketime`. Only with odd seeds:
/// with the others, numbers have to be unique over all runs.
pub fn clock_library(seed: u64) -> Option<String> {
    env::var("PODMUX_FAKETIME").ok().filter(|_| seed % 2 == 1)
}

/// The disk of the output file.
impl World {
    pub fn fill_disk(&self) {
        let mut file = File::create(self.at("disk").join("filler")).unwrap();
        for chunk in [1 << 16, 1] {
            while file.write_all(&vec![0; chunk]).is_ok() {}
        }
    }

    pub fn free_disk(&self) {
        // It may not be full.
        let _ = fs::remove_file(self.at("disk").join("filler"));
    }

    pub fn rotate(&mut self) {
        let Some(tail) = &mut self.tail else { return };
        tail.rotate();
        if let Some(agent) = &self.agent {
            agent.signal(Signal::HUP);
        }
    }
}

/// The rest after a round.
impl World {
    /// Heals everything, waits until the agent and its consumers are at rest, and compares.
    pub fn rest(&mut self) {
        self.heal_consumers();
        // Sources may still be unknown: a posted pod reaches each consumer all the same.
        self.mark("k");
        self.heal_sources();
        self.wait_for("the wanted pods", |world| world.is_synced().then_some(()));
        for half in ["a", "b"] {
            self.mark(half);
        }
        self.compare();
        self.tail.iter_mut().for_each(Tail::is_whole);
        let wanted = self.model.wanted(&self.settings).into_iter();
        self.runs.iter_mut().for_each(|runs| runs.read());
        self.runs.iter_mut().for_each(|runs| runs.rest());
        self.law.runs(self.runs.iter().flat_map(|runs| runs.running()).map(|(pod, _)| pod));
        self.law.wanted(wanted.map(|(key, (source, _))| (key, source)));
    }

    /// Nothing is wanted any more: the runtime has nothing of the agent's.
    pub fn clear(&mut self) {
        self.end(Signal::TERM);
        let nothing = Settings { file: false, url: false, api: false, ..self.settings.clone() };
        self.configure(nothing);
        self.unwanted("http");
        self.start();
        let posts = json!({"apiVersion": "v1", "kind": "PodList", "items": []});
        self.answer("PUT", "/pods", &posts.to_string());
        self.wait_for("the end of all pods", |world| {
            let left: Vec<String> = world.runs.iter().flat_map(|runs| runs.left()).collect();
            world.differences = format!("left: {left:?}");
            left.is_empty().then_some(())
        });
    }

    /// Changes a posted pod, and waits until each consumer has it.
    fn mark(&mut self, half: &str) {
        let image = format!("marker:{}{half}", self.images);
        self.runs.iter_mut().for_each(|runs| runs.provide(std::slice::from_ref(&image)));
        self.law.touched(MARKER);
        let answer = self.answer("POST", "/pods", &pod("marker", &image).to_string());
        if !matches!(answer.code, 200 | 201) {
            self.fail(&answer.text());
        }
        self.model.posts.insert("marker".to_owned(), image.clone());
        self.stored();
        self.wait_for("the marker, at each consumer", |world| {
            world.tail.iter_mut().for_each(Tail::read);
            let mut all = true;
            world.readers(|reader| all &= reader.image(MARKER) == Some(&image));
            all &= world.runs.iter().all(|runs| runs.has(MARKER, &image));
            all.then_some(())
        });
    }

    /// Ends the faults of the consumers and of the agent itself.
    fn heal_consumers(&mut self) {
        self.free_disk();
        self.stdout.iter().for_each(|stdout| stdout.set_reading(true));
        self.receiver.iter().for_each(|receiver| receiver.set_faulty(false));
        self.runs.iter_mut().for_each(|runs| runs.set_faulty(false));
        if self.agent.is_none() {
            self.start();
        }
    }

    /// Ends the faults of the sources, which are read again at once.
    fn heal_sources(&mut self) {
        self.serve_url();
        if self.at("away").exists() {
            fs::rename(self.at("away"), self.at("manifests")).unwrap();
        }
        self.set_api_up(true);
        if let Some(agent) = &self.agent {
            agent.signal(Signal::HUP);
        }
    }

    /// Whether every source is synced and `GET /pods` has what is wanted.
    fn is_synced(&self) -> bool {
        let sources = self.answer("GET", "/sources", "").json();
        let sources = sources["items"].as_array().unwrap().iter();
        let synced = |source: &Value| source["state"] == "synced" && source["failing"].is_null();
        sources.into_iter().all(synced) && self.shows_what_is_wanted(&self.listed())
    }

    /// Whether these are the wanted pods, by name, source and image.
    fn shows_what_is_wanted(&self, listed: &[Value]) -> bool {
        let of = |pod: &Value| {
            let source = pod["metadata"]["annotations"][podmux::pod::SOURCE].as_str();
            (pod_key(pod), (source.unwrap_or_default().to_owned(), image(pod)))
        };
        let shown: BTreeMap<String, (String, String)> = listed.iter().map(of).collect();
        let mut wanted = self.model.wanted(&self.settings);
        // The kubelet's annotation does not tell a URL from posts.
        for (source, _) in wanted.values_mut().filter(|wanted| wanted.0 == "url") {
            "http".clone_into(source);
        }
        shown == wanted
    }

    /// Whether the runtime, if there is one, has nothing to do.
    fn runtime_is_current(&self) -> bool {
        let sinks = self.answer("GET", "/sinks", "").json();
        let mut sinks = sinks["items"].as_array().unwrap().iter();
        let is_runtime = |name: &str| name.starts_with(EXEC) || name.starts_with(PODMAN);
        sinks.all(|sink| !is_runtime(sink["name"].as_str().unwrap()) || sink["state"] == "current")
    }

    /// The number of the last update.
    pub fn number(&self) -> u64 {
        let list = self.answer("GET", "/pods", "").json();
        list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }

    fn listed(&self) -> Vec<Value> {
        self.answer("GET", "/pods", "").json()["items"].as_array().unwrap().clone()
    }

    /// Holds each consumer's replay against the agent's pods, which are what is wanted.
    fn compare(&mut self) {
        let listed = self.listed();
        if !self.shows_what_is_wanted(&listed) {
            self.fail("the agent has other pods than those that are wanted");
        }
        let sources = self.model.wanted(&self.settings);
        let held = |pod: &Value| {
            let mut held = compared(pod);
            // What a read shows of a runtime, or that there is none, is in no stream; no source sets a status.
            held["status"] = json!({"phase": "Pending"});
            Held { source: sources[&pod_key(pod)].0.clone(), pod: held }
        };
        let wanted: Pods = listed.iter().map(|pod| (pod_key(pod), held(pod))).collect();
        // A connection may have been cut after the marker, in the middle of a beginning.
        self.wait_for("the wanted pods, at each consumer", |world| {
            world.tail.iter_mut().for_each(Tail::read);
            let mut differences = Vec::new();
            let has_file = world.plan.has("file");
            world.readers(|reader| {
                if has_file || !reader.is_named("file") {
                    differences.extend(reader.differs(&wanted));
                }
            });
            if world.plan.has("newcomer") {
                // The agent may still be about to open the file of the last rotation.
                differences.extend(world.tail.iter().filter_map(|tail| tail.alone_differs(&wanted)));
            }
            differences.extend(world.runs.iter().filter_map(|runs| runs.differs(&listed)));
            world.differences = differences.join("\n");
            (world.differences.is_empty() && world.runtime_is_current()).then_some(())
        });
    }
}

pub fn pod_key(pod: &Value) -> String {
    let word = |field: &str| pod["metadata"][field].as_str().unwrap();
    format!("{}/{}", word("namespace"), word("name"))
}
