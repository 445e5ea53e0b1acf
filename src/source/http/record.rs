//! The posted pods as rows of the database.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    applied::Applied,
    set::{Posted, Set, Step},
    write::Outcome,
};
use crate::{
    db::{self, Change, Stored, Table},
    pod::{NodeName, Pod, PodKey, Prepared},
};

/// The key of the version counter. The key of a pod contains a slash.
const VERSION: &str = "version";

/// A stored pod that cannot be decoded, though its checksum is right: another program wrote
/// it, or this one has a bug.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the stored pod {key} cannot be read: {what}; restore a copy of the state, or move it away to start with an empty one"
)]
pub struct LoadError {
    /// The key of its row.
    pub key: String,
    /// What is wrong with it.
    pub what: String,
}

/// The change of the database for a step.
pub(super) fn change(step: &Step) -> Option<Change> {
    match step.outcome {
        Outcome::Unchanged => None,
        Outcome::Deleted => Some(removal(step.pod.key())),
        Outcome::Created | Outcome::Configured | Outcome::Terminating => {
            Some(row(step.pod.key().as_str(), Some(value(&step.pod, &step.applied))))
        }
    }
}

/// Removes a pod.
pub(super) fn removal(key: &PodKey) -> Change {
    row(key.as_str(), None)
}

/// Sets the version counter.
pub(super) fn version(version: u64) -> Change {
    row(VERSION, Some(version.to_string().into_bytes().into()))
}

fn row(key: &str, value: Option<db::Value>) -> Change {
    Change { table: Table::Posted, key: key.to_owned(), value }
}

/// The text of the pod is not copied. What field managers applied is there if any did: earlier versions have no such
/// field.
fn value(pod: &Pod, applied: &Applied) -> db::Value {
    let seen = pod.seen().unwrap_or_default();
    let mut begin = format!(r#"{{"seen":"{seen}","#).into_bytes();
    if !applied.is_empty() {
        begin.extend(br#""applied":"#);
        begin.extend(applied.to_json());
        begin.push(b',');
    }
    begin.extend(br#""pod":"#);
    vec![begin.into(), pod.text().clone(), Arc::from(*b"}")].into()
}

/// Takes the posted pods out of the rows of a state, and binds them to this node, whatever its earlier name was. A row is
/// dropped before the next one is decoded: a decoded pod is many times as large as its text.
///
/// # Errors
/// If a row cannot be decoded.
pub fn load(stored: &mut Stored, node: &NodeName) -> Result<Set, LoadError> {
    let mut set = Set::default();
    for (key, value) in stored.tables.remove(&Table::Posted).unwrap_or_default() {
        let bad = |what: &str| LoadError { key: key.clone(), what: what.to_owned() };
        if key == VERSION {
            let text = str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
            set.version = text.ok_or_else(|| bad("not a number"))?;
            continue;
        }
        let mut record: Map<String, Value> =
            serde_json::from_slice(&value).map_err(|error| bad(&error.to_string()))?;
        let seen = record.get("seen").and_then(|seen| seen.as_str()?.parse::<Timestamp>().ok());
        let pod = record.remove("pod").unwrap_or_default();
        let pod = Prepared::from_value(pod).map_err(|error| bad(&error.to_string()))?;
        if pod.key().as_str() != key.as_str() {
            return Err(bad("it contains the name of another pod"));
        }
        let mut posted = Posted { pod, seen: seen.ok_or_else(|| bad("it contains no time"))? };
        posted.pod.set_node(node);
        let applied = record.get("applied").map(Applied::from_value).unwrap_or_default();
        set.insert(posted.freeze(), applied);
    }
    Ok(set)
}
