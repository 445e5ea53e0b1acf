//! A replica of the pods that applies the update stream and rejects invalid updates.

use std::collections::{BTreeMap, BTreeSet};

use podmux::sink::SequencedUpdate;
use serde_json::Value;

/// A pod's status as its source has it: a read of a pod shows, and a stream does not, that it is wanted.
pub fn own_status(pod: &Value) -> Value {
    let mut status = pod["status"].clone();
    if status["reason"] == "Wanted" {
        status.as_object_mut().unwrap().retain(|field, _| field != "reason" && field != "message");
    }
    status
}

/// The state after the updates of one stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replica {
    /// The pods' texts by `namespace/name`.
    pub pods: BTreeMap<String, String>,
    /// The source that each pod was last received from.
    sources: BTreeMap<String, String>,
    /// The run, if the stream says it: its numbers have gaps.
    pub run: Option<String>,
    /// The sources that had a SET since the stream began, which has to be before an ADD is strict.
    begun: BTreeSet<String>,
    /// The `seq` of the last update.
    pub seq: u64,
    /// `SEQ OP source COUNT` of each update.
    pub heard: Vec<String>,
}

impl Replica {
    /// Replays a stream of JSON lines.
    pub fn of(stream: &str) -> Self {
        let mut replica = Self::default();
        stream.lines().for_each(|line| replica.take_line(line));
        replica
    }

    pub fn take_line(&mut self, line: &str) {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:.200}"));
        let mut fields: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        fields.retain(|field| *field != "run");
        let sources = line["sources"].as_array();
        assert_eq!(fields.contains(&"sources"), line["source"] == "*");
        fields.retain(|field| *field != "sources");
        assert_eq!(fields, ["op", "pods", "seq", "source", "time"]);
        assert!(sources.is_none_or(|sources| sources.len() == line["pods"].as_array().unwrap().len()));
        if let Some(run) = line["run"].as_str() {
            self.begins(run);
        }
        let time = line["time"].as_str().unwrap();
        assert_eq!((time.len(), &time[19..20], &time[26..]), (27, ".", "Z"), "microseconds, UTC");
        let pods = line["pods"].as_array().unwrap().iter().map(Value::to_string).collect();
        self.store(
            line["seq"].as_u64().unwrap(),
            line["op"].as_str().unwrap(),
            line["source"].as_str().unwrap(),
            pods,
        );
    }

    pub fn take(&mut self, update: &SequencedUpdate) {
        if let Some(run) = &update.run {
            self.begins(run);
        }
        let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
        let pods = update.update.pods.iter().map(|pod| text(pod.text())).collect();
        self.store(update.seq, update.update.op.as_str(), update.update.source.as_str(), pods);
    }

    /// The stream begins, perhaps once more.
    fn begins(&mut self, run: &str) {
        self.run = Some(run.to_owned());
        self.begun.clear();
    }

    fn store(&mut self, seq: u64, op: &str, source: &str, pods: Vec<String>) {
        match &self.run {
            None if self.seq > 0 => assert_eq!(seq, self.seq + 1, "consecutive numbers"),
            None => {}
            Some(_) => assert!(seq > self.seq, "{seq} after {}", self.seq),
        }
        self.seq = seq;
        self.heard.push(format!("{seq} {op} {source} {}", pods.len()));
        if op == "SET" {
            self.begun.insert(source.to_owned());
            let gone = |of: &String| source == "*" || of == source;
            let gone: Vec<String> =
                self.sources.iter().filter(|(_, of)| gone(of)).map(|(key, _)| key.clone()).collect();
            for key in gone {
                self.sources.remove(&key);
                self.pods.remove(&key);
            }
        }
        let is_strict = self.run.is_none() || self.begun.contains(source);
        for text in pods {
            let pod: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&pod["apiVersion"], &pod["kind"]), (&"v1".into(), &"Pod".into()));
            let word = |field: &str| pod["metadata"][field].as_str().unwrap().to_owned();
            let key = format!("{}/{}", word("namespace"), word("name"));
            if op == "REMOVE" {
                assert!(self.pods.remove(&key).is_some() || !is_strict, "{op} of an unknown pod {key}");
                self.sources.remove(&key);
                continue;
            }
            let before = self.sources.insert(key.clone(), source.to_owned());
            let is_new = self.pods.insert(key, text).is_none();
            match op {
                "ADD" => assert!(is_new || !is_strict, "{op} of a known pod"),
                // What another source had there is replaced.
                "SET" => assert!(is_new || before.as_deref() != Some(source), "{op} of a pod twice"),
                "UPDATE" | "DELETE" | "RECONCILE" => assert!(!is_new, "{op} of an unknown pod"),
                other => panic!("unknown op {other}"),
            }
        }
    }
}
