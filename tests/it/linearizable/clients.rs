//! Clients that do random operations on a few pods, and one that watches, until the agent is killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::history::{Event, Operation, Seen, Watched};
use crate::support::{plain::Connection, random::Random};

/// The names of the pods: so few that the clients disturb each other.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The operations, the usual ones more often.
const VERBS: [&str; 9] =
    ["create", "create", "get", "replace", "replace", "patch", "patch", "delete", "list"];
/// The pod that is created last.
pub const END: &str = "end";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// How many of the newest states of a pod the clients remember: an older one is a precondition that fails.
const REMEMBERED: usize = 4;

/// What the clients of all runs of the agent share.
pub struct Shared<'a> {
    pub socket: &'a Path,
    pub begin: Instant,
    /// How many operations have begun.
    pub begun: AtomicUsize,
    /// The newest states that some client has seen, by name.
    seen: Mutex<BTreeMap<String, Vec<Seen>>>,
    /// The versions that writes have answered.
    written: Mutex<BTreeSet<u64>>,
}

/// A request.
struct Request {
    method: &'static str,
    path: String,
    media: &'static str,
    body: Value,
}

impl<'a> Shared<'a> {
    pub fn new(socket: &'a Path) -> Self {
        let (seen, written) = Default::default();
        Self { socket, begin: Instant::now(), begun: AtomicUsize::new(0), seen, written }
    }

    /// Forgets the versions that only reads have answered: after a restart they are no versions of a pod.
    pub fn restarted(&self) {
        let written = self.written.lock().unwrap();
        let mut seen = self.seen.lock().unwrap();
        seen.values_mut().for_each(|pods| pods.retain(|pod| written.contains(&pod.version)));
    }

    pub fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap()
    }

    /// Does operations until the connection ends, or to the last one. The client that begins this operation kills
    /// the agent, if there is one to kill.
    pub fn work(&self, client: usize, last: usize, kill: Option<Pid>, mut random: Random) -> Vec<Operation> {
        let mut done = Vec::new();
        let Ok(mut connection) = Connection::unix(self.socket) else { return done };
        loop {
            let number = self.begun.fetch_add(1, Ordering::SeqCst);
            match kill {
                Some(agent) if number == last => kill_process(agent, Signal::KILL).unwrap(),
                None if number >= last => return done,
                _ => {}
            }
            let (operation, request) = self.choose(client, number, &mut random);
            let operation = self.perform(&mut connection, operation, &request);
            let is_answered = operation.code > 0;
            // A read without an answer has no effect.
            if is_answered || !matches!(operation.verb, "get" | "list") {
                done.push(operation);
            }
            if !is_answered {
                return done;
            }
        }
    }

    /// An operation and its request.
    fn choose(&self, client: usize, number: usize, random: &mut Random) -> (Operation, Request) {
        let name = *random.pick(&NAMES);
        let verb = *random.pick(&VERBS);
        let write = format!("{verb}-{number}");
        let seen = self.seen.lock().unwrap().get(name).cloned().unwrap_or_default();
        let known = (!seen.is_empty() && !random.once_in(3)).then(|| random.pick(&seen).clone());
        let mut operation = Operation { client, verb, name: name.to_owned(), write, ..Operation::default() };
        if let Some(known) = known.as_ref().filter(|_| matches!(verb, "replace" | "patch" | "delete")) {
            // A patch cannot have another UID.
            let has_uid = verb != "patch" && random.once_in(3);
            operation.if_uid = if has_uid { known.uid.clone() } else { String::new() };
            operation.if_content = (!has_uid || random.once_in(2)).then(|| known.content.clone());
        }
        let version = operation.if_content.as_ref().and(known).map(|known| known.version);
        let request = request(&mut operation, version);
        (operation, request)
    }

    /// Sends a request, and notes what was answered and when.
    fn perform(&self, connection: &mut Connection, operation: Operation, request: &Request) -> Operation {
        let body = if request.body.is_null() { String::new() } else { request.body.to_string() };
        let call = self.now();
        let answer = connection.ask_as(request.method, &request.path, request.media, body.as_bytes());
        let mut operation = Operation { call, end: self.now(), ..operation };
        let Ok(answer) = answer else { return operation };
        operation.code = answer.code;
        let answered = answer.json();
        match answer.code {
            200 | 201 => {}
            404 | 409 | 503 => {
                answered["reason"].as_str().unwrap().clone_into(&mut operation.reason);
                return operation;
            }
            other => panic!("{operation}: {other} {}", answer.text()),
        }
        if let Some(items) = answered["items"].as_array() {
            operation.pods = items.iter().map(Seen::of).collect();
            operation.version = answered["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        } else {
            operation.pods = [Seen::of(&answered)].into();
        }
        if !matches!(operation.verb, "get" | "list") {
            self.written.lock().unwrap().extend(operation.pods.values().map(|pod| pod.version));
        }
        let mut seen = self.seen.lock().unwrap();
        for (name, pod) in &operation.pods {
            let seen = seen.entry(name.clone()).or_default();
            seen.insert(0, pod.clone());
            seen.truncate(REMEMBERED);
        }
        operation
    }

    /// One more operation: the creation of the last pod, or a list.
    pub fn finally(&self, client: usize, verb: &'static str) -> Operation {
        let name = if verb == "list" { "" } else { END }.to_owned();
        let mut operation =
            Operation { client, verb, name, write: format!("{verb}-last"), ..Operation::default() };
        let request = request(&mut operation, None);
        self.perform(&mut Connection::unix(self.socket).unwrap(), operation, &request)
    }

    /// Lists and watches the pods until the agent is killed, or the last one is created.
    pub fn watch(&self, client: usize) -> Option<Watched> {
        let mut connection = Connection::unix(self.socket).ok()?;
        let mut operation = Operation { client, verb: "list", ..Operation::default() };
        let request = request(&mut operation, None);
        let list = self.perform(&mut connection, operation, &request);
        let mut watched = Watched { list, events: Vec::new() };
        if watched.list.code == 0 {
            return None;
        }
        let path = format!("{PODS}?watch=1&resourceVersion={}", watched.list.version);
        let Ok(mut lines) = connection.lines(&path) else { return Some(watched) };
        while let Ok(line) = lines.next() {
            let event: Value = serde_json::from_str(&line).unwrap();
            let kind = event["type"].as_str().unwrap().to_owned();
            assert_ne!(kind, "ERROR", "{line}");
            let (name, pod) = Seen::of(&event["object"]);
            let is_last = name == END;
            watched.events.push(Event { kind, name, pod });
            if is_last {
                break;
            }
        }
        Some(watched)
    }
}

/// The request of an operation. What is no write has no content, and a list is of no pod.
fn request(operation: &mut Operation, version: Option<u64>) -> Request {
    let Operation { verb, name, write, if_uid, .. } = operation;
    let uid = (!if_uid.is_empty()).then(|| if_uid.clone());
    let version = version.map(|version| version.to_string());
    let path = format!("{PODS}/{name}");
    let (json, merge) = ("application/json", "application/merge-patch+json");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"base": write}, "uid": uid, "resourceVersion": version},
        "spec": {"containers": [{"name": "c", "image": "registry.example/i:1"}]},
    });
    match *verb {
        "create" => Request { method: "POST", path: PODS.to_owned(), media: json, body: pod },
        "replace" => Request { method: "PUT", path, media: json, body: pod },
        "patch" => {
            let mut metadata = json!({"labels": {"patch": write}});
            if let Some(version) = version {
                metadata["resourceVersion"] = version.into();
            }
            Request { method: "PATCH", path, media: merge, body: json!({"metadata": metadata}) }
        }
        "delete" => {
            write.clear();
            let path = path + "?gracePeriodSeconds=0";
            let preconditions = json!({"uid": uid, "resourceVersion": version});
            Request { method: "DELETE", path, media: json, body: json!({"preconditions": preconditions}) }
        }
        "get" => {
            write.clear();
            Request { method: "GET", path, media: json, body: Value::Null }
        }
        _ => {
            write.clear();
            name.clear();
            Request { method: "GET", path: PODS.to_owned(), media: json, body: Value::Null }
        }
    }
}
