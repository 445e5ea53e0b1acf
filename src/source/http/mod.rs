//! The http source: pods that clients post, kept until they are deleted.
//!
//! A write is answered when it is on disk and merged; it never waits for a sink. The source is
//! an actor: it applies the waiting writes one after the other to a copy of the set, commits
//! all their changes at once, and then replaces the set with the copy.

mod applied;
mod quota;
mod record;
pub(super) mod set;
mod write;

use std::{
    collections::HashMap,
    future::pending,
    mem,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use imbl::OrdMap;
use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use self::set::{Posted, Step, deadline};
pub use self::{
    applied::{Applied, MAX_MANAGERS},
    quota::{Config, QuotaExceeded, Room},
    record::{LoadError, load},
    set::Set,
    write::{
        Obstacle, ObstacleKind, Outcome, Preconditions, SMALL_POD, Selected, Submitted, Write, WriteError,
        Written,
    },
};
use super::{SourceFailing, SourceStatus, StateWatch};
use crate::{
    db::{Change, Db, DbError, Sequence},
    error_chain::chain,
    host::Host,
    mux::SourceChannel,
    outage::Outage,
    pod::{Entry, ListingBuilder, Origin, Pod, PodKey, SourceName, Uid, identity::HASH},
    storage::{Delivered, Merged},
};

/// The most writes that wait during a commit. A further one waits for a free place.
const MAX_WAITING: usize = 1024;
/// The delay before what could not be stored is retried: the removal of a pod, or nothing but a version.
const RETRY: Duration = Duration::from_secs(1);
/// After this time a commit that has not ended is a failure of the source. It goes on.
const SLOW: Duration = Duration::from_secs(10);
/// How long a write waits for its answer.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The longest wait for a deadline: the clocks may be set in between.
const RECHECK: Duration = Duration::from_hours(1);

/// A write and the way to answer it.
#[derive(Debug)]
struct Request {
    write: Write,
    dry_run: bool,
    answer: oneshot::Sender<Result<Vec<Written>, WriteError>>,
}

/// The posted pods: writes, reads and the status of the source. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Posts {
    requests: mpsc::Sender<Request>,
    /// One dry run at a time: its result is a pod of its own, which is held until the writes before it are durable.
    dry_run: Arc<Semaphore>,
    posted: watch::Receiver<Set>,
    status: watch::Receiver<SourceStatus>,
    quota: Arc<watch::Sender<Config>>,
    written: Arc<AtomicU64>,
}

impl Posts {
    /// Performs a write, all of it or nothing. `Ok` means that it is durable and merged. It
    /// never waits for a sink, and 30 s at most. A dry run returns the same result and changes nothing; it waits for other
    /// dry runs.
    ///
    /// # Cancel safety
    /// Once polled the write may happen even if the future is dropped.
    ///
    /// # Errors
    /// Why it failed.
    pub async fn write(&self, write: Write, dry_run: bool) -> Result<Vec<Written>, WriteError> {
        let answered = async {
            let _turn = if dry_run { self.dry_run.acquire().await.ok() } else { None };
            self.request(write, dry_run).await
        };
        timeout(PATIENCE, answered).await.map_err(|_| WriteError::Slow)?
    }

    /// Waits until the writes that were made before are durable and merged, 30 s at most.
    ///
    /// # Errors
    /// As those of a write.
    pub async fn after_writes(&self) -> Result<(), WriteError> {
        let answered = timeout(PATIENCE, self.request(Write::Apply(Vec::new()), true));
        answered.await.map_err(|_| WriteError::Slow)?.map(drop)
    }

    async fn request(&self, write: Write, dry_run: bool) -> Result<Vec<Written>, WriteError> {
        let (answer, result) = oneshot::channel();
        let request = Request { write, dry_run, answer };
        self.requests.send(request).await.map_err(|_| WriteError::Stopping)?;
        result.await.map_err(|_| WriteError::Uncertain)?
    }

    /// The posted pod with a key, whether it has a conflict with another source or not.
    pub fn get(&self, key: &PodKey) -> Option<Arc<Pod>> {
        self.posted.borrow().pods.get(key).cloned()
    }

    /// The posted pod with a key, and what field managers have applied to it.
    pub fn get_applied(&self, key: &PodKey) -> Option<(Arc<Pod>, Applied)> {
        let set = self.posted.borrow();
        Some((set.pods.get(key)?.clone(), set.applied(key)))
    }

    /// The resourceVersion of the last write that is merged.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// The status of the source. Closed when the source has ended.
    pub fn status(&self) -> watch::Receiver<SourceStatus> {
        self.status.clone()
    }

    /// Sets the quota. Pods that exceed it stay.
    pub fn retune(&self, quota: Config) {
        self.quota.send_replace(quota);
    }

    /// What a write can have at most. O(1).
    pub fn room(&self) -> Room {
        let set = self.posted.borrow();
        Room::new(*self.quota.borrow(), set.pods.len() as u64, set.bytes)
    }

    /// All posted pods, also those that have a conflict with another source. O(1).
    pub fn all(&self) -> OrdMap<PodKey, Arc<Pod>> {
        self.posted.borrow().pods.clone()
    }
}

/// The result of a write before it is durable.
enum Tried {
    Rejected(WriteError),
    DryRun(Vec<Written>),
    /// The index of the end of its steps among those of all writes.
    Until(usize),
}

/// The source of posted pods.
#[derive(Debug)]
pub struct HttpSource {
    host: Host,
    channel: SourceChannel,
    /// The state that it waits for before it publishes anything.
    state: Option<StateWatch>,
    db: Option<Db>,
    builder: ListingBuilder,
    set: Set,
    /// The numbers of resourceVersions.
    sequence: Sequence,
    /// When the grace periods of pods end, on the monotonic clock. The pods without one are late.
    deadlines: HashMap<PodKey, Instant>,
    /// When a removal that could not be stored is retried. Writes are performed meanwhile.
    retry_at: Option<Instant>,
    /// When the disk is tried again without a write, since a commit that failed.
    check_at: Option<Instant>,
    release: Release,
    /// Whether the set may not be what is stored: since a commit that may be in effect after a restart.
    is_uncertain: bool,
    outage: Outage,
    /// Why clients cannot reach some address.
    listeners: watch::Receiver<Option<SourceFailing>>,
    requests: mpsc::Receiver<Request>,
    posted: watch::Sender<Set>,
    status: watch::Sender<SourceStatus>,
    quota: watch::Receiver<Config>,
    written: Arc<AtomicU64>,
}

/// Who decides when a pod that is being deleted is gone.
#[derive(Debug)]
pub enum Release {
    /// The sinks: a pod is gone when all of them have acknowledged its DELETE, and at the end of its grace
    /// period at the latest.
    Sinks {
        /// What each sink has acknowledged.
        acknowledged: watch::Receiver<Vec<Delivered>>,
        /// The merged view. A sink does not receive a pod whose UID another source's pod has.
        merged: watch::Receiver<Merged>,
    },
    /// A runtime: a pod is gone when the runtime no longer has it, however long that takes.
    Runtime {
        /// The deleted pods that the runtime does not have, by key, with their UIDs.
        gone: watch::Receiver<OrdMap<PodKey, Uid>>,
        /// The merged view. A pod whose name or UID another source's pod has does not run.
        merged: watch::Receiver<Merged>,
    },
}

impl Release {
    /// Waits for a change. Cancel-safe.
    async fn changed(&mut self) {
        let changed = match self {
            Self::Sinks { acknowledged, merged } => tokio::select! {
                changed = acknowledged.changed() => changed,
                changed = merged.changed() => changed,
            },
            Self::Runtime { gone, merged } => tokio::select! {
                changed = gone.changed() => changed,
                changed = merged.changed() => changed,
            },
        };
        if changed.is_err() {
            pending::<()>().await;
        }
    }

    /// Whether a pod that is being deleted is gone. `is_late` says that its grace period is over.
    fn is_released(&self, pod: &Pod, is_late: bool) -> bool {
        match self {
            Self::Sinks { acknowledged, merged } => {
                let is_hidden = is_hidden(&merged.borrow(), pod.key());
                let knows = |delivered: &Delivered| {
                    delivered.get(pod.key()).map_or(is_hidden, |entry| {
                        let is_deleted = entry.pod().deletion_timestamp().is_some();
                        is_foreign(entry) || (entry.pod().uid() == pod.uid() && is_deleted)
                    })
                };
                is_late || acknowledged.borrow().iter().all(knows)
            }
            Self::Runtime { gone, merged } => {
                gone.borrow().get(pod.key()) == Some(pod.uid())
                    || (is_late && is_hidden(&merged.borrow(), pod.key()))
            }
        }
    }
}

fn is_foreign(entry: &Entry) -> bool {
    entry.source() != SourceName::Http
}

/// Whether another source has the name or the UID of a posted pod, which does not run then.
fn is_hidden(merged: &Merged, key: &PodKey) -> bool {
    let is_listed = merged.listing(SourceName::Http).is_some_and(|listing| listing.contains_key(key));
    is_listed && merged.get(key).is_none_or(is_foreign)
}

impl HttpSource {
    /// A source that publishes the pods of earlier runs when the state is open. Until then its
    /// pods are unknown, and writes fail with [`WriteError::Unknown`]. Without a state the posted
    /// pods live as long as the process. The quota is the default one until [`Posts::retune`]. `release` decides
    /// when a pod that is being deleted is gone.
    pub fn new(
        state: Option<StateWatch>,
        sequence: Sequence,
        channel: SourceChannel,
        release: Release,
    ) -> (Self, Posts) {
        let (request, requests) = mpsc::channel(MAX_WAITING);
        let (posted, all) = watch::channel(Set::default());
        let (retune, quota) = watch::channel(Config::default());
        let written = Arc::new(AtomicU64::new(0));
        let target = if state.is_some() { "posted pods, stored" } else { "posted pods, in memory only" };
        let (status, published) =
            watch::channel(SourceStatus { target: target.to_owned(), ..Default::default() });
        let mut source = Self {
            host: Host::default(),
            channel,
            state: None,
            db: None,
            builder: ListingBuilder::new(SourceName::Http),
            set: Set::default(),
            sequence,
            deadlines: HashMap::new(),
            retry_at: None,
            check_at: None,
            release,
            is_uncertain: false,
            outage: Outage::default(),
            listeners: watch::channel(None).1,
            requests,
            posted,
            status,
            quota,
            written: written.clone(),
        };
        match state.as_ref().map(|state| state.borrow().clone()) {
            None => source.open(None, Set::default()),
            Some(Ok(open)) => source.open(Some(open.db.clone()), open.posted.clone()),
            Some(Err(_)) => source.state = state,
        }
        (
            source,
            Posts {
                requests: request,
                dry_run: Arc::new(Semaphore::new(1)),
                posted: all,
                status: published,
                quota: Arc::new(retune),
                written,
            },
        )
    }

    /// Publishes the pods of earlier runs.
    fn open(&mut self, db: Option<Db>, set: Set) {
        self.db = db;
        let restored: Vec<Step> = set.pods.values().map(restored).collect();
        self.publish(set, &restored);
    }

    /// Runs on this host.
    #[must_use]
    pub fn on(mut self, host: Host) -> Self {
        self.host = host;
        self.deadlines.clear();
        for key in self.set.terminating.clone() {
            self.note_deadline(&key);
        }
        self
    }

    /// Counts as failing, beside its own failures, while the server cannot listen on some address.
    #[must_use]
    pub fn with_listeners(self, listeners: watch::Receiver<Option<SourceFailing>>) -> Self {
        Self { listeners, ..self }
    }

    /// Performs writes until `stop` is cancelled. The writes that wait then are rejected.
    pub async fn run(mut self, stop: CancellationToken) {
        let restored = match self.state.take() {
            Some(state) => stop.run_until_cancelled(self.restore(state)).await,
            None => Some(()),
        };
        if restored.is_some() {
            self.note_failing(None);
        }
        let (mut waiting, mut open) = (Vec::new(), true);
        loop {
            let wake = self.next_check();
            let deleting = !self.set.terminating.is_empty();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                // Before the sinks: their acknowledgements may come without a pause.
                count = self.requests.recv_many(&mut waiting, MAX_WAITING), if open => {
                    open = count > 0;
                    self.perform(mem::take(&mut waiting)).await;
                    // A pod that is hidden by another source's needs no acknowledgement.
                    self.remove_released().await;
                }
                // Otherwise it would count as failing until the next write.
                () = sleep_until(self.check_at.unwrap_or(wake)), if self.check_at.is_some() => {
                    drop(self.commit(&self.set.clone(), Vec::new()).await);
                }
                () = self.release.changed(), if deleting => self.remove_released().await,
                () = sleep_until(wake), if deleting => self.remove_released().await,
                Ok(()) = self.listeners.changed() => self.note_failing(None),
            }
        }
        self.requests.close();
        while let Some(request) = self.requests.recv().await {
            // The caller may have gone away.
            let _ = request.answer.send(Err(WriteError::Stopping));
        }
    }

    /// Waits until the state is open, and publishes its pods. Until then writes fail.
    async fn restore(&mut self, mut state: StateWatch) {
        loop {
            let failing = match state.borrow_and_update().clone() {
                Ok(open) => return self.open(Some(open.db.clone()), open.posted.clone()),
                Err(failing) => failing,
            };
            self.note_failing(Some(&failing));
            loop {
                tokio::select! {
                    biased;
                    Ok(()) = state.changed() => break,
                    Some(request) = self.requests.recv() => {
                        // The caller may have gone away.
                        let _ = request.answer.send(Err(WriteError::Unknown(failing.error.clone())));
                    }
                    else => pending().await,
                }
            }
        }
    }

    /// Publishes how the source fails: because of its state, of a commit, or of an address.
    fn note_failing(&mut self, state: Option<&SourceFailing>) {
        let own = state.cloned().or_else(|| SourceFailing::of(&self.outage, false));
        let failing = own.or_else(|| self.listeners.borrow_and_update().clone());
        self.status.send_modify(|status| status.failing = failing);
    }

    /// Applies writes one after the other, and commits all of them at once.
    async fn perform(&mut self, requests: Vec<Request>) {
        let now = self.host.clock.now();
        let uid = || self.host.random.uuid().to_string();
        let quota = *self.quota.borrow();
        let mut next = self.set.clone();
        let (mut steps, mut answers) = (Vec::new(), Vec::new());
        for Request { write, dry_run, answer } in requests {
            // The caller has gone away, and the next one has its turn.
            if dry_run && answer.is_closed() {
                continue;
            }
            let mut trial = next.clone();
            let applied = match trial.apply(write, quota, now, &uid, &self.sequence) {
                Err(obstacles) => Tried::Rejected(WriteError::Rejected(obstacles)),
                Ok(trial_steps) if dry_run => Tried::DryRun(trial_steps.iter().map(dry_run_result).collect()),
                Ok(new_steps) => {
                    next = trial;
                    steps.extend(new_steps);
                    Tried::Until(steps.len())
                }
            };
            answers.push((applied, answer));
        }
        // No write is answered before the commit: a rejection may depend on a write that is not
        // durable yet.
        let changes: Vec<Change> = steps.iter().filter_map(record::change).collect();
        let mut done = if changes.is_empty() && !self.is_uncertain {
            Ok(())
        } else {
            self.commit(&next, changes).await.map_err(WriteError::from)
        };
        if done.is_ok() && !steps.is_empty() {
            self.publish(next, &steps);
            done = self.channel.merged().await.then_some(()).ok_or(WriteError::Uncertain);
            self.written.store(self.set.version, Ordering::SeqCst);
        }
        let (mut written, mut begin) = (steps.iter().map(result), 0);
        for (applied, answer) in answers {
            let result = match (applied, &done) {
                (_, Err(error)) => Err(error.clone()),
                (Tried::Rejected(error), Ok(())) => Err(error),
                (Tried::DryRun(written), Ok(())) => Ok(written),
                (Tried::Until(end), Ok(())) => {
                    Ok(written.by_ref().take(end - mem::replace(&mut begin, end)).collect())
                }
            };
            // The caller may have gone away.
            let _ = answer.send(result);
        }
    }

    /// Stores changes and the version of the set. Without changes it only makes sure that the set is what is stored.
    async fn commit(&mut self, next: &Set, mut changes: Vec<Change>) -> Result<(), DbError> {
        let Some(db) = &self.db else { return Ok(()) };
        changes.push(record::version(next.version));
        let (db, sequence) = (db.clone(), self.sequence.clone());
        let mut storing = pin!(async move {
            sequence.reserve().await?;
            db.commit(changes).await
        });
        let done = loop {
            if let Ok(done) = timeout(SLOW, &mut storing).await {
                break done;
            }
            let error = format!("the disk of the state directory has not answered for {SLOW:?}");
            self.outage.log("http", "storing posted pods", Some(&error), self.host.clock.now());
            self.note_failing(None);
        };
        let now = self.host.clock.now();
        let error = done.as_ref().err().map(|error| chain(error));
        self.outage.log("http", "storing posted pods", error.as_deref(), now);
        self.check_at = done.is_err().then(|| Instant::now() + RETRY);
        match &done {
            Ok(()) => {
                self.is_uncertain = false;
                self.status.send_modify(|status| status.last_success = Some(now));
            }
            Err(error) => self.is_uncertain |= matches!(error, DbError::Uncertain(_)),
        }
        self.note_failing(None);
        done
    }

    /// Replaces the set and publishes it.
    fn publish(&mut self, set: Set, steps: &[Step]) {
        self.set = set;
        for Step { outcome, pod, .. } in steps {
            let origin = Origin::from(pod.key().as_str());
            if *outcome == Outcome::Deleted {
                self.builder.remove(&origin);
                self.deadlines.remove(pod.key());
                // A listing without the pod, so that a later one with its name is another
                // incarnation.
                self.builder.listing();
            } else {
                self.builder.put_published(&origin, vec![pod.clone()]);
            }
            self.note_deadline(pod.key());
        }
        self.posted.send_replace(self.set.clone());
        self.channel.publish(self.builder.listing());
    }

    /// Notes when the grace period of a pod ends. Its deletionTimestamp is wall-clock time,
    /// which may be set. So the time that is left is measured once, and it is never longer than
    /// the grace period.
    fn note_deadline(&mut self, key: &PodKey) {
        let pod = self.set.pods.get(key);
        let Some((deadline, grace)) =
            pod.and_then(|pod| Some((deadline(pod)?, pod.deletion_grace_period_seconds()?)))
        else {
            self.deadlines.remove(key);
            return;
        };
        let left = Duration::try_from(deadline.duration_since(self.host.clock.now())).unwrap_or_default();
        let left = left.min(Duration::from_secs(u64::try_from(grace).unwrap_or_default()));
        let now = Instant::now();
        let until = now.checked_add(left).unwrap_or(now + RECHECK);
        let known = self.deadlines.entry(key.clone()).or_insert(until);
        *known = until.min(*known);
    }

    /// When the pods that are being deleted are looked at again, if nothing else happens.
    fn next_check(&self) -> Instant {
        let next = self.retry_at.or_else(|| self.deadlines.values().min().copied());
        next.unwrap_or_else(|| Instant::now() + RECHECK)
    }

    /// Removes the pods that are deleted.
    async fn remove_released(&mut self) {
        let now = Instant::now();
        if self.retry_at.is_some_and(|retry| retry > now) {
            return;
        }
        self.retry_at = None;
        // A runtime may take longer: nothing more happens at these times.
        self.deadlines.retain(|_, deadline| *deadline > now);
        let pods = self.set.terminating.iter().filter_map(|key| self.set.pods.get(key));
        let is_late = |pod: &Pod| !self.deadlines.contains_key(pod.key());
        let released = pods.filter(|pod| self.release.is_released(pod, is_late(pod)));
        let released: Vec<PodKey> = released.map(|pod| pod.key().clone()).collect();
        if released.is_empty() {
            return;
        }
        let mut next = self.set.clone();
        let removed = |key: &PodKey| Some(Step { outcome: Outcome::Deleted, ..restored(&next.remove(key)?) });
        let steps: Vec<Step> = released.iter().filter_map(removed).collect();
        if self.commit(&next, released.iter().map(record::removal).collect()).await.is_err() {
            self.retry_at = Some(Instant::now() + RETRY);
            return;
        }
        self.publish(next, &steps);
    }
}

/// The step that publishes a pod of an earlier run.
fn restored(pod: &Arc<Pod>) -> Step {
    Step { outcome: Outcome::Unchanged, pod: pod.clone(), applied: Applied::default(), before: None }
}

/// The result of a step.
fn result(step: &Step) -> Written {
    Written { outcome: step.outcome, pod: step.pod.clone() }
}

/// The result of a step of a dry run. The pod keeps its version and its hash: `kubectl diff` compares it with the pod.
fn dry_run_result(step: &Step) -> Written {
    if step.before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &step.pod)) {
        return result(step);
    }
    let version = step.before.as_ref().and_then(|before| before.resource_version());
    // It is decoded alone.
    let before = step.before.as_ref().map(|before| Posted::thaw(before));
    let hash = before.map(|before| before.and_then(|before| Some(before.pod.annotation(HASH)?.to_owned())));
    let posted = Posted::thaw(&step.pod).map(|mut posted| {
        posted.pod.set_metadata("resourceVersion", version.map(|version| version.to_string().into()));
        if let Some(hash) = &hash {
            posted.pod.set_annotation(HASH, hash.as_deref());
        }
        posted.freeze()
    });
    Written { outcome: step.outcome, pod: posted.unwrap_or_else(|| step.pod.clone()) }
}
