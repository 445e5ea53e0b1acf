//! Growing delays between attempts.

use std::time::Duration;

/// The delays between attempts: they double from the first to the longest, and each is
/// multiplied by a random factor between one half and one, so that many agents do not
/// return to one server at the same moment.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// A backoff before its first failure.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// The delay after one more failure. `fraction` is a random number from 0 (half of the
    /// delay) to 1 (all of it).
    pub(crate) fn next(&mut self, fraction: f64) -> Duration {
        let delay = self.first.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        delay.mul_f64(0.5 + 0.5 * fraction.clamp(0.0, 1.0))
    }

    /// Starts again with the first delay.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}
