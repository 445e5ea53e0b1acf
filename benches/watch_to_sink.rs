//! watch-to-sink: a change at a real kube-apiserver → its line on stdout, 10,000 pods held.
//!
//! `cargo bench --bench watch_to_sink`; a number as argument is the count of changes.
//! It needs `PODMUX_KUBERNETES` (see `tests/kubernetes/README.md`). A watch of the benchmark
//! measures the server's own time in the same run; the figure is the additional time until the
//! line is on stdout.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    reason = "a benchmark panics on failure, prints its results, and is not a library"
)]

#[path = "support/cluster.rs"]
mod cluster;
#[path = "../tests/it/support/kubernetes.rs"]
mod kubernetes;
#[path = "../tests/it/support/plain.rs"]
mod plain;
mod support;

use std::{
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use cluster::{Cluster, PODS, path};
use serde_json::json;
use support::{Agent, PATIENCE, figures, number_argument, wants_figures};

/// The pause between two changes, so that each starts with an idle agent.
const PAUSE: Duration = Duration::from_millis(5);

fn main() {
    let (pods, rounds) = if wants_figures() { (10_000, 500) } else { (20, 5) };
    let rounds = number_argument().map_or(rounds, |rounds| rounds.try_into().unwrap());
    let Some(mut cluster) = Cluster::start("watch-to-sink") else { return };
    cluster.fill(pods);
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let state = place.path().join("state");
    let flags = ["--kubeconfig", cluster.kubeconfig(), "--listen", "none"];
    let flags = [&flags[..], &["--state-dir", state.to_str().unwrap()]].concat();
    let agent = Agent::start_with(place.path(), &flags);
    agent.added(pods);
    let events = watch(&cluster);
    let mut admin = cluster.connect();
    let (mut whole, mut server, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        thread::sleep(PAUSE);
        // With a prime step every pod changes, and no two neighbours in a row.
        let pod = path(round * 7_919 % pods);
        let mark = format!("\"podmux.example/change\":\"{round}\"");
        let patch = json!({"metadata": {"labels": {"podmux.example/change": round.to_string()}}}).to_string();
        let begin = Instant::now();
        let answer = admin.ask_as("PATCH", &pod, "application/merge-patch+json", patch.as_bytes()).unwrap();
        assert_eq!(answer.code, 200, "{}", answer.text());
        let line = agent.line();
        assert!(line.text.contains("\"op\":\"UPDATE\"") && line.text.contains(&mark), "{}", line.text);
        let (seen, event) = events.recv_timeout(PATIENCE).unwrap();
        assert!(event.contains("\"MODIFIED\"") && event.contains(&mark), "{event}");
        whole.push(line.at.duration_since(begin));
        server.push(seen.duration_since(begin));
        beyond.push(line.at.saturating_duration_since(seen));
    }
    figures(&format!("watch-to-sink/{pods}"), beyond);
    figures("the same from the patch", whole);
    figures("the server's own part", server);
    agent.stop();
}

/// The events of a watch of the node's pods, with the time at which each was read.
fn watch(cluster: &Cluster) -> Receiver<(Instant, String)> {
    let mut connection = cluster.connect();
    let list = connection.ask("GET", &format!("{PODS}&limit=1"), b"").unwrap().json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut lines = connection.lines(&format!("{PODS}&watch=true&resourceVersion={version}")).unwrap();
    let (sender, events) = channel();
    thread::spawn(move || {
        while let Ok(line) = lines.next() {
            if sender.send((Instant::now(), line)).is_err() {
                break;
            }
        }
    });
    events
}
