//! The memory of a start with a large state, on the real binary.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    thread,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    plain::Connection,
    process::{Process, podmux, wait_for},
};

/// The most bytes of one request.
const BODY: usize = 8_000_000;
const PODS: &str = "/api/v1/namespaces/default/pods";

struct Node {
    directory: TempDir,
}

impl Node {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    fn start(&self) -> Process {
        let listen = format!("unix:{}", self.socket().display());
        let state = self.directory.path().join("state").display().to_string();
        let agent = Process::start(&mut podmux(&[
            "run",
            "--node-name",
            "node1",
            "--listen",
            &listen,
            "--state-dir",
            &state,
            "--max-posted-pods",
            "50000",
            "--max-posted-bytes",
            "1Gi",
        ]));
        wait_for(|| {
            let answer = Connection::unix(&self.socket()).ok()?.ask("GET", "/readyz", b"").ok()?;
            (answer.code == 200).then_some(())
        });
        agent
    }

    /// Posts this many pods of about this many bytes: many small values, as in an environment.
    fn post(&self, count: usize, bytes: usize) {
        let variables = bytes / 72;
        let each = BODY / bytes;
        for first in (0..count).step_by(each) {
            let items: Vec<Value> =
                (first..count.min(first + each)).map(|number| pod(number, variables)).collect();
            let list = json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string();
            let answer =
                Connection::unix(&self.socket()).unwrap().ask("POST", "/pods", list.as_bytes()).unwrap();
            assert_eq!(answer.code, 201, "{}", answer.text());
        }
    }

    fn posted(&self) -> u64 {
        let answer = Connection::unix(&self.socket()).unwrap().ask("GET", "/sources", b"").unwrap();
        answer.json()["items"][0]["pods"].as_u64().unwrap()
    }
}

pub fn pod(number: usize, variables: usize) -> Value {
    let variables: Vec<Value> =
        (0..variables).map(|index| json!({"name": format!("V{index}"), "value": "x".repeat(40)})).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{number}")},
        "spec": {"containers": [{"name": "c", "image": "i:1", "env": variables}]},
    })
}

/// A size in `/proc/PID/status`, in MiB.
pub fn status(agent: &Process, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", agent.pid().as_raw_nonzero())).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// `MemoryHigh=` of the package, in MiB: above it the agent is slowed down.
pub fn memory_high() -> u64 {
    let unit = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/podmux.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("MemoryHigh=")).unwrap();
    line.strip_suffix('M').unwrap().parse().unwrap()
}

fn end(agent: Process, signal: Signal) {
    agent.signal(signal);
    agent.ends();
}

/// Until issue 13, 20,000 posted pods made 305 MB, and an agent that was killed for its memory was killed again at
/// each restart.
#[test]
fn opening_a_state_needs_no_more_than_one_and_a_half_times_what_running_needs() {
    const PODS: usize = 20_000;
    let node = Node::new();
    let agent = node.start();
    let empty = status(&agent, "VmHWM:");
    node.post(PODS, 2_000);
    end(agent, Signal::KILL);
    let agent = node.start();
    let running = status(&agent, "VmRSS:");
    assert_eq!(node.posted(), PODS as u64);
    end(agent, Signal::KILL);
    let agent = node.start();
    let opening = status(&agent, "VmHWM:");
    println!("{empty} MiB empty, {running} MiB running, {opening} MiB opening");
    assert!(opening * 2 <= running * 3, "{opening} MiB to open, {running} MiB to run");
    // What runs is little more than the texts, and not the decoded pods.
    let texts = (PODS * 2_500) as u64 >> 20;
    assert!(
        opening - empty <= 4 * texts,
        "{opening} MiB, {empty} MiB of them without pods, texts of {texts} MiB"
    );
    end(agent, Signal::TERM);
}

/// Each held the whole list, encoded for it alone.
#[test]
fn lists_in_protobuf_that_are_not_read_hold_little() {
    const LISTS: u64 = 10;
    let node = Node::new();
    let agent = node.start();
    node.post(2_000, 3_000);
    let ask = || {
        let mut stream = UnixStream::connect(node.socket()).unwrap();
        let head =
            "GET /api/v1/pods HTTP/1.1\r\nHost: a\r\nAccept: application/vnd.kubernetes.protobuf\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let begins = |mut stream: UnixStream| {
        let mut head = [0; 15];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        stream
    };
    begins(ask());
    let before = status(&agent, "VmRSS:");
    let unread: Vec<UnixStream> = (0..LISTS).map(|_| ask()).collect();
    let unread: Vec<UnixStream> = unread.into_iter().map(begins).collect();
    // What the posts had left is given back meanwhile: sometimes more than the lists hold.
    let held = status(&agent, "VmRSS:").saturating_sub(before);
    println!("{held} MiB");
    assert!(held < LISTS * 6 / 2, "{held} MiB are held");
    drop(unread);
    end(agent, Signal::TERM);
}

/// The pod before and the pod after were decoded at the same time.
#[test]
fn a_large_pod_is_replaced_in_little_more_memory_than_it_is_created() {
    let node = Node::new();
    let agent = node.start();
    let mut large = pod(0, 1);
    large["spec"]["containers"][0]["ports"] = vec![json!({"containerPort": 1}); 150_000].into();
    let ask = |method: &str, path: &str, body: &Value| {
        let mut connection = Connection::unix(&node.socket()).unwrap();
        connection.ask(method, path, body.to_string().as_bytes()).unwrap().code
    };
    assert_eq!(ask("POST", PODS, &large), 201);
    let created = status(&agent, "VmHWM:");
    large["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(ask("PUT", &format!("{PODS}/p0"), &large), 200);
    let replaced = status(&agent, "VmHWM:");
    let mut connection = Connection::unix(&node.socket()).unwrap();
    let (path, label) = (format!("{PODS}/p0"), br#"{"metadata": {"labels": {"a": "c"}}}"#);
    let answer = connection.ask_as("PATCH", &path, "application/merge-patch+json", label).unwrap();
    assert_eq!(answer.code, 200);
    let patched = status(&agent, "VmHWM:");
    println!("{created} MiB to create, {replaced} MiB to replace, {patched} MiB to patch");
    assert!(replaced * 2 < created * 3, "{replaced} MiB to replace, {created} MiB to create");
    assert!(patched * 2 < created * 3, "{patched} MiB to patch, {created} MiB to create");
    end(agent, Signal::TERM);
}

/// Each result was held until those of all that waited were made.
#[test]
fn dry_runs_of_deletions_hold_one_large_pod_at_a_time() {
    const REQUESTS: u64 = 20;
    let node = Node::new();
    let agent = node.start();
    node.post(1, 4_000_000);
    let delete = || {
        let mut connection = Connection::unix(&node.socket()).unwrap();
        let answer = connection.ask("DELETE", &format!("{PODS}/p0?dryRun=All"), b"").unwrap();
        assert_eq!(answer.code, 200);
    };
    delete();
    let one = status(&agent, "VmHWM:");
    thread::scope(|scope| (0..REQUESTS).for_each(|_| drop(scope.spawn(delete))));
    let all = status(&agent, "VmHWM:");
    println!("{one} MiB for one, {all} MiB for all");
    assert!(all - one < REQUESTS * 4 / 2, "{one} MiB for one, {all} MiB for all");
    end(agent, Signal::TERM);
}

#[test]
fn the_default_quota_of_posted_pods_fits_into_the_memory_of_the_package() {
    let node = Node::new();
    let agent = node.start();
    node.post(1_000, 60_000);
    end(agent, Signal::KILL);
    let agent = node.start();
    let opening = status(&agent, "VmHWM:");
    println!("{opening} MiB");
    assert_eq!(node.posted(), 1_000);
    assert!(opening < memory_high(), "{opening} MiB");
    end(agent, Signal::TERM);
}
