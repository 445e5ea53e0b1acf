//! The replay of an update stream, written from the contract alone: what a consumer holds after each line.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

/// How many lines a report shows.
const SHOWN: usize = 40;

/// Pods by `namespace/name`, in the form that is compared, each with its source.
pub type Pods = BTreeMap<String, Held>;

/// A pod that a consumer holds, or should hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// The source that it was last received from; `*` of a SET of all sources.
    pub source: String,
    pub pod: Value,
}

/// One line of a stream.
#[derive(Clone, Debug)]
pub struct Line {
    pub seq: u64,
    pub run: Option<String>,
    pub op: String,
    pub source: String,
    pub pods: Vec<Value>,
    /// In a SET of all sources, the source of each pod.
    pub sources: Vec<String>,
    /// Whether another part of the SET follows.
    pub more: bool,
}

impl Line {
    pub fn parse(text: &str) -> Result<Self, String> {
        let line: Value = serde_json::from_str(text).map_err(|error| format!("{error}: {text:.200}"))?;
        let word = |field: &str| line[field].as_str().map(str::to_owned);
        let parsed = || {
            Some(Self {
                seq: line["seq"].as_u64()?,
                run: word("run"),
                op: word("op")?,
                source: word("source")?,
                pods: line["pods"].as_array()?.clone(),
                sources: serde_json::from_value(line["sources"].clone()).unwrap_or_default(),
                more: line["more"].as_bool().unwrap_or(false),
            })
        };
        let of_all = |line: &Self| line.source != "*" || line.sources.len() == line.pods.len();
        let parsed = parsed().filter(|parsed| line["time"].is_string() && of_all(parsed));
        parsed.ok_or_else(|| format!("not an update: {text:.200}"))
    }

    /// `SEQ OP source name…`
    fn brief(&self) -> String {
        let names: Vec<String> = self.pods.iter().map(|pod| describe(&key(pod), pod)).collect();
        let more = if self.more { " (more follows)" } else { "" };
        format!("{} {} {} {}{more}", self.seq, self.op, self.source, names.join(" "))
    }

    /// The pods, each with its source.
    fn each(&self) -> impl Iterator<Item = (String, Value)> {
        let source = |index| self.sources.get(index).unwrap_or(&self.source).clone();
        self.pods.iter().enumerate().map(move |(index, pod)| (source(index), pod.clone()))
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.op, &self.source, self.more).hash(&mut hasher);
        // A SET has the newest pods, also where they differ only in what makes no update.
        let text = |pod: &Value| if self.op == "SET" { compared(pod).to_string() } else { pod.to_string() };
        self.pods.iter().for_each(|pod| text(pod).hash(&mut hasher));
        hasher.finish()
    }
}

/// `name=image`, for reports.
fn describe(key: &str, pod: &Value) -> String {
    let name = key.strip_prefix("default/").unwrap_or(key);
    format!("{name}={}", pod["spec"]["containers"][0]["image"].as_str().unwrap_or("?"))
}

fn key(pod: &Value) -> String {
    let word = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", word("namespace"), word("name"))
}

/// What of a pod makes an update: without when it was seen, and without what only the API server counts.
pub fn compared(pod: &Value) -> Value {
    const METADATA: [&str; 6] =
        ["uid", "labels", "deletionTimestamp", "deletionGracePeriodSeconds", "name", "namespace"];
    let metadata = METADATA.map(|field| pod["metadata"][field].clone());
    let mut annotations = pod["metadata"]["annotations"].clone();
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove(podmux::pod::SEEN);
    }
    json!({"metadata": metadata, "annotations": annotations, "spec": pod["spec"], "status": pod["status"]})
}

/// What a consumer of a stream holds.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    pub pods: Pods,
    /// The parts so far of a SET, by source: pods, each with its own source.
    parts: BTreeMap<String, Vec<(String, Value)>>,
}

impl Replay {
    /// Forgets incomplete SETs: a stream that starts again sends them again.
    pub fn begin(&mut self) {
        self.parts.clear();
    }

    /// Applies a line and returns the pods that are gone by it, each with the source that it was held from.
    pub fn take(&mut self, line: &Line) -> Result<Vec<(String, String)>, String> {
        match &*line.op {
            "SET" => return Ok(self.set(line)),
            "REMOVE" => {
                return Ok(line.pods.iter().filter_map(|pod| self.erase(key(pod))).collect());
            }
            "ADD" | "UPDATE" | "DELETE" | "RECONCILE" => {}
            other => return Err(format!("unknown op {other}")),
        }
        if line.source == "*" {
            return Err("only a SET is of all sources".to_owned());
        }
        self.store(line.each());
        Ok(Vec::new())
    }

    fn erase(&mut self, key: String) -> Option<(String, String)> {
        let held = self.pods.remove(&key)?;
        Some((key, held.source))
    }

    fn set(&mut self, line: &Line) -> Vec<(String, String)> {
        let parts = self.parts.entry(line.source.clone()).or_default();
        parts.extend(line.each());
        if line.more {
            return Vec::new();
        }
        let all = self.parts.remove(&line.source).unwrap_or_default();
        let listed: BTreeSet<String> = all.iter().map(|(_, pod)| key(pod)).collect();
        let is_gone = |key: &String, held: &Held| {
            (line.source == "*" || held.source == line.source) && !listed.contains(key)
        };
        let gone: Vec<String> =
            self.pods.iter().filter(|(key, held)| is_gone(key, held)).map(|(key, _)| key.clone()).collect();
        let gone = gone.into_iter().filter_map(|key| self.erase(key)).collect();
        self.store(all.into_iter());
        gone
    }

    fn store(&mut self, pods: impl Iterator<Item = (String, Value)>) {
        self.pods.extend(pods.map(|(source, pod)| (key(&pod), Held { source, pod: compared(&pod) })));
    }
}

/// What every stream must keep to. Shared by the harness and all consumers.
#[derive(Debug, Default)]
pub struct Law(Mutex<Rules>);

/// What explains calls of the program for pods that no source has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Upheaval {
    #[default]
    None,
    /// Nothing runs any more.
    Reboot,
    /// The state was lost, or an older one was put back.
    State,
}

#[derive(Debug, Default)]
struct Rules {
    /// The pods that their sources have wanted without a break since the last rest, and these sources.
    wanted: BTreeMap<String, String>,
    /// The UID of each pod that has run then, if there is a runtime.
    running: BTreeMap<String, String>,
    /// The process of each pod that has run then, by name and UID, if the runtime keeps pods in processes.
    processes: BTreeMap<(String, String), String>,
    /// The pods that a source has changed since then.
    touched: BTreeSet<String>,
    /// What has happened since then to what the agent and its runtime remember.
    upheaval: Upheaval,
    /// What each number means: stream, number, and the source if it is a SET.
    meanings: BTreeMap<(String, u64, String), (u64, String)>,
    broken: Vec<String>,
}

impl Law {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these pods may not be removed.
    pub fn wanted(&self, pods: impl Iterator<Item = (String, String)>) {
        let mut rules = self.rules();
        rules.wanted = pods.collect();
        rules.touched.clear();
        rules.upheaval = Upheaval::None;
    }

    /// A source may stop wanting this pod, at least for a while. Called before it does.
    pub fn unwanted(&self, key: &str) {
        self.rules().wanted.remove(key);
        self.touched(key);
    }

    /// A source changes this pod. Called before it does.
    pub fn touched(&self, key: &str) {
        self.rules().touched.insert(key.to_owned());
    }

    /// These pods run now that all is at rest.
    pub fn runs(&self, uids: impl Iterator<Item = (String, String)>) {
        self.rules().running = uids.collect();
    }

    /// These processes run now that all is at rest: those of pods that no source has changed are the same.
    pub fn kept(&self, processes: BTreeMap<(String, String), String>) {
        let mut rules = self.rules();
        let before = std::mem::replace(&mut rules.processes, processes);
        for ((key, uid), process) in before {
            let may = !rules.wanted.contains_key(&key) || rules.touched.contains(&key);
            let now = rules.processes.get(&(key.clone(), uid.clone())).cloned();
            if !may && now.as_ref() != Some(&process) {
                rules.broken.push(format!("{key} of UID {uid} had process {process}, and now {now:?}"));
            }
        }
    }

    pub fn happened(&self, upheaval: Upheaval) {
        let mut rules = self.rules();
        rules.upheaval = rules.upheaval.max(upheaval);
        if upheaval == Upheaval::Reboot {
            rules.processes.clear();
        }
    }

    /// The program of the runtime was called.
    pub fn called(&self, op: &str, key: &str, uid: &str, call: &str) {
        let mut rules = self.rules();
        if rules.touched.contains(key) {
            return;
        }
        let is_stop = matches!(op, "DELETE" | "REMOVE");
        let may = match (rules.wanted.contains_key(key), rules.upheaval) {
            (true, Upheaval::None) => false,
            (true, Upheaval::Reboot) => op == "ADD",
            // An older state may know a UID that is gone.
            (true, Upheaval::State) => !is_stop || rules.running.get(key).is_none_or(|runs| runs != uid),
            // Nothing of this name has run since the last rest.
            (false, upheaval) => upheaval == Upheaval::State,
        };
        if !may {
            let state = if rules.wanted.contains_key(key) { "wanted" } else { "not wanted" };
            let how = format!("the program is called without a cause: {call}, still {state} by its source");
            rules.broken.push(how);
        }
    }

    /// The program was called to change what does not run.
    pub fn called_in_vain(&self, call: &str) {
        let mut rules = self.rules();
        if rules.upheaval != Upheaval::State {
            rules.broken.push(format!("the program is called to change what does not run: {call}"));
        }
    }

    pub fn broken(&self, how: String) {
        self.rules().broken.push(how);
    }

    /// What was broken so far.
    pub fn faults(&self) -> Vec<String> {
        self.rules().broken.clone()
    }

    fn gone(&self, who: &str, line: &Line, gone: &[(String, String)]) {
        let mut rules = self.rules();
        // While the owner of a name is not known, another source may have it for a while.
        let is_wrong = |(key, source): &&(String, String)| {
            rules.wanted.get(key).is_some_and(|owner| owner == source || source == "*")
        };
        let wrong: Vec<&String> = gone.iter().filter(is_wrong).map(|(key, _)| key).collect();
        if !wrong.is_empty() {
            let how = format!("{who}: {} takes away {wrong:?}, still wanted by its source", line.brief());
            rules.broken.push(how);
        }
    }

    /// Notes what a number means.
    fn means(&self, who: &str, stream: &str, part: usize, line: &Line) {
        let kind = format!("{part}");
        let meaning = (line.digest(), line.brief());
        let mut rules = self.rules();
        let known = rules.meanings.entry((stream.to_owned(), line.seq, kind)).or_insert(meaning.clone());
        if known.0 != meaning.0 {
            let how = format!("{who}: one number, two meanings: {}, and {}", known.1, meaning.1);
            rules.broken.push(how);
        }
    }
}

/// How the lines of a stream are numbered.
#[derive(Clone, Debug)]
pub enum Numbering {
    /// From 1, one by one.
    Lines,
    /// A number has one meaning in this stream over all runs.
    OverRuns(String),
    /// A number has one meaning in this stream within a run, or over all runs if no run is named.
    InRun(String),
}

/// A consumer: its replay, and what it notes about the stream.
#[derive(Debug)]
pub struct Reader {
    name: String,
    law: Arc<Law>,
    pub replay: Replay,
    numbering: Numbering,
    /// The run that the stream has named last.
    pub run: Option<String>,
    /// The last number.
    pub last: Option<u64>,
    part: usize,
    /// The run and the number of the line before: within a run the numbers rise.
    risen: Option<(Option<String>, u64)>,
    heard: VecDeque<String>,
}

impl Reader {
    pub fn new(name: &str, law: &Arc<Law>, numbering: Numbering) -> Self {
        Self {
            name: name.to_owned(),
            law: law.clone(),
            replay: Replay::default(),
            numbering,
            run: None,
            last: None,
            part: 0,
            risen: None,
            heard: VecDeque::new(),
        }
    }

    /// The stream starts again; what is held stays until the SETs replace it.
    pub fn begin(&mut self, how: &str) {
        self.replay.begin();
        self.part = 0;
        self.hear(format!("-- {how}"));
    }

    pub fn is_named(&self, name: &str) -> bool {
        self.name == name
    }

    /// Whether its numbers are of this stream.
    pub fn is_of(&self, stream: &str) -> bool {
        matches!(&self.numbering, Numbering::OverRuns(known) if known == stream)
    }

    /// Its numbers are of this stream from now on.
    pub fn of(&mut self, stream: &str) {
        self.numbering = Numbering::OverRuns(stream.to_owned());
        self.last = None;
    }

    fn hear(&mut self, brief: String) {
        self.heard.push_back(brief);
        if self.heard.len() > SHOWN {
            self.heard.pop_front();
        }
    }

    pub fn take(&mut self, text: &str) {
        let line = match Line::parse(text) {
            Ok(line) => line,
            Err(error) => return self.wrong(&error),
        };
        if line.run.is_some() {
            self.run.clone_from(&line.run);
        }
        self.hear(line.brief());
        self.number(&line);
        match self.replay.take(&line) {
            Ok(gone) => self.law.gone(&self.name, &line, &gone),
            Err(error) => self.wrong(&error),
        }
        self.last = Some(line.seq);
        self.risen = Some((self.run.clone(), line.seq));
        self.part = if line.more { self.part + 1 } else { 0 };
    }

    pub fn wrong(&self, how: &str) {
        self.law.broken(format!("{}: {how}", self.name));
    }

    fn number(&self, line: &Line) {
        let stream = match &self.numbering {
            Numbering::Lines => {
                if line.seq != self.last.unwrap_or(0) + 1 {
                    self.wrong(&format!("{} after {:?}", line.seq, self.last));
                }
                return;
            }
            _ if self.risen.as_ref().is_some_and(|(run, last)| *run == self.run && line.seq < *last) => {
                return self.wrong(&format!("{} after a higher number", line.seq));
            }
            Numbering::OverRuns(stream) => stream.clone(),
            Numbering::InRun(stream) => format!("{stream} {}", self.run.as_deref().unwrap_or_default()),
        };
        self.law.means(&self.name, &stream, self.part, line);
    }

    /// The image of a pod that it holds.
    pub fn image(&self, key: &str) -> Option<&str> {
        self.replay.pods.get(key)?.pod["spec"]["containers"][0]["image"].as_str()
    }

    /// How it differs from these pods, if it does.
    pub fn differs(&self, wanted: &Pods) -> Option<String> {
        let differences = differences(&self.replay.pods, wanted);
        (!differences.is_empty())
            .then(|| format!("{} {}\n{}", self.name, differences.join("; "), self.report()))
    }

    /// What it holds and heard.
    pub fn report(&self) -> String {
        let pods: Vec<String> = self.replay.pods.iter().map(|(key, held)| describe(key, &held.pod)).collect();
        let heard: Vec<&str> = self.heard.iter().map(String::as_str).collect();
        format!("{} holds {}; it heard:\n  {}", self.name, pods.join(" "), heard.join("\n  "))
    }
}

fn differences(held: &Pods, wanted: &Pods) -> Vec<String> {
    let mut all = Vec::new();
    for (key, has) in held {
        match wanted.get(key) {
            None => all.push(format!("holds {key} of {}, which is not wanted", has.source)),
            Some(wants) if wants.pod != has.pod => {
                all.push(format!("holds another {key}: {} instead of {}", has.pod, wants.pod));
            }
            Some(wants) if wants.source != has.source => {
                all.push(format!("holds {key} of {} instead of {}", has.source, wants.source));
            }
            Some(_) => {}
        }
    }
    all.extend(wanted.keys().filter(|key| !held.contains_key(*key)).map(|key| format!("lacks {key}")));
    all
}
