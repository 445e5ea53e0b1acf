//! Clients that post without a pause, each request over a connection of its own.

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

/// More than the cores, so that there are always some in the kernel's queue.
const CLIENTS: usize = 8;

/// The pods that each client writes again and again.
const PODS: u64 = 10;

/// Clients at work.
pub struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Told>>,
}

/// What the clients were told.
#[derive(Default)]
pub struct Told {
    /// For each pod, the version that was acknowledged last.
    pub acknowledged: BTreeMap<String, u64>,
    /// And the one that was tried last.
    pub tried: BTreeMap<String, u64>,
    /// What was not answered with 2xx.
    pub failures: Vec<String>,
}

impl Load {
    /// Starts the clients, and waits until they have been answered.
    pub fn start(machine: &Machine) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let answered = Arc::<AtomicU64>::default();
        let clients = (0..CLIENTS).map(|number| {
            let (socket, stop, answered) = (machine.socket(), Arc::clone(&stop), Arc::clone(&answered));
            thread::spawn(move || client(number, &socket, &stop, &answered))
        });
        let load = Self { clients: clients.collect(), stop, answered };
        load.go_on(machine);
        load
    }

    /// Waits until many more requests than clients were answered: those that are under
    /// way now are done, and others that came later, too.
    pub fn go_on(&self, machine: &Machine) {
        let begin = self.answered.load(Ordering::Relaxed);
        let enough = 20 * CLIENTS as u64;
        machine.wait_for("the clients are answered", || {
            let more = self.answered.load(Ordering::Relaxed) - begin;
            if more >= enough { Ok(()) } else { Err(format!("{more} answers")) }
        });
    }

    /// Lets the requests end that are under way, and sums up.
    pub fn stop(mut self) -> Told {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Told::default();
        for client in self.clients.drain(..) {
            let told = client.join().unwrap();
            all.acknowledged.extend(told.acknowledged);
            all.tried.extend(told.tried);
            all.failures.extend(told.failures);
        }
        all
    }
}

impl Drop for Load {
    /// Nobody posts after a test.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            client.join().ok();
        }
    }
}

impl Told {
    /// Every pod is there as it was acknowledged last, or as it was tried after that.
    pub fn assert_kept(&self, machine: &Machine) {
        assert!(!self.acknowledged.is_empty());
        let pods = machine.pods();
        for (name, acknowledged) in &self.acknowledged {
            let pod = pods.get(name).unwrap_or_else(|| panic!("{name} was acknowledged and is not there"));
            let version: u64 = pod["metadata"]["labels"]["version"].as_str().unwrap().parse().unwrap();
            let tried = self.tried[name];
            assert!(
                (*acknowledged..=tried).contains(&version),
                "{name}: {version}, not {acknowledged} to {tried}"
            );
        }
    }
}

fn client(number: usize, socket: &Path, stop: &AtomicBool, answered: &AtomicU64) -> Told {
    let mut told = Told::default();
    for version in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("load-{number}-{}", version % PODS);
        told.tried.insert(name.clone(), version);
        match post(socket, &name, version) {
            Ok(()) => {
                told.acknowledged.insert(name, version);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(failure) => told.failures.push(format!("{name}, version {version}: {failure}")),
        }
    }
    told
}

fn post(socket: &Path, name: &str, version: u64) -> Result<(), String> {
    let body = pods::version(name, version).to_string();
    let mut connection = Connection::unix(socket).map_err(|error| format!("connect: {error}"))?;
    let answer = connection.ask("POST", "/pods", body.as_bytes()).map_err(|error| format!("ask: {error}"))?;
    if matches!(answer.code, 200 | 201) { Ok(()) } else { Err(format!("{}: {}", answer.code, answer.text())) }
}
