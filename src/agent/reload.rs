//! SIGHUP: reads the settings again, checks the files that they name, and applies them.

use std::{pin::pin, sync::Arc};

use anyhow::Context as _;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    status::{ReloadFailure, Reloads},
    wiring::Handles,
};
use crate::{client, host::Host, server, settings::Settings, source::api::Connector, supervise::BoxError};

/// Reads the settings again, from the same flags and environment as at the start.
pub type Reload = dyn Fn() -> anyhow::Result<Settings> + Send + Sync;

/// The settings that take effect, the changed ones that do not, and the first invalid file that the former name.
type Read = (Settings, Vec<&'static str>, Option<anyhow::Error>);

/// The task that reloads at each SIGHUP.
pub(super) struct Reloader {
    pub(super) reload: Arc<Reload>,
    pub(super) settings: Settings,
    pub(super) handles: Handles,
    pub(super) reloads: watch::Sender<Reloads>,
    pub(super) host: Host,
}

impl Reloader {
    pub(super) async fn run(
        mut self,
        hangups: impl Stream<Item = ()>,
        stop: CancellationToken,
    ) -> Result<(), BoxError> {
        let mut hangups = pin!(hangups);
        while stop.run_until_cancelled(hangups.next()).await.is_some() {
            self.reloads.send_modify(|reloads| reloads.begun += 1);
            let (reload, current) = (self.reload.clone(), self.settings.clone());
            // The config file may be on a network file system that hangs.
            let reading = self.host.threads.blocking(move || {
                let (settings, stuck) = current.reloaded(reload()?);
                let problem = check(&settings).into_iter().next();
                Ok((settings, stuck, problem))
            });
            let Some(read) = stop.run_until_cancelled(reading).await else { break };
            // A panic while loading leaves the previous settings in effect.
            let failure = self.apply(read.context("reading the settings failed").flatten());
            self.handles.reloaded(failure.is_none());
            self.reloads.send_modify(|reloads| {
                reloads.ended = reloads.begun;
                reloads.failure = failure;
            });
        }
        Ok(())
    }

    /// Applies valid settings, and rescans all sources also if they are invalid. Returns what was invalid.
    fn apply(&mut self, read: anyhow::Result<Read>) -> Option<ReloadFailure> {
        match read {
            Ok((settings, stuck, problem)) => {
                self.adopt(settings, stuck);
                let error = format!("{:#}", problem?);
                error!(
                    error,
                    "reload incomplete: a file that the settings name is invalid; its previous content stays in effect"
                );
                Some(ReloadFailure::File(error))
            }
            Err(error) => {
                let error = format!("{error:#}");
                error!(error, "reload failed: invalid settings; the previous ones stay in effect");
                self.handles.retune(&self.settings);
                Some(ReloadFailure::Settings(error))
            }
        }
    }

    fn adopt(&mut self, settings: Settings, stuck: Vec<&'static str>) {
        for warning in &settings.warnings {
            warn!("{warning}");
        }
        for setting in stuck {
            warn!(setting, "a changed setting takes effect only after a restart");
        }
        self.settings = settings;
        self.handles.retune(&self.settings);
        info!("settings reloaded");
    }
}

/// `run --check`: all errors in the files that the settings name: token, certificates and keys, the
/// kubeconfig and its files, the files of the sinks, the program of the runtime.
///
/// It only reads. It listens on nothing, connects to nothing, locks, creates and writes
/// nothing, so it can run beside an agent. Manifests and the state directory are not checked.
/// It blocks.
#[must_use]
pub fn check(settings: &Settings) -> Vec<anyhow::Error> {
    let mut problems: Vec<anyhow::Error> =
        server::check(&settings.server).into_iter().map(anyhow::Error::from).collect();
    if let Some(url) = &settings.url {
        let certificate = url.client_certificate.as_ref();
        let checked = client::check(url.ca_file.as_deref(), certificate);
        problems.extend(checked.err().map(|error| {
            let flag = match error.path() {
                Some(path) if url.ca_file.as_deref() == Some(path) => "--manifest-url-ca-file",
                Some(path) if certificate.is_some_and(|files| files.key == path) => {
                    "--manifest-url-client-key-file"
                }
                _ => "--manifest-url-client-cert-file",
            };
            anyhow::Error::from(error).context(flag)
        }));
    }
    if let Some(api) = settings.api.clone() {
        let connector = Connector::new(api.kubeconfig).with_proxies(api.proxies);
        problems.extend(connector.check().err().map(anyhow::Error::from));
    }
    let consumers = settings.sinks.iter().chain(settings.runtime.iter().map(|runtime| &runtime.kind));
    problems.extend(consumers.filter_map(|consumer| consumer.check().err()).map(anyhow::Error::from));
    problems
}
