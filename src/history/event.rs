//! What readers see of the pods at one moment, and the events that lead to the next one. Pure.

use std::{collections::BTreeSet, sync::Arc};

use imbl::{OrdMap, ordmap::DiffItem};
use serde_json::Value;

use super::ring::{Change, Journaled};
use crate::{
    pod::{Entry, Pod, PodKey, SourceName},
    runtime::Observed,
};

/// A pod as it is read: as its source has it, and with the status that a runtime observes.
#[derive(Clone, Debug)]
pub struct SeenPod {
    /// The pod.
    pub entry: Entry,
    /// The fields of the status that are observed, if there are any.
    pub status: Option<Arc<Value>>,
}

impl SeenPod {
    /// A pod with what is observed of it: of this very pod, not of another one of its name.
    pub fn new(entry: &Entry, observed: Option<&Observed>) -> Self {
        let observed = observed.and_then(|observed| observed.get(entry.pod().key()));
        let own = observed.filter(|observed| observed.uid == *entry.pod().uid());
        Self { entry: entry.clone(), status: own.map(|own| own.status.clone()) }
    }

    /// Whether a reader sees no difference.
    pub(super) fn is_read_as(&self, other: &Self) -> bool {
        let (a, b) = (self.entry.pod(), other.entry.pod());
        // Only a posted pod is read with the resourceVersion of its source.
        let is_posted = self.entry.source() == SourceName::Http;
        let is_same = || if is_posted { a.text() == b.text() } else { unversioned(a) == unversioned(b) };
        self.status == other.status && (Arc::ptr_eq(a, b) || is_same())
    }

    /// The number that the pod got when it was posted; 0 for pods of other sources.
    pub(super) fn written(&self) -> u64 {
        let is_posted = self.entry.source() == SourceName::Http;
        is_posted.then(|| self.entry.pod().resource_version()).flatten().unwrap_or_default()
    }
}

/// The text of a pod before and after its `resourceVersion`.
fn unversioned(pod: &Pod) -> (&[u8], &[u8]) {
    let (place, _) = pod.metadata_edit("resourceVersion", "");
    (&pod.text()[..place.start], &pod.text()[place.end..])
}

/// A change of what is read of a pod.
pub type PodEvent = Change<SeenPod>;

impl PodEvent {
    /// The key of the pod.
    pub fn key(&self) -> Option<&PodKey> {
        let seen = self.new.as_ref().or(self.old.as_ref())?;
        Some(seen.entry.pod().key())
    }

    /// The number that the pod got when it was posted; 0 without one.
    pub(super) fn written(&self) -> u64 {
        self.new.as_ref().map_or(0, SeenPod::written)
    }
}

impl Journaled for SeenPod {
    fn size(&self) -> usize {
        self.entry.pod().text().len() + self.status.as_deref().map_or(0, weight)
    }
}

/// About the memory of a value in bytes.
fn weight(value: &Value) -> usize {
    let held = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + weight(value)).sum(),
        _ => 0,
    };
    size_of::<Value>() + held
}

/// What readers see at one moment. O(1) to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) pods: OrdMap<PodKey, Entry>,
    /// None if the agent runs no pods.
    pub(super) observed: Option<Observed>,
}

impl Seen {
    fn get(&self, key: &PodKey) -> Option<SeenPod> {
        self.pods.get(key).map(|entry| SeenPod::new(entry, self.observed.as_ref()))
    }

    /// The events that lead to a later moment, without numbers, by key. One update is between them at most: another pod of a
    /// name is removed and added by two. O(differences × log n).
    pub(super) fn events(&self, after: &Self) -> Vec<PodEvent> {
        let mut keys = changed(&self.pods, &after.pods);
        if let (Some(before), Some(after)) = (&self.observed, &after.observed) {
            keys.append(&mut changed(before, after));
        }
        let event = |old, new| PodEvent { number: 0, old, new };
        let mut events = Vec::new();
        for key in keys {
            match (self.get(key), after.get(key)) {
                (None, None) => {}
                (Some(old), Some(new)) if new.is_read_as(&old) => {}
                (old, new) => events.push(event(old, new)),
            }
        }
        events
    }
}

/// The keys of which two maps have different values.
fn changed<'m, V: PartialEq>(
    before: &'m OrdMap<PodKey, V>,
    after: &'m OrdMap<PodKey, V>,
) -> BTreeSet<&'m PodKey> {
    let key = |change: DiffItem<'m, 'm, PodKey, V>| match change {
        DiffItem::Add(key, _) | DiffItem::Remove(key, _) | DiffItem::Update { new: (key, _), .. } => key,
    };
    before.diff(after).map(key).collect()
}
