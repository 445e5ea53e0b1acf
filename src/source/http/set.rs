//! The posted pods and what writes do to them. Pure: time and randomness are passed in.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{
    applied::Applied,
    quota::{Config, size},
    write::{MARKS, Obstacle, ObstacleKind, Outcome, Preconditions, Selected, Submitted, Write},
};
use crate::{
    db::Sequence,
    pod::{Pod, PodKey, Prepared, SourceName, identity::HASH},
};

/// The API's default for `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: i64 = 30;
/// The longest grace period, in seconds. The API has no bound, but the deadline must be a valid time.
const LONGEST_GRACE: i64 = 100 * 365 * 24 * 3600;

/// A posted pod while it is written. It takes many times the memory of its text, so it does not stay.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Posted {
    pub(super) pod: Prepared,
    /// When it was first posted.
    pub(super) seen: Timestamp,
}

impl Posted {
    /// The pod as it is published. The source's own annotations are replaced.
    pub(super) fn freeze(self) -> Arc<Pod> {
        Arc::new(self.pod.published_by(SourceName::Http, self.seen))
    }

    /// A pod that [`freeze`](Self::freeze) has made.
    pub(super) fn thaw(pod: &Pod) -> Option<Self> {
        let seen = pod.seen()?.parse().ok()?;
        let mut pod = Prepared::from_json(pod.text()).ok()?;
        for mark in MARKS {
            pod.set_annotation(mark, None);
        }
        Some(Self { pod, seen })
    }
}

/// The deletionTimestamp of a pod, if it is being deleted.
pub(super) fn deadline(pod: &Pod) -> Option<Timestamp> {
    pod.deletion_timestamp()?.parse().ok()
}

/// The effect of a write on one pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) outcome: Outcome,
    /// The pod after the write, or before it if it is deleted.
    pub(super) pod: Arc<Pod>,
    /// What field managers have applied to it.
    pub(super) applied: Applied,
    /// The pod before the write, if it existed.
    pub(super) before: Option<Arc<Pod>>,
}

/// The posted pods. O(1) to clone, so a write is tried on a copy. An edit copies a node of the
/// map: pointers, not pods.
#[derive(Clone, Debug, Default)]
pub struct Set {
    pub(super) pods: OrdMap<PodKey, Arc<Pod>>,
    /// What field managers applied to those pods that any applied.
    pub(super) applied: OrdMap<PodKey, Applied>,
    /// The pods that are being deleted.
    pub(super) terminating: OrdSet<PodKey>,
    /// The size of the pods in bytes, with what was applied to them.
    pub(super) bytes: u64,
    /// The resourceVersion of the last change.
    pub(super) version: u64,
}

impl Set {
    /// Applies a write.
    ///
    /// # Errors
    /// All its obstacles. The set is then partly changed and must be dropped.
    pub(super) fn apply(
        &mut self,
        write: Write,
        quota: Config,
        now: Timestamp,
        uid: &dyn Fn() -> String,
        sequence: &Sequence,
    ) -> Result<Vec<Step>, Vec<Obstacle>> {
        let mut trial =
            Trial { set: self, quota, now, uid, sequence, steps: Vec::new(), obstacles: Vec::new() };
        match write {
            Write::Apply(pods) => pods.into_iter().for_each(|pod| trial.apply(pod)),
            Write::ReplaceAll(pods) => trial.replace_all(pods),
            Write::Create(pod) => trial.create(pod),
            Write::Replace(pod) => trial.replace(pod),
            Write::Delete { key, grace, preconditions } => trial.delete(&key, grace, &preconditions),
            Write::DeleteSelected { pods, grace } => trial.delete_selected(&pods, grace),
        }
        let Trial { steps, obstacles, .. } = trial;
        if obstacles.is_empty() { Ok(steps) } else { Err(obstacles) }
    }

    /// The resourceVersion of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Inserts or replaces a pod with the version that it has.
    pub(super) fn insert(&mut self, pod: Arc<Pod>, applied: Applied) {
        let key = pod.key().clone();
        if deadline(&pod).is_some() {
            self.terminating.insert(key.clone());
        }
        self.bytes += size(&pod, &applied);
        self.bytes -= self.pods.insert(key.clone(), pod).map_or(0, |old| size(&old, &self.applied(&key)));
        if applied.is_empty() {
            self.applied.remove(&key);
        } else {
            self.applied.insert(key, applied);
        }
    }

    /// What field managers have applied to a pod.
    pub(super) fn applied(&self, key: &PodKey) -> Applied {
        self.applied.get(key).cloned().unwrap_or_default()
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, key: &PodKey) -> Option<Arc<Pod>> {
        let pod = self.pods.remove(key)?;
        self.bytes -= size(&pod, &self.applied(key));
        self.applied.remove(key);
        self.terminating.remove(key);
        Some(pod)
    }
}

/// A write in progress.
struct Trial<'a> {
    set: &'a mut Set,
    quota: Config,
    now: Timestamp,
    uid: &'a dyn Fn() -> String,
    sequence: &'a Sequence,
    steps: Vec<Step>,
    obstacles: Vec<Obstacle>,
}

impl Trial<'_> {
    fn reject(&mut self, key: &PodKey, what: ObstacleKind) {
        self.obstacles.push(Obstacle { key: key.clone(), what });
    }

    fn step(&mut self, outcome: Outcome, pod: Arc<Pod>, before: Option<Arc<Pod>>) {
        let applied = self.set.applied(pod.key());
        self.steps.push(Step { outcome, pod, applied, before });
    }

    fn apply(&mut self, pod: Submitted) {
        if self.set.pods.contains_key(pod.key()) {
            return self.replace(pod);
        }
        match pod.resource_version() {
            Some(version) if version != "0" => {
                let error =
                    format!("it does not exist, and has no resourceVersion {version}; remove the field");
                self.reject(pod.key(), ObstacleKind::Precondition(error));
            }
            _ => self.create(pod),
        }
    }

    fn replace_all(&mut self, pods: Vec<Submitted>) {
        let gone = {
            let kept: std::collections::HashSet<&PodKey> = pods.iter().map(Submitted::key).collect();
            let gone = self.set.pods.keys().filter(|key| !kept.contains(key));
            gone.filter(|key| !self.set.terminating.contains(*key)).cloned().collect::<Vec<_>>()
        };
        // A pod that is deleted at once frees its part of the quota.
        for key in gone {
            self.delete(&key, None, &Preconditions::default());
        }
        for pod in pods {
            self.apply(pod);
        }
    }

    fn create(&mut self, submitted: Submitted) {
        let key = &submitted.key().clone();
        match self.set.pods.get(key) {
            Some(pod) if deadline(pod).is_some() => {
                return self.reject(key, ObstacleKind::NotGoneYet);
            }
            Some(_) => return self.reject(key, ObstacleKind::AlreadyExists),
            None => {}
        }
        let applied = submitted.applied(&Applied::default());
        let mut pod = submitted.decode();
        // As at an API server, the server makes the UID, whatever the client sent.
        pod.set_metadata("uid", Some((self.uid)().into()));
        pod.set_metadata("creationTimestamp", Some(seconds(self.now).into()));
        pod.set_metadata("generation", Some(1.into()));
        let pod = self.freeze(Posted { pod, seen: self.now });
        let size = size(&pod, &applied);
        if let Err(exceeded) = self.quota.check_new(self.set.pods.len() as u64, self.set.bytes, size) {
            return self.reject(key, ObstacleKind::Quota(exceeded));
        }
        self.store(Outcome::Created, pod, applied, None);
    }

    fn replace(&mut self, submitted: Submitted) {
        let key = &submitted.key().clone();
        let Some(published) = self.set.pods.get(key).cloned() else {
            return self.reject(key, ObstacleKind::NotFound);
        };
        if !self.check(&published, &submitted.preconditions()) {
            return;
        }
        if deadline(&published).is_some() {
            return self.reject(key, ObstacleKind::Terminating);
        }
        let applied_before = self.set.applied(key);
        let applied = submitted.applied(&applied_before);
        let Some(Posted { pod: mut old, seen }) = Posted::thaw(&published) else {
            return self.reject(key, ObstacleKind::NotFound);
        };
        let kept = ["uid", "creationTimestamp", "generation", "resourceVersion"]
            .map(|field| (field, old.metadata(field).cloned()));
        let before = texts(&mut old);
        // One of the two is decoded at a time.
        drop(old);
        let mut pod = submitted.decode();
        for (field, value) in kept {
            pod.set_metadata(field, value);
        }
        let after = texts(&mut pod);
        if after == before && applied == applied_before {
            return self.step(Outcome::Unchanged, published.clone(), Some(published));
        }
        if after[0] != before[0] {
            next_generation(&mut pod);
        }
        drop((before, after));
        let pod = self.freeze(Posted { pod, seen });
        let (old_size, new_size) = (size(&published, &applied_before), size(&pod, &applied));
        if let Err(exceeded) = self.quota.check_replacement(self.set.bytes, old_size, new_size) {
            return self.reject(key, ObstacleKind::Quota(exceeded));
        }
        self.store(Outcome::Configured, pod, applied, Some(published));
    }

    fn delete(&mut self, key: &PodKey, grace: Option<i64>, preconditions: &Preconditions) {
        let Some(published) = self.set.pods.get(key).cloned() else {
            return self.reject(key, ObstacleKind::NotFound);
        };
        let before = deadline(&published);
        if !self.check(&published, preconditions) {
            return;
        }
        if before.is_some() && grace.is_none() {
            return self.step(Outcome::Terminating, published.clone(), Some(published));
        }
        let Some(mut posted) = Posted::thaw(&published) else {
            return self.reject(key, ObstacleKind::NotFound);
        };
        let grace = grace.unwrap_or_else(|| {
            let spec = posted.pod.object().get("spec");
            spec.and_then(|spec| spec.get("terminationGracePeriodSeconds")?.as_i64()).unwrap_or(DEFAULT_GRACE)
        });
        let grace = if grace < 0 { 1 } else { grace.min(LONGEST_GRACE) };
        let first = before.zip(published.deletion_grace_period_seconds());
        if grace > 0 && first.is_some_and(|(_, first)| first <= grace) {
            return self.step(Outcome::Terminating, published.clone(), Some(published));
        }
        // As at an API server, a shorter grace counts from the first deletion. If it is over, the pod ends now.
        let (from, passed) = first.unwrap_or((self.now, 0));
        let deadline =
            from.saturating_add(SignedDuration::from_secs(grace - passed)).unwrap_or(Timestamp::MAX);
        let (deadline, grace) =
            if deadline < self.now { (self.now, grace.min(1)) } else { (deadline, grace) };
        posted.pod.set_metadata("deletionTimestamp", Some(seconds(deadline).into()));
        posted.pod.set_metadata("deletionGracePeriodSeconds", Some(grace.into()));
        if before.is_none() {
            next_generation(&mut posted.pod);
        }
        let pod = self.freeze(posted);
        let outcome = if grace == 0 { Outcome::Deleted } else { Outcome::Terminating };
        let applied = self.set.applied(key);
        self.store(outcome, pod, applied, Some(published));
    }

    fn delete_selected(&mut self, pods: &[Selected], grace: Option<i64>) {
        for Selected { key, uid, preconditions } in pods {
            if self.set.pods.get(key).is_some_and(|pod| pod.uid() == uid) {
                self.delete(key, grace, preconditions);
            }
        }
    }

    /// Checks a write's preconditions, and rejects it if one fails.
    fn check(&mut self, old: &Pod, wanted: &Preconditions) -> bool {
        let version = old.resource_version().map(|version| version.to_string()).unwrap_or_default();
        let fields = [
            ("uid", &wanted.uid, &**old.uid()),
            ("resourceVersion", &wanted.resource_version, version.as_str()),
        ];
        let failed = fields.into_iter().find_map(|(field, wanted, is)| {
            let wanted = wanted.as_deref()?;
            (wanted != is).then(|| format!("its {field} is {is}, not {wanted:?}; read it again"))
        });
        if let Some(error) = failed {
            self.reject(&old.key().clone(), ObstacleKind::Precondition(error));
            return false;
        }
        true
    }

    /// The pod of the next version.
    fn freeze(&mut self, mut posted: Posted) -> Arc<Pod> {
        self.set.version = self.sequence.take();
        posted.pod.set_metadata("resourceVersion", Some(self.set.version.to_string().into()));
        posted.freeze()
    }

    /// Stores a pod of the next version, or removes it.
    fn store(&mut self, outcome: Outcome, pod: Arc<Pod>, applied: Applied, before: Option<Arc<Pod>>) {
        if outcome == Outcome::Deleted {
            self.set.remove(pod.key());
        } else {
            self.set.insert(pod.clone(), applied);
        }
        self.step(outcome, pod, before);
    }
}

/// The spec of a pod, and the rest of it without its hash: equal for equal pods. The hashes of these may differ: they are
/// made before defaults are set, and a pod that a client read here and sends back has them.
fn texts(pod: &mut Prepared) -> [Vec<u8>; 2] {
    let hash = pod.annotation(HASH).map(str::to_owned);
    pod.set_annotation(HASH, None);
    let texts = [true, false].map(|is_spec| {
        let fields = pod.object().iter().filter(|(name, _)| (*name == "spec") == is_spec);
        serde_json::to_vec(&fields.collect::<Vec<_>>()).expect("it is JSON")
    });
    if hash.is_some() {
        pod.set_annotation(HASH, hash.as_deref());
    }
    texts
}

/// Counts a change of the spec, or the deletion.
fn next_generation(pod: &mut Prepared) {
    let generation = pod.metadata("generation").and_then(Value::as_i64).unwrap_or(1);
    pod.set_metadata("generation", Some((generation + 1).into()));
}

/// A time in the API's format: whole seconds, UTC.
fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
