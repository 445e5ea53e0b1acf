//! The overlay on every read of pods: their status as it is observed, instead of that of their source.

use std::ops::Range;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::view::View;
use crate::{pod::Pod, runtime::Observed};

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

/// The statuses that are observed at one moment; without a runtime none.
#[derive(Clone)]
pub(super) struct Overlay {
    observed: Option<Observed>,
}

/// What is different in the text of a pod, as it is read, from that of its source.
#[derive(Clone, Default)]
pub(super) struct Edits {
    /// The `metadata.resourceVersion`.
    pub(super) version: Option<u64>,
    /// A part of the status, which is after the metadata, and what replaces it.
    pub(super) status: Option<(Range<usize>, Bytes)>,
}

impl Overlay {
    pub(super) fn new(view: &View) -> Self {
        Self { observed: view.observed.as_ref().map(|observed| observed.borrow().clone()) }
    }

    /// The observed status of a pod.
    pub(super) fn status(&self, pod: &Pod) -> Option<&Map<String, Value>> {
        let observed = self.observed.as_ref()?.get(pod.key())?;
        observed.status.as_object().filter(|_| observed.uid == *pod.uid())
    }

    /// The edits of a pod's text, with this version. Only a pod with an observed status is read.
    pub(super) fn edits(&self, pod: &Pod, version: Option<u64>) -> Edits {
        let status = match self.status(pod) {
            Some(status) => Some(replaced(pod, status)),
            None if self.observed.is_none() => wanted(pod),
            None => None,
        };
        Edits { version, status }
    }
}

/// The edit that replaces the fields of a pod's status by observed ones.
fn replaced(pod: &Pod, observed: &Map<String, Value>) -> (Range<usize>, Bytes) {
    let text = pod.text();
    let own = pod.status_range();
    let status = own.clone().and_then(|own| serde_json::from_slice(&text[own]).ok());
    let mut status: Map<String, Value> = status.unwrap_or_default();
    status.extend(observed.clone());
    let status = Value::from(status);
    let end = text.len() - 1;
    match own {
        Some(own) => (own, status.to_string().into()),
        None => (end..end, format!(r#","status":{status}"#).into()),
    }
}

/// The edit that shows that a pod is wanted, if its source says nothing more than `Pending`.
fn wanted(pod: &Pod) -> Option<(Range<usize>, Bytes)> {
    let end = SILENT.iter().find(|end| pod.text().ends_with(end.as_bytes()))?;
    let at = pod.text().len() - end.len() + STATUS;
    pod.deletion_timestamp().is_none().then(|| (at..at, Bytes::from_static(WANTED)))
}
