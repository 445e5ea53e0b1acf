//! Histories of operations on pods: what clients asked and were answered, when, and what must be true of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;
use serde_json::{Value, json};

use crate::support::kubernetes::Oracle;

/// The states of a pod apart: the last create or replacement of it, and the last patch since.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Content {
    pub base: String,
    pub patch: String,
}

/// A pod as it was read.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    #[serde(flatten)]
    pub content: Content,
    pub uid: String,
    pub version: u64,
}

impl Seen {
    /// Reads a pod, and its name.
    pub fn of(pod: &Value) -> (String, Self) {
        let text =
            |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let content = Content { base: text("/metadata/labels/base"), patch: text("/metadata/labels/patch") };
        let version = text("/metadata/resourceVersion").parse().unwrap();
        (text("/metadata/name"), Self { content, uid: text("/metadata/uid"), version })
    }
}

/// One operation, as the oracle reads it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Operation {
    pub client: usize,
    /// When it began and ended, in nanoseconds. One without an answer ends with the process that it was sent to.
    pub call: u64,
    #[serde(rename = "return")]
    pub end: u64,
    pub verb: &'static str,
    pub name: String,
    /// What a create or a replacement puts into the pod, or what a patch adds.
    pub write: String,
    /// The precondition: the UID, and the content of the pod when it had the resourceVersion of the request.
    pub if_uid: String,
    pub if_content: Option<Content>,
    /// The HTTP status; 0 if there was no answer.
    pub code: u16,
    pub reason: String,
    /// The pods of the answer, by name.
    pub pods: BTreeMap<String, Seen>,
    /// The resourceVersion of a list.
    pub version: u64,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, call, end, verb, name, write, code, reason, version, .. } = self;
        write!(f, "{call:>12}-{end:<12} client {client}: {verb} {name} {write}")?;
        if !self.if_uid.is_empty() {
            write!(f, " if uid {}", self.if_uid)?;
        }
        if let Some(Content { base, patch }) = &self.if_content {
            write!(f, " if {base}/{patch}")?;
        }
        write!(f, " -> {code} {reason}")?;
        if *version > 0 {
            write!(f, " list at {version}:")?;
        }
        for (name, Seen { content: Content { base, patch }, uid, version }) in &self.pods {
            write!(f, " {name}={base}/{patch} at {version} of {uid}")?;
        }
        Ok(())
    }
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub struct Event {
    pub kind: String,
    pub name: String,
    pub pod: Seen,
}

/// A list, and the events of the watch that began at its version.
#[derive(Clone, Debug)]
pub struct Watched {
    pub list: Operation,
    pub events: Vec<Event>,
}

/// Asks whether there is an order of the operations in which each answer is true. If there is none, the error has the
/// part of the history around the first answer that fits nowhere.
pub fn linearizable(oracle: &mut Oracle, history: &[Operation]) -> Result<(), String> {
    let answer = oracle.ask(&json!({"op": "linearizable", "history": history}));
    let result = answer["result"].as_str().unwrap();
    if result == "Ok" {
        return Ok(());
    }
    let index = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let order: Vec<usize> = answer["order"].as_array().unwrap().iter().map(index).collect();
    let next = index(&answer["next"]);
    let beside =
        |operation: &&Operation| operation.call <= history[next].end && operation.end >= history[next].call;
    let lines = |operations: Vec<&Operation>| -> String {
        operations
            .into_iter()
            .flat_map(|operation| ["  ".to_owned(), operation.to_string(), "\n".to_owned()])
            .collect()
    };
    Err(format!(
        "{result}: no order of the operations explains\n{}the longest order ends with\n{}beside it there were\n{}",
        lines(vec![&history[next]]),
        lines(order.iter().map(|index| &history[*index]).collect()),
        lines(history.iter().filter(beside).collect()),
    ))
}

/// Checks that no version names two states: of a pod, or of a list. The number of a pod's deletion is not that of a
/// state.
pub fn versions_are_unique(history: &[Operation], watched: &[Watched]) -> Result<(), String> {
    let (mut pods, mut lists) = (BTreeMap::new(), BTreeMap::new());
    let deleted = |is_deleted: bool| if is_deleted { "deleted " } else { "" };
    let answers = history.iter().flat_map(|operation| {
        let is_deleted = operation.verb == "delete";
        operation.pods.iter().map(move |(name, pod)| (is_deleted, name, pod))
    });
    let events = watched.iter().flat_map(|watched| &watched.events);
    let events = events.map(|event| (event.kind == "DELETED", &event.name, &event.pod));
    for (is_deleted, name, pod) in answers.chain(events) {
        let state = (deleted(is_deleted), name, &pod.content);
        let before = pods.entry(pod.version).or_insert_with(|| state);
        if *before != state {
            return Err(format!("{} is {before:?} and {state:?}", pod.version));
        }
    }
    for list in history.iter().filter(|operation| operation.verb == "list") {
        let items: Vec<_> = list.pods.iter().map(|(name, pod)| (name, &pod.content)).collect();
        let before = lists.entry(list.version).or_insert_with(|| items.clone());
        if *before != items {
            return Err(format!("the list {} is {before:?} and {items:?}", list.version));
        }
    }
    Ok(())
}

/// Checks that each list with the events after it is a replay: versions grow, each event changes the pods as its type
/// says and has what was written and not rejected, the states of a pod come in the order of their writes, once each,
/// and the last one leads to the last list of the history.
pub fn replays(watched: &[Watched], history: &[Operation]) -> Result<(), String> {
    let writes = |operation: &&Operation| !operation.write.is_empty();
    let rejected: BTreeSet<&str> = history
        .iter()
        .filter(writes)
        .filter(|operation| operation.code >= 400)
        .map(|operation| &*operation.write)
        .collect();
    // The versions with which writes were answered; the states of writes without an answer are not ordered.
    let written: BTreeMap<&Content, u64> = history
        .iter()
        .filter(writes)
        .flat_map(|operation| operation.pods.values())
        .map(|pod| (&pod.content, pod.version))
        .collect();
    let (mut last, mut newest) = (0, BTreeMap::<&str, u64>::new());
    let mut pods = BTreeMap::new();
    for Watched { list, events } in watched {
        if list.version < last {
            return Err(format!("the list {list} is older than {last}"));
        }
        last = list.version;
        pods = list.pods.iter().map(|(name, pod)| (&**name, pod)).collect();
        for (name, pod) in &pods {
            newest.insert(name, written.get(&pod.content).copied().unwrap_or_default());
        }
        for event in events {
            let Event { kind, name, pod } = event;
            let old = if kind == "DELETED" { pods.remove(&**name) } else { pods.insert(name, pod) };
            let fits = match (&**kind, old) {
                ("ADDED", None) => true,
                ("MODIFIED", Some(old)) => old.uid == pod.uid && old.content != pod.content,
                ("DELETED", Some(old)) => old.uid == pod.uid && old.content == pod.content,
                _ => false,
            };
            let version = written.get(&pod.content).copied();
            let grows = kind == "DELETED"
                || version.is_none_or(|version| newest.insert(name, version).is_none_or(|old| old < version));
            let Content { base, patch } = &pod.content;
            let is_written = !rejected.contains(&**base) && !rejected.contains(&**patch);
            if !fits || !grows || !is_written || pod.version <= last {
                return Err(format!("{event:?} follows {last}: {old:?}"));
            }
            last = pod.version;
        }
    }
    let contents = |pods: BTreeMap<&str, &Seen>| -> BTreeMap<String, (Content, String)> {
        let content = |pod: &Seen| (pod.content.clone(), pod.uid.clone());
        pods.into_iter().map(|(name, pod)| (name.to_owned(), content(pod))).collect()
    };
    let end = history.iter().rfind(|operation| operation.verb == "list").unwrap();
    let listed = contents(end.pods.iter().map(|(name, pod)| (&**name, pod)).collect());
    let replayed = contents(pods);
    if replayed == listed {
        Ok(())
    } else {
        Err(format!("the events lead to {replayed:?}, and the list is {listed:?}"))
    }
}
