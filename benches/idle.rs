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

use std::{fs, thread, time::Duration};

use support::{Agent, Form, Manifests, number_argument, wants_figures};

fn main() {
    let seconds = number_argument().unwrap_or(if wants_figures() { 60 } else { 1 });
    let manifests = Manifests::new(110, Form::Yaml);
    let agent = Agent::start(&manifests);
    agent.added(110);
    // What the start leaves behind is not idling.
    thread::sleep(Duration::from_secs(2));
    let before = Taken::by(agent.id());
    thread::sleep(Duration::from_secs(seconds));
    let after = Taken::by(agent.id());
    let per_second = |before: u64, after: u64| (after - before) as f64 / seconds as f64;
    println!(
        "{:<24} {:.3} % of a core   {:.1} wake-ups/s   RssAnon {:.1} MiB   RSS {:.1} MiB   {} threads   {seconds} s",
        "idle",
        per_second(before.nanoseconds, after.nanoseconds) / 1e9 * 100.0,
        per_second(before.wakeups, after.wakeups),
        status(agent.id(), "RssAnon") as f64 / 1024.0,
        status(agent.id(), "VmRSS") as f64 / 1024.0,
        status(agent.id(), "Threads"),
    );
    agent.stop();
}

/// What a process has taken since it began, in all its threads.
struct Taken {
    /// On a processor.
    nanoseconds: u64,
    /// Times that a thread went to sleep by itself, each of which ended in a wake-up.
    wakeups: u64,
}

impl Taken {
    fn by(id: u32) -> Self {
        let mut taken = Self { nanoseconds: 0, wakeups: 0 };
        for thread in fs::read_dir(format!("/proc/{id}/task")).unwrap() {
            let thread = thread.unwrap().path();
            let schedule = fs::read_to_string(thread.join("schedstat")).unwrap();
            taken.nanoseconds += schedule.split(' ').next().unwrap().parse::<u64>().unwrap();
            taken.wakeups +=
                field(&fs::read_to_string(thread.join("status")).unwrap(), "voluntary_ctxt_switches");
        }
        taken
    }
}

/// A number out of `/proc/ID/status`; sizes are in KiB.
fn status(id: u32, name: &str) -> u64 {
    field(&fs::read_to_string(format!("/proc/{id}/status")).unwrap(), name)
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap()
}
