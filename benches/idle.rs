//! idle: processor time, wake-ups and memory of the agent with 110 pods that do not change.
//!
//! `cargo bench --bench idle`; a number as argument is the duration in seconds.
//! With `PODMUX_KUBERNETES` (see `tests/kubernetes/README.md`) half of the pods come
//! from a real kube-apiserver, otherwise all from files.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark panics on failure, prints its figures, and is not a library"
)]

#[path = "support/cluster.rs"]
mod cluster;
#[path = "../tests/it/support/kubernetes.rs"]
mod kubernetes;
#[path = "../tests/it/support/plain.rs"]
mod plain;
mod support;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    thread,
    time::Duration,
};

use cluster::Cluster;
use support::{
    Agent, Form, Manifests, cpu_seconds, new_wakeups, number_argument, status, wakeups, wants_figures,
};

/// How long to wait after the start: tokio keeps idle threads for blocking work for ten seconds.
const SETTLE: Duration = Duration::from_secs(15);

fn main() {
    let figures = wants_figures();
    let seconds = number_argument().unwrap_or(if figures { 60 } else { 1 });
    let cluster = Cluster::start("idle: the api source").map(|mut cluster| {
        cluster.fill(55);
        cluster
    });
    let manifests = Manifests::new(if cluster.is_some() { 55 } else { 110 }, Form::Yaml);
    let (path, directory) = (manifests.path(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let listen = format!("unix:{}", directory.path().join("s").display());
    let (state, url) = (directory.path().join("state"), polled());
    let flags = ["--pod-manifest-path", path.to_str().unwrap(), "--manifest-url", &url];
    let mut flags = [&flags[..], &["--listen", &listen, "--state-dir", state.to_str().unwrap()]].concat();
    if let Some(cluster) = &cluster {
        flags.extend(["--kubeconfig", cluster.kubeconfig()]);
    }
    let agent = Agent::start_with(directory.path(), &flags);
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
        if cluster.is_some() { "idle" } else { "idle, no api source" },
        cpu / seconds as f64 * 100.0,
        wakeups as f64 / seconds as f64,
        status(id, "RssAnon") as f64 / 1024.0,
        status(id, "VmRSS") as f64 / 1024.0,
        status(id, "Threads"),
    );
    agent.stop();
}

/// A URL with an empty list of pods.
fn polled() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let body = r#"{"apiVersion": "v1", "kind": "PodList", "items": []}"#;
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
            write!(stream, "{head}\r\n{body}").unwrap();
        }
    });
    url
}
