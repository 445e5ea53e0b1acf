//! How one thing fails over time, so that each error of an outage is logged once.

use std::sync::Arc;

use jiff::Timestamp;
use tracing::{debug, info, warn};

use crate::host::Moment;

/// How many different errors of one outage are reported as new.
const MAX_REPORTED: usize = 8;

/// An outage that is going on, if there is one.
///
/// The convention of the log: a new error of an outage is a warning, a repeated one is
/// logged at debug level, and the end is logged once, as `… recovered`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outage {
    reported: Vec<Arc<str>>,
    error: Option<Arc<str>>,
    since: Option<Moment>,
    attempts: u64,
}

impl Outage {
    /// Notes a failure. Returns whether this error is new in this outage: then it is logged
    /// as a warning.
    pub(crate) fn failed(&mut self, error: &str, now: Timestamp) -> bool {
        self.since.get_or_insert_with(|| Moment::at(now));
        self.attempts += 1;
        let error: Arc<str> = error.into();
        let is_new = self.reported.len() < MAX_REPORTED && !self.reported.contains(&error);
        if is_new {
            self.reported.push(error.clone());
        }
        self.error = Some(error);
        is_new
    }

    /// Notes a success. Returns the number of failed attempts if this ends an outage.
    pub(crate) fn recovered(&mut self) -> Option<u64> {
        let ended = std::mem::take(self);
        ended.since.map(|_| ended.attempts)
    }

    /// Notes the result of an attempt, and logs it: `… failed`, `… recovered`.
    pub(crate) fn log(&mut self, source: &'static str, what: &str, error: Option<&str>, now: Timestamp) {
        match error {
            Some(error) if self.failed(error, now) => warn!(source, %error, "{what} failed"),
            Some(error) => debug!(source, %error, "{what} failed"),
            None => {
                if let Some(failed) = self.recovered() {
                    info!(source, failed, "{what} recovered");
                }
            }
        }
    }

    /// The last error of the outage.
    pub(crate) fn error(&self) -> Option<Arc<str>> {
        self.error.clone()
    }

    /// When the outage began.
    pub(crate) fn since(&self) -> Option<Moment> {
        self.since
    }

    /// How often it has failed since.
    pub(crate) fn attempts(&self) -> u64 {
        self.attempts
    }
}
