//! The posted pods as rows of the database.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    set::{Posted, Set, Step},
    write::Outcome,
};
use crate::{
    db::{Change, Table},
    pod::{NodeName, PodKey, Prepared},
};

/// The key of the version counter. The key of a pod contains a slash.
const VERSION: &str = "version";

/// A stored pod that cannot be decoded, though its checksum is right: another program wrote
/// it, or this one has a bug.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored pod {key} cannot be read: {what}")]
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
        Outcome::Deleted => Some(removal(&step.key)),
        Outcome::Created | Outcome::Configured | Outcome::Terminating => {
            Some(row(step.key.as_str(), Some(value(&step.posted))))
        }
    }
}

/// Removes a pod.
pub(super) fn removal(key: &PodKey) -> Change {
    row(key.as_str(), None)
}

/// Sets the version counter.
pub(super) fn version(version: u64) -> Change {
    row(VERSION, Some(version.to_string().into_bytes()))
}

fn row(key: &str, value: Option<Vec<u8>>) -> Change {
    Change { table: Table::Posted, key: key.to_owned(), value: value.map(Into::into) }
}

fn value(posted: &Posted) -> Vec<u8> {
    // Writing to memory cannot fail: the keys are texts and the numbers finite.
    let pod = serde_json::to_string(posted.pod.object()).unwrap_or_default();
    format!(r#"{{"seen":"{}","pod":{pod}}}"#, posted.seen).into_bytes()
}

/// Loads the posted pods and binds them to this node, whatever its earlier name was.
pub(super) fn load(table: BTreeMap<String, Vec<u8>>, node: &NodeName) -> Result<Set, LoadError> {
    let mut set = Set::default();
    for (key, value) in table {
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
        let mut pod = Prepared::from_value(pod).map_err(|error| bad(&error.to_string()))?;
        if pod.key().as_str() != key.as_str() {
            return Err(bad("it contains the name of another pod"));
        }
        pod.set_node(node);
        set.insert(Arc::new(Posted { pod, seen: seen.ok_or_else(|| bad("it contains no time"))? }));
    }
    Ok(set)
}
