//! The posted set: pods that were given over HTTP, kept until they are deleted.
//!
//! A write is answered when it is on disk and merged, whatever a sink does. The
//! source is an actor: it takes what writes have come in, settles them one after
//! the other on a copy of the set, commits all that they changed at once and only
//! then lets the copy be the set.

mod record;
mod set;

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::Arc,
    time::Duration,
};

use imbl::OrdMap;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use self::set::{Set, Step};
use super::status::{SourceFailing, SourceStatus};
use crate::{
    clock,
    db::{Change, Db, DbError, Stored, Table},
    error_chain::chain,
    mux::SourceChannel,
    pod::{ListingBuilder, NodeName, Origin, Pod, PodKey, Prepared, SourceName},
    storage::Delivered,
};

/// How many writes may wait while a commit is under way; the next one waits for its turn to ask.
const WRITES: usize = 1024;

/// What a write asks for.
#[derive(Clone, Debug)]
pub enum Write {
    /// Each pod is created or replaced (`POST /pods`).
    Apply(Vec<Prepared>),
    /// These are all pods from now on; those that are not among them are
    /// deleted gracefully (`PUT /pods`).
    ReplaceAll(Vec<Prepared>),
    /// A pod is created (`POST` on Kubernetes' paths).
    Create(Prepared),
    /// A pod is replaced (`PUT` on Kubernetes' paths). A resourceVersion or a
    /// UID in its metadata is a precondition.
    Replace(Prepared),
    /// A pod is deleted.
    Delete {
        /// Which.
        key: PodKey,
        /// How long it may take to end, in seconds; the pod's own grace if
        /// absent. Negative is 1, as at an API server. 0 erases it at once.
        grace: Option<i64>,
        /// What must be true of it.
        preconditions: Preconditions,
    },
}

/// What must be true of a pod for it to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// It has this UID.
    pub uid: Option<String>,
    /// It is at this version.
    pub resource_version: Option<String>,
}

/// What became of one pod of a write.
#[derive(Clone, Debug)]
pub struct Written {
    /// What was done.
    pub outcome: Outcome,
    /// The pod as it is now, or as it was last if it is gone.
    pub pod: Arc<Pod>,
}

/// What was done to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is new.
    Created,
    /// It was replaced.
    Configured,
    /// It is as it was, to the last field.
    Unchanged,
    /// It is being deleted, and is there until its grace has run out or every
    /// sink has let it go.
    Terminating,
    /// It is gone.
    Deleted,
}

impl Outcome {
    /// The word that people see: kubectl's `created`, `configured`, `unchanged`,
    /// and `terminating` and `deleted`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
            Self::Terminating => "terminating",
            Self::Deleted => "deleted",
        }
    }
}

/// Why nothing of a write was taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// Some of its pods cannot be taken as things stand.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<Obstacle>),
    /// It could not be made durable.
    #[error("not stored")]
    Storage(#[source] DbError),
    /// The agent is stopping.
    #[error("the agent is stopping")]
    Stopping,
}

/// Why one pod of a write cannot be taken as things stand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pods \"{}\" {what}", .key.name())]
pub struct Obstacle {
    /// Which pod.
    pub key: PodKey,
    /// Why not.
    pub what: ObstacleKind,
}

/// What stands in a write's way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObstacleKind {
    /// There is one of that name.
    #[error("already exists")]
    AlreadyExists,
    /// There is none of that name.
    #[error("not found")]
    NotFound,
    /// There is one of that name, and it is being deleted.
    #[error("already exists: it is being deleted; try again when it is gone")]
    NotGoneYet,
    /// It is being deleted, and is not changed any more.
    #[error("is being deleted; try again when it is gone")]
    Terminating,
    /// Another posted pod has its UID.
    #[error("cannot have the UID of {0}")]
    UidInUse(PodKey),
    /// A precondition does not hold.
    #[error("was not written: {0}")]
    Precondition(String),
}

/// A write and who waits for what became of it.
#[derive(Debug)]
struct Asked {
    write: Write,
    dry_run: bool,
    answer: oneshot::Sender<Result<Vec<Written>, WriteError>>,
}

/// The stored set cannot be read, though the database vouches for it: another
/// program wrote it, or a fault in this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored pod {key} cannot be read: {what}")]
pub struct LoadError {
    /// Which.
    pub key: String,
    /// What is wrong with it.
    pub what: String,
}

/// The posted set from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Posts {
    writes: mpsc::Sender<Asked>,
    posted: watch::Receiver<OrdMap<PodKey, Arc<Pod>>>,
    status: watch::Receiver<SourceStatus>,
}

impl Posts {
    /// Makes a write, all of it or nothing. `Ok` means that it is durable and
    /// merged; it never waits for a sink. What a dry run answers is what the
    /// write would have answered; nothing is changed.
    ///
    /// # Cancel safety
    /// Once polled the write may happen even if the future is dropped.
    ///
    /// # Errors
    /// Why nothing of it was taken.
    pub async fn write(&self, write: Write, dry_run: bool) -> Result<Vec<Written>, WriteError> {
        let (answer, wait) = oneshot::channel();
        let asked = Asked { write, dry_run, answer };
        self.writes.send(asked).await.map_err(|_| WriteError::Stopping)?;
        wait.await.map_err(|_| WriteError::Stopping)?
    }

    /// The posted pod of a key, shadowed by another source's or not.
    #[must_use]
    pub fn get(&self, key: &PodKey) -> Option<Arc<Pod>> {
        self.posted.borrow().get(key).cloned()
    }

    /// The status of the source. Closed when the source has ended.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<SourceStatus> {
        self.status.clone()
    }

    /// The posted pods, shadowed ones included. O(1).
    #[must_use]
    pub fn all(&self) -> OrdMap<PodKey, Arc<Pod>> {
        self.posted.borrow().clone()
    }
}

/// How long the erasure of a pod waits when it could not be stored.
const ERASE_AGAIN: Duration = Duration::from_secs(1);
/// The longest wait for a deadline: the clocks may be set in between.
const LOOK_AGAIN: Duration = Duration::from_hours(1);

/// What a write has come to before anything is durable.
enum Settled {
    Not(WriteError),
    Dry(Vec<Written>),
    /// Its steps end here among those of all writes.
    Taken(usize),
}

/// The source of posted pods.
#[derive(Debug)]
pub struct HttpSource {
    channel: SourceChannel,
    db: Option<Db>,
    builder: ListingBuilder,
    set: Set,
    /// When those that are being deleted must be gone, on the clock that nobody sets.
    deadlines: HashMap<PodKey, Instant>,
    /// What each sink has acknowledged.
    sinks: watch::Receiver<Vec<Delivered>>,
    writes: mpsc::Receiver<Asked>,
    posted: watch::Sender<OrdMap<PodKey, Arc<Pod>>>,
    status: watch::Sender<SourceStatus>,
}

impl HttpSource {
    /// The source of what was posted in earlier runs, which it pushes at once,
    /// and of what is posted from now on. Without a database the set lives as
    /// long as the process.
    ///
    /// `sinks` says what each sink has acknowledged: a pod that is deleted
    /// gracefully is erased when all have acknowledged that.
    ///
    /// # Errors
    /// If the stored set cannot be read.
    pub fn new(
        node: &NodeName,
        db: Option<Db>,
        stored: &Stored,
        channel: SourceChannel,
        sinks: watch::Receiver<Vec<Delivered>>,
    ) -> Result<(Self, Posts), LoadError> {
        let nothing = BTreeMap::new();
        let set = record::load(stored.tables.get(&Table::Posted).unwrap_or(&nothing), node)?;
        let (ask, writes) = mpsc::channel(WRITES);
        let (posted, seen) = watch::channel(OrdMap::new());
        let target = if db.is_some() { "posted pods, stored" } else { "posted pods, in memory only" };
        let (status, status_seen) =
            watch::channel(SourceStatus { target: target.to_owned(), ..Default::default() });
        let mut source = Self {
            channel,
            db,
            builder: ListingBuilder::new(SourceName::Http),
            set: Set::default(),
            deadlines: HashMap::new(),
            sinks,
            writes,
            posted,
            status,
        };
        let found: Vec<Step> = set.pods.values().map(restored).collect();
        source.adopt(set, &found);
        Ok((source, Posts { writes: ask, posted: seen, status: status_seen }))
    }

    /// Takes writes until it is told to stop. Those that have not been begun by
    /// then are refused.
    pub async fn run(mut self, stop: CancellationToken) {
        let (mut asked, mut open) = (Vec::new(), true);
        loop {
            let due = self.deadlines.values().min().copied();
            let wake = due.unwrap_or_else(|| Instant::now() + LOOK_AGAIN);
            let deleting = !self.set.terminating.is_empty();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Ok(()) = self.sinks.changed(), if deleting => self.erase_released().await,
                () = sleep_until(wake), if deleting => self.erase_released().await,
                count = self.writes.recv_many(&mut asked, WRITES), if open => {
                    open = count > 0;
                    self.write(mem::take(&mut asked)).await;
                }
            }
        }
    }

    /// Settles what was asked, one after the other, and commits all of it at once.
    async fn write(&mut self, asked: Vec<Asked>) {
        let now = clock::now();
        let mut next = self.set.clone();
        let (mut steps, mut answers) = (Vec::new(), Vec::new());
        for Asked { write, dry_run, answer } in asked {
            let mut trial = next.clone();
            let settled = match trial.take(write, now, || Uuid::new_v4().to_string()) {
                Err(obstacles) => Settled::Not(WriteError::Refused(obstacles)),
                Ok(taken) if dry_run => Settled::Dry(taken.iter().map(untold).collect()),
                Ok(taken) => {
                    next = trial;
                    steps.extend(taken);
                    Settled::Taken(steps.len())
                }
            };
            answers.push((settled, answer));
        }
        // Until this is done nobody is answered: a refusal, too, may be owed to
        // a write that is not durable yet.
        let mut done = self.commit(&next, steps.iter().filter_map(record::change).collect()).await;
        if done.is_ok() && !steps.is_empty() {
            self.adopt(next, &steps);
            done = self.channel.merged().await.then_some(()).ok_or(DbError::Ended);
        }
        let written = if done.is_ok() { told(&steps, &self.posted.borrow()) } else { Vec::new() };
        let (mut written, mut begin) = (written.into_iter(), 0);
        for (settled, answer) in answers {
            let result = match (settled, &done) {
                (_, Err(DbError::Ended)) => Err(WriteError::Stopping),
                (_, Err(error)) => Err(WriteError::Storage(error.clone())),
                (Settled::Not(error), Ok(())) => Err(error),
                (Settled::Dry(written), Ok(())) => Ok(written),
                (Settled::Taken(end), Ok(())) => {
                    Ok(written.by_ref().take(end - mem::replace(&mut begin, end)).collect())
                }
            };
            // Who asked may have gone away; that changes nothing.
            let _ = answer.send(result);
        }
    }

    /// Stores changes, with the version that the set has come to.
    async fn commit(&mut self, next: &Set, mut changes: Vec<Change>) -> Result<(), DbError> {
        let Some(db) = &self.db else { return Ok(()) };
        if changes.is_empty() {
            return Ok(());
        }
        changes.push(record::version(next.version));
        let done = db.commit(changes).await;
        let now = clock::now();
        self.status.send_modify(|status| match &done {
            Ok(()) => {
                if let Some(failing) = status.failing.take() {
                    info!(source = "http", since = %failing.since, "recovered: pods can be stored again");
                }
                status.last_success = Some(now);
            }
            Err(error) => {
                let error = chain(error);
                let before = status.failing.take();
                if before.as_ref().is_none_or(|before| *before.error != *error) {
                    warn!(source = "http", error, "what was posted cannot be stored and is refused");
                }
                let (since, attempts) = before.map_or((now, 0), |before| (before.since, before.attempts));
                let attempts = attempts + 1;
                status.failing = Some(SourceFailing { since, attempts, error: error.into(), quotes: false });
            }
        });
        done
    }

    /// Lets a set be the set, and pushes it.
    fn adopt(&mut self, set: Set, steps: &[Step]) {
        self.set = set;
        for Step { key, outcome, posted, .. } in steps {
            let origin = Origin::from(key.as_str());
            if *outcome == Outcome::Deleted {
                self.builder.remove(&origin);
                // Handed out without it, so that one of its name has a new life.
                self.builder.listing();
            } else {
                self.builder.put(&origin, vec![posted.pod.clone()], posted.seen);
            }
            self.note_deadline(key);
        }
        let listing = self.builder.listing();
        self.posted.send_modify(|posted| {
            for step in steps {
                match listing.get(&step.key) {
                    Some(entry) => drop(posted.insert(step.key.clone(), entry.pod().clone())),
                    None => drop(posted.remove(&step.key)),
                }
            }
        });
        self.channel.publish(listing);
    }

    /// The deadline as the API writes it is a time of day, which somebody may
    /// set. What counts is what was left of it when it was noted, which is never
    /// more than the grace.
    fn note_deadline(&mut self, key: &PodKey) {
        let posted = self.set.pods.get(key);
        let Some((deadline, grace)) = posted.and_then(|posted| Some((posted.deadline()?, posted.grace()?)))
        else {
            self.deadlines.remove(key);
            return;
        };
        let left = Duration::try_from(deadline.duration_since(clock::now())).unwrap_or_default();
        let left = left.min(Duration::from_secs(u64::try_from(grace).unwrap_or_default()));
        let now = Instant::now();
        let until = now.checked_add(left).unwrap_or(now + LOOK_AGAIN);
        let known = self.deadlines.entry(key.clone()).or_insert(until);
        *known = until.min(*known);
    }

    /// Erases the pods whose grace has run out, and those that every sink has let go.
    async fn erase_released(&mut self) {
        let now = Instant::now();
        let sinks = self.sinks.borrow_and_update().clone();
        let released = |key: &&PodKey| {
            self.deadlines.get(*key).is_none_or(|deadline| *deadline <= now)
                || sinks.iter().all(|told| self.let_go(told, key))
        };
        let released: Vec<PodKey> = self.set.terminating.iter().filter(released).cloned().collect();
        if released.is_empty() {
            return;
        }
        let mut next = self.set.clone();
        let steps: Vec<Step> = released
            .iter()
            .filter_map(|key| {
                let posted = next.erase(key)?;
                Some(Step { key: key.clone(), outcome: Outcome::Deleted, posted, before: None })
            })
            .collect();
        if self.commit(&next, released.iter().map(record::erasure).collect()).await.is_err() {
            for key in released {
                self.deadlines.insert(key, now + ERASE_AGAIN);
            }
            return;
        }
        self.adopt(next, &steps);
    }

    /// Whether a sink has acknowledged that a pod is being deleted, or knows
    /// another source's pod under its name.
    fn let_go(&self, told: &Delivered, key: &PodKey) -> bool {
        let uid = self.set.pods.get(key).map(|posted| posted.pod.uid());
        told.get(key).is_some_and(|entry| {
            let pod = entry.pod();
            entry.source() != SourceName::Http
                || (Some(pod.uid().as_str()) == uid && pod.deletion_timestamp().is_some())
        })
    }
}

/// A pod of an earlier run, as a step of this one.
fn restored(posted: &Arc<set::Posted>) -> Step {
    Step { key: posted.pod.key().clone(), outcome: Outcome::Unchanged, posted: posted.clone(), before: None }
}

/// What a dry run answers: at the version that the pod has, for it gets no other.
fn untold(step: &Step) -> Written {
    let mut posted = set::Posted::clone(&step.posted);
    posted.pod.set_metadata("resourceVersion", step.before.clone().map(Into::into));
    Written { outcome: step.outcome, pod: Arc::new(posted.pod.told_by(SourceName::Http, posted.seen)) }
}

/// What writes answer, for each step the pod as it was after it.
fn told(steps: &[Step], now: &OrdMap<PodKey, Arc<Pod>>) -> Vec<Written> {
    // Nearly always that is the pod as it is now.
    let last: HashMap<&PodKey, usize> = steps.iter().enumerate().map(|(at, step)| (&step.key, at)).collect();
    let pod = |(at, step): (usize, &Step)| {
        let now = now.get(&step.key).filter(|_| last.get(&step.key) == Some(&at)).cloned();
        let posted = &step.posted;
        let pod = now.unwrap_or_else(|| Arc::new(posted.pod.told_by(SourceName::Http, posted.seen)));
        Written { outcome: step.outcome, pod }
    };
    steps.iter().enumerate().map(pod).collect()
}
