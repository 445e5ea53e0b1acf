//! What people are told of the reflector: its status, and the log: loud once, then quiet, then "recovered".

use jiff::Timestamp;
use tokio::{sync::watch as level, time::Instant};
use tracing::{debug, info, warn};

use super::reflector::Version;
use crate::{
    clock,
    source::{
        outage::Outage,
        status::{ReflectorStatus, SourceStatus},
    },
};

/// See the [module](self).
pub(super) struct Teller {
    status: level::Sender<SourceStatus>,
    outage: Outage,
    is_failing: bool,
}

/// What a reflector that has done nothing yet is doing.
pub(super) fn idle() -> ReflectorStatus {
    ReflectorStatus { phase: "waiting", resource_version: None, last_event: None, next_attempt: None }
}

impl Teller {
    pub(super) fn new(status: level::Sender<SourceStatus>) -> Self {
        Self { status, outage: Outage::default(), is_failing: false }
    }

    /// Says which server it is: its URL, as people write it.
    pub(super) fn target(&self, url: &str) {
        self.status.send_modify(|status| url.trim_end_matches('/').clone_into(&mut status.target));
    }

    /// Says what it is doing now, in a word.
    pub(super) fn phase(&self, phase: &'static str, detail: String) {
        self.status.send_modify(|status| {
            status.detail = detail;
            let reflector = status.reflector.get_or_insert_with(idle);
            (reflector.phase, reflector.next_attempt) = (phase, None);
        });
    }

    /// What is shown is of this time, until there is news.
    pub(super) fn restored(&self, live: Option<Timestamp>, version: Option<Version>) {
        self.status.send_modify(|status| {
            status.restored = live;
            status.reflector.get_or_insert_with(idle).resource_version = version;
        });
    }

    /// The server has said something.
    pub(super) fn heard(&self, version: Option<&Version>) {
        let now = clock::now();
        self.status.send_modify(|status| {
            let reflector = status.reflector.get_or_insert_with(idle);
            reflector.last_event = Some(now);
            reflector.resource_version = version.cloned();
        });
    }

    /// All is well: the listing is live.
    pub(super) fn well(&mut self, pods: usize) {
        let now = clock::now();
        let (mut failed, mut is_first, mut target) = (None, false, String::new());
        self.status.send_modify(|status| {
            failed = self.outage.over(status);
            is_first = status.last_success.replace(now).is_none();
            status.restored = None;
            target.clone_from(&status.target);
        });
        self.is_failing = false;
        if let Some(failed) = failed {
            info!(
                source = "api",
                path = %target,
                pods,
                failed,
                "recovered: the API server tells of this node's pods again"
            );
        } else if is_first {
            // That there are none at all may be a wrong name of the node.
            info!(source = "api", path = %target, pods, "the API server tells of this node's pods");
        }
    }

    /// An event came, or a listing is complete.
    pub(super) fn live(&mut self, pods: usize) {
        if self.is_failing {
            self.well(pods);
        } else {
            let now = clock::now();
            self.status.send_modify(|status| (status.last_success, status.restored) = (Some(now), None));
        }
    }

    /// It does not work, and is tried again. The error may quote what was read.
    pub(super) fn failing(&mut self, error: &str, quotes: bool, pods_kept: usize, next: Instant) {
        self.is_failing = true;
        let next_attempt = self.waits(next);
        let (mut target, mut is_news) = (String::new(), false);
        self.status.send_modify(|status| {
            target.clone_from(&status.target);
            is_news = self.outage.failed(status, error, quotes);
        });
        let next_attempt = format!("{next_attempt:.3}");
        let what = "this node's pods cannot be had from the API server; those that are known stay";
        if is_news {
            warn!(source = "api", path = %target, pods_kept, next_attempt, %error, "{what}");
        } else {
            debug!(source = "api", path = %target, pods_kept, next_attempt, %error, "{what}");
        }
    }

    /// It waits until then.
    pub(super) fn waits(&self, next: Instant) -> Timestamp {
        let delay = next.saturating_duration_since(Instant::now());
        let next = clock::now() + jiff::SignedDuration::try_from(delay).unwrap_or_default();
        self.status.send_modify(|status| {
            let reflector = status.reflector.get_or_insert_with(idle);
            (reflector.phase, reflector.next_attempt) = ("waiting", Some(next));
        });
        next
    }
}
