//! watchers: a manifest is renamed into the directory of 10,000 pods → the last of 256 clients has the event.
//!
//! `cargo bench --bench watchers`; a number as argument is the number of changes.
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
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use plain::Connection;
use support::{Agent, Form, Manifests, PATIENCE, figures, number_argument, rename, wants_figures};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::timeout,
};

/// The pause between two changes, so that the agent is idle before each.
const PAUSE: Duration = Duration::from_millis(20);

fn main() {
    let (size, watchers, rounds) = if wants_figures() { (10_000, 256, 200) } else { (110, 16, 5) };
    let rounds = number_argument().map_or(rounds, |rounds| rounds.try_into().unwrap());
    // The clients share one thread, so that the agent has the other core.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for watchers in [1, watchers] {
        runtime.block_on(measure(size, watchers, rounds));
    }
}

async fn measure(size: usize, watchers: usize, rounds: usize) {
    let manifests = Manifests::new(size, Form::Json);
    let directory = tempfile::tempdir().unwrap();
    let (socket, path) = (directory.path().join("s"), manifests.path());
    let listen = format!("unix:{}", socket.display());
    let flags = ["--listen", &listen, "--state-dir", "none", "--pod-manifest-path", path.to_str().unwrap()];
    let agent = Agent::start_with(directory.path(), &flags);
    agent.added(size);
    let first_page =
        Connection::unix(&socket).unwrap().ask("GET", "/api/v1/pods?limit=1", b"").unwrap().json();
    let version = first_page["metadata"]["resourceVersion"].as_str().unwrap();
    let (sender, mut events) = unbounded_channel();
    for _ in 0..watchers {
        tokio::spawn(watch(open(&socket, version).await, sender.clone()));
    }
    let mut firsts = Vec::new();
    let mut lasts = Vec::new();
    for round in 1..=rounds {
        thread::sleep(PAUSE);
        // A prime step, as in file_to_sink.
        let number = round * 7_919 % size;
        fs::write(manifests.staged(), manifests.text(number, round)).unwrap();
        let begin = rename(&manifests.staged(), &manifests.file(number));
        firsts.push(event(&mut events).await.duration_since(begin));
        let mut last = begin;
        for _ in 1..watchers {
            last = last.max(event(&mut events).await);
        }
        lasts.push(last.duration_since(begin));
        agent.line();
    }
    agent.stop();
    figures(&format!("first-of-{watchers}-watchers"), firsts);
    if watchers > 1 {
        figures(&format!("last-of-{watchers}-watchers"), lasts);
    }
}

/// Opens a watch; returns after the head of its answer.
async fn open(socket: &Path, version: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let request =
        format!("GET /api/v1/pods?watch=1&resourceVersion={version} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    stream
}

/// Sends when each event had come whole: the end of its line, which no other part of the answer has.
async fn watch(mut stream: UnixStream, events: UnboundedSender<Instant>) {
    let mut buffer = vec![0; 64 << 10];
    let mut before = 0;
    while let Ok(size @ 1..) = stream.read(&mut buffer).await {
        for &byte in &buffer[..size] {
            if (before, byte) == (b'}', b'\n') {
                let _ = events.send(Instant::now());
            }
            before = byte;
        }
    }
}

async fn event(events: &mut UnboundedReceiver<Instant>) -> Instant {
    timeout(PATIENCE, events.recv()).await.expect("no event in time").unwrap()
}
