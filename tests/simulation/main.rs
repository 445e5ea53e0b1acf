//! The whole agent under many faults at once, in one process, with virtual time.
//!
//! One seed is one run: it decides the script of changes and faults, and every delay and loss. The agent's own
//! tasks run; the disk, the network to the API server, the runtime, the consumers and the clock are doubles. What
//! must hold is stated in `invariants`. Each seed runs in a process of its own, so that also the order in which tokio
//! wakes tasks is of the seed; README.md says how to repeat one.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::needless_raw_string_hashes,
    reason = "tests panic on failure, print what they do, and are not a library"
)]

mod clients;
mod consumer;
mod disk;
mod followers;
mod found;
mod invariants;
mod manifest_url;
mod network;
mod node;
mod run;
mod runtime;
mod script;
mod truth;

#[path = "../it/support"]
mod support {
    //! The parts of `tests/it/support` that a simulation needs.
    pub mod apiserver;
    pub mod files;
    pub mod kubeconfig;
    pub mod random;
    pub mod web;
}

use std::{
    alloc::System,
    env,
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use self::{run::fails, script::Script};

/// Counts the memory that is held.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The seed of one run.
const SEED: &str = "PODMUX_SIMULATION_SEED";
/// The number of runs.
const SEEDS: &str = "PODMUX_SIMULATION_SEEDS";
/// Where the first run begins.
const FIRST: &str = "PODMUX_SIMULATION_FIRST";
/// libfaketime, which also gives a process the random numbers of a seed.
const PRELOADED: &str = "PODMUX_FAKETIME";

/// The number of a variable.
fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn the_invariants_hold_for_every_seed() {
    if let Some(seed) = number(SEED) {
        return run_seed(seed);
    }
    if env::var(PRELOADED).is_err() {
        assert!(env::var("CI").is_err(), "{PRELOADED} is not set: use tests/run");
        println!(
            "{PRELOADED} is not set: a seed does not decide in which order tasks are woken. Use tests/run."
        );
    }
    let (first, count) = (number(FIRST).unwrap_or(0), number(SEEDS).unwrap_or(100));
    let next = AtomicU64::new(first);
    let worker = || loop {
        let seed = next.fetch_add(1, Ordering::SeqCst);
        if seed >= first + count {
            return None;
        }
        if let Some(told) = fails_alone(seed) {
            next.store(first + count, Ordering::SeqCst);
            return Some(told);
        }
    };
    let failed = thread::scope(|scope| {
        let cores = thread::available_parallelism().unwrap().get();
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().find_map(|worker| worker.join().unwrap())
    });
    assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    println!("{count} seeds from {first} on");
}

/// Whether this process runs one seed and nothing else.
fn is_alone() -> bool {
    env::var_os(SEED).is_some()
}

/// Runs a seed in a process of its own, in which all that is random is of the seed. Returns what it says if it fails.
fn fails_alone(seed: u64) -> Option<String> {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "the_invariants_hold_for_every_seed", "--nocapture"]);
    command.env(SEED, seed.to_string()).env("RUST_BACKTRACE", "0");
    if let Ok(library) = env::var(PRELOADED) {
        command.env("LD_PRELOAD", library).env("FAKERANDOM_SEED", format!("0x{:016X}", seed + 1));
    }
    let output = command.output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    let told = || format!("seed {seed}: {}\n{}", output.status, String::from_utf8_lossy(&told));
    (!output.status.success()).then(told)
}

fn run_seed(seed: u64) {
    let script = Script::new(seed);
    if let Some(why) = fails(&script) {
        println!("seed {seed}: {why}\nThe script is being made shorter.");
        let (script, why) = run::shrunk(script, why);
        panic!("seed {seed}: {why}\nthe shortest script that fails:\n{script}");
    }
}
