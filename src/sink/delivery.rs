//! The delivery of one stream of updates to one sink, with retries.

use std::{error::Error, pin::pin, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    contract::{Sink, SinkError},
    numbers::{Counter, Numbers},
};
use crate::{
    backoff::Backoff,
    error_chain::chain,
    host::{Host, Moment},
    mux::Updates,
    outage::Outage,
    pod::{Op, PodUpdate, SequencedUpdate},
    storage::Delivered,
};

/// The delay after the first failure; it doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// The longest delay: a sink that works again receives updates within a minute.
const LONGEST_DELAY: Duration = Duration::from_mins(1);
/// How long after the end of the consumer the agent may be stopped, so that it is no failure: Ctrl-C ends
/// a whole pipeline at once, in any order.
const TOGETHER: Duration = Duration::from_millis(500);
/// The delay after a failure to reserve numbers.
const RESERVE_DELAY: Duration = Duration::from_secs(1);

/// The status of a sink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkStatus {
    /// Its name: `jsonl`, `jsonl=/var/log/podmux.jsonl`.
    pub name: String,
    /// The `seq` of the last update that the sink has acknowledged.
    pub acknowledged: Option<u64>,
    /// Since when the sink has been busy with the current update, or waits for a number; `None`
    /// while there is nothing to deliver, or while a retry is pending.
    pub busy_since: Option<Moment>,
    /// Whether it is a number that the sink waits for: the disk of the state does not answer.
    pub lacks_number: bool,
    /// The failure of the current update, if it has failed.
    pub failing: Option<SinkFailing>,
}

/// How a sink fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkFailing {
    /// The `seq` of the update that the sink does not acknowledge; `None` if no number can be
    /// reserved for one.
    pub seq: Option<u64>,
    /// When it failed first.
    pub since: Moment,
    /// The number of attempts to deliver the update.
    pub attempts: u64,
    /// The time of the next attempt.
    pub next_attempt: Timestamp,
    /// The last error, with its causes.
    pub error: Arc<str>,
}

impl SinkStatus {
    /// How long a sink may be busy with one update, or fail, before it counts as
    /// stuck. Delivery logs it after the same time.
    pub const STUCK_AFTER: Duration = Duration::from_secs(30);

    /// Since when the sink has been busy with the current update, if that is
    /// [`STUCK_AFTER`](Self::STUCK_AFTER) or longer.
    pub fn stuck(&self) -> Option<Moment> {
        self.busy_since.filter(|since| Self::is_long(*since))
    }

    /// What the sink does while it is busy.
    pub fn occupation(&self) -> &'static str {
        if self.lacks_number { "waiting for a number" } else { "processing one update" }
    }

    /// Whether a time that began then counts as stuck.
    pub fn is_long(since: Moment) -> bool {
        since.instant.elapsed() >= Self::STUCK_AFTER
    }
}

/// Why a delivery ended before the mux did.
#[derive(Debug, thiserror::Error)]
#[error("sink {sink} failed at update {seq}")]
pub struct DeliveryError {
    /// The sink's name.
    pub sink: String,
    /// The number of the update that is not acknowledged, or the one after the last.
    pub seq: u64,
    /// Why: what [`Sink::deliver`] or [`Sink::interrupted`] has returned.
    pub source: SinkError,
}

/// What each of several sinks has acknowledged, in the order in which their deliveries were
/// made. The http source completes a graceful deletion when all have acknowledged it.
pub type Acknowledged = Arc<watch::Sender<Vec<Delivered>>>;

/// The delivery to one sink, at the sink's own pace.
///
/// It takes the updates from its own [`Updates`], numbers them, and delivers each one until
/// the sink acknowledges it.
#[derive(Debug)]
pub struct Delivery<S, N = Counter> {
    name: String,
    sink: S,
    updates: Updates,
    numbers: N,
    /// The last number that was used.
    last: u64,
    /// For the next update, if the stream begins with it.
    run: Option<Arc<str>>,
    /// When the sink made the stream begin again last.
    restarted: Option<Instant>,
    host: Host,
    outage: Outage,
    status: watch::Sender<SinkStatus>,
    acknowledged: Option<(Acknowledged, usize)>,
}

impl<S: Sink> Delivery<S> {
    /// A delivery of these updates to this sink, and its status. Their `seq` starts at 1.
    pub fn new(name: impl Into<String>, sink: S, updates: Updates) -> (Self, watch::Receiver<SinkStatus>) {
        Self::numbered(name, sink, updates, Counter::default())
    }
}

impl<S: Sink, N: Numbers> Delivery<S, N> {
    /// A delivery of these updates to this sink, and its status. Their `seq` comes from these numbers.
    pub fn numbered(
        name: impl Into<String>,
        sink: S,
        updates: Updates,
        numbers: N,
    ) -> (Self, watch::Receiver<SinkStatus>) {
        let name = name.into();
        let (status, seen) = watch::channel(SinkStatus { name: name.clone(), ..SinkStatus::default() });
        let delivery = Self {
            name,
            sink,
            updates,
            numbers,
            last: 0,
            run: None,
            restarted: None,
            host: Host::default(),
            outage: Outage::default(),
            status,
            acknowledged: None,
        };
        (delivery, seen)
    }

    /// Uses this clock and these random numbers.
    #[must_use]
    pub fn on(self, host: Host) -> Self {
        Self { host, ..self }
    }

    /// Publishes what the sink has acknowledged, as one more element: call it once for each receiver.
    #[must_use]
    pub fn reporting(self, to: &Acknowledged) -> Self {
        to.send_modify(|sinks| sinks.push(Delivered::default()));
        let index = to.borrow().len() - 1;
        Self { acknowledged: Some((to.clone(), index)), ..self }
    }

    /// Delivers until the mux has ended and every update is acknowledged.
    ///
    /// Cancelling `stop` announces the shutdown: a pending retry is made at once, a consumer that goes away is no
    /// error any more, and updates for which no number is reserved when the mux ends are not delivered. It does
    /// not end the delivery; to abort it, drop the future.
    ///
    /// # Errors
    ///
    /// If [`Sink::deliver`] returns [`SinkError::Fatal`], or [`Sink::interrupted`] any error but
    /// [`SinkError::Restart`].
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), DeliveryError> {
        if !self.sink.is_fresh() {
            self.begin_again();
        }
        loop {
            let update = tokio::select! {
                biased;
                update = self.updates.next() => update,
                reason = self.sink.interrupted(), if !stop.is_cancelled() => {
                    match reason {
                        SinkError::Restart => self.restart().await,
                        _ if is_stopped_with_consumer(&stop).await => {}
                        reason => return Err(self.error(self.last + 1, reason)),
                    }
                    continue;
                }
            };
            let Some(update) = update else { return Ok(()) };
            match self.deliver_parts(update, &stop).await {
                Ok(true) => {}
                // The next run starts with everything.
                Ok(false) => return Ok(()),
                Err(error) if !is_stopped_with_consumer(&stop).await => return Err(error),
                Err(_) => {
                    // The consumer may go away during the shutdown.
                    self.updates.mux_ended().await;
                    return Ok(());
                }
            }
        }
    }

    fn begin_again(&mut self) {
        self.updates.restart();
        self.run = self.numbers.run();
        self.report();
    }

    /// Publishes what the sink has acknowledged.
    fn report(&self) {
        if let Some((acknowledged, index)) = &self.acknowledged {
            acknowledged.send_modify(|sinks| sinks[*index] = self.updates.delivered().clone());
        }
    }

    /// Begins the stream again because the consumer has lost it, not more often than each [`FIRST_DELAY`].
    async fn restart(&mut self) {
        self.begin_again();
        if let Some(next) = self.restarted.map(|last| last + FIRST_DELAY)
            && next > Instant::now()
        {
            let (error, now) = (SinkError::Restart.to_string(), self.host.clock.now());
            if self.outage.failed(&error, now) {
                warn!(sink = self.name, error, "sink begins again and again");
            }
            self.note_failure(Some(self.last), &self.outage, &error, FIRST_DELAY);
            sleep_until(next).await;
        }
        self.restarted = Some(Instant::now());
    }

    /// Reserves a number for the next update, with retries. Returns false if it is stopped and the mux ends
    /// meanwhile: the next run starts with everything, so nothing is lost.
    async fn reserve(&mut self, stop: &CancellationToken) -> bool {
        let mut outage = Outage::default();
        loop {
            let reserved = {
                let mut reserved = pin!(self.numbers.reserve());
                tokio::select! {
                    biased;
                    reserved = &mut reserved => reserved,
                    () = std::future::ready(()) => {
                        self.status.send_modify(|status| {
                            (status.busy_since, status.lacks_number) = (Some(Moment::at(self.host.clock.now())), true);
                        });
                        tokio::select! {
                            reserved = &mut reserved => reserved,
                            () = stopped_and_ended(stop, &self.updates) => return false,
                        }
                    }
                }
            };
            let Err(error) = reserved else { break };
            let (sink, error) = (&self.name, chain(&error));
            let now = self.host.clock.now();
            if outage.failed(&error, now) {
                warn!(sink, error, "sink delivery waits: no number can be reserved");
            }
            self.note_failure(None, &outage, &error, RESERVE_DELAY);
            tokio::select! {
                () = sleep(RESERVE_DELAY) => {}
                () = stopped_and_ended(stop, &self.updates) => return false,
            }
        }
        if let Some(attempts) = outage.recovered() {
            info!(sink = self.name, attempts, "sink delivery resumed: a number is reserved");
        }
        self.status.send_if_modified(|status| {
            let is_stale = status.busy_since.is_some() || status.failing.is_some();
            (status.busy_since, status.lacks_number, status.failing) = (None, false, None);
            is_stale
        });
        true
    }

    /// Delivers an update, in parts if the sink's limit demands it. Returns false if the mux has ended before it
    /// had a number.
    async fn deliver_parts(
        &mut self,
        update: PodUpdate,
        stop: &CancellationToken,
    ) -> Result<bool, DeliveryError> {
        let mut parts = divide(update, self.sink.max_bytes()).into_iter().peekable();
        while let Some(update) = parts.next() {
            if !self.reserve(stop).await {
                return Ok(false);
            }
            let is_last = parts.peek().is_none();
            let more = !is_last && update.op == Op::Set;
            let (seq, time, run) = (self.numbers.next(), self.host.clock.now(), self.run.take());
            self.last = seq;
            let update = SequencedUpdate { seq, run, time, update, more };
            if !self.deliver(&update, stop).await? {
                self.restart().await;
                return Ok(true);
            }
            if is_last {
                self.report();
            }
        }
        Ok(true)
    }

    /// Delivers one update, with retries until it is acknowledged. Returns false if the stream has
    /// to begin again instead.
    async fn deliver(
        &mut self,
        update: &SequencedUpdate,
        stop: &CancellationToken,
    ) -> Result<bool, DeliveryError> {
        let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        loop {
            self.status.send_modify(|status| status.busy_since = Some(Moment::at(self.host.clock.now())));
            let (reason, wanted) = match self.attempt(update).await {
                Ok(()) => {
                    self.acknowledged(update.seq);
                    return Ok(true);
                }
                Err(SinkError::Restart) => return Ok(false),
                Err(SinkError::Retry(reason)) => (reason, Duration::ZERO),
                Err(SinkError::RetryAfter(reason, delay)) => (reason, delay),
                Err(fatal) => return Err(self.error(update.seq, fatal)),
            };
            let mut delay = backoff.next(self.host.random.fraction());
            // At a stop a consumer that asks for a pause is asked again as one that has failed.
            if !stop.is_cancelled() {
                delay = delay.max(wanted);
            }
            self.failed(update, &*reason, delay);
            tokio::select! {
                () = sleep(delay) => {}
                () = stop.cancelled(), if !stop.is_cancelled() => backoff.reset(),
                reason = self.sink.interrupted() => return match reason {
                    SinkError::Restart => Ok(false),
                    reason => Err(self.error(update.seq, reason)),
                },
            }
        }
    }

    /// Delivers one update once, and logs when that takes very long.
    async fn attempt(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        let mut delivered = std::pin::pin!(self.sink.deliver(update));
        tokio::select! {
            biased;
            result = &mut delivered => return result,
            () = sleep(SinkStatus::STUCK_AFTER) => {}
        }
        let (sink, seq) = (&self.name, update.seq);
        if self.outage.since().is_some() {
            // The failures before it are logged.
            return delivered.await;
        }
        warn!(sink, seq, "sink stuck: one update takes longer than {:?}", SinkStatus::STUCK_AFTER);
        let result = delivered.await;
        if result.is_ok() {
            info!(sink, seq, "sink no longer stuck");
        }
        result
    }

    fn acknowledged(&mut self, seq: u64) {
        let name = self.name.clone();
        self.status.send_replace(SinkStatus { name, acknowledged: Some(seq), ..SinkStatus::default() });
        let since = self.outage.since();
        if let (Some(attempts), Some(since)) = (self.outage.recovered(), since) {
            info!(sink = self.name, seq, attempts, since = %since.time, "sink recovered");
        }
    }

    fn failed(&mut self, update: &SequencedUpdate, reason: &(dyn Error + 'static), delay: Duration) {
        let (error, now) = (&*chain(reason), self.host.clock.now());
        let (sink, seq, op, source) = (&self.name, update.seq, update.update.op, update.update.source);
        if self.outage.failed(error, now) {
            warn!(sink, seq, %op, source = source.as_str(), error, "sink delivery failed; it is retried until it succeeds");
        } else {
            debug!(sink, seq, error, "sink delivery failed; next retry in {delay:.1?}");
        }
        self.note_failure(Some(seq), &self.outage, error, delay);
    }

    fn note_failure(&self, seq: Option<u64>, outage: &Outage, error: &str, delay: Duration) {
        let now = self.host.clock.now();
        let failing = SinkFailing {
            seq,
            since: outage.since().unwrap_or_else(|| Moment::at(now)),
            attempts: outage.attempts(),
            next_attempt: now.checked_add(delay).unwrap_or(now),
            error: error.into(),
        };
        self.status.send_modify(|status| {
            (status.busy_since, status.lacks_number) = (None, failing.seq.is_none());
            status.failing = Some(failing);
        });
    }

    fn error(&self, seq: u64, source: SinkError) -> DeliveryError {
        DeliveryError { sink: self.name.clone(), seq, source }
    }
}

/// Divides an update: each part has at most this many bytes of pods, or one pod.
fn divide(update: PodUpdate, max: usize) -> Vec<PodUpdate> {
    let (mut ends, mut bytes) = (Vec::new(), 0_usize);
    for (index, pod) in update.pods.iter().enumerate() {
        // With the comma behind it, and the name of its source in a SET of all sources.
        let size = pod.text().len() + 1 + update.sources.get(index).map_or(0, |of| of.as_str().len() + 3);
        if bytes > 0 && bytes.saturating_add(size) > max {
            ends.push(index);
            bytes = 0;
        }
        bytes += size;
    }
    if ends.is_empty() {
        return vec![update];
    }
    ends.push(update.pods.len());
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let part = |(start, end): (usize, &usize)| {
        let sources = update.sources.get(start..*end).unwrap_or_default().into();
        PodUpdate { pods: update.pods[start..*end].into(), sources, ..update }
    };
    starts.zip(&ends).map(part).collect()
}

/// Whether the agent is being stopped, or is within a moment: the consumer has ended together with it.
async fn is_stopped_with_consumer(stop: &CancellationToken) -> bool {
    timeout(TOGETHER, stop.cancelled()).await.is_ok()
}

/// Waits until the agent is being stopped and the mux has ended.
async fn stopped_and_ended(stop: &CancellationToken, updates: &Updates) {
    stop.cancelled().await;
    updates.mux_ended().await;
}
