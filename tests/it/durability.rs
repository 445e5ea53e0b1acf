//! The durability of a 2xx: the agent is killed at random times while 32 clients write to it.
//!
//! `PODMUX_KILLS=1000` does a thousand rounds; CI does a hundred.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    plain::Connection,
    process::{Process, podmux, podmux_run, wait_for},
};

const WRITERS: usize = 32;
/// The names of each writer: few, so that pods are created, replaced and deleted often.
const NAMES: usize = 6;

/// The pods of a writer, each with its content.
type Pods = BTreeMap<String, u64>;

/// A writer between two runs of the agent.
#[derive(Clone, Default)]
struct Writer {
    acknowledged: Pods,
    /// The pods if the write without an answer was performed.
    unanswered: Option<Pods>,
    contents: u64,
}

impl Writer {
    /// Writes until the agent is killed, and counts the answers.
    fn work(&mut self, number: usize, socket: &Path, rng: &mut TestRng, answered: &AtomicU64) {
        let Ok(mut connection) = Connection::unix(socket) else { return };
        loop {
            let mut next = self.acknowledged.clone();
            let (method, path, body) = self.choose(number, &mut next, rng);
            self.unanswered = Some(next.clone());
            let Ok(answer) = connection.ask(method, &path, body.to_string().as_bytes()) else { return };
            match answer.code {
                200 | 201 => self.acknowledged = next,
                // The agent is stopping, or the pod does not exist.
                404 | 503 => {}
                other => panic!("{method} {path}: {other} {}", answer.text()),
            }
            answered.fetch_add(1, Ordering::Relaxed);
            self.unanswered = None;
        }
    }

    /// A write and its effect on the pods: one pod, two pods in one request, or a deletion.
    fn choose(&mut self, number: usize, next: &mut Pods, rng: &mut TestRng) -> (&'static str, String, Value) {
        let name = |rng: &mut TestRng| format!("w{number}-{}", rng.next_u32() as usize % NAMES);
        self.contents += 1;
        let (one, other, contents) = (name(rng), name(rng), self.contents);
        match rng.next_u32() % 4 {
            0 => {
                next.remove(&one);
                let path = format!("/api/v1/namespaces/default/pods/{one}?gracePeriodSeconds=0");
                ("DELETE", path, json!({}))
            }
            1 if one != other => {
                next.extend([(one.clone(), contents), (other.clone(), contents)]);
                let items = [pod(&one, contents), pod(&other, contents)];
                ("POST", "/pods".to_owned(), json!({"apiVersion": "v1", "kind": "PodList", "items": items}))
            }
            _ => {
                next.insert(one.clone(), contents);
                ("POST", "/pods".to_owned(), pod(&one, contents))
            }
        }
    }

    /// Checks the pods after a restart of the agent.
    fn check(&mut self, number: usize, there: &Pods) {
        let prefix = format!("w{number}-");
        let mine: Pods =
            there.iter().filter(|pod| pod.0.starts_with(&prefix)).map(|(n, c)| (n.clone(), *c)).collect();
        let unanswered = self.unanswered.take();
        assert!(
            mine == self.acknowledged || Some(&mine) == unanswered.as_ref(),
            "acknowledged {:?}, unanswered {unanswered:?}, and there is {mine:?}",
            self.acknowledged
        );
        self.acknowledged = mine;
    }
}

fn pod(name: &str, contents: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"contents": contents.to_string()}},
        "spec": {"containers": [{"name": "c", "image": "registry.example/i:1"}]},
    })
}

/// The agent with a state directory and an address.
fn agent(dir: &Path, listen: &str) -> Command {
    let args = ["run", "--node-name", "node1", "--listen", listen, "--state-dir", dir.to_str().unwrap()];
    podmux(&args)
}

pub(crate) fn start(dir: &Path, socket: &Path) -> (Process, Connection) {
    let listen = format!("unix:{}", socket.display());
    let agent = Process::start(&mut agent(dir, &listen));
    let connection = wait_for(|| {
        let mut connection = Connection::unix(socket).ok()?;
        (connection.ask("GET", "/readyz", b"").ok()?.code == 200).then_some(connection)
    });
    (agent, connection)
}

/// The pods and the number of the last update.
fn list(connection: &mut Connection) -> (Pods, u64) {
    let list = connection.ask("GET", "/pods", b"").unwrap().json();
    let pods = list["items"].as_array().unwrap().iter().map(|pod| {
        let text = |pointer: &str| pod.pointer(pointer).unwrap().as_str().unwrap().to_owned();
        (text("/metadata/name"), text("/metadata/labels/contents").parse().unwrap())
    });
    (pods.collect(), list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap())
}

#[test]
fn no_acknowledged_write_is_lost_when_the_agent_is_killed() {
    let rounds: u32 = env::var("PODMUX_KILLS").map_or(100, |rounds| rounds.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let (state, socket): (PathBuf, PathBuf) = (dir.path().join("state"), dir.path().join("s"));
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut writers = vec![Writer::default(); WRITERS];
    let answered = AtomicU64::new(0);
    let mut last_seq = 0;
    for round in 0..rounds {
        let (agent, mut connection) = start(&state, &socket);
        let (there, seq) = list(&mut connection);
        assert!(round == 0 || seq >= last_seq, "{seq} after {last_seq}: a number never names two updates");
        for (number, writer) in writers.iter_mut().enumerate() {
            writer.check(number, &there);
        }
        // The moment of the kill is random: every kind of operation is in progress at some of them.
        let life = Duration::from_micros(u64::from(rng.next_u32() % 60_000));
        let before = answered.load(Ordering::Relaxed);
        let agent = thread::scope(|scope| {
            // A panic here kills it, so that the writers end.
            let agent = agent;
            for (number, writer) in writers.iter_mut().enumerate() {
                let mut seed = [0; 32];
                rng.fill_bytes(&mut seed);
                let (socket, answered) = (&socket, &answered);
                scope.spawn(move || {
                    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
                    writer.work(number, socket, &mut rng, answered);
                });
            }
            // Every other kill may come before the first answer.
            if round % 2 == 0 {
                wait_for(|| (answered.load(Ordering::Relaxed) > before + 20).then_some(()));
            }
            thread::sleep(life);
            last_seq = list(&mut connection).1;
            agent.signal(Signal::KILL);
            agent
        });
        agent.ends();
    }
    let answered = answered.into_inner();
    assert!(answered > u64::from(rounds) * 10, "only {answered} writes were answered in all");
}

#[test]
fn the_first_list_after_a_kill_has_all_posted_pods() {
    const PODS: u64 = 2000;
    let dir = tempfile::tempdir().unwrap();
    let (state, socket) = (dir.path().join("state"), dir.path().join("s"));
    let listen = format!("unix:{}", socket.display());
    let mut command = agent(&state, &listen);
    command.args(["--max-posted-pods", "5000"]);
    let items: Vec<Value> = (0..PODS).map(|n| pod(&format!("p{n}"), n)).collect();
    let body = json!({"kind": "PodList", "apiVersion": "v1", "items": items}).to_string();
    for round in 0..10 {
        let agent = Process::start(&mut command);
        // Not after /readyz: the very first request counts.
        let mut connection = wait_for(|| Connection::unix(&socket).ok());
        if round == 0 {
            assert_eq!(connection.ask("POST", "/pods", body.as_bytes()).unwrap().code, 201);
        }
        assert_eq!(list(&mut connection).0.len() as u64, PODS, "round {round}");
        agent.signal(Signal::KILL);
        agent.ends();
    }
}

#[test]
fn a_start_without_a_listener_forgets_no_posted_pod() {
    let dir = tempfile::tempdir().unwrap();
    let (state, socket) = (dir.path().join("state"), dir.path().join("s"));
    let (agent, mut connection) = start(&state, &socket);
    assert_eq!(connection.ask("POST", "/pods", pod("web", 1).to_string().as_bytes()).unwrap().code, 201);
    agent.signal(Signal::TERM);
    agent.ends();
    let manifests = dir.path().join("manifests");
    std::fs::create_dir(&manifests).unwrap();
    let args = ["--listen", "none", "--state-dir", state.to_str().unwrap()];
    let agent = Process::start(&mut podmux_run(&manifests, &args));
    agent.holds("the posted pod", |replica| replica.pods.contains_key("default/web"));
    agent.signal(Signal::TERM);
    agent.ends();
    let (agent, mut connection) = start(&state, &socket);
    assert_eq!(list(&mut connection).0.len(), 1);
    agent.signal(Signal::TERM);
    agent.ends();
}
