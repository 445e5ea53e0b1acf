//! How something of a runtime fails, as it is published.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::{host::Moment, outage::Outage};

/// How something fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// When it failed first.
    pub since: Moment,
    /// How many attempts have failed.
    pub attempts: u64,
    /// When it is attempted again.
    pub next_attempt: Timestamp,
    /// The [`reason`](super::RuntimeError::reason) of the last error.
    pub reason: &'static str,
    /// The last error, with its causes.
    pub error: Arc<str>,
}

impl Failing {
    /// Notes a failure in its outage. Returns it, and whether its error is new.
    pub(super) fn note(
        outage: &mut Outage,
        (reason, error): (&'static str, &str),
        delay: Duration,
        now: Timestamp,
    ) -> (Self, bool) {
        let is_new = outage.failed(&without_ids(error), now);
        let failing = Self {
            since: outage.since().unwrap_or_else(|| Moment::at(now)),
            attempts: outage.attempts(),
            next_attempt: now.checked_add(delay).unwrap_or(now),
            reason,
            error: error.into(),
        };
        (failing, is_new)
    }
}

/// An error without what is another one at each attempt: the ids of containers, which have 64 hexadecimal digits.
fn without_ids(error: &str) -> String {
    let is_end = |letter: char| !letter.is_ascii_hexdigit();
    error.split_inclusive(is_end).filter(|word| word.trim_end_matches(is_end).len() != 64).collect()
}
