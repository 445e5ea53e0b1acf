//! The channels of the sources, the loop that owns `PodStorage`, and the `Updates` of the consumers.
//!
//! The mux corresponds to the kubelet's `pkg/util/config.Mux` and the updates channel of
//! `PodConfig`, with two differences: the channel of a source is a slot in which
//! the latest listing wins, and the channel of a consumer is the difference between its
//! delivered view and the merged view. So no source and no consumer waits for another one.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify as Wake, watch};

pub use crate::storage::Notify;
use crate::{
    pod::{Listing, PodUpdate, Rejection, RejectionReason, SourceName},
    storage::{Delivered, Merged, Outcome, PodStorage, updates},
};

/// How many listings of each source have been published or merged.
type Counts = [u64; SourceName::ALL.len()];

/// The handle by which sources and consumers reach the mux. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Mux {
    inbox: Arc<Inbox>,
    merged: watch::Receiver<Merged>,
    merged_counts: watch::Receiver<Counts>,
    turned: watch::Receiver<u64>,
}

impl Mux {
    /// Makes a mux for some configured sources, and the loop that does its work.
    pub fn new(configured: &[SourceName]) -> (Self, MuxLoop) {
        let slot = |source| configured.contains(&source).then(Slot::default);
        let slots = Slots { by_source: SourceName::ALL.map(slot), asked: 0 };
        let inbox = Arc::new(Inbox { slots: Mutex::new(slots), wake: Wake::new() });
        let storage = PodStorage::new(configured);
        let (publish, merged) = watch::channel(storage.merged().clone());
        let (counts, merged_counts) = watch::channel(Counts::default());
        let (turns, turned) = watch::channel(0);
        let mux = Self { inbox: inbox.clone(), merged, merged_counts, turned };
        (mux, MuxLoop { inbox, storage, publish, counts, turns })
    }

    /// The channel of a source. There is one for each source: none is returned if the source is not configured, or on a
    /// second call, also after the channel was dropped. A source that starts again is given the channel that it had.
    pub fn channel(&self, source: SourceName) -> Option<SourceChannel> {
        let mut slots = self.inbox.lock();
        let slot = slots.by_source[source as usize].as_mut()?;
        if mem::replace(&mut slot.taken, true) {
            return None;
        }
        let (inbox, merged_counts) = (self.inbox.clone(), self.merged_counts.clone());
        Some(SourceChannel { source, inbox, merged_counts })
    }

    /// Whether the only listing of a source so far is one of an earlier run with pods, which is not merged yet.
    pub fn is_restoring(&self, source: SourceName) -> bool {
        let slots = self.inbox.lock();
        let waiting = slots.by_source[source as usize].as_ref().and_then(|slot| slot.waiting.as_ref());
        waiting.is_some_and(|listing| listing.is_restored() && !listing.is_empty())
    }

    /// Makes an ordered channel of updates for a consumer. Its first updates are all pods
    /// of the merged view.
    pub fn updates(&self, notify: Notify) -> Updates {
        let mut merged = self.merged.clone();
        merged.mark_changed();
        let newest = merged.borrow().clone();
        let (delivered, goal) = (Delivered::default(), Delivered::default());
        Updates { notify, merged, delivered, goal, newest, batch: VecDeque::new() }
    }

    /// Waits until the loop has run once more, as a heartbeat. What was published before is merged
    /// then. Returns false if the mux has ended. Cancel-safe.
    pub async fn turns(&self) -> bool {
        let asked = {
            let mut slots = self.inbox.lock();
            slots.asked += 1;
            slots.asked
        };
        self.inbox.wake.notify_one();
        self.turned.clone().wait_for(|turned| *turned >= asked).await.is_ok()
    }

    /// The merged view for readers. It is closed when the mux has ended.
    pub fn merged(&self) -> watch::Receiver<Merged> {
        self.merged.clone()
    }
}

/// The listings that wait for the loop: at most one of each source.
#[derive(Debug)]
struct Inbox {
    slots: Mutex<Slots>,
    wake: Wake,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        // No panic can leave a slot half written, so a poisoned lock is still valid.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Slots {
    by_source: [Option<Slot>; SourceName::ALL.len()],
    /// How many heartbeats were requested.
    asked: u64,
}

impl Slots {
    /// Takes the listings that are not merged yet, with the number of each.
    fn take(&mut self) -> Vec<(SourceName, u64, Listing)> {
        let take = |source: SourceName| {
            let slot = self.by_source[source as usize].as_mut()?;
            Some((source, slot.published, mem::take(&mut slot.waiting)?))
        };
        SourceName::ALL.into_iter().filter_map(take).collect()
    }

    fn all_ended(&self) -> bool {
        self.by_source.iter().flatten().all(|slot| slot.ended)
    }
}

#[derive(Debug, Default)]
struct Slot {
    waiting: Option<Listing>,
    /// How many listings were published so far.
    published: u64,
    taken: bool,
    ended: bool,
}

/// The channel of a source into the mux: a slot in which the latest listing wins.
///
/// When every source has dropped its channel, the mux merges the remaining listings and ends.
#[derive(Debug)]
pub struct SourceChannel {
    source: SourceName,
    inbox: Arc<Inbox>,
    merged_counts: watch::Receiver<Counts>,
}

impl SourceChannel {
    /// The source of the channel.
    pub fn source(&self) -> SourceName {
        self.source
    }

    /// Publishes a listing without waiting. It replaces one that is not merged yet; no
    /// pod is lost, because a listing has all pods of the source.
    ///
    /// # Panics
    /// If the listing is of another source.
    pub fn publish(&self, listing: Listing) {
        assert_eq!(listing.source(), self.source, "a source publishes only its own listings");
        let mut slots = self.inbox.lock();
        if let Some(slot) = slots.by_source[self.source as usize].as_mut() {
            slot.published += 1;
            slot.waiting = Some(match slot.waiting.take() {
                // A restored listing is not complete: it only adds to another one.
                Some(before) if listing.is_restored() && before.is_restored() => listing.over(&before),
                Some(before) if listing.is_restored() => before,
                _ => listing,
            });
        }
        drop(slots);
        self.inbox.wake.notify_one();
    }

    /// Waits until every listing published so far is in the merged view. Returns false if
    /// the mux ended before. Cancel-safe.
    pub async fn merged(&self) -> bool {
        let slot =
            |slots: &Slots| slots.by_source[self.source as usize].as_ref().map_or(0, |slot| slot.published);
        let published = slot(&self.inbox.lock());
        let reached = |counts: &Counts| counts[self.source as usize] >= published;
        self.merged_counts.clone().wait_for(reached).await.is_ok()
    }
}

impl Drop for SourceChannel {
    fn drop(&mut self) {
        if let Some(slot) = self.inbox.lock().by_source[self.source as usize].as_mut() {
            slot.ended = true;
        }
        self.inbox.wake.notify_one();
    }
}

/// The loop that owns `PodStorage`.
#[derive(Debug)]
pub struct MuxLoop {
    inbox: Arc<Inbox>,
    storage: PodStorage,
    publish: watch::Sender<Merged>,
    counts: watch::Sender<Counts>,
    /// The last heartbeat.
    turns: watch::Sender<u64>,
}

impl MuxLoop {
    /// Merges the waiting listings and publishes the view, until every configured source
    /// has dropped its channel and every listing is merged. The channels of readers and
    /// consumers are closed then. A channel that was never taken counts as not dropped: configure only sources that
    /// run.
    ///
    /// # Cancel safety
    /// If it is dropped, listings that are not merged are lost, and the channels are closed.
    pub async fn run(mut self) {
        loop {
            let (waiting, ended, asked) = {
                let mut slots = self.inbox.lock();
                (slots.take(), slots.all_ended(), slots.asked)
            };
            let idle = waiting.is_empty();
            if !idle {
                self.merge(waiting);
            }
            self.turns.send_if_modified(|turned| mem::replace(turned, asked) != asked);
            if idle && ended {
                return;
            } else if idle {
                self.inbox.wake.notified().await;
            }
        }
    }

    fn merge(&mut self, waiting: Vec<(SourceName, u64, Listing)>) {
        let mut counts = *self.counts.borrow();
        for (source, count, listing) in waiting {
            log_conflicts(&self.storage.apply(&listing));
            counts[source as usize] = count;
        }
        self.publish.send_replace(self.storage.merged().clone());
        self.counts.send_replace(counts);
    }
}

/// Logs the beginning and the end of each conflict between sources. Duplicates within a
/// source are logged by the source, which knows whether a file is about to vanish.
fn log_conflicts(outcome: &Outcome) {
    let pod = |rejection: &Rejection| rejection.pod.as_ref().map(ToString::to_string);
    let conflict = |rejection: &&Rejection| {
        matches!(rejection.reason, RejectionReason::Conflict { .. } | RejectionReason::UidInUse { .. })
    };
    for rejection in outcome.rejected.iter().filter(conflict) {
        tracing::warn!(
            source = rejection.source.as_str(), path = %rejection.origin, pod = pod(rejection),
            reason = rejection.reason.as_str(), error = %rejection.reason, "pod rejected"
        );
    }
    for rejection in outcome.recovered.iter().filter(conflict) {
        tracing::info!(
            source = rejection.source.as_str(), path = %rejection.origin, pod = pod(rejection),
            reason = rejection.reason.as_str(), "pod no longer rejected"
        );
    }
}

/// The ordered channel of updates of one consumer.
///
/// It keeps the delivered view and returns the difference to the merged view. A consumer
/// that keeps up receives each change; the backlog of a slow one is one difference,
/// however long it waits.
#[derive(Debug)]
pub struct Updates {
    notify: Notify,
    merged: watch::Receiver<Merged>,
    delivered: Delivered,
    /// The delivered view after the whole batch.
    goal: Delivered,
    /// The merged view that the batch leads to.
    newest: Merged,
    /// The remaining updates of the batch, the next one first.
    batch: VecDeque<PodUpdate>,
}

impl Updates {
    /// The next update; waits until there is one. None is returned when the mux has ended
    /// and every update was returned.
    ///
    /// Cancel-safe: an update is either returned or stays in the channel.
    pub async fn next(&mut self) -> Option<PodUpdate> {
        loop {
            if let Some(update) = self.try_next() {
                return Some(update);
            }
            if !self.changed().await {
                return None;
            }
        }
    }

    /// Waits until there may be a next update, or the view has changed in what makes none; then it returns at once until
    /// [`try_next`](Self::try_next) has been called. Returns false if the mux has ended and every update was returned.
    /// Cancel-safe.
    pub async fn changed(&mut self) -> bool {
        if !self.batch.is_empty() {
            return true;
        }
        let has_changed = self.merged.changed().await.is_ok();
        if has_changed {
            self.merged.mark_changed();
        }
        has_changed
    }

    /// Begins again, for a consumer that may hold pods of an earlier stream: the next updates are
    /// a SET for each source (see [`Delivered::unknown`]).
    pub fn restart(&mut self) {
        self.delivered = Delivered::unknown();
        self.batch.clear();
        self.merged.mark_changed();
    }

    /// Waits until the mux has ended, even if updates remain. Cancel-safe.
    pub fn mux_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut merged = self.merged.clone();
        async move { while merged.changed().await.is_ok() {} }
    }

    /// The next update, if there is one now.
    pub fn try_next(&mut self) -> Option<PodUpdate> {
        self.compare();
        let update = self.batch.pop_front()?;
        if self.batch.is_empty() {
            self.delivered = self.goal.clone();
        } else {
            self.delivered.advance(&update, &self.goal);
        }
        Some(update)
    }

    /// The merged view that the returned updates lead to, once
    /// [`try_next`](Self::try_next) has no more.
    pub fn newest(&self) -> Merged {
        self.newest.clone()
    }

    /// What a consumer that may hold pods of an earlier stream receives to hold the
    /// [`newest`](Self::newest) view: a SET for each source that has synced.
    pub fn beginning(&self) -> Vec<PodUpdate> {
        updates(&Delivered::unknown(), &self.newest, self.notify).1
    }

    /// The current merged view, which the next call of `next` compares.
    pub fn ahead(&self) -> Merged {
        self.merged.borrow().clone()
    }

    /// The delivered view: what the returned updates give.
    pub fn delivered(&self) -> &Delivered {
        &self.delivered
    }

    /// Replaces the batch if there is a newer merged view.
    fn compare(&mut self) {
        let merged = {
            let newest = self.merged.borrow_and_update();
            if !newest.has_changed() {
                return;
            }
            newest.clone()
        };
        let (goal, batch) = updates(&self.delivered, &merged, self.notify);
        self.newest = merged;
        self.goal = goal;
        self.batch = batch.into();
        if self.batch.is_empty() {
            // The views differ only in what is not compared.
            self.delivered = self.goal.clone();
        }
    }
}
