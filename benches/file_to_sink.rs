//! file-to-sink/N: `rename(2)` of a manifest into a directory of N → its line on stdout.
//!
//! `cargo bench --bench file_to_sink`; a number as argument is the number of renames.
//! With `PODMUX_KUBERNETES` (see `tests/kubernetes/README.md`) the kubelet's own file
//! source is measured in the same run, up to the update on its channel.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    reason = "a benchmark fails by panicking, prints its results, and is not a library"
)]

#[path = "../tests/it/support/kubernetes.rs"]
mod kubernetes;
#[path = "../tests/it/support/plain.rs"]
mod plain;
mod support;

use std::{env, fs, thread, time::Duration};

use kubernetes::Oracle;
use serde_json::json;
use support::{
    Agent, Form, Manifests, beside, figures, new_wakeups, number_argument, pod, rename, wakeups,
    wakeups_each, wants_figures,
};

/// The pause between two renames, so that the agent is idle before each.
const PAUSE: Duration = Duration::from_millis(5);

fn main() {
    let (sizes, rounds): (&[usize], usize) =
        if wants_figures() { (&[110, 1_000, 10_000], 500) } else { (&[110], 5) };
    let rounds = number_argument().map_or(rounds, |rounds| rounds.try_into().unwrap());
    for &size in sizes {
        measure(size, rounds);
    }
}

fn measure(size: usize, rounds: usize) {
    let manifests = Manifests::new(size, Form::Json);
    let agent = Agent::start(&manifests);
    agent.added(size);
    let before = wakeups(agent.id());
    let durations = (1..=rounds).map(|round| {
        thread::sleep(PAUSE);
        // A prime step: successive changes are not neighbours, and every file is changed.
        let number = round * 7_919 % size;
        fs::write(manifests.staged(), manifests.text(number, round)).unwrap();
        let begin = rename(&manifests.staged(), &manifests.file(number));
        let line = agent.line();
        assert!(
            line.text.contains("\"op\":\"UPDATE\"")
                && line.text.contains(&format!("\"podmux.example/round\":\"{round}\"")),
            "not the update of round {round}: {}",
            line.text
        );
        line.at.duration_since(begin)
    });
    let durations: Vec<_> = durations.collect();
    let woken = new_wakeups(agent.id(), &before);
    agent.stop();
    let name = format!("file-to-sink/{size}");
    figures(&name, durations.clone());
    wakeups_each(&name, woken, rounds);
    if env::var_os("PODMUX_KUBERNETES").is_some() {
        let text = pod("pod", 0).to_string();
        let asked = json!({"op": "bench-file", "n": size, "rounds": rounds, "text": text, "node": "bench"});
        beside(&name, durations, &Oracle::start().unwrap().ask(&asked));
    }
}
