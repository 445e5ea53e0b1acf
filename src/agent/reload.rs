//! SIGHUP: the settings are read anew, and whom they concern is told.

use std::{sync::Arc, time::Duration};

use tokio::{signal::unix::Signal, sync::watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    Reload, check,
    service::{ReloadTeller, Trouble},
    time_to_stop,
    wiring::Handles,
};
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
            let reading = tokio::task::spawn_blocking(move || {
                let settings = reload()?;
                let problem = check(&settings).into_iter().next();
                Ok((settings, problem))
            });
            let Some(read) = stop.run_until_cancelled(reading).await else { break };
            // Whoever panics over new settings has not touched the old ones.
            let read =
                read.unwrap_or_else(|panic| Err(anyhow::Error::new(panic).context("reading them broke off")));
            let trouble = self.settle(read);
            self.handles.reloaded(trouble.is_none());
            // Whatever became of the settings, everything is scanned.
            self.handles.retune(&self.settings);
            self.teller.ended(trouble);
        }
        Ok(())
    }

    /// Takes settings that can be taken, and says what was wrong.
    fn settle(&mut self, read: anyhow::Result<(Settings, Option<anyhow::Error>)>) -> Option<Trouble> {
        match read {
            Ok((settings, problem)) => {
                self.take(settings);
                let error = format!("{:#}", problem?);
                error!(
                    error,
                    "SIGHUP: a file that the settings name is of no use; what was read before stays"
                );
                Some(Trouble::Unusable(error))
            }
            Err(error) => {
                let error = format!("{error:#}");
                error!(error, "SIGHUP: the settings cannot be used; those from before stay");
                Some(Trouble::Refused(error))
            }
        }
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
