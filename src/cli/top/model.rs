//! What `podmux top` knows: sources, pods and the last updates, with rates. It reads the agent's answers and does
//! nothing else.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::rate::Rate;
use crate::cli::{
    get::{more_problems, state_text},
    output::{first_of, items, text, time},
    terminal::Escaped,
};

/// How many updates are kept.
pub const MAX_UPDATES: usize = 500;
/// How many pods of an update are named.
const MAX_NAMES: usize = 3;
/// The longest text that is kept, in characters.
const MAX_TEXT: usize = 1000;

/// The namespace and the name of a pod.
pub type Key = (String, String);

/// The labels and texts of an open pod.
pub type Details = Vec<(String, String)>;

/// How a text is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing is to be noticed.
    #[default]
    Plain,
    /// A beginning.
    Good,
    /// A change, or something that does not last.
    Warning,
    /// A failure or an end.
    Bad,
    /// Of little interest.
    Dim,
}

/// A source of pods.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// Its state, and whether it also fails.
    pub state: String,
    /// How the state is shown.
    pub tone: Tone,
    /// The number of its pods.
    pub pods: u64,
    /// The number of its problems.
    pub problems: u64,
    /// When it was read last.
    pub success: Option<Timestamp>,
    /// What it watches; why it fails, if it does.
    pub target: String,
}

/// A pod, as a row of the agent's table.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// Its namespace and name.
    pub key: Key,
    /// How many of its containers are ready.
    pub ready: String,
    /// What happens to it.
    pub status: String,
    /// How the status is shown.
    pub tone: Tone,
    /// How often containers were restarted.
    pub restarts: u64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its source.
    pub source: String,
}

/// An update of the stream.
#[derive(Clone, Debug)]
pub struct Update {
    /// When it was made.
    pub time: Option<Timestamp>,
    /// The operation.
    pub op: String,
    /// The source.
    pub source: String,
    /// The names of its first pods, and how many more it has.
    pub pods: String,
    /// The number of its pods.
    count: usize,
}

/// The places of the columns in the rows of the agent's table, by name.
#[derive(Clone, Debug, Default)]
pub struct Columns(BTreeMap<String, usize>);

/// What is read of a line of the update stream.
#[derive(Deserialize)]
struct Line {
    time: Option<Timestamp>,
    op: String,
    source: String,
    pods: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    metadata: Names,
}

#[derive(Deserialize)]
struct Names {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

/// A change of what is known.
#[derive(Clone, Debug)]
pub enum News {
    /// The sources.
    Sources(Vec<Source>),
    /// All pods.
    Pods(Vec<Pod>),
    /// A new pod, or a changed one.
    Stored(Pod),
    /// A pod is gone.
    Removed(Key),
    /// An update has come.
    Updated(Update),
    /// A pod in detail: its labels and texts. None if it is gone.
    Opened(Key, Option<Details>),
}

/// What is known of the agent.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The sources, in order of precedence.
    pub sources: Vec<Source>,
    /// The pods by namespace and name.
    pub pods: BTreeMap<Key, Pod>,
    /// The last updates, the newest first.
    pub updates: VecDeque<Update>,
    /// The rate of changed pods.
    pub changes: Rate,
    /// The rate of changed pods of each source.
    pub of_source: BTreeMap<String, Rate>,
    /// Why the agent is not reached now, and since when.
    pub lost: Option<(String, Timestamp)>,
    /// The pod that was opened last, in detail, and whether it is gone.
    pub opened: Option<(Key, Details, bool)>,
}

impl Model {
    /// Takes a change that has arrived at this time.
    pub fn take(&mut self, news: News, now: Timestamp) {
        match news {
            News::Sources(sources) => self.sources = sources,
            News::Pods(pods) => self.pods = pods.into_iter().map(|pod| (pod.key.clone(), pod)).collect(),
            News::Stored(pod) => drop(self.pods.insert(pod.key.clone(), pod)),
            News::Removed(key) => drop(self.pods.remove(&key)),
            News::Updated(update) => {
                // A SET repeats what is wanted.
                let changed = if update.op == "SET" { 0 } else { update.count };
                self.changes.count(changed, now);
                self.of_source.entry(update.source.clone()).or_default().count(changed, now);
                self.updates.truncate(MAX_UPDATES - 1);
                self.updates.push_front(update);
            }
            News::Opened(key, Some(lines)) => self.opened = Some((key, lines, false)),
            // What was known of it stays.
            News::Opened(key, None) => match &mut self.opened {
                Some((opened, _, is_gone)) if *opened == key => *is_gone = true,
                opened => *opened = Some((key, Vec::new(), true)),
            },
        }
    }

    /// Notes whether the agent is reached.
    pub fn set_lost(&mut self, why: Option<&str>, now: Timestamp) {
        let since = self.lost.as_ref().map_or(now, |(_, since)| *since);
        self.lost = why.map(|why| (shown(why), since));
    }
}

impl Source {
    /// The sources of an answer to `GET /sources`.
    pub fn all(list: &Value, now: Timestamp) -> Vec<Self> {
        items(&list["items"]).iter().map(|source| Self::of(source, now)).collect()
    }

    fn of(source: &Value, now: Timestamp) -> Self {
        let (state, failing) = (text(&source["state"]), &source["failing"]);
        let tone = match state {
            _ if failing.is_object() => Tone::Bad,
            "failing" => Tone::Bad,
            "waiting" | "restored" => Tone::Warning,
            _ => Tone::Plain,
        };
        let error = text(&failing["error"]);
        Self {
            name: shown(text(&source["name"])),
            state: shown(&state_text(source, now)),
            tone,
            pods: source["pods"].as_u64().unwrap_or_default(),
            problems: items(&source["problems"]).len() as u64 + more_problems(source),
            success: time(&source["lastSuccess"]),
            target: shown(if error.is_empty() { text(&source["target"]) } else { error }),
        }
    }
}

impl Columns {
    /// The columns of a table, if it names them: only the first one of a watch does.
    pub fn learn(&mut self, table: &Value) {
        let named = items(&table["columnDefinitions"]).iter().enumerate();
        self.0.extend(named.map(|(at, column)| (text(&column["name"]).to_owned(), at)));
    }

    /// The pods of a table.
    pub fn pods(&self, table: &Value) -> Vec<Pod> {
        items(&table["rows"]).iter().map(|row| self.pod(row)).collect()
    }

    fn pod(&self, row: &Value) -> Pod {
        let cell = |name: &str| self.0.get(name).map(|at| text(&row["cells"][*at])).unwrap_or_default();
        let metadata = &row["object"]["metadata"];
        let has_failed = items(&row["conditions"]).iter().any(|condition| condition["reason"] == "Failed");
        let status = cell("Status");
        // Such as `3 (5m ago)`.
        let restarts = cell("Restarts").split(' ').next().unwrap_or_default();
        Pod {
            key: key(row),
            ready: shown(cell("Ready")),
            status: shown(if status.is_empty() { "Unknown" } else { status }),
            tone: match status {
                "Running" | "Succeeded" | "Completed" => Tone::Good,
                "Terminating" | "Pending" => Tone::Warning,
                _ if has_failed || ["Error", "BackOff", "Err"].iter().any(|end| status.contains(end)) => {
                    Tone::Bad
                }
                _ => Tone::Plain,
            },
            restarts: restarts.parse().unwrap_or_default(),
            created: time(&metadata["creationTimestamp"]),
            source: shown(cell("Source")),
        }
    }
}

/// The namespace and the name of the pod of a row.
pub fn key(row: &Value) -> Key {
    let metadata = &row["object"]["metadata"];
    (shown(text(&metadata["namespace"])), shown(text(&metadata["name"])))
}

impl Update {
    /// Reads a line of the update stream; none if it is not an update.
    pub fn read(line: &[u8]) -> Option<Self> {
        let Line { time, op, source, pods } = serde_json::from_slice(line).ok()?;
        let name = |Named { metadata }: &Named| shown(&format!("{}/{}", metadata.namespace, metadata.name));
        let names = first_of(pods.iter().map(name), MAX_NAMES);
        let pods_text = if names.is_empty() { "<none>".to_owned() } else { names.join(", ") };
        Some(Self { time, op: shown(&op), source: shown(&source), pods: pods_text, count: pods.len() })
    }

    /// How the operation is shown.
    pub fn tone(&self) -> Tone {
        match &*self.op {
            "ADD" => Tone::Good,
            "UPDATE" => Tone::Warning,
            "DELETE" | "REMOVE" => Tone::Bad,
            _ => Tone::Dim,
        }
    }
}

/// A text of the agent, for the screen: cut off, on one line, without control characters.
pub(super) fn shown(text: &str) -> String {
    let end = text.char_indices().nth(MAX_TEXT).map_or(text.len(), |(end, _)| end);
    Escaped(&text[..end]).to_string()
}
