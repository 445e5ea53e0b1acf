//! The sources beside the http source: one row each.

use std::pin::Pin;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    host::Host,
    manifest::Preparation,
    mux::SourceChannel,
    pod::{NodeName, SourceName},
    settings::Settings,
    source::{
        Handle, SourceStatus,
        api::{ApiSource, ReflectorMetrics},
        file::FileSource,
        last_good::LastGood,
        url::UrlSource,
    },
};

/// The status of each source.
pub(super) type Statuses = Vec<(SourceName, watch::Receiver<SourceStatus>)>;

/// The sources. A new one gets its own module, a name in [`SourceName`] and one row here.
pub(super) const SOURCES: [Source; 3] = [
    Source { name: SourceName::File, is_configured: |settings| settings.file.is_some(), start: file },
    Source { name: SourceName::Url, is_configured: |settings| settings.url.is_some(), start: url },
    Source { name: SourceName::Api, is_configured: |settings| settings.api.is_some(), start: api },
];

/// A source that can be configured.
pub(super) struct Source {
    pub(super) name: SourceName,
    pub(super) is_configured: fn(&Settings) -> bool,
    /// Makes it, if it is configured.
    pub(super) start: fn(&Settings, Parts) -> Option<Started>,
}

/// What the agent gives to a source.
pub(super) struct Parts {
    pub(super) node: NodeName,
    pub(super) channel: SourceChannel,
    pub(super) last_good: LastGood,
    pub(super) stop: CancellationToken,
    pub(super) host: Host,
}

impl Parts {
    fn preparation(&self) -> Preparation {
        let (source, node) = (self.channel.source(), self.node.clone());
        Preparation { source, node, generate: None, namespace: None }
    }
}

/// Applies the settings of a reload.
pub(super) type Retune = Box<dyn Fn(&Settings) + Send + Sync>;

/// A source that is made.
pub(super) struct Started {
    pub(super) run: Pin<Box<dyn Future<Output = ()> + Send>>,
    pub(super) status: watch::Receiver<SourceStatus>,
    pub(super) retune: Retune,
    pub(super) metrics: Option<ReflectorMetrics>,
}

impl Started {
    fn new<C: Send + Sync + 'static>(
        run: impl Future<Output = ()> + Send + 'static,
        handle: Handle<C>,
        config: fn(&Settings) -> Option<C>,
    ) -> Self {
        let status = handle.status();
        let retune = move |settings: &Settings| {
            if let Some(new) = config(settings) {
                handle.retune(new);
            }
        };
        Self { run: Box::pin(run), status, retune: Box::new(retune), metrics: None }
    }
}

fn file(settings: &Settings, parts: Parts) -> Option<Started> {
    let (source, handle) = FileSource::new(settings.file.clone()?, parts.preparation(), parts.channel);
    let run = source.on(parts.host).with_last_good(parts.last_good).run(parts.stop);
    Some(Started::new(run, handle, |settings| settings.file.clone()))
}

fn url(settings: &Settings, parts: Parts) -> Option<Started> {
    let (source, handle) = UrlSource::new(settings.url.clone()?, parts.preparation(), parts.channel);
    let run = source.on(parts.host).with_last_good(parts.last_good).run(parts.stop);
    Some(Started::new(run, handle, |settings| settings.url.clone()))
}

fn api(settings: &Settings, parts: Parts) -> Option<Started> {
    let (source, handle) = ApiSource::new(settings.api.clone()?, parts.node, parts.channel);
    let metrics = Some(source.metrics());
    let run = source.on(parts.host).with_last_good(parts.last_good).run(parts.stop);
    Some(Started { metrics, ..Started::new(run, handle, |settings| settings.api.clone()) })
}
