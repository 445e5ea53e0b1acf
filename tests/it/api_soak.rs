//! 500 pods change at random while the apiserver is killed. At the end the views are equal, and
//! no pod was removed that the server still had. `PODMUX_SOAK_SEED` repeats the choices of a run, which prints its seed.

use std::{
    collections::HashMap,
    env,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::{
    cluster::{Admin, Failure, bound, pod},
    kubernetes::Apiserver,
    node::Node,
    random::Random,
};

const PODS: usize = 500;
const WRITERS: usize = 4;
const KILLS: u32 = 3;
const MOST_KILLS: u32 = 30;
/// How long the test runs, with `CI=true` and without.
const LONG: Duration = Duration::from_mins(1);
const SHORT: Duration = Duration::from_secs(16);
/// The pause of a writer between two changes. This test is about order, not speed.
const REST: Duration = Duration::from_millis(5);

/// When the deletion of a pod was first requested, by its UID.
type Deletions = Mutex<HashMap<String, Timestamp>>;

#[test]
fn after_random_changes_and_restarts_the_views_are_equal() {
    let Some(apiserver) = Apiserver::start() else { return };
    let mut admin = Admin::of(&apiserver);
    admin.namespace("soak");
    let node = Node::start("n", &apiserver.at.kubeconfig);
    let given = env::var("PODMUX_SOAK_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed: u64 = given.unwrap_or_else(|| Timestamp::now().as_microsecond().unsigned_abs());
    println!("PODMUX_SOAK_SEED={seed}");
    let (deletions, over) = (Deletions::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (apiserver, deletions, over) = (&apiserver, &deletions, &over);
            scope.spawn(move || {
                let random = Random::new(seed.wrapping_add(writer as u64));
                Writer { admin: Admin::of(apiserver), random, deletions }.write(writer, over);
            });
        }
        disturb(&apiserver, &node);
        over.store(true, Ordering::SeqCst);
    });
    let view = node.agrees_with(&mut Admin::of(&apiserver));
    node.has_told(&view);
    let stream = node.process.stdout.text();
    node.ends();
    check_removals(&stream, &deletions.into_inner().unwrap());
}

fn expired(node: &Node) -> u64 {
    node.counted("podmux_reflector_errors_total", "kind=\"expired\"")
}

/// Kills and restarts the apiserver and compacts etcd while the writers run, until a version has
/// expired: on a busy machine the agent may have seen every change before each of the first kills.
fn disturb(apiserver: &Apiserver, node: &Node) {
    let long = env::var_os("CI").is_some_and(|ci| ci == "true");
    let part = if long { LONG } else { SHORT } / (KILLS + 1);
    for kill in 0.. {
        if kill >= KILLS && expired(node) > 0 {
            break;
        }
        assert!(kill < MOST_KILLS, "no version expired");
        // How long the soak lasts is a part of what is simulated.
        thread::sleep(part);
        apiserver.command("compact");
        apiserver.command("kill");
        apiserver.command("compact");
        apiserver.command("start");
    }
    thread::sleep(part);
}

/// A writer, which alone changes its pods.
struct Writer<'a> {
    admin: Admin<'a>,
    random: Random,
    deletions: &'a Deletions,
}

impl Writer<'_> {
    fn write(mut self, writer: usize, over: &AtomicBool) {
        while !over.load(Ordering::SeqCst) {
            let number = writer + WRITERS * self.random.below(PODS / WRITERS);
            let key = format!("soak/pod-{number}");
            // The server may reject a change (a longer deadline, an unbound pod).
            match self.change(&key) {
                Ok(_) | Err(Failure::Rejected(400..500, _)) => {}
                // The server is down, starting or stopping.
                Err(Failure::Unanswered(_) | Failure::Rejected(..)) => thread::sleep(REST),
            }
            // The rate of the writes.
            thread::sleep(REST);
        }
    }

    fn change(&mut self, key: &str) -> Result<Value, Failure> {
        let current = match self.admin.read(key) {
            Ok(pod) => pod,
            Err(Failure::Rejected(404, _)) => return self.create(key),
            Err(failure) => return Err(failure),
        };
        let value = self.random.below(1_000_000).to_string();
        match self.random.below(12) {
            0..3 => self.admin.patch(key, &json!({"metadata": {"labels": {"l": value}}})),
            3 => self.admin.patch(key, &json!({"metadata": {"annotations": {"a": value}}})),
            4..7 => {
                let phase = *self.random.pick(&["Pending", "Running", "Succeeded", "Failed"]);
                self.admin.patch_status(key, &json!({"phase": phase, "message": value}))
            }
            7..9 => {
                let deadline = 1_000_000 - self.random.below(1_000_000) + 1;
                self.admin.patch(key, &json!({"spec": {"activeDeadlineSeconds": deadline}}))
            }
            9 | 10 => {
                let grace = 1 + self.random.below(60);
                self.delete(key, &current, u32::try_from(grace).unwrap())
            }
            _ => self.delete(key, &current, 0),
        }
    }

    /// Creates a pod that is bound at once or in a second step.
    fn create(&mut self, key: &str) -> Result<Value, Failure> {
        if self.random.once_in(2) {
            return self.admin.create(&bound(key, "n"));
        }
        self.admin.create(&pod(key))?;
        self.admin.bind(key, "n")
    }

    fn delete(&mut self, key: &str, current: &Value, grace: u32) -> Result<Value, Failure> {
        let uid = current["metadata"]["uid"].as_str().unwrap().to_owned();
        self.deletions.lock().unwrap().entry(uid).or_insert_with(Timestamp::now);
        self.admin.delete(key, grace)
    }
}

/// Each pod is added once and removed once, after its deletion was requested.
fn check_removals(stream: &str, deletions: &HashMap<String, Timestamp>) {
    let mut times: HashMap<(String, String), u32> = HashMap::new();
    for line in stream.lines() {
        let update: Value = serde_json::from_str(line).unwrap();
        let op = update["op"].as_str().unwrap();
        let time: Timestamp = update["time"].as_str().unwrap().parse().unwrap();
        for pod in update["pods"].as_array().unwrap() {
            let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
            if op == "REMOVE" {
                let requested = deletions.get(&uid);
                assert!(
                    requested.is_some_and(|requested| *requested <= time),
                    "{pod} removed at {time}, deletion requested at {requested:?}"
                );
            }
            *times.entry((op.to_owned(), uid)).or_default() += 1;
        }
    }
    for ((op, uid), times) in &times {
        assert!(*times == 1 || !matches!(&**op, "ADD" | "REMOVE"), "{times} times {op} of {uid}");
    }
    for op in ["ADD", "UPDATE", "DELETE", "RECONCILE", "REMOVE"] {
        let count: u32 = times.iter().filter(|((other, _), _)| other == op).map(|(_, times)| times).sum();
        println!("{op}: {count}");
        assert!(count > 0, "no {op}");
    }
}
