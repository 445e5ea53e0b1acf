//! The sources' channels, the one loop that owns `PodStorage`, and the consumers' `Updates`.
//!
//! The kubelet's `pkg/util/config.Mux` and the updates channel of `PodConfig`,
//! with two differences: a source's channel is a slot in which the latest
//! listing wins, and a consumer's channel is the difference between what it was
//! told and what is wanted. So nobody ever waits for anybody.

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

/// How many listings of each source have been pushed or merged.
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
    /// A mux for these sources, and the loop that must run for it to turn.
    #[must_use]
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

    /// The channel of a source: one for each, so that no source speaks in
    /// another's name. `None` if the source is not configured or its channel
    /// was taken before.
    #[must_use]
    pub fn channel(&self, source: SourceName) -> Option<SourceChannel> {
        let mut slots = self.inbox.lock();
        let slot = slots.by_source[source as usize].as_mut()?;
        if mem::replace(&mut slot.taken, true) {
            return None;
        }
        let (inbox, merged_counts) = (self.inbox.clone(), self.merged_counts.clone());
        Some(SourceChannel { source, inbox, merged_counts })
    }

    /// A consumer's own ordered channel of updates. It starts from nothing: its
    /// first updates are everything that is wanted now.
    #[must_use]
    pub fn updates(&self, notify: Notify) -> Updates {
        let mut merged = self.merged.clone();
        merged.mark_changed();
        let newest = merged.borrow().clone();
        let (told, goal) = (Delivered::default(), Delivered::default());
        Updates { notify, merged, told, goal, newest, batch: VecDeque::new() }
    }

    /// Waits until the loop has come round once more: a sign of life. Returns
    /// false if the mux has ended. Cancel-safe.
    pub async fn turns(&self) -> bool {
        let asked = {
            let mut slots = self.inbox.lock();
            slots.asked += 1;
            slots.asked
        };
        self.inbox.wake.notify_one();
        self.turned.clone().wait_for(|turned| *turned >= asked).await.is_ok()
    }

    /// The merged view, for readers. Closed when the mux has ended.
    #[must_use]
    pub fn merged(&self) -> watch::Receiver<Merged> {
        self.merged.clone()
    }
}

/// Where listings wait for the loop: at most one a source.
#[derive(Debug)]
struct Inbox {
    slots: Mutex<Slots>,
    wake: Wake,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        // A slot is never left half written, so a panic elsewhere has spoilt nothing.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Slots {
    by_source: [Option<Slot>; SourceName::ALL.len()],
    /// How often a sign of life was asked for.
    asked: u64,
}

impl Slots {
    /// What was pushed and not merged yet, with its number.
    fn take(&mut self) -> Vec<(SourceName, u64, Listing)> {
        let take = |source: SourceName| {
            let slot = self.by_source[source as usize].as_mut()?;
            Some((source, slot.pushed, mem::take(&mut slot.waiting)?))
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
    /// How many listings were pushed so far.
    pushed: u64,
    taken: bool,
    ended: bool,
}

/// A source's channel into the mux: one slot in which the latest listing wins.
///
/// When every source has dropped its channel, the mux merges what is left and ends.
#[derive(Debug)]
pub struct SourceChannel {
    source: SourceName,
    inbox: Arc<Inbox>,
    merged_counts: watch::Receiver<Counts>,
}

impl SourceChannel {
    /// Whose channel it is.
    #[must_use]
    pub fn source(&self) -> SourceName {
        self.source
    }

    /// Hands a listing over. Never waits: a listing that nobody has looked at
    /// yet is replaced, and nothing is lost, for a listing is everything.
    ///
    /// # Panics
    /// If the listing is another source's.
    pub fn publish(&self, listing: Listing) {
        assert_eq!(listing.source(), self.source, "a source speaks in its own name only");
        let mut slots = self.inbox.lock();
        if let Some(slot) = slots.by_source[self.source as usize].as_mut() {
            slot.pushed += 1;
            slot.waiting = Some(match slot.waiting.take() {
                // A restored listing is not everything: it only adds to another one.
                Some(before) if listing.is_restored() && before.is_restored() => listing.over(&before),
                Some(before) if listing.is_restored() => before,
                _ => listing,
            });
        }
        drop(slots);
        self.inbox.wake.notify_one();
    }

    /// Waits until everything pushed so far has been merged and published.
    /// Returns false if the mux ended before. Cancel-safe.
    pub async fn merged(&self) -> bool {
        let pushed = self.inbox.lock().by_source[self.source as usize].as_ref().map_or(0, |slot| slot.pushed);
        let reached = |counts: &Counts| counts[self.source as usize] >= pushed;
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

/// The one loop that owns `PodStorage`.
#[derive(Debug)]
pub struct MuxLoop {
    inbox: Arc<Inbox>,
    storage: PodStorage,
    publish: watch::Sender<Merged>,
    counts: watch::Sender<Counts>,
    /// The last sign of life that was given.
    turns: watch::Sender<u64>,
}

impl MuxLoop {
    /// Merges every listing at once and publishes the view, until every
    /// configured source has dropped its channel and all is merged. Readers and
    /// consumers then see their end.
    pub async fn run(mut self) {
        loop {
            let (pushed, ended, asked) = {
                let mut slots = self.inbox.lock();
                (slots.take(), slots.all_ended(), slots.asked)
            };
            self.turns.send_if_modified(|turned| mem::replace(turned, asked) != asked);
            if !pushed.is_empty() {
                self.merge(pushed);
            } else if ended {
                return;
            } else {
                self.inbox.wake.notified().await;
            }
        }
    }

    fn merge(&mut self, pushed: Vec<(SourceName, u64, Listing)>) {
        let mut counts = *self.counts.borrow();
        for (source, count, listing) in pushed {
            report(&self.storage.apply(&listing));
            counts[source as usize] = count;
        }
        self.publish.send_replace(self.storage.merged().clone());
        self.counts.send_replace(counts);
    }
}

/// Says once which pods another source keeps out, and once that it no longer
/// does. Duplicates within a source are the source's to tell: it knows whether
/// a file is on its way out.
fn report(outcome: &Outcome) {
    let pod = |rejection: &Rejection| rejection.pod.as_ref().map(ToString::to_string);
    let conflict = |rejection: &&Rejection| {
        matches!(rejection.reason, RejectionReason::Conflict { .. } | RejectionReason::UidInUse { .. })
    };
    for rejection in outcome.rejected.iter().filter(conflict) {
        tracing::warn!(
            source = %rejection.source, path = %rejection.origin, pod = pod(rejection),
            reason = rejection.reason.as_str(), error = %rejection.reason, "pod rejected"
        );
    }
    for rejection in outcome.recovered.iter().filter(conflict) {
        tracing::info!(
            source = %rejection.source, path = %rejection.origin, pod = pod(rejection),
            reason = rejection.reason.as_str(), "pod no longer rejected"
        );
    }
}

/// A consumer's own ordered channel of updates.
///
/// It remembers what the consumer has been told and gives the difference to
/// what is wanted now. So a consumer that keeps up hears each change, and the
/// backlog of one that does not is one difference, however long it sleeps.
#[derive(Debug)]
pub struct Updates {
    notify: Notify,
    merged: watch::Receiver<Merged>,
    told: Delivered,
    /// What the consumer has been told once it has the whole batch.
    goal: Delivered,
    /// The view that leads there.
    newest: Merged,
    /// The updates on the way there, the next one first.
    batch: VecDeque<PodUpdate>,
}

impl Updates {
    /// The next update; waits if there is nothing new. `None` when the mux has
    /// ended and everything has been told.
    ///
    /// Cancel-safe: an update is either returned or still to come.
    pub async fn next(&mut self) -> Option<PodUpdate> {
        loop {
            if let Some(update) = self.try_next() {
                return Some(update);
            }
            self.merged.changed().await.ok()?;
            self.merged.mark_changed();
        }
    }

    /// Waits until the mux has ended, whether everything has been told or not. Cancel-safe.
    pub fn mux_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut merged = self.merged.clone();
        async move { while merged.changed().await.is_ok() {} }
    }

    /// The next update if there is one now. Together with [`told`](Self::told)
    /// this tells a reader where the newest view stands in the stream.
    pub fn try_next(&mut self) -> Option<PodUpdate> {
        self.look();
        let update = self.batch.pop_front()?;
        self.hand_over(&update);
        Some(update)
    }

    /// The view that was looked at last: where the updates lead that were given,
    /// once [`try_next`](Self::try_next) has no more.
    #[must_use]
    pub fn newest(&self) -> Merged {
        self.newest.clone()
    }

    /// The view that would be looked at next.
    #[must_use]
    pub fn ahead(&self) -> Merged {
        self.merged.borrow().clone()
    }

    /// What the consumer has been told so far.
    #[must_use]
    pub fn told(&self) -> &Delivered {
        &self.told
    }

    /// Replaces what is still to come by the way to the newest view, if there is a newer one.
    fn look(&mut self) {
        let merged = {
            let newest = self.merged.borrow_and_update();
            if !newest.has_changed() {
                return;
            }
            newest.clone()
        };
        let (goal, batch) = updates(&self.told, &merged, self.notify);
        self.newest = merged;
        self.goal = goal;
        self.batch = batch.into();
        if self.batch.is_empty() {
            // Nothing to say; what differs is not compared, and is known from now on.
            self.told = self.goal.clone();
        }
    }

    fn hand_over(&mut self, update: &PodUpdate) {
        if self.batch.is_empty() {
            self.told = self.goal.clone();
        } else {
            self.told.advance(update, &self.goal);
        }
    }
}
