//! The output file is reopened after a rotation; no line is lost or incomplete.

use std::{
    fs,
    future::ready,
    io::{BufRead as _, BufReader},
    os::{fd::AsRawFd as _, unix::fs::symlink},
    path::{Path, PathBuf},
    process::{self, Command},
    sync::mpsc,
};

use podmux::{
    pod::Op,
    sink::{Jsonl, OpenError, Reopen, SequencedUpdate, Sink as _, SinkError},
};
use rustix::{
    fs::{FlockOperation, MemfdFlags, SealFlags, fcntl_add_seals, flock, memfd_create},
    process::Signal,
};
use tempfile::TempDir;
use tokio::{runtime::Builder, task::spawn_blocking};

use crate::support::{
    files::soon,
    logs::logged,
    namespace::inside,
    process::{Process, podmux_run, wait_for},
    sinks,
    stream::Replica,
};

/// A sink whose file is rotated.
struct Rotated {
    directory: TempDir,
    sink: Jsonl,
    reopen: Reopen,
    seq: u64,
}

impl Rotated {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let sink = Jsonl::file(&directory.path().join("updates.jsonl")).unwrap();
        let reopen = sink.reopen();
        Self { directory, sink, reopen, seq: 0 }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn rotate(&self) {
        fs::rename(self.at("updates.jsonl"), self.at("updates.jsonl.1")).unwrap();
    }

    async fn deliver(&mut self) {
        self.seq += 1;
        self.sink.deliver(&update(self.seq, "a")).await.unwrap();
    }

    /// Delivers an update that is not written, because the stream begins again.
    async fn restarts(&mut self) {
        self.seq += 1;
        let restart = self.sink.deliver(&update(self.seq, "a")).await.unwrap_err();
        assert!(matches!(restart, SinkError::Restart), "{restart:?}");
    }

    /// The numbers in a file, whose lines must be complete.
    fn seqs(&self, name: &str) -> Vec<u64> {
        seqs(&self.at(name))
    }
}

fn update(seq: u64, pods: &str) -> SequencedUpdate {
    sinks::update(seq, Op::Add, pods)
}

fn seqs(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{}: the last line is incomplete", path.display());
    let seq = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["seq"].as_u64().unwrap();
    text.lines().map(seq).collect()
}

#[tokio::test]
async fn after_a_reopening_the_stream_begins_again_in_the_new_file() {
    let mut rotated = Rotated::new();
    rotated.deliver().await;
    rotated.rotate();
    rotated.deliver().await;
    rotated.reopen.now();
    rotated.restarts().await;
    rotated.deliver().await;
    rotated.deliver().await;
    assert_eq!(rotated.seqs("updates.jsonl.1"), [1, 2], "the old file is used until the request");
    assert_eq!(rotated.seqs("updates.jsonl"), [4, 5]);
}

#[tokio::test]
async fn an_idle_stream_closes_the_old_file_and_begins_again() {
    let mut rotated = Rotated::new();
    rotated.rotate();
    rotated.reopen.now();
    assert!(matches!(soon(rotated.sink.interrupted()).await, SinkError::Restart));
    rotated.deliver().await;
    assert_eq!(rotated.seqs("updates.jsonl"), [1]);
}

#[test]
fn an_update_that_comes_while_the_file_is_reopened_begins_the_stream_again() {
    // The only thread is busy, so the reopening has to wait.
    let runtime = Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut rotated = Rotated::new();
        rotated.deliver().await;
        let (go, busy) = mpsc::sync_channel::<()>(0);
        let thread = spawn_blocking(move || busy.recv());
        rotated.rotate();
        rotated.reopen.now();
        tokio::select! {
            biased;
            _ = rotated.sink.interrupted() => panic!("it is not reopened yet"),
            () = ready(()) => {}
        }
        let frees = async { drop(go) };
        tokio::join!(rotated.restarts(), frees);
        thread.await.unwrap().unwrap_err();
        rotated.deliver().await;
        assert_eq!(rotated.seqs("updates.jsonl.1"), [1]);
        assert_eq!(rotated.seqs("updates.jsonl"), [3]);
    });
}

/// By logrotate's `copytruncate`, or by a person who needs space.
#[tokio::test]
async fn in_a_file_that_was_truncated_the_stream_begins_again() {
    let mut rotated = Rotated::new();
    let file = rotated.at("updates.jsonl");
    let truncate = |to| fs::File::options().write(true).open(&file).unwrap().set_len(to).unwrap();
    rotated.deliver().await;
    rotated.deliver().await;
    truncate(0);
    rotated.restarts().await;
    rotated.deliver().await;
    rotated.deliver().await;
    assert_eq!(rotated.seqs("updates.jsonl"), [4, 5]);
    let line = fs::metadata(&file).unwrap().len() / 2;
    for next in [7, 9] {
        truncate(line);
        rotated.restarts().await;
        rotated.deliver().await;
        assert_eq!(rotated.seqs("updates.jsonl"), [4, next]);
    }
    // A reopening makes it known while nothing is written.
    truncate(0);
    rotated.reopen.now();
    assert!(matches!(soon(rotated.sink.interrupted()).await, SinkError::Restart));
    rotated.deliver().await;
    assert_eq!(rotated.seqs("updates.jsonl"), [10]);
}

#[tokio::test]
async fn a_line_whose_beginning_was_truncated_is_not_continued() {
    if !inside("-Urm", "rotation::a_line_whose_beginning_was_truncated_is_not_continued") {
        return;
    }
    let mut rotated = Rotated::new();
    let full = rotated.at("full");
    small(&full);
    let file = full.join("updates.jsonl");
    rotated.sink = Jsonl::file(&file).unwrap();
    let pods: Vec<String> = (0..1_000).map(|n| format!("p{n}")).collect();
    let large = update(1, &pods.join(" "));
    rotated.sink.deliver(&large).await.unwrap_err();
    fs::File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
    assert!(matches!(rotated.sink.deliver(&large).await.unwrap_err(), SinkError::Restart));
    rotated.sink.deliver(&update(2, "a")).await.unwrap();
    assert_eq!(seqs(&file), [2]);
}

#[tokio::test]
async fn a_file_that_was_not_rotated_stays_in_use() {
    let mut rotated = Rotated::new();
    rotated.deliver().await;
    rotated.reopen.now();
    rotated.deliver().await;
    assert_eq!(rotated.seqs("updates.jsonl"), [1, 2]);
}

#[test]
fn if_the_new_file_cannot_be_opened_the_old_one_stays_in_use() {
    logged(async |log| {
        let mut rotated = Rotated::new();
        rotated.deliver().await;
        rotated.rotate();
        fs::create_dir(rotated.at("updates.jsonl")).unwrap();
        rotated.reopen.now();
        rotated.deliver().await;
        assert_eq!(rotated.seqs("updates.jsonl.1"), [1, 2]);
        let lines = log.lines_with("output file not reopened");
        assert!(lines.len() == 1 && lines[0].contains("Is a directory"), "{lines:?}");
        // The next request works.
        fs::remove_dir(rotated.at("updates.jsonl")).unwrap();
        rotated.reopen.now();
        rotated.restarts().await;
        rotated.deliver().await;
        assert_eq!(rotated.seqs("updates.jsonl"), [4]);
    });
}

#[test]
fn a_pipe_keeps_its_reader() {
    logged(async |log| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
        let _reader = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
        let mut sink = Jsonl::file(&path).unwrap();
        fs::rename(&path, directory.path().join("other")).unwrap();
        sink.reopen().now();
        sink.deliver(&update(1, "a")).await.unwrap();
        assert!(!path.exists() && log.lines_with("output file").is_empty());
    });
}

/// A directory on a small file system of its own.
fn small(directory: &Path) {
    fs::create_dir(directory).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(directory).status();
    assert!(mounted.unwrap().success());
}

#[tokio::test]
async fn a_line_that_does_not_fit_into_the_old_file_begins_the_stream_again_in_the_new_one() {
    if !inside(
        "-Urm",
        "rotation::a_line_that_does_not_fit_into_the_old_file_begins_the_stream_again_in_the_new_one",
    ) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (full, empty, link) =
        (scratch.path().join("full"), scratch.path().join("empty"), scratch.path().join("link"));
    small(&full);
    fs::create_dir(&empty).unwrap();
    symlink(&full, &link).unwrap();
    let mut sink = Jsonl::file(&link.join("updates.jsonl")).unwrap();
    let reopen = sink.reopen();
    sink.deliver(&update(1, "a")).await.unwrap();
    let pods: Vec<String> = (0..1_000).map(|n| format!("p{n}")).collect();
    let large = update(2, &pods.join(" "));
    sink.deliver(&large).await.unwrap_err();

    // While the path leads to the full disk, the line is continued there.
    reopen.now();
    sink.deliver(&large).await.unwrap_err();
    fs::remove_file(&link).unwrap();
    symlink(&empty, &link).unwrap();
    reopen.now();
    assert!(matches!(sink.deliver(&large).await.unwrap_err(), SinkError::Restart));
    sink.deliver(&update(3, "a")).await.unwrap();
    assert_eq!(seqs(&empty.join("updates.jsonl")), [3]);
    let old = fs::read_to_string(full.join("updates.jsonl")).unwrap();
    assert_eq!(old.lines().count(), 2, "one complete line, and the part of the other");
}

#[tokio::test]
async fn a_line_that_fits_into_the_old_file_is_completed_there() {
    if !inside("-Urm", "rotation::a_line_that_fits_into_the_old_file_is_completed_there") {
        return;
    }
    let mut rotated = Rotated::new();
    let full = rotated.at("full");
    small(&full);
    rotated.sink = Jsonl::file(&full.join("updates.jsonl")).unwrap();
    let pods: Vec<String> = (0..1_000).map(|n| format!("p{n}")).collect();
    let large = update(1, &pods.join(" "));
    rotated.sink.deliver(&large).await.unwrap_err();
    fs::rename(full.join("updates.jsonl"), full.join("old")).unwrap();
    rotated.sink.reopen().now();
    let more = Command::new("mount").args(["-o", "remount,size=9m"]).arg(&full).status();
    assert!(more.unwrap().success());
    // It is complete, and the stream begins again with what it has said.
    assert!(matches!(rotated.sink.deliver(&large).await.unwrap_err(), SinkError::Restart));
    rotated.sink.deliver(&update(2, "a")).await.unwrap();
    assert_eq!(seqs(&full.join("old")), [1]);
    assert_eq!(seqs(&full.join("updates.jsonl")), [2]);
}

#[tokio::test]
async fn the_file_in_use_is_locked_and_no_other() {
    let mut rotated = Rotated::new();
    let is_locked =
        |path: &Path| matches!(Jsonl::file(path), Err(OpenError::InUse(locked)) if locked == path);
    let (path, old) = (rotated.at("updates.jsonl"), rotated.at("updates.jsonl.1"));
    assert!(is_locked(&path));
    Jsonl::check(&path).unwrap();
    // The same file again.
    rotated.reopen.now();
    rotated.deliver().await;
    assert!(is_locked(&path));
    rotated.rotate();
    assert!(is_locked(&old), "it is written to until the request");
    rotated.reopen.now();
    rotated.restarts().await;
    assert!(is_locked(&path) && !is_locked(&old));
    rotated.reopen.now();
    rotated.deliver().await;
    assert!(is_locked(&path));
    drop(rotated.sink);
    assert!(!is_locked(&path));
}

#[tokio::test]
async fn a_file_that_is_rotated_while_its_lock_is_waited_for_is_not_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("updates.jsonl");
    let other = fs::File::create(&path).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    let waiting = spawn_blocking({
        let path = path.clone();
        move || Jsonl::file(&path)
    });
    let opened = || {
        let files = fs::read_dir("/proc/self/fd").unwrap().map(|file| file.unwrap().path());
        files.filter_map(|file| fs::read_link(file).ok()).filter(|target| *target == path).count()
    };
    wait_for(|| (opened() == 2 || waiting.is_finished()).then_some(()));
    fs::rename(&path, directory.path().join("updates.jsonl.1")).unwrap();
    drop(other);
    assert!(matches!(waiting.await.unwrap(), Err(OpenError::InUse(_))));
}

#[test]
fn two_agents_do_not_write_to_one_file() {
    let first = Idle::start(|_| ());
    first.begins();
    let sink = format!("jsonl={}", first.path().display());
    let second =
        Process::start(&mut podmux_run(&first.directory.path().join("manifests"), &["--sink", &sink]));
    let log = second.logs("sink delivery failed");
    let error = format!(
        "error=\"cannot write updates to {}: the file is in use by another process or sink (give each a file of its own)\"",
        first.path().display()
    );
    assert!(log.contains(&error), "{log}");
    let runs = || fs::read_to_string(first.path()).unwrap().matches("\"run\":").count();
    assert_eq!(runs(), 1);
    first.agent.signal(Signal::KILL);
    second.logs("sink recovered");
    wait_for(|| (runs() == 2).then_some(()));
    second.signal(Signal::TERM);
    let (code, log) = second.ends();
    assert_eq!((code, log.matches("sink delivery failed").count()), (0, 1), "{log}");
}

#[test]
fn standard_output_is_not_locked() {
    let directory = tempfile::tempdir().unwrap();
    let (path, manifests) = (directory.path().join("out"), directory.path().join("manifests"));
    fs::create_dir(&manifests).unwrap();
    let other = fs::File::create(&path).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    let out = fs::OpenOptions::new().append(true).open(&path).unwrap();
    let agent = Process::start(podmux_run(&manifests, &["--sink", "jsonl=/dev/stdout"]).stdout(out));
    wait_for(|| fs::read_to_string(&path).unwrap().ends_with('\n').then_some(()));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}

/// An agent with one pod and a sink on the file `out/updates.jsonl`.
struct Idle {
    directory: TempDir,
    agent: Process,
}

impl Idle {
    fn start(prepare: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let manifests = directory.path().join("manifests");
        fs::create_dir(&manifests).unwrap();
        fs::write(manifests.join("a.yaml"), crate::support::files::pod("a", "i:1")).unwrap();
        let path = directory.path().join("out").join("updates.jsonl");
        fs::create_dir(path.parent().unwrap()).unwrap();
        prepare(&path);
        let sink = format!("jsonl={}", path.display());
        let agent = Process::start(&mut podmux_run(&manifests, &["--sink", &sink]));
        Self { directory, agent }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("out").join("updates.jsonl")
    }

    /// Adds the pod `b`.
    fn wants_b(&self) {
        let manifest = self.directory.path().join("manifests").join("b.yaml");
        fs::write(manifest, crate::support::files::pod("b", "i:1")).unwrap();
    }

    /// Waits until the file alone has this number of pods.
    fn has(&self, pods: usize) {
        let is_whole = |text: &String| text.ends_with('\n') && Replica::of(text).pods.len() == pods;
        wait_for(|| fs::read_to_string(self.path()).ok().filter(is_whole));
    }

    /// Waits until the stream has begun in the file.
    fn begins(&self) {
        wait_for(|| fs::read_to_string(self.path()).ok().filter(|text| text.contains("a-node1")));
    }

    fn rotate(&self) {
        fs::rename(self.path(), self.directory.path().join("updates.1")).unwrap();
        self.agent.signal(Signal::HUP);
        self.begins();
    }

    /// Stops it and returns its log.
    fn ends(self) -> String {
        self.agent.signal(Signal::TERM);
        let (code, log) = self.agent.ends();
        assert_eq!(code, 0, "{log}");
        log
    }
}

#[test]
fn the_rotation_of_an_idle_stream_is_no_failure() {
    let idle = Idle::start(|_| ());
    idle.begins();
    idle.rotate();
    let log = idle.ends();
    assert_eq!(log.matches("output file reopened").count(), 1, "{log}");
    assert!(log.contains("INFO") && !log.contains("WARN"), "{log}");
}

#[test]
fn a_file_in_the_place_of_a_named_pipe_is_reopened() {
    let idle = Idle::start(|path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    });
    let mut reader = BufReader::new(fs::File::open(idle.path()).unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    idle.agent.logs("the reader of the named pipe or terminal has gone");
    fs::remove_file(idle.path()).unwrap();
    idle.begins();
    idle.rotate();
    idle.rotate();
    idle.ends();
}

#[test]
fn a_removed_file_is_made_again_with_the_next_line() {
    let idle = Idle::start(|_| ());
    idle.begins();
    fs::remove_file(idle.path()).unwrap();
    idle.wants_b();
    idle.has(2);
    let log = idle.ends();
    assert!(log.contains("output file closed") && !log.contains("WARN"), "{log}");
}

#[test]
fn a_sink_whose_file_and_directory_were_removed_fails_until_the_directory_is_back() {
    for pods in [1, 2] {
        let idle = Idle::start(|_| ());
        idle.begins();
        let directory = idle.path().parent().unwrap().to_owned();
        fs::remove_dir_all(&directory).unwrap();
        if pods == 1 {
            idle.agent.signal(Signal::HUP);
        } else {
            idle.wants_b();
        }
        let log = idle.agent.logs("sink delivery failed");
        assert!(log.contains("No such file or directory"), "{log}");
        fs::create_dir(&directory).unwrap();
        idle.has(pods);
        let log = idle.ends();
        assert!(log.contains("sink recovered") && !log.contains("output file not reopened"), "{log}");
    }
}

/// As a path, `/proc/self/fd/N` leads to it.
#[tokio::test]
async fn a_file_without_a_name_is_not_a_removed_one() {
    let mut rotated = Rotated::new();
    let nameless = tempfile::tempfile().unwrap();
    let named = fs::File::create(rotated.at("named")).unwrap();
    for file in [&nameless, &named] {
        rotated.sink = Jsonl::file(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd()))).unwrap();
        rotated.deliver().await;
        let _ = fs::remove_file(rotated.at("named"));
        rotated.deliver().await;
        rotated.sink.reopen().now();
        rotated.deliver().await;
    }
}

/// As after a disk has failed: until the file is closed, the disk cannot be unmounted.
#[test]
fn a_reopening_closes_a_file_that_cannot_be_written_to() {
    let memory = memfd_create("updates", MemfdFlags::ALLOW_SEALING).unwrap();
    let idle = Idle::start(|path| {
        symlink(format!("/proc/{}/fd/{}", process::id(), memory.as_raw_fd()), path).unwrap();
    });
    idle.begins();
    fcntl_add_seals(&memory, SealFlags::GROW).unwrap();
    idle.wants_b();
    let log = idle.agent.logs("sink delivery failed");
    assert!(log.contains("Operation not permitted"), "{log}");
    idle.agent.signal(Signal::HUP);
    idle.agent.logs("output file closed");
    fs::remove_file(idle.path()).unwrap();
    idle.agent.signal(Signal::HUP);
    idle.has(2);
    idle.ends();
}

/// Until it is closed, the disk has no more space than before.
#[tokio::test]
async fn a_removed_file_on_a_full_disk_is_closed_before_the_next_retry() {
    if !inside("-Urm", "rotation::a_removed_file_on_a_full_disk_is_closed_before_the_next_retry") {
        return;
    }
    let mut rotated = Rotated::new();
    let full = rotated.at("full");
    small(&full);
    rotated.sink = Jsonl::file(&full.join("updates.jsonl")).unwrap();
    let pods: Vec<String> = (0..1_000).map(|n| format!("p{n}")).collect();
    rotated.sink.deliver(&update(1, &pods.join(" "))).await.unwrap_err();
    fs::remove_file(full.join("updates.jsonl")).unwrap();
    fs::write(full.join("other"), vec![0; 32 << 10]).unwrap_err();
    rotated.sink.reopen().now();
    assert!(matches!(soon(rotated.sink.interrupted()).await, SinkError::Restart));
    fs::write(full.join("other"), vec![0; 32 << 10]).unwrap();
}

/// Rotates as logrotate does, during a stream of changes.
#[test]
fn rotation_by_sighup_loses_no_line() {
    let manifests = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("updates.jsonl");
    let sinks = ["--sink", "jsonl", "--sink", &format!("jsonl={}", path.display())];
    let agent = Process::start(&mut podmux_run(manifests.path(), &sinks));
    agent.holds("the first update", |held| held.seq == 1);
    let rounds: u64 = 8;
    for round in 0..rounds {
        for number in 0..5 {
            let name = format!("p{round}-{number}");
            fs::write(
                manifests.path().join(format!("{name}.yaml")),
                crate::support::files::pod(&name, "i:1"),
            )
            .unwrap();
        }
        if round % 2 == 0 {
            wait_for(|| fs::read_to_string(&path).ok().filter(|text| !text.is_empty()));
        }
        fs::rename(&path, out.path().join(format!("updates.{round}"))).unwrap();
        agent.signal(Signal::HUP);
        wait_for(|| path.exists().then_some(()));
    }
    let wanted = usize::try_from(rounds).unwrap() * 5;
    let delivered = agent.holds("all pods", |held| held.pods.len() == wanted);
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    let mut files: Vec<_> = (0..rounds).map(|round| out.path().join(format!("updates.{round}"))).collect();
    files.push(path);
    let all: Vec<u64> = files.iter().flat_map(|file| seqs(file)).collect();
    assert!(all.is_sorted_by(|a, b| a < b), "each number once and in order: {all:?}");
    let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    assert_eq!(Replica::of(&texts.concat()).pods, delivered.pods, "all files in a row");
    let last = texts.last().unwrap();
    assert_eq!(Replica::of(last).pods, delivered.pods, "the last file by itself");
}
