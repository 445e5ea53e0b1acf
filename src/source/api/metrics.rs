//! The reflector's metrics, with client-go's names (`client-go/tools/cache`, `MetricsProvider`).

use tokio::time::Instant;

use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};

/// The reflector's counters and histograms. Clones share their values.
#[derive(Clone, Debug)]
pub struct ReflectorMetrics {
    /// Started lists (a `WatchList` counts as one).
    pub lists: Counter,
    /// How long a complete list took, in seconds.
    pub list_duration: Histogram,
    /// How many items a complete list had.
    pub items_per_list: Histogram,
    /// Started watches.
    pub watches: Counter,
    /// Watches that ended within a second without an event.
    pub short_watches: Counter,
    /// How long a watch was open, in seconds.
    pub watch_duration: Histogram,
    /// How many events a watch had.
    pub items_per_watch: Histogram,
    /// Failures by `kind`: `kubeconfig`, `connect`, `http`, `expired`,
    /// `error-event`, `broken`, `garbage`, `silent`, `short-watch`, `undecodable`.
    pub errors: Family<[(&'static str, String); 1], Counter>,
}

impl Default for ReflectorMetrics {
    fn default() -> Self {
        Self {
            lists: Counter::default(),
            // Milliseconds from a near server, minutes from an overloaded one.
            list_duration: Histogram::new([
                0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
            ]),
            // A kubelet allows 110 pods by default; a page has 500.
            items_per_list: Histogram::new([0.0, 1.0, 10.0, 30.0, 110.0, 250.0, 500.0, 1_000.0, 5_000.0]),
            watches: Counter::default(),
            short_watches: Counter::default(),
            // A watch below 1 s failed; a regular one lasts 5 to 10 minutes, and one
            // over 630 s is ended by the source.
            watch_duration: Histogram::new([1.0, 5.0, 15.0, 60.0, 150.0, 300.0, 450.0, 630.0]),
            // A bookmark arrives each minute; a burst has no limit.
            items_per_watch: Histogram::new([0.0, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1_000.0, 10_000.0]),
            errors: Family::default(),
        }
    }
}

impl ReflectorMetrics {
    pub(super) fn error(&self, kind: &str) {
        self.errors.get_or_create(&[("kind", kind.to_owned())]).inc();
    }
}

/// What the current request has done so far.
#[derive(Debug, Default)]
pub(super) struct RequestMetrics {
    pub(super) metrics: ReflectorMetrics,
    list: Option<Instant>,
    watch: Option<Instant>,
    pub(super) items: u32,
}

impl RequestMetrics {
    pub(super) fn list_started(&mut self) {
        self.metrics.lists.inc();
        (self.list, self.watch, self.items) = (Some(Instant::now()), None, 0);
    }

    pub(super) fn watch_started(&mut self) {
        self.metrics.watches.inc();
        (self.list, self.watch, self.items) = (None, Some(Instant::now()), 0);
    }

    /// A list is complete; a `WatchList` goes on as a watch.
    pub(super) fn list_completed(&mut self, is_watch: bool) {
        if let Some(began) = self.list.take() {
            self.metrics.list_duration.observe(began.elapsed().as_secs_f64());
            self.metrics.items_per_list.observe(self.items.into());
        }
        self.items = 0;
        if is_watch {
            self.watch_started();
        }
    }

    pub(super) fn request_ended(&mut self, was_short: bool) {
        if let Some(began) = self.watch.take() {
            self.metrics.watch_duration.observe(began.elapsed().as_secs_f64());
            self.metrics.items_per_watch.observe(self.items.into());
            if was_short {
                self.metrics.short_watches.inc();
            }
        }
    }
}
