//! What the pod workers publish.

use std::sync::Arc;

use imbl::OrdMap;
use jiff::Timestamp;
use serde_json::Value;

use super::{decide::Wait, failing::Failing};
use crate::pod::{PodKey, Uid};

/// What the pod workers do now, and what fails. O(1) to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkersStatus {
    /// Whether the runtime has been listed. Nothing is started and nothing is killed before.
    pub is_listed: bool,
    /// How listing fails.
    pub list_failing: Option<Failing>,
    /// The pods that are worked on, wait or fail, by key. A pod without an entry is as wanted or
    /// waits for its turn.
    pub pods: OrdMap<PodKey, PodProgress>,
    /// The pods whose last `sync` has succeeded and of which a container [fails](super::PodRuntime::failing), by key.
    pub failing_containers: OrdMap<PodKey, Failing>,
}

impl WorkersStatus {
    /// How each pod fails that fails, in no order. O(pods that are worked on, wait or fail).
    pub fn failing(&self) -> impl Iterator<Item = (&PodKey, &Failing)> {
        let pods = self.pods.iter().filter_map(|(key, pod)| Some((key, pod.failing.as_ref()?)));
        let is_other = |key: &PodKey| self.pods.get(key).is_none_or(|pod| pod.failing.is_none());
        pods.chain(self.failing_containers.iter().filter(move |(key, _)| is_other(key)))
    }
}

/// What happens to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProgress {
    /// Its UID.
    pub uid: Uid,
    /// What is done.
    pub activity: Activity,
    /// Since when.
    pub since: Timestamp,
    /// How it fails, if the last attempt has failed.
    pub failing: Option<Failing>,
}

/// What the workers do about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It is being started or restarted.
    Syncing,
    /// It is being stopped.
    Killing,
    /// It is to be stopped, and waits until fewer other pods are.
    KillPending,
    /// It is wanted and waits for this.
    Waiting(Wait),
    /// It has failed and waits for its next attempt.
    BackingOff,
}

/// The pods that are being deleted gracefully and that the runtime does not have, or no longer has: their
/// deletion is complete. O(1) to clone.
pub type Gone = OrdMap<PodKey, Uid>;

/// What is observed of each wanted pod that the workers have taken up, by key. O(1) to clone.
pub type Observed = OrdMap<PodKey, ObservedPod>;

/// What is observed of a wanted pod.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedPod {
    /// Its UID. What is observed of another pod of the same name does not count.
    pub uid: Uid,
    /// A `v1.PodStatus`. Its fields replace those of the pod's own status.
    pub status: Arc<Value>,
}
