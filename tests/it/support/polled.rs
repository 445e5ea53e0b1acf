//! A url source with a mux and one consumer.

use std::time::Duration;

use http::{HeaderMap, Uri};
use podmux::{
    manifest::Preparation,
    mux::{Mux, Notify, Updates},
    pod::{NodeName, SecurityLevel, SourceName},
    source::{
        SourceStatus,
        url::{Config, UrlHandle, UrlSource},
    },
    storage::SourceState,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::files::{line, soon};

/// The settings of a test. After the first poll there are only requested ones.
pub fn settings(url: &str) -> Config {
    let url: Uri = url.parse().unwrap();
    Config {
        url,
        headers: HeaderMap::new(),
        ca_file: None,
        client_certificate: None,
        sha256: None,
        check_frequency: Duration::from_hours(1),
        pod_security: SecurityLevel::default(),
    }
}

/// A running source.
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
        Self::start_as(SourceName::Url, config, change)
    }

    pub fn start_as(name: SourceName, config: Config, change: impl FnOnce(UrlSource) -> UrlSource) -> Self {
        let (mux, turn) = Mux::new(&[name]);
        let node = NodeName::new("node").unwrap();
        let preparation = Preparation { source: name, node, generate: None, namespace: None };
        let (source, handle) = UrlSource::new(config, preparation, mux.channel(name).unwrap());
        let stop = CancellationToken::new();
        tokio::spawn(turn.run());
        let source = tokio::spawn(change(source).run(stop.clone()));
        let updates = mux.updates(Notify::Incremental);
        Self { handle, updates, mux, stop, source }
    }

    /// Asserts that the next update is this one.
    pub async fn receives(&mut self, expected: &str) {
        let update = soon(self.updates.next()).await.expect("the mux runs");
        assert_eq!(line(&update), expected);
    }

    /// Polls, and asserts that there is no update.
    pub async fn receives_nothing(&mut self) {
        self.poll().await;
        let update = self.updates.try_next();
        assert_eq!(update.as_ref().map(line), None);
    }

    /// Polls, and asserts that no listing is published.
    pub async fn publishes_nothing(&self) {
        let mut merged = self.mux.merged();
        merged.mark_unchanged();
        self.poll().await;
        assert!(!merged.has_changed().unwrap(), "a listing was published");
    }

    /// Polls, and waits until the result is merged.
    pub async fn poll(&self) {
        assert!(soon(self.handle.rescanned()).await);
    }

    pub fn status(&self) -> SourceStatus {
        self.handle.status().borrow().clone()
    }

    /// The error of the source.
    pub fn error(&self) -> String {
        self.status().failing.expect("the source fails").error.to_string()
    }

    /// Waits for an error.
    pub async fn fails(&self, wanted: &str) {
        let fails = |status: &SourceStatus| {
            status.failing.as_ref().is_some_and(|failing| failing.error.contains(wanted))
        };
        soon(self.handle.status().wait_for(fails)).await.expect("the source runs");
    }

    /// The state of the source in the merged view.
    pub fn state(&self) -> SourceState {
        self.mux.merged().borrow().state(SourceName::Url).unwrap()
    }

    /// The rejections, as `origin: reason`.
    pub fn rejections(&self) -> Vec<String> {
        let merged = self.mux.merged().borrow().clone();
        merged.rejections().map(|rejection| format!("{}: {}", rejection.origin, rejection.reason)).collect()
    }

    /// Stops the source and waits for its end.
    pub async fn end(self) {
        self.stop.cancel();
        soon(self.source).await.unwrap();
    }
}
