//! What the reflector counts, under client-go's names for it (`client-go/tools/cache`, `MetricsProvider`).

use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};

/// The reflector's counters and distributions. Clones share their numbers.
#[derive(Clone, Debug)]
pub struct ReflectorMetrics {
    /// Lists that were begun (a `WatchList` counts as one).
    pub lists: Counter,
    /// How long a list took to its end, in seconds.
    pub list_duration: Histogram,
    /// How many items a list had.
    pub items_per_list: Histogram,
    /// Watches that were begun.
    pub watches: Counter,
    /// Watches that ended within a second without an event.
    pub short_watches: Counter,
    /// How long a watch stood, in seconds.
    pub watch_duration: Histogram,
    /// How many events a watch had.
    pub items_per_watch: Histogram,
    /// What went wrong, by `kind`: `connect`, `http`, `expired`, `error-event`,
    /// `broken`, `silent`, `short-watch`, `undecodable`, `kubeconfig`.
    pub errors: Family<[(&'static str, String); 1], Counter>,
}

impl Default for ReflectorMetrics {
    fn default() -> Self {
        let seconds = || Histogram::new([0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 600.0]);
        let items = || Histogram::new([0.0, 1.0, 10.0, 100.0, 500.0, 1_000.0, 5_000.0, 10_000.0]);
        Self {
            lists: Counter::default(),
            list_duration: seconds(),
            items_per_list: items(),
            watches: Counter::default(),
            short_watches: Counter::default(),
            watch_duration: seconds(),
            items_per_watch: items(),
            errors: Family::default(),
        }
    }
}
