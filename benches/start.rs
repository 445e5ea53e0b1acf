//! start/N: process start → the line that adds all N manifests.
//!
//! `cargo bench --bench start`; a number as argument is the number of starts.
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

mod support;

use std::{thread, time::Duration};

use support::{Agent, Form, Manifests, figures, number_argument, wants_figures};

/// The age of the files: a file that has just been written is checked again after the quiet time
/// (100 ms).
const OLD_ENOUGH: Duration = Duration::from_millis(500);

fn main() {
    let (sizes, starts): (&[usize], usize) =
        if wants_figures() { (&[110, 1_000, 10_000], 20) } else { (&[110], 2) };
    let starts = number_argument().map_or(starts, |starts| starts.try_into().unwrap());
    for &size in sizes {
        for (form, name) in [(Form::Json, "JSON"), (Form::Yaml, "YAML")] {
            let manifests = Manifests::new(size, form);
            thread::sleep(OLD_ENOUGH);
            let durations = (0..starts).map(|_| {
                let agent = Agent::start(&manifests);
                let duration = agent.added(size).duration_since(agent.started);
                agent.stop();
                duration
            });
            figures(&format!("start/{size} {name}"), durations.collect());
        }
        restarts(size, starts);
    }
}

/// The same for a service: with last-known-good pods of an earlier run, which wait for the first scan,
/// and a server.
fn restarts(size: usize, starts: usize) {
    let manifests = Manifests::new(size, Form::Json);
    thread::sleep(OLD_ENOUGH);
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, state) = (manifests.path(), place.path().join("state"));
    let listen = format!("unix:{}", place.path().join("s").display());
    let flags = ["--pod-manifest-path", path.to_str().unwrap(), "--listen", &listen, "--state-dir"];
    let flags = [&flags[..], &[state.to_str().unwrap()]].concat();
    let start = |_| {
        let agent = Agent::start_with(place.path(), &flags);
        let duration = agent.added(size).duration_since(agent.started);
        agent.stop();
        duration
    };
    // The first run has nothing to restore.
    let durations: Vec<Duration> = (0..=starts).map(start).skip(1).collect();
    figures(&format!("restart/{size} JSON"), durations);
}
