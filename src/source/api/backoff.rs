//! How long to wait after a failure: longer each time, never quite as long as the others.

use std::time::Duration;

use tokio::time::Instant;

/// The first delay.
const FIRST: Duration = Duration::from_millis(800);
/// The longest delay.
const LONGEST: Duration = Duration::from_secs(30);
/// How long nothing may fail before the next failure counts as the first.
const FORGIVEN: Duration = Duration::from_mins(2);
/// The longest that a server is heard that asks for patience.
const LONGEST_ASKED: Duration = Duration::from_mins(5);

/// The delays of one source. (client-go has the same ones, but adds its jitter
/// on top, and forgets them every two minutes even while nothing works.)
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    last: Option<Instant>,
}

impl Backoff {
    /// Whether nothing failed lately.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.duration_since(last) >= FORGIVEN)
    }

    /// Notes a failure and says when to try again: after the delay × (0.5 … 1),
    /// as the dice (0 … 1) say, and not before the server wants it.
    pub(super) fn fail(&mut self, now: Instant, dice: f64, asked: Option<Duration>) -> Instant {
        if self.is_fresh(now) {
            self.failures = 0;
        }
        let delay = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.last = Some(now);
        let asked = asked.unwrap_or_default().min(LONGEST_ASKED);
        now + delay.mul_f64(0.5 + 0.5 * dice.clamp(0.0, 1.0)).max(asked)
    }
}
