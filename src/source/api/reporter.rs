//! What the status and the log of the source show of the reflector.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::info;

use super::reflector::Version;
use crate::source::{ReflectorStatus, control::Output};

impl Output {
    fn show_reflector(&self, change: impl FnOnce(&mut ReflectorStatus)) {
        self.show(|status| change(status.reflector.get_or_insert_default()));
    }

    /// Shows the server's URL, or where it is to be read.
    pub(super) fn set_target(&self, url: &str) {
        self.show(|status| url.trim_end_matches('/').clone_into(&mut status.target));
    }

    /// Shows what the reflector is doing.
    pub(super) fn set_phase(&mut self, phase: &'static str, detail: String) {
        self.show_reflector(|reflector| (reflector.phase, reflector.next_attempt) = (phase, None));
        self.set_detail(detail);
    }

    /// Shows that the listing is restored, and when it was current.
    pub(super) fn set_restored(&self, live: Option<Timestamp>, version: Option<Version>) {
        self.show(|status| status.restored = live);
        self.show_reflector(|reflector| reflector.resource_version = version);
    }

    /// Shows that an event, a bookmark or a complete listing has arrived.
    pub(super) fn received(&self, version: Option<&Version>) {
        let now = self.host.clock.now();
        self.show_reflector(|reflector| {
            reflector.last_event = Some(now);
            reflector.resource_version = version.cloned();
        });
    }

    /// Notes that the listing is live.
    pub(super) fn live(&mut self) {
        let is_first = self.status.borrow().last_success.is_none();
        if !self.succeeded() && is_first {
            // No pods at all may mean that the node's name is wrong.
            info!(source = "api", path = %self.status.borrow().target, pods = self.pods(), "source synced");
        }
    }

    /// Shows when the next request is made, and returns it.
    pub(super) fn set_waiting(&self, next: Instant) -> Timestamp {
        let delay = next.saturating_duration_since(Instant::now());
        let next = self.host.clock.now() + SignedDuration::try_from(delay).unwrap_or_default();
        self.show_reflector(|reflector| (reflector.phase, reflector.next_attempt) = ("waiting", Some(next)));
        next
    }
}
