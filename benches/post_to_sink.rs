//! post-to-sink: a pod POSTed by one client → 2xx, durable → its line on stdout.
//!
//! `cargo bench --bench post_to_sink`; a number as argument is the number of POSTs.
//! One append of 4 KiB with fdatasync on the same disk is measured in the same run.
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

#[path = "../tests/it/support/plain.rs"]
mod plain;
mod support;

use std::{
    thread,
    time::{Duration, Instant},
};

use plain::Connection;
use support::{
    Agent, appends, figures, median, new_wakeups, number_argument, pod, wakeups, wakeups_each, wants_figures,
};

/// The pause between two POSTs, so that the agent and the machine are idle before each.
const PAUSE: Duration = Duration::from_millis(5);
/// The number of pods. Each POST replaces one of them.
const PODS: usize = 110;

fn main() {
    let rounds = if wants_figures() { 500 } else { 5 };
    let rounds = number_argument().map_or(rounds, |rounds| rounds.try_into().unwrap());
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let socket = directory.path().join("s");
    let (listen, state) = (format!("unix:{}", socket.display()), directory.path().join("state"));
    let flags = ["--listen", &listen, "--state-dir", state.to_str().unwrap()];
    let agent = Agent::start_with(directory.path(), &flags);
    agent.line();
    let mut connection = Connection::unix(&socket).unwrap();
    let mut round = 0;
    let mut post = |pause: Duration| {
        thread::sleep(pause);
        let body = pod(&format!("pod-{:05}", round % PODS), round).to_string();
        let begin = Instant::now();
        let answer = connection.ask("POST", "/pods", body.as_bytes()).unwrap();
        let answered = begin.elapsed();
        assert!(matches!(answer.code, 200 | 201), "{}", answer.text());
        let line = agent.line();
        assert!(line.text.contains(&format!("\"podmux.example/round\":\"{round}\"")), "{}", line.text);
        round += 1;
        (answered, line.at.duration_since(begin).max(answered))
    };
    for _ in 0..PODS {
        post(Duration::ZERO);
    }
    for (name, pause) in [("", Duration::ZERO), (", at rest", PAUSE)] {
        let before = wakeups(agent.id());
        let (answers, lines): (Vec<_>, Vec<_>) = (0..rounds).map(|_| post(pause)).unzip();
        let woken = new_wakeups(agent.id(), &before);
        let disk = appends(directory.path(), rounds);
        let (sink, one) = (median(lines.clone()), median(disk.clone()));
        figures(&format!("post-to-2xx{name}"), answers);
        figures(&format!("post-to-sink{name}"), lines);
        figures("append-fdatasync", disk);
        wakeups_each(&format!("post-to-sink{name}"), woken, rounds);
        let beyond = sink.saturating_sub(Duration::from_micros(250)).as_secs_f64() / one.as_secs_f64();
        println!("post-to-sink{name}: p50 is 0.25 ms and {beyond:.2} x one append with fdatasync");
    }
    agent.stop();
}
