//! The wall clock.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use tokio::time::Instant;

/// The wall clock, in UTC. It may jump: durations are measured with tokio's clock, which
/// tests can pause. Cheap to clone; the default is the system's.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// A clock that shows what a function returns.
    pub fn from_fn(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

/// A moment: its age is right although the wall clock was set meanwhile. Ordered by age, the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// By tokio's clock, for durations.
    pub instant: Instant,
    /// By the wall clock, for people.
    pub time: Timestamp,
}

impl Moment {
    /// The present moment, at which the wall clock shows this time.
    pub fn at(time: Timestamp) -> Self {
        Self { instant: Instant::now(), time }
    }
}

impl Default for Clock {
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn default() -> Self {
        Self::from_fn(Timestamp::now)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}
