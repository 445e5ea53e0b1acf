//! initial-sync/N: process start → all N pods of a real kube-apiserver on stdout, and the peak of memory.
//!
//! `cargo bench --bench initial_sync`; a number as argument is the count of starts of each.
//! It needs `PODMUX_KUBERNETES` (see `tests/kubernetes/README.md`). In the same run, on
//! the same server: client-go's informer, and kube-runtime's reflector, which is this
//! program again, started for it alone so that its memory is its own.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
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
    env,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cluster::{Cluster, NODE};
use futures::{StreamExt as _, future};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube_runtime::{
    reflector::{reflector, store},
    watcher::{self, watcher},
};
use podmux::source::api::{Connector, Kubeconfig};
use serde_json::{Value, json};
use support::{Agent, median, number_argument, status, wants_figures};

/// The first argument of this program as kube-runtime's reflector.
const REFLECTOR: &str = "kube-runtime";

/// The duration of one start, and the peak memory in KiB.
type Measured = (Duration, u64);
/// Starts something and measures it.
type Start<'s> = Box<dyn Fn() -> Measured + 's>;

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == REFLECTOR) {
        reflect(&arguments[1], arguments[2] == "streaming");
        return;
    }
    let (sizes, rounds): (&[usize], usize) = if wants_figures() { (&[500, 5_000], 7) } else { (&[20], 1) };
    let rounds = number_argument().map_or(rounds, |rounds| rounds.try_into().unwrap());
    let Some(mut cluster) = Cluster::start("initial-sync") else { return };
    for &size in sizes {
        cluster.fill(size);
        let (whole, bare) = cluster.sizes();
        println!("initial-sync/{size}: a pod is {whole} bytes as served, {bare} without managedFields");
        measure(&cluster, size, rounds);
    }
}

fn measure(cluster: &Cluster, size: usize, rounds: usize) {
    let kubeconfig = cluster.kubeconfig();
    let itself = || Command::new(env::current_exe().unwrap());
    let informer = || Command::new(PathBuf::from(env::var_os("PODMUX_KUBERNETES").unwrap()).join("informer"));
    let with = |mut command: Command, arguments: &[&str]| {
        command.args(arguments);
        command
    };
    let go = |form| with(informer(), &["--kubeconfig", kubeconfig, "--node", NODE, "--form", form]);
    let mut all: [(&str, Vec<Measured>, Start<'_>); 6] = [
        ("podmux", Vec::new(), Box::new(|| podmux(kubeconfig, size, false))),
        ("podmux, with its state", Vec::new(), Box::new(|| podmux(kubeconfig, size, true))),
        ("client-go, JSON", Vec::new(), Box::new(|| other(go("json"), size))),
        ("client-go, protobuf", Vec::new(), Box::new(|| other(go("protobuf"), size))),
        (
            "kube-runtime",
            Vec::new(),
            Box::new(|| other(with(itself(), &[REFLECTOR, kubeconfig, "lists"]), size)),
        ),
        (
            "kube-runtime, streaming",
            Vec::new(),
            Box::new(|| other(with(itself(), &[REFLECTOR, kubeconfig, "streaming"]), size)),
        ),
    ];
    // In turns, so that other load on the machine affects all of them.
    for _ in 0..rounds {
        for (_, measured, start) in &mut all {
            measured.push(start());
        }
    }
    for (name, measured, _) in &all {
        let seconds = |(time, _): &Measured| *time;
        let mut times: Vec<_> = measured.iter().map(seconds).collect();
        let mut peaks: Vec<_> = measured.iter().map(|(_, peak)| *peak as f64 / 1024.0).collect();
        times.sort_unstable();
        peaks.sort_unstable_by(f64::total_cmp);
        println!(
            "{:<40} p50 {:>7.3} s   max {:>7.3} s   peak RSS p50 {:>6.1} MiB   max {:>6.1} MiB   n {rounds}",
            format!("initial-sync/{size} {name}"),
            median(times.clone()).as_secs_f64(),
            times[rounds - 1].as_secs_f64(),
            peaks[rounds / 2],
            peaks[rounds - 1],
        );
    }
}

/// Measures podmux until the line that adds the last pod is read.
fn podmux(kubeconfig: &str, size: usize, with_state: bool) -> Measured {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let state = if with_state { place.path().join("state") } else { "none".into() };
    let flags = ["--kubeconfig", kubeconfig, "--listen", "none", "--state-dir", state.to_str().unwrap()];
    let agent = Agent::start_with(place.path(), &flags);
    let added = agent.added(size);
    let measured = (added.duration_since(agent.started), status(agent.id(), "VmHWM"));
    agent.stop();
    measured
}

/// Measures a program until it reports all pods.
fn other(mut command: Command, size: usize) -> Measured {
    let started = Instant::now();
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    let time = started.elapsed();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["pods"], size, "{command:?}");
    (time, report["rss_kib"].as_u64().unwrap())
}

/// kube-runtime's reflector as in its documentation. It reports in the form of the client-go informer.
fn reflect(kubeconfig: &str, streaming: bool) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let pods = runtime.block_on(async {
        // kube's own client needs features that podmux does not enable.
        let mut connector = Connector::new(Kubeconfig::File(kubeconfig.into()));
        let pods: Api<Pod> = Api::all(connector.client().await.unwrap().client);
        let wanted = watcher::Config::default().fields(&format!("spec.nodeName={NODE}"));
        let wanted = if streaming { wanted.streaming_lists() } else { wanted };
        let (reader, writer) = store();
        let events = reflector(writer, watcher(pods, wanted)).for_each(|event| {
            event.unwrap();
            future::ready(())
        });
        tokio::spawn(events);
        reader.wait_until_ready().await.unwrap();
        reader.state().len()
    });
    println!("{}", json!({"pods": pods, "rss_kib": status(std::process::id(), "VmHWM")}));
    // The watch has no end.
    runtime.shutdown_background();
}
