//! A replica of the pods that applies the update stream and rejects invalid updates.

use std::collections::BTreeMap;

use podmux::sink::SequencedUpdate;
use serde_json::Value;

/// The state after the updates of one stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replica {
    /// The pods' texts by `namespace/name`.
    pub pods: BTreeMap<String, String>,
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
        let fields: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, ["op", "pods", "seq", "source", "time"]);
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
        let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
        let pods = update.update.pods.iter().map(|pod| text(pod.text())).collect();
        self.store(update.seq, update.update.op.as_str(), update.update.source.as_str(), pods);
    }

    fn store(&mut self, seq: u64, op: &str, source: &str, pods: Vec<String>) {
        assert_eq!(seq, self.seq + 1, "consecutive numbers");
        self.seq = seq;
        self.heard.push(format!("{seq} {op} {source} {}", pods.len()));
        if op == "SET" {
            self.pods.clear();
        }
        for text in pods {
            let pod: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&pod["apiVersion"], &pod["kind"]), (&"v1".into(), &"Pod".into()));
            let word = |field: &str| pod["metadata"][field].as_str().unwrap().to_owned();
            let key = format!("{}/{}", word("namespace"), word("name"));
            match op {
                "REMOVE" => assert!(self.pods.remove(&key).is_some(), "{op} of an unknown pod {key}"),
                "ADD" | "SET" => assert!(self.pods.insert(key, text).is_none(), "{op} of a known pod"),
                "UPDATE" | "DELETE" | "RECONCILE" => {
                    assert!(self.pods.insert(key, text).is_some(), "{op} of an unknown pod");
                }
                other => panic!("unknown op {other}"),
            }
        }
    }
}
