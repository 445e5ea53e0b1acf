//! The real binary as a node of a real cluster.

use std::{
    collections::BTreeMap,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    cluster::{Admin, by_key, compared, key},
    plain::{Answer, Connection},
    process::{PATIENCE, Process, podmux, wait_for},
};

/// The interval at which a wait checks its condition.
const INTERVAL: Duration = Duration::from_millis(50);

/// An agent with an apiserver source.
pub struct Node {
    pub process: Process,
    name: String,
    directory: TempDir,
    /// How many of the source's updates have been received.
    received: usize,
}

impl Node {
    pub fn start(name: &str, kubeconfig: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = format!("unix:{}", directory.path().join("s").display());
        let kubeconfig = kubeconfig.to_str().unwrap();
        let mut run = podmux(&["run", "--node-name", name, "--kubeconfig", kubeconfig]);
        let process = Process::start(run.args(["--listen", &socket, "--state-dir", "none"]));
        Self { process, name: name.to_owned(), directory, received: 0 }
    }

    /// Waits for the source's next update. Returns its op and its pods.
    pub fn next(&mut self) -> (String, Vec<Value>) {
        let update = self.process.stdout.wait_for("another update", |lines| {
            let updates = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
            updates.filter(|update| update["source"] == "api").nth(self.received)
        });
        self.received += 1;
        (update["op"].as_str().unwrap().to_owned(), update["pods"].as_array().unwrap().clone())
    }

    /// Waits for the source's next update, which must be `OP namespace/name …`. Returns its pods.
    pub fn hear(&mut self, expected: &str) -> Vec<Value> {
        let (op, pods) = self.next();
        let words: Vec<String> = [op].into_iter().chain(pods.iter().map(key)).collect();
        assert_eq!(words.join(" "), expected);
        pods
    }

    /// Waits for the source's next update, which must have this op and exactly this pod.
    pub fn hear_of(&mut self, op: &str, pod: &Value) {
        let heard = self.hear(&format!("{op} {}", key(pod)));
        assert_eq!(by_key(&heard), by_key(std::slice::from_ref(pod)));
    }

    /// Waits for the REMOVE of a pod that was deleted by force. The server marks the pod before
    /// it removes it, so a DELETE may come first.
    pub fn hear_the_end(&mut self, pod: &str) -> Value {
        let (mut op, mut pods) = self.next();
        if op == "DELETE" {
            assert_eq!(pods.iter().map(key).collect::<Vec<_>>(), [pod]);
            (op, pods) = self.next();
        }
        assert_eq!((&*op, pods.iter().map(key).collect::<Vec<_>>()), ("REMOVE", vec![pod.to_owned()]));
        pods.remove(0)
    }

    /// The agent's pods by `namespace/name`, reduced to what the server stores.
    pub fn pods(&self) -> BTreeMap<String, Value> {
        by_key(self.get("/pods").json()["items"].as_array().unwrap())
    }

    /// The status of the api source.
    pub fn source(&self) -> Value {
        let sources = self.get("/sources").json();
        let mut items = sources["items"].as_array().unwrap().iter();
        items.find(|source| source["name"] == "api").unwrap().clone()
    }

    /// Waits until the status of the source satisfies a condition.
    pub fn source_is(&self, is: impl Fn(&Value) -> bool) -> Value {
        self.waits(|| self.source(), is)
    }

    /// Waits until the source fails with an error that contains these texts. Returns the error.
    pub fn fails(&self, words: &[&str]) -> String {
        let says = |source: &Value| {
            let error = source["failing"]["error"].as_str().unwrap_or_default();
            words.iter().all(|word| error.contains(word))
        };
        self.source_is(says)["failing"]["error"].as_str().unwrap().to_owned()
    }

    /// Waits until a condition on the agent is true.
    pub fn counts(&self, so: impl Fn(&Self) -> bool) {
        wait_for(|| so(self).then_some(()));
    }

    /// The number of lists so far.
    pub fn lists(&self) -> u64 {
        self.counted("podmux_reflector_lists_total", "")
    }

    /// The sum of a metric over the series whose labels contain a text.
    pub fn counted(&self, metric: &str, labels: &str) -> u64 {
        let metrics = self.get("/metrics").text();
        let lines = metrics.lines().filter(|line| {
            line.strip_prefix(metric)
                .is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
        });
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    /// Waits until the agent has exactly the pods that the server has for the node.
    pub fn agrees_with(&self, admin: &mut Admin) -> BTreeMap<String, Value> {
        let begun = Instant::now();
        loop {
            let (theirs, ours) = (admin.pods_of(&self.name), self.pods());
            if theirs == ours {
                return ours;
            }
            let late = begun.elapsed() > PATIENCE;
            assert!(!late, "{}\n{}", differences(&theirs, &ours), self.process.stderr.text());
            thread::sleep(INTERVAL);
        }
    }

    /// Waits until the stream on stdout leads to the same pods.
    pub fn has_told(&self, view: &BTreeMap<String, Value>) {
        let view = compared(view);
        self.process.holds("these pods", |held| {
            let pods: Vec<Value> =
                held.pods.values().map(|text| serde_json::from_str(text).unwrap()).collect();
            compared(&by_key(&pods)) == view
        });
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Stops the agent. Returns its log.
    pub fn ends(self) -> String {
        self.signal(Signal::TERM);
        let (code, log) = self.process.ends();
        assert_eq!(code, 0, "{log}");
        log
    }

    fn waits<T: std::fmt::Debug>(&self, look: impl Fn() -> T, is: impl Fn(&T) -> bool) -> T {
        let begun = Instant::now();
        loop {
            let seen = look();
            if is(&seen) {
                return seen;
            }
            assert!(begun.elapsed() < PATIENCE, "the state stays {seen:?}:\n{}", self.process.stderr.text());
            thread::sleep(INTERVAL);
        }
    }

    /// The answer to GET, whatever its code is.
    pub fn answer(&self, path: &str) -> Answer {
        // The agent may not listen yet.
        let mut connection = wait_for(|| Connection::unix(&self.directory.path().join("s")).ok());
        connection.ask("GET", path, b"").unwrap()
    }

    fn get(&self, path: &str) -> Answer {
        let answer = self.answer(path);
        assert_eq!(answer.code, 200, "{}", answer.text());
        answer
    }
}

/// The pods that differ, for people.
fn differences(theirs: &BTreeMap<String, Value>, ours: &BTreeMap<String, Value>) -> String {
    let keys = theirs.keys().chain(ours.keys().filter(|key| !theirs.contains_key(*key)));
    let differ = keys.filter(|key| theirs.get(*key) != ours.get(*key));
    let line = |key: &String| {
        let text = |pod: Option<&Value>| pod.map_or_else(|| "nothing".to_owned(), Value::to_string);
        format!("{key}\n  there: {}\n  here:  {}\n", text(theirs.get(key)), text(ours.get(key)))
    };
    differ.map(line).collect()
}
