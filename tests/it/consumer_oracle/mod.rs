//! A consumer that replays a stream holds what the agent wants, whatever happened in between: the agent in
//! random rounds of work and faults, and every kind of consumer beside it. A runtime is one more consumer:
//! exactly what is wanted runs.
//!
//! | variable | meaning |
//! |---|---|
//! | `PODMUX_CONSUMER_ROUNDS` | the rounds, ten a case (20) |
//! | `PODMUX_RUNTIME_ROUNDS` | the rounds with the exec runtime beside one of the consumers (50) |
//! | `PODMUX_PODMAN_ROUNDS` | the rounds with a real podman beside one of the consumers (10); as root |
//! | `PODMUX_CONSUMER_SEED` | repeats one case: a failure names its seed |
//! | `PODMUX_CONSUMERS` | the consumers, of `stdout file newcomer lines run events webhook`, and the runtimes `exec` and `podman` |
//! | `PODMUX_CONSUMER_FAULTS` | the faults, of [`world::FAULTS`] |
//! | `PODMUX_CONSUMER_TRACE` | prints each step |
//! | `PODMUX_FAKETIME` | the path of `libfaketimeMT.so.1`, with which the agent's clock goes back, too |

mod exec;
mod follower;
mod model;
mod output;
mod podman;
mod program;
mod receiver;
mod replay;
mod round;
mod runs;
mod sources;
mod world;

use std::{
    env,
    net::TcpStream,
    ops::Range,
    panic::{catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use world::{CONSUMERS, EXEC, FAULTS, PODMAN, Plan, World};

use self::{
    follower::Follower,
    model::Settings,
    receiver::Receiver,
    replay::{Law, Numbering, Reader, Upheaval},
};
use crate::support::{
    kubernetes::not_tested, namespace::inside, plain::Connection, process::wait_for, random::Random,
    web::Reply,
};

/// The rounds of one case.
const CASE: u64 = 10;
/// How many cases with a runtime are played at once.
const AT_ONCE: usize = 5;
const FIRST_SEED: u64 = 1;

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|number| number.parse().unwrap())
}

#[test]
fn a_replay_holds_what_is_wanted_after_every_round() {
    if !inside("-Urm", "consumer_oracle::a_replay_holds_what_is_wanted_after_every_round") {
        return;
    }
    if env::var_os("PODMUX_FAKETIME").is_none() {
        not_tested("no clock goes back: PODMUX_FAKETIME is not set");
    }
    for seed in seeds("PODMUX_CONSUMER_ROUNDS", 20) {
        play(seed, CONSUMERS);
    }
}

/// The seeds of so many rounds, or the one that is asked for.
fn seeds(variable: &str, rounds: u64) -> Range<u64> {
    match number("PODMUX_CONSUMER_SEED") {
        Some(seed) => seed..seed + 1,
        None => FIRST_SEED..FIRST_SEED + number(variable).unwrap_or(rounds).div_ceil(CASE),
    }
}

/// Plays a case.
fn play(seed: u64, consumers: &str) {
    // It is shown if the test fails.
    println!("PODMUX_CONSUMER_SEED={seed}");
    let consumers = env::var("PODMUX_CONSUMERS").unwrap_or_else(|_| consumers.to_owned());
    let faults = env::var("PODMUX_CONSUMER_FAULTS").unwrap_or_else(|_| FAULTS.to_owned());
    let mut random = Random::new(seed);
    let mut world = World::new(Plan { faults, ..Plan::new(seed, &consumers) });
    for round in 0..CASE {
        world.begin_round(round);
        round::play(&mut world, &mut random);
        world.rest();
    }
    world.clear();
}

#[test]
fn what_runs_is_what_is_wanted_after_every_round() {
    if !inside("-Urm", "consumer_oracle::what_runs_is_what_is_wanted_after_every_round") {
        return;
    }
    // A round waits most of the time, for programs and for the delays after their failures.
    play_beside(EXEC, seeds("PODMUX_RUNTIME_ROUNDS", 50), AT_ONCE);
}

#[test]
fn what_podman_runs_is_what_is_wanted_after_every_round() {
    // Its own mounts only: podman needs root's rights over cgroups.
    if !inside("-m", "consumer_oracle::what_podman_runs_is_what_is_wanted_after_every_round") {
        return;
    }
    play_beside(PODMAN, seeds("PODMUX_PODMAN_ROUNDS", 10), 2);
}

/// Plays cases with a runtime, some at once.
fn play_beside(runtime: &str, seeds: Range<u64>, at_once: usize) {
    let seeds = Mutex::new(seeds);
    let has_failed = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while !has_failed.load(Ordering::SeqCst) {
                    let Some(seed) = seeds.lock().unwrap().next() else { return };
                    let beside: Vec<&str> = CONSUMERS.split(' ').collect();
                    let beside = beside[usize::try_from(seed).unwrap() % beside.len()];
                    let played = catch_unwind(|| play(seed, &format!("{runtime} {beside}")));
                    if let Err(panic) = played {
                        has_failed.store(true, Ordering::SeqCst);
                        resume_unwind(panic);
                    }
                }
            });
        }
    });
}

/// The agent with these consumers and no source but the posted pods, if a change adds none, at rest.
fn started(consumers: &str, change: impl FnOnce(&mut Settings)) -> World {
    let mut plan = Plan { faults: String::new(), ..Plan::new(0, consumers) };
    (plan.settings.file, plan.settings.url, plan.settings.api) = (false, false, false);
    change(&mut plan.settings);
    let mut world = World::new(plan);
    world.rest();
    world
}

#[test]
fn a_pod_deleted_while_the_file_could_not_be_written_does_not_stay_in_it() {
    let test = "consumer_oracle::a_pod_deleted_while_the_file_could_not_be_written_does_not_stay_in_it";
    if !inside("-Urm", test) {
        return;
    }
    let mut world = started("file", |_| ());
    world.post(&["h0", "h1"]);
    world.rest();
    world.fill_disk();
    // More than the file's last page takes.
    world.post(&["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9"]);
    world.agent.iter().for_each(|agent| drop(agent.logs("sink delivery failed")));
    world.delete("h0", 0);
    world.end(Signal::KILL);
    world.rest();
}

#[test]
fn a_rotated_file_alone_has_what_is_wanted() {
    if !inside("-Urm", "consumer_oracle::a_rotated_file_alone_has_what_is_wanted") {
        return;
    }
    let mut world = started("newcomer", |_| ());
    world.post(&["h0"]);
    world.rest();
    world.rotate();
    world.rest();
}

#[test]
fn a_pod_deleted_between_two_runs_does_not_stay_in_the_file() {
    if !inside("-Urm", "consumer_oracle::a_pod_deleted_between_two_runs_does_not_stay_in_the_file") {
        return;
    }
    for has_state in [true, false] {
        let mut world = started("file", |settings| (settings.file, settings.has_state) = (true, has_state));
        world.write_file("f0");
        world.rest();
        world.end(Signal::TERM);
        world.remove_file("f0");
        world.rest();
    }
}

/// Starts the agent, and lets it give out more numbers than each follower has seen before they connect.
fn start_and_pass(world: &mut World) {
    world.followers.iter().for_each(|follower| follower.set_connecting(false));
    world.start();
    let last = world.followers.iter().filter_map(|follower| follower.reader().last).max().unwrap();
    while world.number() <= last {
        world.post(&["h4"]);
    }
    world.followers.iter().for_each(|follower| follower.set_connecting(true));
}

#[test]
fn a_number_of_a_run_without_state_is_not_continued_on_the_stream_of_the_next() {
    let test = "consumer_oracle::a_number_of_a_run_without_state_is_not_continued_on_the_stream_of_the_next";
    if !inside("-Urm", test) {
        return;
    }
    for consumer in ["lines", "run", "events"] {
        let mut world = started(consumer, |settings| settings.has_state = false);
        world.post(&["h0", "h1"]);
        world.rest();
        world.end(Signal::TERM);
        start_and_pass(&mut world);
        world.rest();
    }
}

#[test]
fn a_number_of_a_run_whose_state_was_replaced_by_a_copy_is_not_continued_on_another_stream() {
    let test = "consumer_oracle::\
        a_number_of_a_run_whose_state_was_replaced_by_a_copy_is_not_continued_on_another_stream";
    if !inside("-Urm", test) {
        return;
    }
    for consumer in ["lines", "run", "events"] {
        let mut world = started(consumer, |_| ());
        world.end(Signal::TERM);
        world.copy_state();
        world.start();
        world.post(&["h0", "h1"]);
        world.rest();
        world.end(Signal::TERM);
        assert!(world.put_back());
        start_and_pass(&mut world);
        world.rest();
    }
}

#[test]
fn a_reader_is_not_told_that_an_unknown_source_has_no_pods() {
    if !inside("-Urm", "consumer_oracle::a_reader_is_not_told_that_an_unknown_source_has_no_pods") {
        return;
    }
    for consumer in ["lines", "run", "events"] {
        let mut world = started(consumer, |settings| settings.url = true);
        world.change_url("u0", true);
        world.rest();
        world.end(Signal::KILL);
        world.lose_state();
        world.web.say(Reply::new(500, "broken by the test"));
        world.start();
        world.post(&["h0"]);
        world.wait_for("the posted pod, at each reader", |world| {
            let has = |follower: &Follower| follower.reader().image("default/h0").is_some();
            world.followers.iter().all(has).then_some(())
        });
        world.rest();
    }
}

#[test]
fn an_event_source_that_reconnects_to_another_run_is_not_given_up() {
    if !inside("-Urm", "consumer_oracle::an_event_source_that_reconnects_to_another_run_is_not_given_up") {
        return;
    }
    let mut world = started("events", |_| ());
    world.post(&["h0", "h1"]);
    world.rest();
    world.end(Signal::KILL);
    world.lose_state();
    world.rest();
}

/// Sends lines as the contract of a webhook says: in order, each again until it is accepted.
fn send(url: &str, run: &str, lines: &[Value]) {
    let (host, path) = url.trim_start_matches("http://").split_once('/').unwrap();
    for line in lines {
        let headers = format!("Host: {host}\r\nIdempotency-Key: instance-{run}-webhook-{}\r\n", line["seq"]);
        wait_for(|| {
            let stream = TcpStream::connect(host).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let mut connection = Connection::over(stream, headers.clone());
            let answer = connection.ask("POST", &format!("/{path}"), line.to_string().as_bytes());
            answer.is_ok_and(|answer| (200..300).contains(&answer.code)).then_some(())
        });
    }
}

fn line(seq: u64, op: &str, source: &str, pods: &[(&str, &str)]) -> Value {
    let pods: Vec<Value> = pods
        .iter()
        .map(|(name, image)| {
            let mut pod = model::pod(name, image);
            pod["metadata"]["namespace"] = "default".into();
            pod
        })
        .collect();
    json!({"seq": seq, "time": "2026-11-21T09:00:00.000000Z", "op": op, "source": source, "pods": pods})
}

/// The pods that a reader holds, as `name=image source`.
fn pods(reader: &Reader) -> Vec<String> {
    let pods = reader.replay.pods.iter();
    pods.map(|(key, held)| format!("{key}={} {}", reader.image(key).unwrap(), held.source)).collect()
}

#[test]
fn the_receiver_takes_each_line_once_however_it_fails() {
    let law = Arc::default();
    for seed in 0..20 {
        let receiver = Receiver::start(&law, seed);
        receiver.set_faulty(true);
        let first = [
            line(10, "SET", "http", &[("a", "1"), ("b", "1")]),
            line(12, "ADD", "file", &[("f", "1")]),
            line(13, "REMOVE", "http", &[("a", "1")]),
            line(14, "ADD", "http", &[("a", "2")]),
        ];
        send(&receiver.url, "one", &first);
        // The next run does not know of the file's pod: it stays until that source is known.
        let mut begins = line(7, "SET", "http", &[("b", "2")]);
        begins["run"] = "two".into();
        send(&receiver.url, "two", &[begins]);
        assert_eq!(pods(&receiver.reader()), ["default/b=2 http", "default/f=1 file"]);
        assert_eq!(law.faults(), [""; 0]);
    }
}

#[test]
fn the_receiver_notices_what_breaks_the_contract() {
    let heard = |run: &str, lines: &[Value]| {
        let law = Arc::default();
        let receiver = Receiver::start(&law, 0);
        send(&receiver.url, "one", &[line(5, "ADD", "http", &[("a", "1")])]);
        law.wanted([("default/a".to_owned(), "http".to_owned())].into_iter());
        send(&receiver.url, run, lines);
        law.faults().join("\n")
    };
    let other_body = heard("one", &[line(5, "ADD", "http", &[("a", "2")])]);
    assert!(other_body.contains("has two bodies"), "{other_body}");
    let out_of_order = heard("one", &[line(4, "ADD", "http", &[("b", "1")])]);
    assert!(out_of_order.contains("after number Some(5) came Some(4)"), "{out_of_order}");
    let taken = heard("two", &[line(1, "SET", "http", &[])]);
    assert!(taken.contains("takes away [\"default/a\"], still wanted"), "{taken}");
}

#[test]
fn the_law_notices_calls_of_the_program_without_a_cause() {
    let (kept, gone) = ("default/kept", "default/gone");
    let broken = |upheaval, op: &str, key: &str, uid: &str| {
        let law = Law::default();
        law.wanted([(kept.to_owned(), "file".to_owned())].into_iter());
        law.runs([(kept.to_owned(), "1".to_owned())].into_iter());
        law.happened(upheaval);
        law.called(op, key, uid, "the call");
        law.touched(key);
        law.called(op, key, uid, "its source has changed it");
        assert!(law.faults().len() < 2, "{:?}", law.faults());
        !law.faults().is_empty()
    };
    for (upheaval, expected) in [
        // Of the pod that runs: ADD, UPDATE, REMOVE; REMOVE of another UID; and of a pod that is not wanted: ADD, REMOVE.
        (Upheaval::None, [true, true, true, true, true, true]),
        (Upheaval::Reboot, [false, true, true, true, true, true]),
        (Upheaval::State, [false, false, true, false, false, false]),
    ] {
        let calls = [
            ("ADD", kept, "1"),
            ("UPDATE", kept, "1"),
            ("REMOVE", kept, "1"),
            ("REMOVE", kept, "0"),
            ("ADD", gone, "1"),
            ("REMOVE", gone, "1"),
        ];
        assert_eq!(calls.map(|(op, key, uid)| broken(upheaval, op, key, uid)), expected, "{upheaval:?}");
    }
}

#[test]
fn the_law_notices_a_pod_that_did_not_keep_its_process() {
    let judged = |change: fn(&Law), now: &[(&str, &str)]| {
        let law = Law::default();
        let processes = |all: &[(&str, &str)]| {
            all.iter()
                .map(|(uid, process)| (("a/b".to_owned(), (*uid).to_owned()), (*process).to_owned()))
                .collect()
        };
        law.kept(processes(&[("1", "100")]));
        law.wanted([("a/b".to_owned(), "file".to_owned())].into_iter());
        change(&law);
        law.kept(processes(now));
        law.faults().is_empty()
    };
    assert!(judged(|_| (), &[("1", "100")]));
    for now in [&[("1", "101")][..], &[("2", "100")], &[]] {
        assert!(!judged(|_| (), now));
        assert!(!judged(|law| law.happened(Upheaval::State), now));
        assert!(judged(|law| law.touched("a/b"), now));
        assert!(judged(|law| law.unwanted("a/b"), now));
        assert!(judged(|law| law.happened(Upheaval::Reboot), now));
    }
}

#[test]
fn a_replay_follows_the_contract() {
    let law = Arc::default();
    let mut reader = Reader::new("test", &law, Numbering::OverRuns("s".to_owned()));
    let mut take = |line: Value| {
        reader.take(&line.to_string());
        pods(&reader).join(", ")
    };
    take(line(1, "ADD", "file", &[("a", "1"), ("b", "1")]));
    let held = take(line(2, "ADD", "http", &[("c", "1")]));
    assert_eq!(held, "default/a=1 file, default/b=1 file, default/c=1 http");
    // Only the last part of a SET counts, and only for its source.
    let mut part = line(3, "SET", "file", &[("b", "2")]);
    part["more"] = true.into();
    assert_eq!(take(part), held);
    let held = take(line(3, "SET", "file", &[("d", "1")]));
    assert_eq!(held, "default/b=2 file, default/c=1 http, default/d=1 file");
    // A name that another source has taken over is not that of the first any more.
    let held = take(line(4, "UPDATE", "http", &[("b", "3")]));
    assert_eq!(held, "default/b=3 http, default/c=1 http, default/d=1 file");
    assert_eq!(take(line(5, "SET", "file", &[])), "default/b=3 http, default/c=1 http");
    let mut all = line(6, "SET", "*", &[("e", "1")]);
    all["sources"] = json!(["http"]);
    assert_eq!(take(all), "default/e=1 http");
    assert_eq!(take(line(7, "REMOVE", "http", &[("e", "1")])), "");
    assert_eq!(law.faults(), [""; 0]);
    // The same again is no second meaning; something else is.
    take(line(7, "REMOVE", "http", &[("e", "1")]));
    assert_eq!(law.faults(), [""; 0]);
    take(line(7, "ADD", "http", &[("e", "1")]));
    assert!(law.faults().join("").contains("one number, two meanings"));
}
