//! The one place that reads the wall clock; everything else is told the time.

/// The time of day, in UTC. It may jump; durations are measured by tokio's clock.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the one legal place")]
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
