//! When a failed request is retried.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// The first delay.
const FIRST: Duration = Duration::from_millis(800);
/// The longest delay.
const LONGEST: Duration = Duration::from_secs(30);
/// After this time without a failure the next failure counts as the first again.
/// (client-go resets its backoff every two minutes, even during an outage.)
const RESET: Duration = Duration::from_mins(2);
/// The longest `Retry-After` that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// The growing delays before retries.
#[derive(Debug)]
pub(super) struct RetryDelay {
    backoff: Backoff,
    last_failure: Option<Instant>,
}

impl RetryDelay {
    pub(super) fn new() -> Self {
        Self { backoff: Backoff::new(FIRST, LONGEST), last_failure: None }
    }

    /// Whether nothing has failed recently.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.last_failure.is_none_or(|last| now.duration_since(last) >= RESET)
    }

    /// Notes a failure and returns when to retry: after the next delay of the backoff,
    /// and not before the server's `Retry-After`. `fraction` is a random number from 0 to 1.
    pub(super) fn fail(&mut self, now: Instant, fraction: f64, retry_after: Option<Duration>) -> Instant {
        if self.is_fresh(now) {
            self.backoff.reset();
        }
        self.last_failure = Some(now);
        now + self.backoff.next(fraction).max(retry_after.unwrap_or_default().min(MAX_RETRY_AFTER))
    }
}
