//! How a source fails, as people are told: loud at first, then quiet, then "recovered".

use std::mem;

use super::status::{SourceFailing, SourceStatus};
use crate::clock;

/// How many different errors of one outage are said aloud; the rest is for `-v`.
const MAX_SAID: usize = 8;

/// What was said of the outage that is, if there is one.
#[derive(Debug, Default)]
pub(super) struct Outage {
    said: Vec<String>,
}

impl Outage {
    /// Notes a failure in the status, and whether its error may quote what was read. Returns whether it is to be said aloud:
    /// nobody has heard this one yet.
    pub(super) fn failed(&mut self, status: &mut SourceStatus, error: &str, quotes: bool) -> bool {
        let before = status.failing.take();
        let (since, attempts) =
            before.map_or_else(|| (clock::now(), 0), |before| (before.since, before.attempts));
        status.failing = Some(SourceFailing { since, attempts: attempts + 1, error: error.into(), quotes });
        let is_news = self.said.len() < MAX_SAID && !self.said.iter().any(|said| said == error);
        if is_news {
            self.said.push(error.to_owned());
        }
        is_news
    }

    /// Notes in the status that all is well. Returns how often it had failed, if it had.
    pub(super) fn over(&mut self, status: &mut SourceStatus) -> Option<u64> {
        self.said.clear();
        mem::take(&mut status.failing).map(|failing| failing.attempts)
    }
}
