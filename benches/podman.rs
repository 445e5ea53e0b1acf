//! podman: how long 50 pods take until they run, against `podman kube play` in a loop, and the agent at rest with
//! pods that podman runs.
//!
//! `cargo bench --bench podman`, as root on Debian; a number as argument is the duration of the rest in seconds.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark fails by panicking, prints its figures, and is not a library"
)]

#[path = "../tests/it/support/own_podman.rs"]
mod own_podman;
#[path = "../tests/it/support/plain.rs"]
mod plain;
mod support;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use own_podman::IMAGE;
use plain::Connection;
use serde_json::{Value, json};
use support::{Agent, PATIENCE, cpu_seconds, new_wakeups, number_argument, status, wakeups, wants_figures};
use tempfile::TempDir;

/// How long to wait after the start: tokio keeps idle threads for blocking work for ten seconds.
const SETTLE: Duration = Duration::from_secs(15);

fn main() {
    let image = tempfile::tempdir().unwrap();
    let file = image.path().join("image.tar");
    if !own_podman::make_image(&file).success() {
        assert!(env::var_os("CI").is_none(), "podman cannot be had here");
        println!("podman: it cannot be had here");
        return;
    }
    let (rounds, pods, many) = if wants_figures() { (3, 50, 110) } else { (1, 2, 2) };
    // Both in turn, so that both have the same machine.
    for round in 1..=rounds {
        let podman = Podman::start(&file);
        let begin = Instant::now();
        for number in 0..pods {
            let file = podman.at(&format!("{number}.json"));
            fs::write(&file, manifest(number).to_string()).unwrap();
            podman.run(&["kube", "play", "--quiet", "--network", "host", file.to_str().unwrap()]);
        }
        let theirs = begin.elapsed();
        drop(podman);
        let podman = Podman::start(&file);
        let (agent, ours) = podman.up(pods);
        agent.stop();
        println!(
            "{:<24} {:>7.2} s   podman kube play: {:>7.2} s: {:.2} x",
            format!("pods-up/{pods} {round}"),
            ours.as_secs_f64(),
            theirs.as_secs_f64(),
            ours.as_secs_f64() / theirs.as_secs_f64()
        );
    }
    let podman = Podman::start(&file);
    let (agent, _) = podman.up(many);
    if wants_figures() {
        thread::sleep(SETTLE);
    }
    let seconds = number_argument().unwrap_or(if wants_figures() { 120 } else { 1 });
    let (cpu, before) = (cpu_seconds(agent.id()), wakeups(agent.id()));
    thread::sleep(Duration::from_secs(seconds));
    let (cpu, wakeups) = (cpu_seconds(agent.id()) - cpu, new_wakeups(agent.id(), &before));
    println!(
        "{:<24} {:.3} % of a core   {:.1} wake-ups/s   RssAnon {:.1} MiB   {seconds} s",
        format!("idle, {many} pods run"),
        cpu / seconds as f64 * 100.0,
        wakeups as f64 / seconds as f64,
        status(agent.id(), "RssAnon") as f64 / 1024.0,
    );
    agent.stop();
}

fn manifest(number: usize) -> Value {
    // `podman kube play` sets no PATH.
    let command = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do /bin/sleep 1000 & wait; done"];
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": format!("pod-{number:03}")},
        "spec": {
            "hostNetwork": true,
            "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": command}],
        },
    })
}

/// podman with its own storage. Its pods are removed when it is dropped.
struct Podman {
    directory: TempDir,
    service: Option<Child>,
}

impl Podman {
    fn start(image: &Path) -> Self {
        let mut podman =
            Self { directory: tempfile::Builder::new().prefix("pm").tempdir().unwrap(), service: None };
        own_podman::configure(podman.directory.path());
        podman.run(&["import", "--quiet", image.to_str().unwrap(), IMAGE]);
        let address = format!("unix://{}", podman.at("podman.sock").display());
        let mut command = podman.command(&["system", "service", "--time", "0", &address]);
        podman.service = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let begin = Instant::now();
        while Connection::unix(&podman.at("podman.sock")).is_err() {
            assert!(begin.elapsed() < PATIENCE, "podman does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        podman
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        own_podman::complete(Command::new("podman"), self.directory.path(), args)
    }

    fn run(&self, args: &[&str]) {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "podman {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts an agent with so many manifests, and measures until all pods are ready.
    fn up(&self, pods: usize) -> (Agent, Duration) {
        let (manifests, agent) = (self.at("manifests"), self.at("agent"));
        for directory in [&manifests, &agent] {
            fs::create_dir(directory).unwrap();
        }
        for number in 0..pods {
            fs::write(manifests.join(format!("{number}.json")), manifest(number).to_string()).unwrap();
        }
        let (socket, sink) = (agent.join("s"), format!("podman={}", self.at("podman.sock").display()));
        let (listen, state) =
            (format!("unix:{}", socket.display()), agent.join("state").display().to_string());
        let flags = ["--listen", &listen, "--state-dir", &state, "--sink", &sink, "--pod-manifest-path"];
        let flags: Vec<&str> = flags.into_iter().chain([manifests.to_str().unwrap()]).collect();
        let agent = Agent::start_with(&agent, &flags);
        agent.added(pods);
        while ready(&socket) < pods {
            assert!(agent.started.elapsed() < 5 * PATIENCE, "not all pods are ready");
            thread::sleep(Duration::from_millis(20));
        }
        let lasted = agent.started.elapsed();
        (agent, lasted)
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.command(&["pod", "rm", "--all", "--force", "--time", "0"]).output();
        if let Some(mut service) = self.service.take() {
            let _ = service.kill();
            let _ = service.wait();
        }
    }
}

/// How many pods are ready, as the API shows them.
fn ready(socket: &Path) -> usize {
    let list = Connection::unix(socket).unwrap().ask("GET", "/pods", b"").unwrap();
    let list: Value = serde_json::from_slice(&list.body).unwrap();
    let is_ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    list["items"].as_array().unwrap().iter().filter(is_ready).count()
}
