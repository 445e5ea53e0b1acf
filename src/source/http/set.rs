//! The set itself, pure: what a write makes of it. Time and chance are passed in.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Obstacle, ObstacleKind, Outcome, Preconditions, Write};
use crate::pod::{PodKey, Prepared, SEEN, SOURCE, Uid, identity::HASH};

/// The grace of a pod that says none: the API's default for `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: i64 = 30;
/// The longest grace, in seconds. The API has no bound; a time must still be a time.
const LONGEST_GRACE: i64 = 100 * 365 * 24 * 3600;
/// Fields of the metadata that a client may send and only the source gives.
const SERVER_FIELDS: [&str; 5] =
    ["creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "selfLink"];
/// What the source says of itself; a pod that was read here has it when it comes back.
const MARKS: [&str; 2] = [SOURCE, SEEN];

/// A posted pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Posted {
    pub(super) pod: Prepared,
    /// When it was first posted.
    pub(super) seen: Timestamp,
}

impl Posted {
    fn text(&self, field: &str) -> &str {
        self.pod.metadata(field).and_then(Value::as_str).unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.pod.uid()
    }

    /// When it must be gone, if it is being deleted.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.text("deletionTimestamp").parse().ok()
    }

    /// How long it was given to end.
    pub(super) fn grace(&self) -> Option<i64> {
        self.pod.metadata("deletionGracePeriodSeconds").and_then(Value::as_i64)
    }
}

/// What a write makes of one pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) key: PodKey,
    pub(super) outcome: Outcome,
    /// The pod as it is then; as it was last if it is gone.
    pub(super) posted: Arc<Posted>,
    /// The version that it had before, if it was there.
    pub(super) before: Option<String>,
}

/// The posted pods. O(1) to clone, so a write is tried on a copy. An edit copies
/// a node of the map with all that is in it: pointers, not pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Set {
    pub(super) pods: OrdMap<PodKey, Arc<Posted>>,
    /// Those that are being deleted.
    pub(super) terminating: OrdSet<PodKey>,
    by_uid: OrdMap<Uid, PodKey>,
    /// The version that the last change was given.
    pub(super) version: u64,
}

impl Set {
    /// Does what a write asks for.
    ///
    /// # Errors
    /// Everything that stands in its way; the set is of no use then.
    pub(super) fn take(
        &mut self,
        write: Write,
        now: Timestamp,
        uid: fn() -> String,
    ) -> Result<Vec<Step>, Vec<Obstacle>> {
        let mut trial = Trial { set: self, now, uid, steps: Vec::new(), obstacles: Vec::new() };
        match write {
            Write::Apply(pods) => trial.apply_all(pods),
            Write::ReplaceAll(pods) => trial.replace_all(pods),
            Write::Create(pod) => trial.create(pod),
            Write::Replace(pod) => trial.replace(pod),
            Write::Delete { key, grace, preconditions } => trial.delete(&key, grace, &preconditions),
        }
        let Trial { steps, obstacles, .. } = trial;
        if obstacles.is_empty() { Ok(steps) } else { Err(obstacles) }
    }

    /// Puts a pod in, under its own version.
    pub(super) fn insert(&mut self, posted: Arc<Posted>) {
        let key = posted.pod.key().clone();
        self.by_uid.insert(Uid::from(posted.uid()), key.clone());
        if posted.deadline().is_some() {
            self.terminating.insert(key.clone());
        }
        self.pods.insert(key, posted);
    }

    /// Takes a pod out for good.
    pub(super) fn erase(&mut self, key: &PodKey) -> Option<Arc<Posted>> {
        let posted = self.pods.remove(key)?;
        self.by_uid.remove(&Uid::from(posted.uid()));
        self.terminating.remove(key);
        Some(posted)
    }
}

/// One write under way.
struct Trial<'a> {
    set: &'a mut Set,
    now: Timestamp,
    uid: fn() -> String,
    steps: Vec<Step>,
    obstacles: Vec<Obstacle>,
}

impl Trial<'_> {
    fn refuse(&mut self, key: &PodKey, what: ObstacleKind) {
        self.obstacles.push(Obstacle { key: key.clone(), what });
    }

    fn step(&mut self, outcome: Outcome, posted: Arc<Posted>, before: Option<&Posted>) {
        let before = before.map(|before| before.text("resourceVersion").to_owned());
        self.steps.push(Step { key: posted.pod.key().clone(), outcome, posted, before });
    }

    fn apply_all(&mut self, pods: Vec<Prepared>) {
        for pod in pods {
            self.apply(pod);
        }
    }

    fn apply(&mut self, mut pod: Prepared) {
        // Whoever applies what was read before does not ask for that version.
        pod.set_metadata("resourceVersion", None);
        if self.set.pods.contains_key(pod.key()) {
            self.replace(pod);
        } else {
            self.create(pod);
        }
    }

    fn replace_all(&mut self, pods: Vec<Prepared>) {
        let gone = {
            let kept: std::collections::HashSet<&PodKey> = pods.iter().map(Prepared::key).collect();
            let gone = self.set.pods.keys().filter(|key| !kept.contains(key));
            gone.filter(|key| !self.set.terminating.contains(*key)).cloned().collect::<Vec<_>>()
        };
        // What goes first sets its UID free, if it goes at once.
        for key in gone {
            self.delete(&key, None, &Preconditions::default());
        }
        self.apply_all(pods);
    }

    fn create(&mut self, mut pod: Prepared) {
        let key = pod.key().clone();
        match self.set.pods.get(&key) {
            Some(posted) if posted.deadline().is_some() => {
                return self.refuse(&key, ObstacleKind::NotGoneYet);
            }
            Some(_) => return self.refuse(&key, ObstacleKind::AlreadyExists),
            None => {}
        }
        if pod.uid().is_empty() {
            pod.set_metadata("uid", Some((self.uid)().into()));
        } else if let Some(holder) = self.set.by_uid.get(&Uid::from(pod.uid())).cloned() {
            return self.refuse(&key, ObstacleKind::UidInUse(holder));
        }
        take_over(&mut pod);
        pod.set_metadata("creationTimestamp", Some(seconds(self.now).into()));
        pod.set_metadata("generation", Some(1.into()));
        self.store(Outcome::Created, Posted { pod, seen: self.now }, None);
    }

    fn replace(&mut self, mut pod: Prepared) {
        let key = pod.key().clone();
        let Some(old) = self.set.pods.get(&key).cloned() else {
            return self.refuse(&key, ObstacleKind::NotFound);
        };
        let said = |field: &str| pod.metadata(field).and_then(Value::as_str).map(str::to_owned);
        // As at an API server, 0 is any version.
        let version = said("resourceVersion").filter(|version| version != "0");
        let asked = Preconditions { uid: said("uid"), resource_version: version };
        if !self.holds(&old, &asked) {
            return;
        }
        if old.deadline().is_some() {
            return self.refuse(&key, ObstacleKind::Terminating);
        }
        take_over(&mut pod);
        for field in ["uid", "creationTimestamp", "generation", "resourceVersion"] {
            pod.set_metadata(field, old.pod.metadata(field).cloned());
        }
        if alike(&pod, &old.pod) {
            return self.step(Outcome::Unchanged, old.clone(), Some(&old));
        }
        if pod.object().get("spec") != old.pod.object().get("spec") {
            next_generation(&mut pod);
        }
        self.store(Outcome::Configured, Posted { pod, seen: old.seen }, Some(&old));
    }

    fn delete(&mut self, key: &PodKey, grace: Option<i64>, preconditions: &Preconditions) {
        let Some(old) = self.set.pods.get(key).cloned() else {
            return self.refuse(key, ObstacleKind::NotFound);
        };
        if !self.holds(&old, preconditions) {
            return;
        }
        let own = || {
            let spec = old.pod.object().get("spec");
            spec.and_then(|spec| spec.get("terminationGracePeriodSeconds")?.as_i64()).unwrap_or(DEFAULT_GRACE)
        };
        let Some(grace) = grace.or_else(|| old.deadline().is_none().then(own)) else {
            return self.step(Outcome::Terminating, old.clone(), Some(&old));
        };
        let grace = if grace < 0 { 1 } else { grace.min(LONGEST_GRACE) };
        let deadline = self.now.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX);
        if grace > 0 && old.deadline().is_some_and(|before| before <= deadline) {
            return self.step(Outcome::Terminating, old.clone(), Some(&old));
        }
        let mut posted = Posted::clone(&old);
        posted.pod.set_metadata("deletionTimestamp", Some(seconds(deadline).into()));
        posted.pod.set_metadata("deletionGracePeriodSeconds", Some(grace.into()));
        if old.deadline().is_none() {
            next_generation(&mut posted.pod);
        }
        if grace == 0 {
            self.set.erase(key);
            self.set.version += 1;
            posted.pod.set_metadata("resourceVersion", Some(self.set.version.to_string().into()));
            return self.step(Outcome::Deleted, Arc::new(posted), Some(&old));
        }
        self.store(Outcome::Terminating, posted, Some(&old));
    }

    /// Whether a write's preconditions hold; refuses it if not.
    fn holds(&mut self, old: &Posted, asked: &Preconditions) -> bool {
        let fields = [("uid", &asked.uid), ("resourceVersion", &asked.resource_version)];
        let wrong = fields.into_iter().find_map(|(field, asked)| {
            let (asked, is) = (asked.as_deref().filter(|asked| !asked.is_empty())?, old.text(field));
            (asked != is).then(|| format!("its {field} is {is}, not {asked}; read it again"))
        });
        if let Some(why) = wrong {
            self.refuse(&old.pod.key().clone(), ObstacleKind::Precondition(why));
            return false;
        }
        true
    }

    fn store(&mut self, outcome: Outcome, mut posted: Posted, before: Option<&Posted>) {
        self.set.version += 1;
        posted.pod.set_metadata("resourceVersion", Some(self.set.version.to_string().into()));
        let posted = Arc::new(posted);
        self.set.insert(posted.clone());
        self.step(outcome, posted, before);
    }
}

/// Takes out of a pod what is not its author's to say.
fn take_over(pod: &mut Prepared) {
    for field in SERVER_FIELDS {
        pod.set_metadata(field, None);
    }
    for mark in MARKS {
        pod.set_annotation(mark, None);
    }
    pod.reset_status();
}

/// Whether a pod says the same as one that is stored. The hash is over what was
/// written, defaults left out; a pod that was read here comes back with them.
fn alike(pod: &Prepared, stored: &Prepared) -> bool {
    pod == stored || {
        let mut pod = pod.clone();
        pod.set_annotation(HASH, stored.annotation(HASH));
        pod == *stored
    }
}

/// Counts a change of what is wanted: of the spec, or that it is to end.
fn next_generation(pod: &mut Prepared) {
    let generation = pod.metadata("generation").and_then(Value::as_i64).unwrap_or(1);
    pod.set_metadata("generation", Some((generation + 1).into()));
}

/// A time as the API writes it: whole seconds, UTC.
fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
