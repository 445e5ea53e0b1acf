//! idle: 110 pods, nothing changes: what the agent takes from the machine.
//!
//! `cargo bench --bench idle`; a number as argument is the count of seconds.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark fails by panicking, says what it measured, and is nobody's library"
)]

mod support;

use std::{collections::BTreeMap, fs, thread, time::Duration};

use rustix::param::clock_ticks_per_second;
use support::{Agent, Form, Manifests, number_argument, wants_figures};

/// What the start leaves behind is not idling: tokio keeps the threads for
/// blocking work for ten seconds.
const SETTLE: Duration = Duration::from_secs(15);

fn main() {
    let figures = wants_figures();
    let seconds = number_argument().unwrap_or(if figures { 60 } else { 1 });
    let manifests = Manifests::new(110, Form::Yaml);
    let agent = Agent::start(&manifests);
    agent.added(110);
    if figures {
        thread::sleep(SETTLE);
    }
    let id = agent.id();
    let (cpu, wakeups) = (cpu_seconds(id), wakeups(id));
    thread::sleep(Duration::from_secs(seconds));
    let (cpu, wakeups) = (cpu_seconds(id) - cpu, new_wakeups(id, &wakeups));
    println!(
        "{:<24} {:.3} % of a core   {:.1} wake-ups/s   RssAnon {:.1} MiB   RSS {:.1} MiB   {} threads   {seconds} s",
        "idle",
        cpu / seconds as f64 * 100.0,
        wakeups as f64 / seconds as f64,
        status(id, "RssAnon") as f64 / 1024.0,
        status(id, "VmRSS") as f64 / 1024.0,
        status(id, "Threads"),
    );
    agent.stop();
}

/// The processor time of a process since it began, threads that have ended
/// included. The kernel tells it in ticks of 10 ms.
fn cpu_seconds(id: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    // The fields are counted from behind the program's name, which may hold blanks.
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |field: usize| fields[field - 3].parse::<u64>().unwrap();
    let (user, system) = (ticks(14), ticks(15));
    (user + system) as f64 / clock_ticks_per_second() as f64
}

/// For each thread, how often it went to sleep by itself: each time ended in a wake-up.
fn wakeups(id: u32) -> BTreeMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let counts = threads.filter_map(|thread| {
        let thread = thread.unwrap();
        // A thread may end while it is asked.
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        Some((thread.file_name().into_string().unwrap(), field(&status, "voluntary_ctxt_switches")))
    });
    counts.collect()
}

fn new_wakeups(id: u32, before: &BTreeMap<String, u64>) -> u64 {
    wakeups(id).iter().map(|(thread, count)| count - before.get(thread).unwrap_or(&0)).sum()
}

/// A number out of `/proc/ID/status`; sizes are in KiB.
fn status(id: u32, name: &str) -> u64 {
    field(&fs::read_to_string(format!("/proc/{id}/status")).unwrap(), name)
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap()
}
