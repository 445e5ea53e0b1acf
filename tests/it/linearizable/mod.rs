//! The API of pods is linearizable: concurrent clients write, read and watch while the agent is killed, and Porcupine
//! looks for an order of their operations in which each answer is true.
//!
//! A process that is killed performs nothing later, so an operation without an answer was performed before the end of
//! the process, or never. `PODMUX_LINEARIZABLE_ROUNDS` sets the number of rounds; round N has the seed N, or
//! `PODMUX_LINEARIZABLE_SEED`.

mod clients;
mod history;

use std::{collections::BTreeSet, env, thread};

use self::{
    clients::Shared,
    history::{Content, Event, Operation, Seen, Watched, linearizable, replays, versions_are_unique},
};
use crate::{
    durability::start,
    support::{kubernetes::Oracle, random::Random},
};

const CLIENTS: usize = 5;
/// The runs of the agent in a round; all but the last end with a kill.
const RUNS: usize = 3;
/// How many operations of a run have begun when the agent is killed, at most.
const OPERATIONS: usize = 100;
/// Each of these occurs when the rounds are as many as in CI.
const ANSWERS: [(&str, u16); 15] = [
    ("create", 201),
    ("create", 409),
    ("create", 0),
    ("get", 200),
    ("get", 404),
    ("replace", 200),
    ("replace", 404),
    ("replace", 409),
    ("patch", 200),
    ("patch", 404),
    ("patch", 409),
    ("delete", 200),
    ("delete", 404),
    ("delete", 409),
    ("list", 200),
];

/// What happened in one round.
fn play(seed: u64) -> (Vec<Operation>, Vec<Watched>) {
    let dir = tempfile::tempdir().unwrap();
    let (state, socket) = (dir.path().join("state"), dir.path().join("s"));
    let (mut operations, mut watched) = (Vec::new(), Vec::new());
    let (mut random, shared) = (Random::new(seed), Shared::new(&socket));
    for run in 1..=RUNS {
        let (agent, _) = start(&state, &socket);
        let last = shared.begun.load(std::sync::atomic::Ordering::SeqCst) + 1 + random.below(OPERATIONS);
        let kill = (run < RUNS).then(|| agent.pid());
        let begun = operations.len();
        thread::scope(|scope| {
            let follower = scope.spawn(|| shared.watch(CLIENTS));
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let (shared, random) =
                        (&shared, Random::new(seed * 1000 + (run * CLIENTS + client) as u64));
                    scope.spawn(move || shared.work(client, last, kill, random))
                })
                .collect();
            operations.extend(clients.into_iter().flat_map(|client| client.join().unwrap()));
            if kill.is_none() {
                // The first list brings the history up to date: of changes that it compares at once, that of the last
                // pod could come first.
                let verbs = ["list", "create", "list"];
                operations.extend(verbs.map(|verb| shared.finally(CLIENTS + 1, verb)));
            }
            watched.extend(follower.join().unwrap());
        });
        if kill.is_some() {
            agent.ends();
            shared.restarted();
        }
        let ended = shared.now();
        for operation in operations[begun..].iter_mut().filter(|operation| operation.code == 0) {
            operation.end = ended;
        }
    }
    let lists = watched.iter().map(|watched| watched.list.clone());
    operations.splice(0..0, lists);
    (operations, watched)
}

#[test]
fn concurrent_clients_and_kills_leave_a_linearizable_history() {
    let Some(mut oracle) = Oracle::start() else { return };
    let number = |name: &str| env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let seeds = match number("PODMUX_LINEARIZABLE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PODMUX_LINEARIZABLE_ROUNDS").unwrap_or(20),
    };
    let (mut answers, is_one) = (BTreeSet::new(), seeds.end - seeds.start == 1);
    for seed in seeds {
        let (operations, watched) = play(seed);
        let checked = linearizable(&mut oracle, &operations)
            .and_then(|()| versions_are_unique(&operations, &watched))
            .and_then(|()| replays(&watched, &operations));
        if let Err(error) = checked {
            panic!("PODMUX_LINEARIZABLE_SEED={seed}: {error}");
        }
        answers.extend(operations.iter().map(|operation| (operation.verb, operation.code)));
    }
    let missing: Vec<_> = ANSWERS.iter().filter(|answer| !answers.contains(*answer)).collect();
    assert!(is_one || missing.is_empty(), "no client was ever answered {missing:?}");
}

/// An operation of 10 ns.
fn made(call: u64, verb: &'static str, name: &str, write: &str, code: u16) -> Operation {
    let (name, write) = (name.to_owned(), write.to_owned());
    Operation { call, end: call + 10, verb, name, write, code, ..Operation::default() }
}

fn content(text: &str) -> Content {
    let (base, patch) = text.split_once('/').unwrap();
    Content { base: base.to_owned(), patch: patch.to_owned() }
}

fn seen(name: &str, text: &str, version: u64) -> (String, Seen) {
    (name.to_owned(), Seen { content: content(text), uid: format!("uid of {name}"), version })
}

impl Operation {
    fn if_it_is(self, text: &str) -> Self {
        Self { if_content: Some(content(text)), ..self }
    }

    fn because(self, reason: &str) -> Self {
        Self { reason: reason.to_owned(), ..self }
    }

    fn answers(mut self, name: &str, text: &str, version: u64) -> Self {
        self.pods.extend([seen(name, text, version)]);
        self
    }

    fn at(self, version: u64) -> Self {
        Self { version, ..self }
    }
}

/// A linearizable history: a read during a replacement, and a deletion without an answer.
fn good() -> Vec<Operation> {
    vec![
        made(0, "create", "a", "w0", 201).answers("a", "w0/", 1),
        made(5, "create", "b", "w1", 201).answers("b", "w1/", 2),
        made(20, "replace", "a", "w2", 200).if_it_is("w0/").answers("a", "w2/", 3),
        made(25, "get", "a", "", 200).answers("a", "w0/", 1),
        made(40, "replace", "a", "w4", 409).if_it_is("w0/").because("Conflict"),
        made(40, "patch", "b", "p5", 200).answers("b", "w1/p5", 4),
        made(70, "list", "", "", 200).answers("a", "w2/", 3).answers("b", "w1/p5", 4).at(4),
        made(80, "create", "a", "w7", 409).because("AlreadyExists"),
        made(90, "delete", "a", "", 0),
        made(115, "get", "a", "", 404).because("NotFound"),
        made(130, "create", "a", "w10", 201).answers("a", "w10/", 6),
        made(150, "list", "", "", 200).answers("a", "w10/", 6).answers("b", "w1/p5", 7).at(7),
    ]
}

#[test]
fn the_checker_accepts_a_linearizable_history() {
    let Some(mut oracle) = Oracle::start() else { return };
    linearizable(&mut oracle, &good()).unwrap();
    let mut undeleted = good();
    undeleted.truncate(9);
    undeleted.push(made(110, "get", "a", "", 200).answers("a", "w2/", 5));
    linearizable(&mut oracle, &undeleted).unwrap();
    versions_are_unique(&good(), &[]).unwrap();
}

#[test]
fn the_checker_rejects_histories_that_are_not_linearizable() {
    let Some(mut oracle) = Oracle::start() else { return };
    let bad = [
        ("a stale read", 3, made(31, "get", "a", "", 200).answers("a", "w0/", 3)),
        ("a stale version", 3, made(31, "get", "a", "", 200).answers("a", "w2/", 1)),
        ("a lost create", 7, made(80, "get", "b", "", 404).because("NotFound")),
        (
            "an ignored precondition",
            4,
            made(40, "replace", "a", "w4", 200).if_it_is("w0/").answers("a", "w4/", 4),
        ),
        (
            "a conflict without a cause",
            4,
            made(40, "replace", "a", "w4", 409).if_it_is("w2/").because("Conflict"),
        ),
        ("a lost replacement", 5, made(40, "patch", "b", "p5", 200).answers("b", "w0/p5", 4)),
        (
            "a list of two moments",
            6,
            made(70, "list", "", "", 200).answers("a", "w0/", 3).answers("b", "w1/p5", 4).at(4),
        ),
        ("a list without a pod", 6, made(70, "list", "", "", 200).answers("b", "w1/p5", 4).at(4)),
        (
            "a list that is older than its pod",
            6,
            made(70, "list", "", "", 200).answers("a", "w2/", 3).answers("b", "w1/p5", 4).at(3),
        ),
        ("two pods of a name", 7, made(80, "create", "a", "w7", 201).answers("a", "w7/", 5)),
        ("a deletion after the end of the process", 7, made(101, "get", "a", "", 200).answers("a", "w2/", 3)),
        ("a version that was used before", 10, made(130, "create", "a", "w10", 201).answers("a", "w10/", 4)),
        ("a write of two times", 11, made(150, "get", "a", "", 200).answers("a", "w2/", 6)),
    ];
    for (what, at, operation) in bad {
        let mut history = good();
        history[at] = operation;
        let error = linearizable(&mut oracle, &history).expect_err(what);
        assert!(error.starts_with("Illegal: no order"), "{what}: {error}");
    }
    let mut history = good();
    history[10] = history[10].clone().answers("a", "w10/", 2);
    assert!(versions_are_unique(&history, &[]).is_err());
    history = good();
    history[11] = history[11].clone().at(4);
    assert!(versions_are_unique(&history, &[]).is_err());
}

/// The watch of the history above, and how it is read after the kill.
fn good_watch() -> Vec<Watched> {
    let event = |kind: &str, name: &str, text: &str, version| {
        let (name, pod) = seen(name, text, version);
        Event { kind: kind.to_owned(), name, pod }
    };
    let empty = made(0, "list", "", "", 200);
    let events = vec![
        event("ADDED", "a", "w0/", 1),
        event("ADDED", "b", "w1/", 2),
        event("MODIFIED", "a", "w2/", 3),
        event("MODIFIED", "b", "w1/p5", 4),
    ];
    let list = made(120, "list", "", "", 200).answers("b", "w1/p5", 5).at(5);
    vec![Watched { list: empty, events }, Watched { list, events: vec![event("ADDED", "a", "w10/", 6)] }]
}

#[test]
fn the_checker_of_watches_accepts_a_replay_and_rejects_others() {
    type Change = fn(&mut Vec<Watched>);
    replays(&good_watch(), &good()).unwrap();
    let bad: [(&str, Change); 7] = [
        ("an event of a rejected write", |watched| watched[0].events[2].pod.content = content("w4/")),
        ("a version that does not grow", |watched| watched[0].events[3].pod.version = 3),
        ("an event twice", |watched| {
            let mut again = watched[0].events[2].clone();
            again.pod.version = 5;
            watched[0].events.push(again);
        }),
        ("states in another order", |watched| {
            watched[0].events[0].pod.content = content("w2/");
            watched[0].events[2].pod.content = content("w0/");
        }),
        ("a lost event", |watched| drop(watched[1].events.pop())),
        ("a list that is older than an event", |watched| watched[1].list.version = 3),
        ("a deletion of what was not there", |watched| watched[0].events[0].kind = "DELETED".to_owned()),
    ];
    for (what, change) in bad {
        let mut watched = good_watch();
        change(&mut watched);
        assert!(replays(&watched, &good()).is_err(), "{what}");
    }
}
