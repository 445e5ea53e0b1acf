//! `podmux get pods --watch`: prints the pods, then each pod that changes in the update stream.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
};

use serde_json::Value;

use super::{
    args::OutputFormat,
    pods::{Pods, complete, name, source_of},
    stream::UpdateStream,
    updates::{key, parse},
};
use crate::{
    cli::{
        connection::pod_path,
        failure::Failure,
        output::{closed, text},
        status::Status,
    },
    host::Random,
    pod::SEEN,
};

pub(super) async fn watch(pods: Pods<'_>, random: &Random) -> Result<u8, Failure> {
    Watch { pods, printed: BTreeMap::new() }.run(random).await
}

struct Watch<'a> {
    pods: Pods<'a>,
    /// The pods that were printed, by key.
    printed: BTreeMap<String, Printed>,
}

/// A pod that was printed.
struct Printed {
    /// The source from which it was last received.
    source: String,
    /// The pod as text, which takes less memory.
    text: String,
    /// Whether it is from a list, which has the observed status instead of that of the source.
    is_listed: bool,
}

impl Printed {
    fn new(source: &str, pod: &Value, is_listed: bool) -> Self {
        Self { source: source.to_owned(), text: pod.to_string(), is_listed }
    }

    /// Whether this is the same pod, as far as it is printed.
    fn is(&self, pod: &Value) -> bool {
        let Ok(old) = serde_json::from_str(&self.text) else { return false };
        let [mut old, mut new] = [old, pod.clone()].map(compared);
        if self.is_listed {
            (old["status"], new["status"]) = (Value::Null, Value::Null);
        }
        old == new
    }
}

/// A pod without its resourceVersion, which is not the same in a list and in the stream, and without
/// the time when the agent first saw it, which is another one after a restart.
fn compared(mut pod: Value) -> Value {
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(SEEN);
        }
    }
    pod
}

impl Watch<'_> {
    async fn run(&mut self, random: &Random) -> Result<u8, Failure> {
        let listed = self.pods.list().await?;
        let next = listed.seq.parse().ok().and_then(|seq: u64| Some(seq.checked_add(1)?.to_string()));
        let pods: Vec<Value> = listed.pods.into_iter().filter(|pod| self.is_named(pod)).collect();
        let is_listed = |wanted: &str| pods.iter().any(|pod| name(pod) == wanted);
        if !self.pods.args.ignore_not_found && Status::print_missing("pods", self.pods.names, is_listed) {
            return Ok(1);
        }
        self.pods.print_each(&pods, None, false)?;
        // Until the stream has the source, it is derived from the pod.
        self.printed = pods.iter().map(|pod| (key(pod), Printed::new(source_of(pod), pod, true))).collect();
        let mut stream = match UpdateStream::open(self.pods.connection, random, next).await {
            // Another run. It begins with all pods; those that are printed already are not printed again.
            Err(Failure::Server(status)) if status.code == 410 => {
                UpdateStream::open(self.pods.connection, random, None).await?
            }
            stream => stream?,
        };
        let mut closed = pin!(closed());
        while !self.pods.printer.is_closed() {
            let line = tokio::select! {
                biased;
                () = &mut closed => break,
                line = stream.next() => line?,
            };
            let mut update = parse(&line)?;
            let pods = match update["pods"].take() {
                Value::Array(pods) => pods,
                _ => Vec::new(),
            };
            let in_scope = pods.into_iter().filter(|pod| self.is_in_scope(pod));
            let pods: Vec<Value> = in_scope.map(complete).collect();
            let op = update["op"].as_str().unwrap_or_default();
            self.apply(op, update["source"].as_str().unwrap_or_default(), pods).await?;
        }
        Ok(0)
    }

    /// Prints what an update changes in the printed pods.
    async fn apply(&mut self, op: &str, source: &str, mut pods: Vec<Value>) -> Result<(), Failure> {
        if op == "REMOVE" {
            pods.retain(|pod| self.printed.remove(&key(pod)).is_some());
            return self.pods.print_each(&pods, Some(source), true);
        }
        if op == "SET" {
            let listed: BTreeSet<String> = pods.iter().map(key).collect();
            let is_gone =
                |(key, printed): &(&String, &Printed)| printed.source == source && !listed.contains(*key);
            let gone: Vec<String> = self.printed.iter().filter(is_gone).map(|(key, _)| key.clone()).collect();
            let gone = gone.iter().filter_map(|key| self.printed.remove(key));
            let gone: Vec<Value> =
                gone.filter_map(|printed| serde_json::from_str(&printed.text).ok()).collect();
            self.pods.print_each(&gone, Some(source), true)?;
        }
        pods.retain(|pod| {
            let is_same = self.printed.get(&key(pod)).is_some_and(|old| old.is(pod));
            self.printed.insert(key(pod), Printed::new(source, pod, false));
            op == "RECONCILE" || !is_same
        });
        if self.pods.args.output != OutputFormat::Name {
            self.read_status(&mut pods).await;
        }
        self.pods.print_each(&pods, Some(source), false)
    }

    /// Gives each pod its observed status of now: the stream has that of the source.
    async fn read_status(&self, pods: &mut [Value]) {
        for pod in pods {
            let path = pod_path(text(&pod["metadata"]["namespace"]), name(pod));
            // A pod that cannot be read is gone, and its removal comes next.
            let Ok(mut read) = self.pods.connection.get(&path).await else { continue };
            if read["metadata"]["uid"] == pod["metadata"]["uid"] && read["status"].is_object() {
                pod["status"] = read["status"].take();
            }
        }
    }

    fn is_named(&self, pod: &Value) -> bool {
        self.pods.names.is_empty() || self.pods.names.iter().any(|wanted| wanted == name(pod))
    }

    fn is_in_scope(&self, pod: &Value) -> bool {
        let args = self.pods.args;
        (args.all_namespaces || pod["metadata"]["namespace"] == *args.namespace) && self.is_named(pod)
    }
}
