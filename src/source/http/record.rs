//! How the posted set stands in the database.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    LoadError,
    set::{Posted, Set, Step},
};
use crate::{
    db::{Change, Table},
    pod::{NodeName, PodKey, Prepared},
    source::http::Outcome,
};

/// The key of the version counter; a pod's key has a slash.
const VERSION: &str = "version";

/// What a step changes in the database.
pub(super) fn change(step: &Step) -> Option<Change> {
    let value = match step.outcome {
        Outcome::Unchanged => return None,
        Outcome::Deleted => None,
        Outcome::Created | Outcome::Configured | Outcome::Terminating => Some(value(&step.posted).into()),
    };
    Some(Change { table: Table::Posted, key: step.key.as_str().to_owned(), value })
}

/// Erases a pod.
pub(super) fn erasure(key: &PodKey) -> Change {
    Change { table: Table::Posted, key: key.as_str().to_owned(), value: None }
}

/// Notes the last version that was given.
pub(super) fn version(version: u64) -> Change {
    Change {
        table: Table::Posted,
        key: VERSION.to_owned(),
        value: Some(version.to_string().into_bytes().into()),
    }
}

fn value(posted: &Posted) -> Vec<u8> {
    // Writing to memory cannot fail: the keys are texts and the numbers finite.
    let pod = serde_json::to_string(posted.pod.object()).unwrap_or_default();
    format!(r#"{{"seen":"{}","pod":{pod}}}"#, posted.seen).into_bytes()
}

/// Reads the set back. The pods are bound to this node, whatever it was called before.
pub(super) fn load(table: &BTreeMap<String, Vec<u8>>, node: &NodeName) -> Result<Set, LoadError> {
    let mut set = Set::default();
    for (key, value) in table {
        let bad = |what: &str| LoadError { key: key.clone(), what: what.to_owned() };
        if key == VERSION {
            let text = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            set.version = text.ok_or_else(|| bad("not a number"))?;
            continue;
        }
        let record: Map<String, Value> =
            serde_json::from_slice(value).map_err(|error| bad(&error.to_string()))?;
        let seen = record.get("seen").and_then(|seen| seen.as_str()?.parse::<Timestamp>().ok());
        let pod = record.get("pod").cloned().unwrap_or_default();
        let mut pod = Prepared::from_value(pod).map_err(|error| bad(&error.to_string()))?;
        if pod.key().as_str() != key {
            return Err(bad("another pod's name is in it"));
        }
        pod.set_node(node);
        set.insert(Arc::new(Posted { pod, seen: seen.ok_or_else(|| bad("no time in it"))? }));
    }
    Ok(set)
}
