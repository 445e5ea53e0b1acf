//! client-go's informer and kube-runtime's reflector against the agent: after random work and kills they hold what
//! the agent answers.
//!
//! `PODMUX_INFORMER_ROUNDS` says for how many rounds, 4 unless told; in CI they take two minutes.

use std::{collections::BTreeMap, env, fs, path::Path};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Config};
use kube_runtime::{
    WatchStreamExt as _,
    reflector::{Store, store},
    watcher::{self, watcher},
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    kubernetes::Mirror,
    plain::Connection,
    process::{Process, podmux_run, wait_for},
    state::Dice,
};

/// After how many of the rounds the agent is killed; client-go waits longer after each.
const KILLS: usize = 3;
const STEPS: usize = 30;

/// The compared fields: Go's types write others in another way.
fn compared(pod: &Value) -> Value {
    let metadata = |field: &str| pod["metadata"][field].clone();
    json!({
        "uid": metadata("uid"), "version": metadata("resourceVersion"), "labels": metadata("labels"),
        "annotations": metadata("annotations"), "created": metadata("creationTimestamp"),
        "deleted": metadata("deletionTimestamp"), "image": pod["spec"]["containers"][0]["image"],
        "phase": pod["status"]["phase"],
    })
}

/// kube-runtime's reflector of all pods.
struct Reflector {
    store: Store<Pod>,
    _runtime: tokio::runtime::Runtime,
}

impl Reflector {
    fn start(url: &str, config: watcher::Config) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (store, writer) = store();
        let config_of_client = Config::new(url.parse().unwrap());
        runtime.spawn(async move {
            let pods: Api<Pod> = Api::all(Client::try_from(config_of_client).unwrap());
            let events = watcher(pods, config).default_backoff().reflect(writer);
            events.for_each(|_| async {}).await;
        });
        Self { store, _runtime: runtime }
    }

    fn pods(&self) -> BTreeMap<String, Value> {
        by_name(self.store.state().iter().map(|pod| serde_json::to_value(&**pod).unwrap()))
    }
}

/// What is compared of pods, by namespace and name.
fn by_name(pods: impl Iterator<Item = Value>) -> BTreeMap<String, Value> {
    let name = |pod: &Value, field: &str| pod["metadata"][field].as_str().unwrap().to_owned();
    pods.map(|pod| (format!("{}/{}", name(&pod, "namespace"), name(&pod, "name")), compared(&pod))).collect()
}

struct Agent {
    args: Vec<String>,
    manifests: std::path::PathBuf,
    process: Option<Process>,
    socket: std::path::PathBuf,
}

impl Agent {
    fn start(&mut self) {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let process = Process::start(&mut podmux_run(&self.manifests, &args));
        process.logs("started");
        self.process = Some(process);
    }

    fn kill(&mut self) {
        let process = self.process.take().unwrap();
        process.signal(Signal::KILL);
        process.ends();
    }

    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Value {
        let mut connection = wait_for(|| Connection::unix(&self.socket).ok());
        connection.ask(method, path, body).unwrap().json()
    }

    /// The pods by namespace and name.
    fn pods(&self) -> BTreeMap<String, Value> {
        let list = self.ask("GET", "/api/v1/pods", b"");
        by_name(list["items"].as_array().unwrap().iter().cloned())
    }
}

fn manifest(name: &str, dice: &mut Dice) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"l": dice.roll(3).to_string()}},
        "spec": {"containers": [{"name": "c", "image": format!("i:{}", dice.roll(3))}]},
    })
    .to_string()
}

fn work(agent: &Agent, dice: &mut Dice, directory: &Path) {
    let (file, name) = (directory.join(format!("{}.json", dice.roll(4))), format!("p{}", dice.roll(6)));
    match dice.roll(4) {
        0 => drop(fs::remove_file(file)),
        1 => {
            let new = directory.join(".new");
            fs::write(&new, manifest(&format!("f{name}"), dice)).unwrap();
            fs::rename(new, file).unwrap();
        }
        2 => drop(agent.ask("POST", "/pods", manifest(&name, dice).as_bytes())),
        _ => {
            let path = format!("/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds={}", dice.roll(2));
            drop(agent.ask("DELETE", &path, b""));
        }
    }
}

#[test]
fn what_informers_and_reflectors_hold_is_what_the_agent_answers() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("manifests")).unwrap();
    // An address that no other process uses while the agent is down.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let (tcp, socket) = (format!("127.1.{high}.{low}:10240"), format!("unix:{}", at("socket").display()));
    let args = ["--listen", &*tcp, "--listen", &*socket, "--anonymous-auth", "--state-dir"];
    let args = args.into_iter().map(str::to_owned).chain([at("state").display().to_string()]).collect();
    let mut agent = Agent { args, manifests: at("manifests"), process: None, socket: at("socket") };
    agent.start();
    let url = format!("http://{tcp}");
    let Some(with) = Mirror::start(&url, true) else { return };
    let Some(without) = Mirror::start(&url, false) else { return };
    let (mut mirrors, mut dice) = ([with, without], Dice(7));
    let configs = [watcher::Config::default(), watcher::Config::default().streaming_lists()];
    let reflectors = configs.map(|config| Reflector::start(&url, config));
    let rounds = env::var("PODMUX_INFORMER_ROUNDS").map_or(KILLS + 1, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        for step in 0..STEPS {
            work(&agent, &mut dice, &at("manifests"));
            if step % 10 != 9 {
                continue;
            }
            for mirror in &mut mirrors {
                // Files take a moment to be noticed.
                wait_for(|| {
                    let store = mirror.store();
                    let held = by_name(store["pods"].as_object().unwrap().values().cloned());
                    (held == agent.pods()).then_some(())
                });
            }
            for reflector in &reflectors {
                wait_for(|| (reflector.pods() == agent.pods()).then_some(()));
            }
        }
        if round < KILLS {
            agent.kill();
            agent.start();
        }
    }
    // The informers have followed events, and have listed once for each run of the agent at most.
    let runs = 1 + rounds.min(KILLS) as u64;
    for mirror in &mut mirrors {
        let store = mirror.store();
        assert!(store["updated"].as_u64() > Some(0) && store["deleted"].as_u64() > Some(0), "{store}");
        assert!((1..=runs).contains(&store["lists"].as_u64().unwrap()), "{store}");
    }
}
