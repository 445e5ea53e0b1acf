//! SIGHUP: the settings are read anew, and whom they concern is told.

use std::{sync::Arc, time::Duration};

use tokio::{signal::unix::Signal, sync::watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{Reload, service::ReloadTeller, time_to_stop, wiring::Handles};
use crate::{settings::Settings, supervise::BoxError, telemetry::Level};

/// Reads the settings anew at each SIGHUP and tells whom they concern.
pub(super) struct Reloader {
    pub(super) reload: Arc<Reload>,
    pub(super) settings: Settings,
    pub(super) handles: Handles,
    pub(super) grace: watch::Sender<Duration>,
    pub(super) level: Level,
    pub(super) teller: ReloadTeller,
}

impl Reloader {
    pub(super) async fn run(mut self, mut hangups: Signal, stop: CancellationToken) -> Result<(), BoxError> {
        while stop.run_until_cancelled(hangups.recv()).await.is_some() {
            self.teller.begun();
            let reload = self.reload.clone();
            // The config file may stand on a network that hangs.
            let reading = tokio::task::spawn_blocking(move || reload());
            let Some(read) = stop.run_until_cancelled(reading).await else { break };
            let refused = read?.map(|settings| self.take(settings)).err().map(|error| format!("{error:#}"));
            self.handles.reloaded(refused.is_none());
            if let Some(error) = &refused {
                error!(error, "SIGHUP: the settings cannot be used; those from before stay");
            }
            // Whatever became of the settings, everything is scanned.
            self.handles.retune(&self.settings);
            self.teller.ended(refused);
        }
        Ok(())
    }

    /// Takes over what may change while the agent runs, and says what may not.
    fn take(&mut self, new: Settings) {
        for warning in &new.warnings {
            warn!("{warning}");
        }
        let (settings, stuck) = self.settings.reloaded(new);
        for key in stuck {
            warn!(setting = key.flag(), "SIGHUP: another value takes effect only after a restart");
        }
        self.level.set(settings.log.verbosity);
        self.grace.send_replace(time_to_stop(&settings));
        self.settings = settings;
        info!("SIGHUP: the settings are read");
    }
}
