//! runtime: what the pod workers add to a change, what the exec runtime adds to a program, and the agent at rest
//! with pods that run.
//!
//! `cargo bench --bench runtime`; a number as argument is the duration of the rest in seconds.
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

#[path = "../tests/it/support/plain.rs"]
mod plain;
mod support;

use std::{
    path::Path,
    process::Stdio,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use plain::Connection;
use podmux::{
    db,
    host::Host,
    mux::{Mux, SourceChannel},
    pod::{Listing, ListingBuilder, Op, Origin, Pod, Prepared, SourceName},
    runtime::{
        ActualPod, KillPod, PodRuntime, PodWorkers, RuntimeError, SyncPod,
        exec::{self, Exec},
        runtime_hash,
    },
    storage::Merged,
};
use serde_json::Value;
use support::{
    Agent, Form, Manifests, PATIENCE, appends, cpu_seconds, figures, median, new_wakeups, number_argument,
    pod, status, wakeups, wants_figures,
};
use tokio::{
    runtime::Builder,
    sync::{Semaphore, watch},
    task::yield_now,
};
use tokio_util::sync::CancellationToken;

/// What every program of this benchmark is: it exits at once.
const PROGRAM: &str = "/bin/true";
/// How long to wait after the start: tokio keeps idle threads for blocking work for ten seconds.
const SETTLE: Duration = Duration::from_secs(15);

fn main() {
    let rounds = if wants_figures() { 20_000 } else { 20 };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    for pods in [110, 10_000] {
        // Both in turn, so that both have the same machine.
        let (mut bare, mut with) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            bare.push(runtime.block_on(change_alone(pods, rounds / 5)));
            with.push(runtime.block_on(change_with_workers(pods, rounds / 5)));
        }
        let (bare, with) = (median(bare), median(with));
        println!(
            "{:<24} {:>7.2} µs   its diff alone {:>7.2} µs: {:.1} x   the workers add {:.2} µs",
            format!("worker/{pods}"),
            with.as_secs_f64() * 1e6,
            bare.as_secs_f64() * 1e6,
            with.as_secs_f64() / bare.as_secs_f64(),
            (with.as_secs_f64() - bare.as_secs_f64()) * 1e6
        );
    }
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(programs(if wants_figures() { 1_000 } else { 5 }));
    rest();
}

/// A listing of so many pods whose pod number 0 has one of two images, for each of the two.
fn listings(pods: usize) -> [Listing; 2] {
    let mut wanted = ListingBuilder::new(SourceName::File);
    for number in 0..pods {
        wanted.put(&origin(number), vec![prepared(number, 0)], Timestamp::UNIX_EPOCH);
    }
    let first = wanted.listing();
    wanted.put(&origin(0), vec![prepared(0, 1)], Timestamp::UNIX_EPOCH);
    [first, wanted.listing()]
}

fn origin(number: usize) -> Origin {
    Origin::from(&*format!("pod-{number:05}"))
}

fn prepared(number: usize, image: usize) -> Prepared {
    let mut pod = pod(&format!("pod-{number:05}"), 0);
    pod["metadata"]["uid"] = format!("uid-{number}").into();
    pod["spec"]["containers"][0]["image"] = format!("i:{image}").into();
    Prepared::from_json(pod.to_string().as_bytes()).unwrap()
}

/// The time of a change of one pod until a consumer has the difference, which it does nothing with.
async fn change_alone(pods: usize, rounds: u32) -> Duration {
    let (mux, merging) = Mux::new(&[SourceName::File]);
    let channel = mux.channel(SourceName::File).unwrap();
    let (merged, seen) = (mux.merged(), Semaphore::new(0));
    let follow = async {
        let mut merged = merged;
        let mut old = Merged::new(&[SourceName::File]);
        while merged.changed().await.is_ok() {
            let new = merged.borrow_and_update().clone();
            if old.diff(&new).count() > 0 {
                seen.add_permits(1);
            }
            old = new;
        }
    };
    let changes = changes(channel, pods, rounds, 1, &seen, || true);
    let (time, (), ()) = tokio::join!(changes, merging.run(), follow);
    time
}

/// The same until the workers have called a runtime, which does nothing, and have settled.
async fn change_with_workers(pods: usize, rounds: u32) -> Duration {
    let (mux, merging) = Mux::new(&[SourceName::File]);
    let channel = mux.channel(SourceName::File).unwrap();
    let nothing = Nothing { synced: Semaphore::new(0) };
    let workers = PodWorkers::new(&nothing, mux.merged());
    let queue = workers.queue();
    let changes = changes(channel, pods, rounds, pods, &nothing.synced, || queue.is_empty());
    let (time, (), ()) = tokio::join!(changes, merging.run(), workers.run(CancellationToken::new()));
    time
}

/// Publishes the first listing, which is seen so many times. Then, when all is settled, publishes one change
/// after the other, and waits for each.
async fn changes(
    channel: SourceChannel,
    pods: usize,
    rounds: u32,
    first: usize,
    seen: &Semaphore,
    is_settled: impl Fn() -> bool,
) -> Duration {
    let [one, other] = listings(pods);
    channel.publish(one.clone());
    seen.acquire_many(u32::try_from(first).unwrap()).await.unwrap().forget();
    while !is_settled() {
        yield_now().await;
    }
    let begin = Instant::now();
    for round in 0..rounds {
        channel.publish(if round % 2 == 0 { other.clone() } else { one.clone() });
        seen.acquire().await.unwrap().forget();
    }
    begin.elapsed() / rounds
}

/// A runtime that does nothing. It counts the pods that it was given.
struct Nothing {
    synced: Semaphore,
}

impl PodRuntime for &Nothing {
    async fn list(&self) -> Result<Vec<ActualPod>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn sync(&self, _: &SyncPod) -> Result<(), RuntimeError> {
        self.synced.add_permits(1);
        Ok(())
    }

    async fn kill(&self, _: &KillPod) -> Result<(), RuntimeError> {
        Ok(())
    }
}

/// A call of the exec runtime, whose ledger is durable before and after it, and the same program alone.
async fn programs(rounds: u32) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (db, writer, mut stored) = db::open(&Host::default(), &directory.path().join("state")).unwrap();
    let writer = thread::spawn(|| writer.run());
    let state = watch::channel(Ok(exec::State::new(db, &mut stored))).1;
    let files = directory.path().join("exec");
    let exec = Exec::new(exec::Config::new(PROGRAM), files, state, "boot", Host::default());
    exec.list().await.unwrap();
    let (mut ours, mut alone) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let sync = to_sync(round);
        let begin = Instant::now();
        exec.sync(&sync).await.unwrap();
        ours.push(begin.elapsed());
        let begin = Instant::now();
        let ended = tokio::process::Command::new(PROGRAM).stdin(Stdio::null()).status().await.unwrap();
        alone.push(begin.elapsed());
        assert!(ended.success());
    }
    let append = median(appends(directory.path(), if wants_figures() { 200 } else { 2 }));
    let beyond = median(ours.clone()).saturating_sub(median(alone.clone()));
    figures("exec", ours);
    figures("fork and exec alone", alone);
    println!(
        "{:<24} {:.3} ms, {:.1} appends of {:.3} ms with fdatasync",
        "exec adds",
        beyond.as_secs_f64() * 1e3,
        beyond.as_secs_f64() / append.as_secs_f64(),
        append.as_secs_f64() * 1e3
    );
    drop(exec);
    writer.join().unwrap();
}

fn to_sync(round: u32) -> SyncPod {
    let pod: Arc<Pod> =
        Arc::new(prepared(round as usize, 0).published_by(SourceName::File, Timestamp::UNIX_EPOCH));
    SyncPod { hash: runtime_hash(&pod).into(), source: SourceName::File, op: Op::Add, pod }
}

/// Processor time and wake-ups of the agent with 110 pods that run and do not change.
fn rest() {
    let figures = wants_figures();
    let seconds = number_argument().unwrap_or(if figures { 60 } else { 1 });
    let manifests = Manifests::new(110, Form::Yaml);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let socket = directory.path().join("s");
    let (path, state, listen) =
        (manifests.path(), directory.path().join("state"), format!("unix:{}", socket.display()));
    let sink = format!("exec={PROGRAM}");
    let agent = Agent::start_with(
        directory.path(),
        &[
            "--pod-manifest-path",
            path.to_str().unwrap(),
            "--listen",
            &listen,
            "--state-dir",
            state.to_str().unwrap(),
            "--sink",
            &sink,
        ],
    );
    agent.added(110);
    let begin = Instant::now();
    while running(&socket) < 110 {
        assert!(begin.elapsed() < PATIENCE, "not all pods run");
        thread::sleep(Duration::from_millis(100));
    }
    if figures {
        thread::sleep(SETTLE);
    }
    let id = agent.id();
    let (cpu, before) = (cpu_seconds(id), wakeups(id));
    thread::sleep(Duration::from_secs(seconds));
    let (cpu, wakeups) = (cpu_seconds(id) - cpu, new_wakeups(id, &before));
    println!(
        "{:<24} {:.3} % of a core   {:.1} wake-ups/s   RssAnon {:.1} MiB   {seconds} s",
        "idle, 110 pods run",
        cpu / seconds as f64 * 100.0,
        wakeups as f64 / seconds as f64,
        status(id, "RssAnon") as f64 / 1024.0,
    );
    agent.stop();
}

/// How many pods run, as the API shows them.
fn running(socket: &Path) -> usize {
    let list = Connection::unix(socket).unwrap().ask("GET", "/pods", b"").unwrap();
    let list: Value = serde_json::from_slice(&list.body).unwrap();
    list["items"].as_array().unwrap().iter().filter(|pod| pod["status"]["phase"] == "Running").count()
}
