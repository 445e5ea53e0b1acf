//! The status of the source, and its log.

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};
use tracing::{debug, info, warn};

use super::reflector::Version;
use crate::{
    host::Clock,
    outage::Outage,
    source::status::{SourceFailing, SourceStatus},
};

/// Publishes the source's status and logs what changes in it.
pub(super) struct Reporter {
    status: watch::Sender<SourceStatus>,
    outage: Outage,
    pub(super) clock: Clock,
}

impl Reporter {
    pub(super) fn new(status: watch::Sender<SourceStatus>, clock: Clock) -> Self {
        Self { status, outage: Outage::default(), clock }
    }

    /// Shows the server's URL, or where it is to be read.
    pub(super) fn target(&self, url: &str) {
        self.status.send_modify(|status| url.trim_end_matches('/').clone_into(&mut status.target));
    }

    pub(super) fn phase(&self, phase: &'static str, detail: String) {
        self.status.send_modify(|status| {
            status.detail = detail;
            let reflector = status.reflector.get_or_insert_default();
            (reflector.phase, reflector.next_attempt) = (phase, None);
        });
    }

    /// Shows that the listing is restored, and when it was current.
    pub(super) fn restored(&self, live: Option<Timestamp>, version: Option<Version>) {
        self.status.send_modify(|status| {
            status.restored = live;
            status.reflector.get_or_insert_default().resource_version = version;
        });
    }

    /// Notes an event, a bookmark or a complete listing.
    pub(super) fn received(&self, version: Option<&Version>) {
        let now = self.clock.now();
        self.status.send_modify(|status| {
            let reflector = status.reflector.get_or_insert_default();
            reflector.last_event = Some(now);
            reflector.resource_version = version.cloned();
        });
    }

    /// Notes that the listing is live.
    pub(super) fn healthy(&mut self, pods: usize) {
        let now = self.clock.now();
        let (mut is_first, target) = (false, self.status.borrow().target.clone());
        self.status.send_modify(|status| {
            status.failing = None;
            is_first = status.last_success.replace(now).is_none();
            status.restored = None;
        });
        if let Some(failed) = self.outage.recovered() {
            info!(source = "api", path = %target, pods, failed, "source recovered");
        } else if is_first {
            // No pods at all may mean that the node's name is wrong.
            info!(source = "api", path = %target, pods, "source synced");
        }
    }

    /// Notes a failure that is retried. `quotes`: the error may quote what was read.
    pub(super) fn failing(&mut self, error: &str, quotes: bool, pods_kept: usize, next: Instant) {
        let next_attempt = format!("{:.3}", self.waiting(next));
        let is_new = self.outage.failed(error, self.clock.now());
        let target = self.status.borrow().target.clone();
        self.status.send_modify(|status| status.failing = SourceFailing::of(&self.outage, quotes));
        if is_new {
            warn!(source = "api", path = %target, pods_kept, next_attempt, %error, "source failed");
        } else {
            debug!(source = "api", path = %target, pods_kept, next_attempt, %error, "source failed");
        }
    }

    /// Shows when the next request is made, and returns it.
    pub(super) fn waiting(&self, next: Instant) -> Timestamp {
        let delay = next.saturating_duration_since(Instant::now());
        let next = self.clock.now() + jiff::SignedDuration::try_from(delay).unwrap_or_default();
        self.status.send_modify(|status| {
            let reflector = status.reflector.get_or_insert_default();
            (reflector.phase, reflector.next_attempt) = ("waiting", Some(next));
        });
        next
    }
}
