//! A signal stops the agent within the shutdown grace.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    process::Signal,
};
use serde_json::Value;

use crate::support::{
    exec,
    notify::ManagerDouble,
    process::{Process, full_pipe, podmux, podmux_run, wait_for},
    stream::Replica,
};

/// Signals within half a second are one.
const TOGETHER: Duration = Duration::from_millis(600);
/// Enough to end some of them too late.
const PROGRAMS: usize = 32;

fn write_pods(directory: &Path, count: usize) {
    for number in 0..count {
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p{number}\nspec:\n  containers:\n  - name: c\n    image: i:1\n"
        );
        fs::write(directory.join(format!("p{number:05}.yaml")), pod).unwrap();
    }
}

#[test]
fn timely_shutdown_idle() {
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let manifests = tempfile::tempdir().unwrap();
        write_pods(manifests.path(), 1);
        let agent = Process::start(&mut podmux_run(manifests.path(), &[]));
        agent.holds("the pod", |held| held.pods.contains_key("default/p0-node1"));
        agent.signal(signal);
        let (code, log) = agent.ends();
        assert_eq!(code, 0, "{log}");
        assert!(log.contains(name) && log.ends_with("stopped"), "{log}");
    }
}

#[test]
fn timely_shutdown_mid_scan() {
    let manifests = tempfile::tempdir().unwrap();
    write_pods(manifests.path(), 5_000);
    let agent = Process::start(&mut podmux_run(manifests.path(), &[]));
    agent.logs("started");
    agent.signal(Signal::TERM);
    let stdout = agent.stdout.clone();
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert!(log.ends_with("stopped"), "{log}");
    Replica::of(&stdout.text());
}

#[test]
fn timely_shutdown_sink_hung() {
    let manifests = tempfile::tempdir().unwrap();
    write_pods(manifests.path(), 500);
    let grace = ["--shutdown-grace", "2s"];
    let (agent, mut stdout) = Process::start_unread(podmux_run(manifests.path(), &grace));
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("task aborted: it had not ended task=\"sink jsonl\""), "{log}");
    assert!(log.ends_with("stopped: the shutdown grace is over"), "{log}");
    let mut cut = String::new();
    stdout.read_to_string(&mut cut).unwrap();
    assert!(cut.starts_with(r#"{"seq":1,"#) && !cut.contains('\n'), "the last line is incomplete");
}

/// stdout and stderr go to one reader that does not read (`podmux run |& less`).
#[test]
fn timely_shutdown_log_hung_too() {
    let manifests = tempfile::tempdir().unwrap();
    write_pods(manifests.path(), 100);
    let out = tempfile::NamedTempFile::new().unwrap();
    let (_reader, full) = full_pipe();
    let file = format!("jsonl={}", out.path().display());
    let args = ["-vvv", "--shutdown-grace", "2s", "--sink", "jsonl", "--sink", &file];
    let mut command = podmux_run(manifests.path(), &args);
    let agent = Process::start(command.stderr(full.try_clone().unwrap()).stdout(full));
    let stream = wait_for(|| {
        fs::read_to_string(out.path()).ok().filter(|text| text.contains("p99-node1") && text.ends_with('\n'))
    });
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
    assert_eq!(Replica::of(&stream).pods.len(), 100, "the other sink has received everything");
}

#[test]
fn timely_shutdown_sink_failing() {
    let manifests = tempfile::tempdir().unwrap();
    write_pods(manifests.path(), 1);
    let args = ["--sink", "jsonl=/dev/full", "--shutdown-grace", "2s"];
    let agent = Process::start(&mut podmux_run(manifests.path(), &args));
    agent.logs("No space left on device");
    agent.logs("started");
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert_eq!(log.matches("No space left on device").count(), 1, "a repeated error is logged once:\n{log}");
    assert!(log.ends_with("stopped: the shutdown grace is over"), "{log}");
}

#[test]
fn a_second_signal_stops_it_at_once() {
    let manifests = tempfile::tempdir().unwrap();
    write_pods(manifests.path(), 500);
    let grace = ["--shutdown-grace", "1h"];
    let (agent, _stdout) = Process::start_unread(podmux_run(manifests.path(), &grace));
    agent.signal(Signal::TERM);
    agent.logs("stopping");
    thread::sleep(TOGETHER);
    agent.signal(Signal::INT);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("stopped at once: second signal signal=\"SIGINT\""), "{log}");
    assert!(log.contains("task aborted: it had not ended task=\"sink jsonl\""), "{log}");
}

/// `timeout podmux run …` sends SIGTERM to the agent and to the agent's group.
#[test]
fn two_signals_at_once_are_one() {
    let manifests = tempfile::tempdir().unwrap();
    write_pods(manifests.path(), 500);
    let grace = ["--shutdown-grace", "1h"];
    let (agent, stdout) = Process::start_unread(podmux_run(manifests.path(), &grace));
    // The agent receives both at once, however long this test takes to send them.
    for signal in [Signal::STOP, Signal::TERM, Signal::INT, Signal::CONT] {
        agent.signal(signal);
    }
    agent.logs("stopping");
    agent.stdout.read(stdout);
    let lines = agent.stdout.clone();
    let (code, log) = agent.ends();
    assert!(code == 0 && log.ends_with("stopped") && !log.contains("second signal"), "{log}");
    assert_eq!(Replica::of(&lines.text()).pods.len(), 500);
}

#[test]
fn a_second_signal_after_a_failure_keeps_the_exit_code_1() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    write_pods(&manifests, 500);
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let _unread = rustix::fs::open(&pipe, flags, Mode::empty()).unwrap();
    let sink = format!("jsonl={}", pipe.display());
    let mut command = podmux_run(&manifests, &["--shutdown-grace", "1h", "--sink", "jsonl", "--sink", &sink]);
    let mut manager = ManagerDouble::new();
    manager.starts(&mut command);
    let (agent, stdout) = Process::start_unread(command);
    drop(stdout);
    manager.receives("STOPPING=1");
    agent.signal(Signal::TERM);
    agent.logs("already stopping after a failure");
    thread::sleep(TOGETHER);
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("stopped at once: second signal"), "{log}");
}

#[test]
fn pending_updates_are_delivered_before_the_end() {
    let manifests = tempfile::tempdir().unwrap();
    write_pods(manifests.path(), 500);
    let grace = ["--shutdown-grace", "1h"];
    let (agent, stdout) = Process::start_unread(podmux_run(manifests.path(), &grace));
    agent.signal(Signal::TERM);
    agent.logs("stopping");
    agent.stdout.read(stdout);
    let lines = agent.stdout.clone();
    let (code, log) = agent.ends();
    assert_eq!((code, log.lines().last().unwrap().ends_with("stopped")), (0, true), "{log}");
    assert_eq!(Replica::of(&lines.text()).pods.len(), 500);
}

/// A stream that would end as it begins is none: its client tries again until the next agent answers.
#[test]
fn no_stream_begins_while_the_last_updates_are_delivered() {
    let manifests = tempfile::tempdir().unwrap();
    write_pods(manifests.path(), 500);
    let socket = manifests.path().join("socket");
    let mut run = podmux_run(manifests.path(), &["--shutdown-grace", "1h"]);
    run.env("PODMUX_LISTEN", format!("unix:{}", socket.display()));
    let (agent, stdout) = Process::start_unread(run);
    let mut follow = podmux(&["get", "updates", "-o", "jsonl"]);
    let follower = Process::start(follow.env("PODMUX_SERVER", format!("unix:{}", socket.display())));
    let line = follower.stdout.wait_for("the pods", |lines| {
        let line = lines.iter().find(|line| line.contains(r#""op":"SET","source":"file""#));
        line.map(|line| serde_json::from_str::<Value>(line).unwrap())
    });
    let status = |path: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    agent.signal(Signal::TERM);
    follower.stderr.wait_for("the end of the stream", |lines| {
        lines.iter().find(|line| line.contains("the agent has ended the stream")).map(drop)
    });
    let from = format!("/updates?from={}-{}", line["run"].as_str().unwrap(), line["seq"]);
    for path in [&*from, "/updates", "/api/v1/pods?watch=1", "/api/v1/namespaces?watch=1"] {
        assert_eq!(status(path), "503", "{path}");
    }
    agent.stdout.read(stdout);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    let told = follower.stderr.text();
    assert!(told.starts_with("connection lost: ") && told.lines().count() == 1, "{told}");
}

/// Some went on, because the process had ended before it had dropped all calls.
#[test]
fn at_the_end_of_the_grace_each_running_program_gets_sigterm() {
    let script = "trap 'echo >> \"$HERE/ended\"; exit 1' TERM; echo >> \"$HERE/begun\"; sleep 60 & wait";
    let directory = exec::directory(script);
    let at = |name: &str| directory.path().join(name);
    let lines = |name: &str| fs::read_to_string(at(name)).unwrap_or_default().lines().count();
    write_pods(&at("manifests"), PROGRAMS);
    let (program, state) = (format!("exec={}", at("program").display()), at("state"));
    let concurrency = PROGRAMS.to_string();
    let args = ["--sink", &program, "--sink-concurrency", &concurrency, "--shutdown-grace", "100ms"];
    let mut run = podmux_run(&at("manifests"), &args);
    let agent = Process::start(run.env("PODMUX_STATE_DIR", state).env("RUNTIME_DIRECTORY", at("run")));
    wait_for(|| (lines("begun") == PROGRAMS).then_some(()));
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert!(code == 0 && log.ends_with("stopped: the shutdown grace is over"), "{log}");
    wait_for(|| (lines("ended") == PROGRAMS).then_some(()));
}
