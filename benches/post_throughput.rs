//! post-throughput: pods POSTed by 1 and by 64 clients, each durable before its 2xx.
//!
//! `cargo bench --bench post_throughput`; a number as argument is the seconds of each run.
//! With `PODMUX_KUBERNETES` (see `tests/kubernetes/README.md`) a real kube-apiserver
//! is measured in the same run, over TLS only.
//! Appends of 4 KiB with fdatasync on the same disk are measured in the same run.
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

use std::{
    env,
    fs::File,
    io::{Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use kubernetes::Apiserver;
use plain::Connection;
use support::{appends, median, number_argument, pod, wants_figures};

fn main() {
    let seconds = number_argument().unwrap_or(if wants_figures() { 10 } else { 1 });
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for clients in [1, 64] {
        measure(directory.path(), clients, Duration::from_secs(seconds));
    }
    let one = median(appends(directory.path(), 500));
    println!(
        "append-fdatasync         p50 {:.3} ms: {:.0} a second",
        one.as_secs_f64() * 1e3,
        1.0 / one.as_secs_f64()
    );
}

fn measure(directory: &Path, clients: usize, time: Duration) {
    let socket = directory.join(format!("s{clients}"));
    let mut agent = start(directory, &socket, clients);
    post("post-throughput", clients, time, || connect(&socket));
    agent.kill().unwrap();
    agent.wait().unwrap();
    // Optional: it needs a build of Kubernetes.
    if env::var_os("PODMUX_KUBERNETES").is_some() {
        let apiserver = Apiserver::start().unwrap();
        let connect = || apiserver.at.connect(&apiserver.at.token).unwrap();
        let namespace = r#"{"metadata": {"name": "bench"}}"#;
        let made = connect().ask("POST", "/api/v1/namespaces", namespace.as_bytes()).unwrap();
        assert_eq!(made.code, 201, "{}", made.text());
        post("kube-apiserver", clients, time, connect);
    }
}

/// Runs clients that post one pod after the other, and prints the rate.
fn post<S: Read + Write>(
    name: &str,
    clients: usize,
    time: Duration,
    connect: impl Fn() -> Connection<S> + Sync,
) {
    let over = AtomicBool::new(false);
    // The clients use the same cores: a body is made by a copy.
    let body = pod("NAME", 0).to_string();
    let begin = Instant::now();
    let created: usize = thread::scope(|scope| {
        let work = |client: usize| {
            let (connect, over, body) = (&connect, &over, &body);
            move || {
                let mut connection = connect();
                let mut created = 0;
                while !over.load(Ordering::Relaxed) {
                    let body = body.replace("NAME", &format!("pod-{client}-{created}"));
                    let answer =
                        connection.ask("POST", "/api/v1/namespaces/bench/pods", body.as_bytes()).unwrap();
                    assert_eq!(answer.code, 201, "{}", answer.text());
                    created += 1;
                }
                created
            }
        };
        let clients: Vec<_> = (0..clients).map(|client| scope.spawn(work(client))).collect();
        thread::sleep(time);
        over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    let rate = f64::from(u32::try_from(created).unwrap()) / begin.elapsed().as_secs_f64();
    println!("{:<24} {rate:>9.0} pods a second, each durable", format!("{name}/{clients}"));
}

/// The agent with a sink that costs nothing: another benchmark measures the stream.
fn start(directory: &Path, socket: &Path, clients: usize) -> Child {
    Command::new(env!("CARGO_BIN_EXE_podmux"))
        .args(["run", "--node-name", "bench", "--sink", "jsonl=/dev/null"])
        .args(["--max-posted-pods", "10000000", "--max-posted-bytes", "100Gi", "--listen"])
        .arg(format!("unix:{}", socket.display()))
        .arg("--state-dir")
        .arg(directory.join(format!("state{clients}")))
        .env_clear()
        .stdout(Stdio::null())
        .stderr(File::create(directory.join("log")).unwrap())
        .spawn()
        .unwrap()
}

fn connect(socket: &Path) -> Connection {
    let begin = Instant::now();
    loop {
        match Connection::unix(socket) {
            Ok(connection) => return connection,
            Err(error) => assert!(begin.elapsed() < Duration::from_mins(1), "no answer: {error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}
