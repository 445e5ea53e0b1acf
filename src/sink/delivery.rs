//! One loop for each sink: takes its updates, hands them over at the sink's pace, tries again for ever.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    SequencedUpdate, Sink, SinkError,
    status::{SinkFailing, SinkStatus},
};
use crate::{clock, db::Sequence, error_chain::chain, mux::Updates, storage::Delivered};

/// The wait after the first failure; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// No wait is longer: a sink that came back hears the news within a minute.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// How long the delivery waits when no numbers can be reserved for it.
const RESERVE_AGAIN: Duration = Duration::from_secs(1);
/// A sink that takes longer over one update than this counts as stuck.
const STUCK_AFTER: Duration = SinkStatus::STUCK_AFTER.unsigned_abs();

/// Why a delivery ended before its updates did.
#[derive(Debug, thiserror::Error)]
#[error("sink {sink} ended at update {seq}")]
pub struct DeliveryError {
    /// The sink's name.
    pub sink: String,
    /// The update that was not delivered, or the next one that would have been.
    pub seq: u64,
    /// Why: always [`SinkError::Fatal`].
    pub source: SinkError,
}

/// The delivery to one sink: its own updates, its own `seq`, its own pace.
#[derive(Debug)]
pub struct Delivery<S> {
    name: String,
    sink: S,
    updates: Updates,
    sequence: Sequence,
    status: watch::Sender<SinkStatus>,
    acknowledged: Option<(Acknowledged, usize)>,
}

/// What each of the sinks has acknowledged, in the order in which their
/// deliveries were made: the way back, on which the posted set learns that a
/// graceful deletion is done.
pub type Acknowledged = Arc<watch::Sender<Vec<Delivered>>>;

impl<S: Sink> Delivery<S> {
    /// The delivery of these updates to this sink, and how it stands. The
    /// stream's `seq` starts at 1, unless it is [`numbered`](Self::numbered).
    pub fn new(name: impl Into<String>, sink: S, updates: Updates) -> (Self, watch::Receiver<SinkStatus>) {
        let name = name.into();
        let (status, seen) = watch::channel(SinkStatus { name: name.clone(), ..SinkStatus::default() });
        let sequence = Sequence::fleeting();
        (Self { name, sink, updates, sequence, status, acknowledged: None }, seen)
    }

    /// Takes the stream's numbers from here.
    #[must_use]
    pub fn numbered(self, sequence: Sequence) -> Self {
        Self { sequence, ..self }
    }

    /// Tells here what the sink has acknowledged.
    #[must_use]
    pub fn reporting(self, to: &Acknowledged) -> Self {
        to.send_modify(|sinks| sinks.push(Delivered::default()));
        let place = to.borrow().len() - 1;
        Self { acknowledged: Some((to.clone(), place)), ..self }
    }

    /// Delivers until the mux has ended and everything is acknowledged.
    ///
    /// `stop` says that the end is near: a retry that is waited for is made at
    /// once. It does not end the delivery; who has no more time drops the future.
    ///
    /// # Errors
    ///
    /// If the sink says that it will never take an update again.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), DeliveryError> {
        loop {
            if !self.reserve().await {
                return Ok(());
            }
            let update = tokio::select! {
                biased;
                update = self.updates.next() => update,
                reason = self.sink.gone(), if !stop.is_cancelled() => {
                    // Once the end is asked for, a reader that went first is no failure.
                    if stop.is_cancelled() {
                        continue;
                    }
                    return Err(self.ended(self.sequence.last() + 1, reason));
                }
            };
            let (Some(update), Some(seq)) = (update, self.sequence.take()) else {
                return self.close().await;
            };
            let update = SequencedUpdate { seq, time: clock::now(), update };
            self.hand_over(&update, &stop).await?;
        }
    }

    /// Makes sure that there is a number for the next update, however long it
    /// takes. Returns false if the mux ends meanwhile: what is not told then is
    /// told by the next run, which begins with everything.
    async fn reserve(&mut self) -> bool {
        let mut failed = false;
        while let Err(error) = self.sequence.ready().await {
            let sink = &self.name;
            if !failed {
                let error = chain(&error);
                warn!(sink, error, "no numbers can be reserved; the sink waits until they can");
            }
            failed = true;
            tokio::select! {
                () = sleep(RESERVE_AGAIN) => {}
                () = self.updates.mux_ended() => return false,
            }
        }
        true
    }

    async fn close(self) -> Result<(), DeliveryError> {
        if let Err(error) = self.sequence.close().await {
            let sink = &self.name;
            warn!(sink, error = chain(&error), "the last number is not stored; the next start skips some");
        }
        Ok(())
    }

    /// Tries until the sink has taken the update.
    async fn hand_over(
        &mut self,
        update: &SequencedUpdate,
        stop: &CancellationToken,
    ) -> Result<(), DeliveryError> {
        let mut backoff = Backoff::default();
        loop {
            self.status.send_modify(|status| status.busy_since = Some(clock::now()));
            let reason = match self.attempt(update).await {
                Ok(()) => {
                    self.acknowledged(update.seq);
                    return Ok(());
                }
                Err(SinkError::Retry(reason)) => reason,
                Err(fatal) => return Err(self.ended(update.seq, fatal)),
            };
            let wait = backoff.next(random());
            self.failed(update, &chain(&*reason), wait);
            tokio::select! {
                () = sleep(wait) => {}
                () = stop.cancelled(), if !stop.is_cancelled() => backoff = Backoff::default(),
            }
        }
    }

    /// Hands the update over once, and says so if that takes very long.
    async fn attempt(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        let mut delivered = std::pin::pin!(self.sink.deliver(update));
        tokio::select! {
            biased;
            result = &mut delivered => return result,
            () = sleep(STUCK_AFTER) => {}
        }
        let (sink, seq) = (&self.name, update.seq);
        warn!(
            sink,
            seq,
            "has been busy with one update for {STUCK_AFTER:?}; what comes meanwhile is kept as one difference"
        );
        let result = delivered.await;
        info!(sink, seq, "is no longer busy with that update");
        result
    }

    fn acknowledged(&self, seq: u64) {
        if let Some((acknowledged, place)) = &self.acknowledged {
            acknowledged.send_modify(|sinks| sinks[*place] = self.updates.told().clone());
        }
        let name = self.name.clone();
        let status = SinkStatus { name, acknowledged: Some(seq), ..SinkStatus::default() };
        let before = self.status.send_replace(status);
        if let Some(failing) = before.failing {
            let (sink, attempts, since) = (&self.name, failing.attempts, failing.since);
            info!(sink, seq, attempts, %since, "recovered: the sink takes updates again");
        }
    }

    /// Notes a failure; loud the first time and whenever the reason is another one.
    fn failed(&self, update: &SequencedUpdate, error: &str, wait: Duration) {
        let now = clock::now();
        let before = self.status.borrow().failing.clone();
        let (sink, seq, op, source) = (&self.name, update.seq, update.update.op, update.update.source);
        if before.as_ref().is_some_and(|before| *before.error == *error) {
            debug!(sink, seq, error, "the sink still does not take the update; next try in {wait:.1?}");
        } else {
            warn!(sink, seq, %op, %source, error, "the sink does not take the update; it is tried again until it does");
        }
        let failing = SinkFailing {
            seq,
            since: before.as_ref().map_or(now, |before| before.since),
            attempts: before.map_or(0, |before| before.attempts) + 1,
            next_attempt: now.checked_add(wait).unwrap_or(now),
            error: error.into(),
        };
        self.status.send_modify(|status| {
            status.busy_since = None;
            status.failing = Some(failing);
        });
    }

    fn ended(&self, seq: u64, source: SinkError) -> DeliveryError {
        DeliveryError { sink: self.name.clone(), seq, source }
    }
}

/// The waits between the tries of one update.
#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next wait: 0.5 s, doubling to 60 s, of which chance takes up to the
    /// half, so that many agents do not come back to one receiver as one.
    ///
    /// `chance` is from 0 (all of the wait) to 1 (half of it).
    fn next(&mut self, chance: f64) -> Duration {
        let wait = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_WAIT);
        self.failures = self.failures.saturating_add(1);
        wait.mul_f64(1.0 - chance / 2.0)
    }
}

/// A number from 0 to 1, from the keys that the standard library draws for its
/// hash maps. Good enough to spread retries.
fn random() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    f64::from(u16::try_from(bits >> 48).unwrap_or_default()) / f64::from(u16::MAX)
}
