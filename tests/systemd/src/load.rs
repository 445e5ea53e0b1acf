//! Clients that post without a pause, each request over a new connection.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use crate::{machine::Machine, plain::Connection, pods};

/// More than the cores, so that the kernel's queue is never empty.
const CLIENTS: usize = 8;

/// The number of pods that each client overwrites repeatedly.
const PODS: u64 = 10;

/// Running clients.
pub struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Answers>>,
}

/// The results of the clients.
#[derive(Default)]
pub struct Answers {
    /// The last acknowledged version of each pod.
    pub acknowledged: BTreeMap<String, u64>,
    /// The last version of each pod that was sent.
    pub tried: BTreeMap<String, u64>,
    /// Requests without a 2xx answer.
    pub failures: Vec<String>,
}

impl Load {
    /// Starts the clients and waits for answers.
    pub fn start(machine: &Machine) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let answered = Arc::<AtomicU64>::default();
        let clients = (0..CLIENTS).map(|number| {
            let (socket, stop, answered) = (machine.socket(), Arc::clone(&stop), Arc::clone(&answered));
            thread::spawn(move || client(number, &socket, &stop, &answered))
        });
        let load = Self { clients: clients.collect(), stop, answered };
        load.continues(machine);
        load
    }

    /// Waits for many more answers than clients, so that all current requests and some later
    /// ones are answered.
    pub fn continues(&self, machine: &Machine) {
        let begin = self.answered.load(Ordering::Relaxed);
        let enough = 20 * CLIENTS as u64;
        machine.wait_for("the clients are answered", || {
            let more = self.answered.load(Ordering::Relaxed) - begin;
            if more >= enough { Ok(()) } else { Err(format!("{more} answers")) }
        });
    }

    /// Completes the current requests and returns all results.
    pub fn stop(mut self) -> Answers {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Answers::default();
        for client in self.clients.drain(..) {
            let answers = client.join().unwrap();
            all.acknowledged.extend(answers.acknowledged);
            all.tried.extend(answers.tried);
            all.failures.extend(answers.failures);
        }
        all
    }
}

impl Drop for Load {
    /// Stops the clients, also after a failed test.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            client.join().ok();
        }
    }
}

impl Answers {
    /// Checks that every pod has its last acknowledged version, or a later one that was sent.
    pub fn assert_pods_kept(&self, machine: &Machine) {
        assert!(!self.acknowledged.is_empty());
        let pods = machine.pods();
        for (name, acknowledged) in &self.acknowledged {
            let pod = pods.get(name).unwrap_or_else(|| panic!("{name} was acknowledged and is missing"));
            let version: u64 = pod["metadata"]["labels"]["version"].as_str().unwrap().parse().unwrap();
            let tried = self.tried[name];
            assert!(
                (*acknowledged..=tried).contains(&version),
                "{name}: {version}, not {acknowledged} to {tried}"
            );
        }
    }
}

fn client(number: usize, socket: &Path, stop: &AtomicBool, answered: &AtomicU64) -> Answers {
    let mut answers = Answers::default();
    for version in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("load-{number}-{}", version % PODS);
        answers.tried.insert(name.clone(), version);
        match post(socket, &name, version) {
            Ok(()) => {
                answers.acknowledged.insert(name, version);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(failure) => answers.failures.push(format!("{name}, version {version}: {failure}")),
        }
    }
    answers
}

fn post(socket: &Path, name: &str, version: u64) -> Result<(), String> {
    let body = pods::version(name, version).to_string();
    let mut connection = Connection::unix(socket).map_err(|error| format!("connect: {error}"))?;
    let answer = connection.ask("POST", "/pods", body.as_bytes()).map_err(|error| format!("ask: {error}"))?;
    if matches!(answer.code, 200 | 201) { Ok(()) } else { Err(format!("{}: {}", answer.code, answer.text())) }
}
