//! The overlay on every read of pods: what the agent adds to a pod as its source has it.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::pod::Pod;

/// The ends of the texts of pods whose own status says nothing, and where the status begins in them.
const SILENT: [&str; 4] = [
    r#""status":{"phase":"Pending"}}"#,
    r#""status":{"phase":"Pending","qosClass":"BestEffort"}}"#,
    r#""status":{"phase":"Pending","qosClass":"Burstable"}}"#,
    r#""status":{"phase":"Pending","qosClass":"Guaranteed"}}"#,
];
const STATUS: usize = r#""status":{"#.len();

/// What such a pod is read with if the agent runs no pods: kubectl shows the reason instead of the phase.
const WANTED: &[u8] =
    br#""message":"the agent delivers this pod to its sinks; it runs no pods itself","reason":"Wanted","#;

/// A part of a pod's text, and what replaces it.
type Edit = (Range<usize>, Bytes);

/// What is different in the text of a pod, as it is read, from that of its source: edits in the order of
/// their places.
pub(super) struct Edits(Vec<Edit>);

impl Edits {
    /// The edits of a pod with an observed status, if there is one, and with this version.
    pub(super) fn new(
        pod: &Pod,
        status: Option<&Arc<Value>>,
        has_runtime: bool,
        version: Option<u64>,
    ) -> Self {
        let version = version.map(|version| pod.metadata_edit("resourceVersion", &format!("\"{version}\"")));
        let metadata = creation(pod).into_iter().chain(version).map(|(place, text)| (place, text.into()));
        let status = match status.and_then(|status| status.as_object()) {
            Some(status) => Some(replaced(pod, status)),
            None if !has_runtime => wanted(pod),
            None => None,
        };
        Self(metadata.chain(status).collect())
    }

    /// A part of the text with its edits, in pieces.
    pub(super) fn apply(self, text: &Bytes, range: Range<usize>) -> Vec<Bytes> {
        let (mut pieces, mut at) = (Vec::with_capacity(2 * self.0.len() + 1), range.start);
        let inside = |(place, _): &Edit| range.start <= place.start && place.end <= range.end;
        for (place, new) in self.0.into_iter().filter(inside) {
            pieces.push(text.slice(at..place.start));
            pieces.push(new);
            at = place.end;
        }
        pieces.push(text.slice(at..range.end));
        pieces
    }
}

/// The edit that gives a pod without a creationTimestamp one: when its source published it for the first time,
/// which is restored with the pod after a restart.
fn creation(pod: &Pod) -> Option<(Range<usize>, String)> {
    if pod.creation_timestamp().is_some() {
        return None;
    }
    let seen: Timestamp = pod.seen()?.parse().ok()?;
    Some(pod.metadata_edit("creationTimestamp", &format!("\"{seen:.0}\"")))
}

/// The edit that replaces the fields of a pod's status by observed ones.
fn replaced(pod: &Pod, observed: &Map<String, Value>) -> Edit {
    let text = pod.text();
    let own = pod.status_range();
    let status = own.clone().and_then(|own| serde_json::from_slice(&text[own]).ok());
    let mut status: Map<String, Value> = status.unwrap_or_default();
    if observed.contains_key("phase") {
        // They explain the phase that is replaced.
        status.retain(|field, _| !matches!(&**field, "reason" | "message"));
    }
    status.extend(observed.clone());
    let status = Value::from(status);
    let end = text.len() - 1;
    match own {
        Some(own) => (own, status.to_string().into()),
        None => (end..end, format!(r#","status":{status}"#).into()),
    }
}

/// The edit that shows that a pod is wanted, if its source says nothing more than `Pending`.
fn wanted(pod: &Pod) -> Option<Edit> {
    let end = SILENT.iter().find(|end| pod.text().ends_with(end.as_bytes()))?;
    let at = pod.text().len() - end.len() + STATUS;
    pod.deletion_timestamp().is_none().then(|| (at..at, Bytes::from_static(WANTED)))
}
