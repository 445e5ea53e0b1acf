//! What one operation costs, counted and not timed: instructions, allocations and system calls, held against
//! `costs.txt`. `UPDATE_EXPECT=1` writes the file anew.

use std::{
    collections::BTreeMap,
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;
use podmux::{
    manifest::{self, Preparation},
    pod::{ListingBuilder, NodeName, Origin, Prepared, SourceName},
    storage::{Delivered, Notify, PodStorage, updates},
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime;

use self::bench_pod::pod;
use crate::support::{
    callgrind,
    plain::Connection,
    process::{Process, podmux_run, wait_for},
    server::TestServer,
    unpacked::unpacked,
};

#[path = "../../benches/support/pod.rs"]
mod bench_pod;

/// How many operations' system calls are counted.
const OPERATIONS: u32 = 50;
/// What a figure may differ by. System calls depend a little on how the threads take turns.
const TOLERANCE: f64 = 0.05;
const TOLERANCE_OF_CALLS: f64 = 0.25;
/// How much more may go to the database, which is sealed 50 ms after a commit: on a busy machine after many.
const TOLERANCE_OF_SEALS: f64 = 0.9;
/// Threads wait for one another and give memory back in these, more or less often.
const OF_THREADS: [&str; 9] = [
    "epoll_wait",
    "futex",
    "madvise",
    "mmap",
    "mprotect",
    "munmap",
    "restart_syscall",
    "sched_yield",
    "write",
];

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/costs.txt")
}

fn parsed(text: &str) -> BTreeMap<String, f64> {
    let figure = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.trim().to_owned(), value.parse().ok()?))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(figure).collect()
}

/// Compares figures with those of the same names in the file.
fn check(prefix: &str, found: &BTreeMap<String, f64>, tolerance: f64) {
    static WRITING: Mutex<()> = Mutex::new(());
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let text = fs::read_to_string(file()).unwrap();
    let mut all = parsed(&text);
    let expected: BTreeMap<String, f64> = all.extract_if(.., |name, _| name.starts_with(prefix)).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        all.extend(found.clone());
        let head = text.lines().filter(|line| line.starts_with('#')).map(str::to_owned);
        let figures = all.iter().map(|(name, value)| format!("{name:<40} {value}"));
        let lines: Vec<String> = head.chain(figures).collect();
        return fs::write(file(), lines.join("\n") + "\n").unwrap();
    }
    let is_near = |(name, value): (&String, &f64)| {
        let is_sealed = name.ends_with(" fdatasync") || name.ends_with(" pwrite64");
        let more = if is_sealed { TOLERANCE_OF_SEALS } else { tolerance };
        let is_near =
            |expected: &f64| (expected * (1.0 - tolerance)..=expected * (1.0 + more)).contains(value);
        expected.get(name).is_some_and(is_near)
    };
    assert!(
        found.len() == expected.len() && found.iter().all(is_near),
        "other costs than in tests/it/costs.txt; if that is wanted, say why in the commit and write the file anew:\n\
         expected {expected:#?}\nfound {found:#?}"
    );
}

fn decoded(text: &str) -> Vec<Prepared> {
    let node = NodeName::new("node1").unwrap();
    let preparation = Preparation { source: SourceName::File, node, generate: None, namespace: None };
    manifest::read(text.as_bytes(), &preparation).unwrap().pods
}

/// The second of two runs is counted: the first one initializes what is initialized once.
fn second(mut work: impl FnMut()) {
    work();
    callgrind::case(work);
}

const COUNTED: [&str; 5] = ["decode-json", "decode-yaml", "publish", "merge", "post"];

fn run_counted() {
    let text = pod("web", 0).to_string();
    let yaml = manifest::yaml::to_json(&text).unwrap();
    let yaml = serde_saphyr::to_string(&yaml).unwrap();
    second(|| drop(black_box(decoded(&text))));
    second(|| drop(black_box(decoded(&yaml))));

    let mut builder = ListingBuilder::new(SourceName::File);
    let put = |number: usize, round: usize| {
        let pods = decoded(&pod(&format!("pod-{number:04}"), round).to_string());
        let origin = Origin::from(&*format!("/m/{number:04}"));
        move |builder: &mut ListingBuilder| builder.put(&origin, pods, Timestamp::UNIX_EPOCH)
    };
    for number in 0..1_000 {
        put(number, 0)(&mut builder);
    }
    let mut storage = PodStorage::new(&[SourceName::File]);
    drop(storage.apply(&builder.listing()));
    let (delivered, _) = updates(&Delivered::default(), storage.merged(), Notify::Incremental);
    let publish = put(500, 1);
    callgrind::case(|| assert!(black_box(publish(&mut builder))));
    let listing = builder.listing();
    callgrind::case(|| {
        drop(storage.apply(&listing));
        let (_, updates) = updates(&delivered, storage.merged(), Notify::Incremental);
        assert_eq!(black_box(updates).len(), 1);
    });

    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(TestServer::start());
    let mut round = 0;
    second(|| {
        round += 1;
        let body = pod("web", round).to_string().into_bytes();
        let headers = [("content-type", "application/json")];
        let reply = runtime.block_on(server.ask_inside("POST /pods", &headers, body));
        assert!(matches!(black_box(reply).code, 200 | 201));
    });
}

#[test]
fn operations_need_as_many_instructions_and_allocations_as_before() {
    if callgrind::is_watched() {
        return run_counted();
    }
    let name = "costs::operations_need_as_many_instructions_and_allocations_as_before";
    let Some(counts) = callgrind::count(name, COUNTED.len()) else { return };
    let figures = COUNTED.iter().zip(counts).flat_map(|(name, counts)| {
        let figure = |what: &str, value| (format!("cpu {name} {what}"), value);
        [figure("instructions", counts.instructions), figure("allocations", counts.allocations)]
    });
    check("cpu ", &figures.collect(), TOLERANCE);
}

/// The system calls of a process while something is done, by name, for each operation.
fn system_calls(id: Pid, operation: &str, mut work: impl FnMut(u32)) -> Option<BTreeMap<String, f64>> {
    let strace = unpacked("strace")?;
    let directory = tempfile::tempdir().unwrap();
    let counts = directory.path().join("counts");
    let (id, output) = (id.as_raw_nonzero().to_string(), counts.to_str().unwrap());
    let mut strace = Command::new(strace)
        .args(["-f", "-c", "-U", "name,calls", "-o", output, "-p", &id])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let traced = |task: fs::DirEntry| {
        // The thread may have ended.
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        !status.lines().any(|line| line == "TracerPid:\t0")
    };
    let tasks = format!("/proc/{id}/task");
    wait_for(|| fs::read_dir(&tasks).unwrap().all(|task| traced(task.unwrap())).then_some(()));
    (0..OPERATIONS).for_each(&mut work);
    kill_process(Pid::from_child(&strace), Signal::INT).unwrap();
    strace.wait().unwrap();
    let lines = fs::read_to_string(&counts).unwrap();
    let figure = |line: &str| {
        let (name, calls) = line.trim().split_once(' ')?;
        let calls: f64 = calls.trim().parse().ok()?;
        // What happens less often than with every other operation is no part of it.
        let each = (calls / f64::from(OPERATIONS) * 10.0).round() / 10.0;
        (each >= 0.5 && name != "total" && !OF_THREADS.contains(&name))
            .then(|| (format!("calls {operation} {name}"), each))
    };
    Some(lines.lines().filter_map(figure).collect())
}

fn mark(round: u32) -> String {
    format!(r#""podmux.example/round":"{round}""#)
}

fn receives(agent: &Process, round: u32) {
    let mark = mark(round);
    agent.stdout.wait_for(&mark, |lines| lines.iter().any(|line| line.contains(&mark)).then_some(()));
}

/// Without a state directory, in which changes that come fast share a commit.
#[test]
fn a_change_of_a_file_needs_as_many_system_calls_as_before() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (manifest, staged) = (dir.path().join("web.json"), elsewhere.path().join("staged"));
    fs::write(&manifest, pod("web", 0).to_string()).unwrap();
    let agent = Process::start(&mut podmux_run(dir.path(), &[]));
    receives(&agent, 0);
    let change = |round: u32| {
        fs::write(&staged, pod("web", round as usize + 1).to_string()).unwrap();
        fs::rename(&staged, &manifest).unwrap();
        receives(&agent, round + 1);
    };
    let Some(calls) = system_calls(agent.pid(), "file-change", change) else { return };
    check("calls file-change ", &calls, TOLERANCE_OF_CALLS);
    agent.signal(Signal::TERM);
    agent.ends();
}

#[test]
fn a_post_needs_as_many_system_calls_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, state) = (dir.path().join("s"), dir.path().join("state"));
    let flags = ["--listen", &format!("unix:{}", socket.display()), "--state-dir", state.to_str().unwrap()];
    let agent = Process::start(&mut podmux_run(&dir.path().join("m"), &flags));
    agent.logs("listening");
    let mut connection = Connection::unix(&socket).unwrap();
    let post = |round: u32| {
        let answer =
            connection.ask("POST", "/pods", pod("web", round as usize).to_string().as_bytes()).unwrap();
        assert!(matches!(answer.code, 200 | 201), "{}", answer.text());
        receives(&agent, round);
    };
    let Some(calls) = system_calls(agent.pid(), "post", post) else { return };
    check("calls post ", &calls, TOLERANCE_OF_CALLS);
    agent.signal(Signal::TERM);
    agent.ends();
}
