//! A web server under a real url source, a real mux and one consumer.

use std::time::Duration;

use http::Uri;
use podmux::{
    manifest::Preparation,
    mux::{Mux, Notify, Updates},
    pod::{NodeName, SourceName},
    source::{
        SourceStatus,
        url::{Config, UrlHandle, UrlSource},
    },
    storage::SourceState,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::files::{line, soon};

/// The settings of a test: after the first poll nothing happens by itself.
pub fn settings(url: &str) -> Config {
    let url: Uri = url.parse().unwrap();
    Config { check_frequency: Duration::from_hours(1), ..Config::new(url) }
}

/// A source at work.
pub struct Polled {
    pub handle: UrlHandle,
    pub updates: Updates,
    pub mux: Mux,
    pub stop: CancellationToken,
    pub source: JoinHandle<()>,
}

impl Polled {
    pub fn start(url: &str) -> Self {
        Self::start_with(settings(url), |source| source)
    }

    pub fn start_with(config: Config, change: impl FnOnce(UrlSource) -> UrlSource) -> Self {
        let (mux, turn) = Mux::new(&[SourceName::Url]);
        let node = NodeName::new("node").unwrap();
        let preparation = Preparation { source: SourceName::Url, node, generate: None, namespace: None };
        let (source, handle) = UrlSource::new(config, preparation, mux.channel(SourceName::Url).unwrap());
        let stop = CancellationToken::new();
        tokio::spawn(turn.run());
        let source = tokio::spawn(change(source).run(stop.clone()));
        let updates = mux.updates(Notify::Incremental);
        Self { handle, updates, mux, stop, source }
    }

    /// Waits for the next update, which must be this one.
    pub async fn hear(&mut self, expected: &str) {
        let update = soon(self.updates.next()).await.expect("the mux goes on");
        assert_eq!(line(&update), expected);
    }

    /// Polls once more; when that has been merged, there must be nothing to hear.
    pub async fn hear_nothing(&mut self) {
        self.poll().await;
        let update = self.updates.try_next();
        assert_eq!(update.as_ref().map(line), None);
    }

    /// Polls once more; not even a listing must come of it.
    pub async fn push_nothing(&self) {
        let mut merged = self.mux.merged();
        merged.mark_unchanged();
        self.poll().await;
        assert!(!merged.has_changed().unwrap(), "a listing was pushed");
    }

    /// Polls once more, and waits until what came of it has been merged.
    pub async fn poll(&self) {
        assert!(soon(self.handle.rescanned()).await);
    }

    pub fn status(&self) -> SourceStatus {
        self.handle.status().borrow().clone()
    }

    /// How it fails.
    pub fn error(&self) -> String {
        self.status().failing.expect("it works").error.to_string()
    }

    /// Waits until it fails so.
    pub async fn fails(&self, wanted: &str) {
        let fails = |status: &SourceStatus| {
            status.failing.as_ref().is_some_and(|failing| failing.error.contains(wanted))
        };
        soon(self.handle.status().wait_for(fails)).await.expect("the source goes on");
    }

    /// What the mux has heard of it.
    pub fn state(&self) -> SourceState {
        self.mux.merged().borrow().state(SourceName::Url).unwrap()
    }

    /// What was refused, as `origin: reason`.
    pub fn rejections(&self) -> Vec<String> {
        let merged = self.mux.merged().borrow().clone();
        merged.rejections().map(|rejection| format!("{}: {}", rejection.origin, rejection.reason)).collect()
    }

    /// Stops it, and waits for its end.
    pub async fn end(self) {
        self.stop.cancel();
        soon(self.source).await.unwrap();
    }
}
