//! How a sink is doing, for the health checks, the metrics and the service manager.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// The status of a sink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkStatus {
    /// Its name: `jsonl`, `jsonl=/var/log/podmux.jsonl`.
    pub name: String,
    /// The `seq` of the last update that the sink has acknowledged.
    pub acknowledged: Option<u64>,
    /// Since when the sink has been busy with the current update; `None` while
    /// there is nothing to deliver, or while a retry is pending.
    pub busy_since: Option<Timestamp>,
    /// The failure of the current update, if it has failed.
    pub failing: Option<SinkFailing>,
}

/// How a sink fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkFailing {
    /// The `seq` of the update that the sink does not acknowledge.
    pub seq: u64,
    /// When it failed first.
    pub since: Timestamp,
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
    pub const STUCK_AFTER: SignedDuration = SignedDuration::from_secs(30);

    /// Since when the sink has been busy with the current update, if that is
    /// [`STUCK_AFTER`](Self::STUCK_AFTER) or longer.
    #[must_use]
    pub fn stuck(&self, now: Timestamp) -> Option<Timestamp> {
        self.busy_since.filter(|since| Self::is_long(*since, now))
    }

    /// Whether a time that began then counts as stuck.
    #[must_use]
    pub fn is_long(since: Timestamp, now: Timestamp) -> bool {
        now.duration_since(since) >= Self::STUCK_AFTER
    }
}
