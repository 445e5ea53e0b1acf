//! Opens the state directory, and tries again if that fails.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    backoff::Backoff,
    db::{self, OpenError, Writer},
    error_chain::chain,
    host::Host,
    outage::Outage,
    source::{SourceFailing, State, StateWatch},
    supervise::BoxError,
};

/// The delay before the state is opened again; it doubles with each further failure.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// Opens the state directory, and writes to it until its last user has ended.
pub(super) struct StateKeeper {
    path: PathBuf,
    host: Host,
    /// Tries again at once.
    pub(super) retry: Arc<Notify>,
    /// The writer, or the outage until there is one.
    writer: Result<Writer, Outage>,
    publish: watch::Sender<Result<Arc<State>, SourceFailing>>,
}

impl StateKeeper {
    /// Tries to open the state. [`run`](Self::run) goes on if that fails.
    ///
    /// # Errors
    /// If only a change of the settings can help.
    pub(super) async fn open(path: PathBuf, host: &Host) -> anyhow::Result<(Self, StateWatch)> {
        let mut outage = Outage::default();
        let (writer, state) = match open(&path, host).await? {
            Ok((writer, state)) => (Ok(writer), Ok(state)),
            Err(error) if error.is_final() => return Err(error.into()),
            Err(error) => {
                let failing = note(&mut outage, &error, host);
                (Err(outage), Err(failing))
            }
        };
        let (publish, watch) = watch::channel(state);
        Ok((Self { path, host: host.clone(), retry: Arc::default(), writer, publish }, watch))
    }

    /// Opens the state, and writes to it until its last user has ended. Meanwhile sources and
    /// sinks that do not need it run.
    pub(super) async fn run(self, stop: CancellationToken) -> Result<(), BoxError> {
        let Self { path, host, retry, writer, publish } = self;
        let writer = match writer {
            Ok(writer) => writer,
            Err(mut outage) => {
                let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
                loop {
                    tokio::select! {
                        () = stop.cancelled() => return Ok(()),
                        () = sleep(backoff.next(host.random.fraction())) => {}
                        () = retry.notified() => backoff.reset(),
                    }
                    match open(&path, &host).await? {
                        Ok((writer, state)) => {
                            info!(path = %path.display(), attempts = outage.attempts(), "state recovered");
                            drop(publish.send_replace(Ok(state)));
                            break writer;
                        }
                        Err(error) => drop(publish.send_replace(Err(note(&mut outage, &error, &host)))),
                    }
                }
            }
        };
        // The writer ends when nothing holds the database any more.
        drop(publish);
        Ok(host.threads.blocking(|| writer.run()).await?)
    }
}

/// Opens the state. The check of the whole file may take long.
async fn open(path: &PathBuf, host: &Host) -> anyhow::Result<Result<(Writer, Arc<State>), OpenError>> {
    let (machine, directory) = (host.clone(), path.clone());
    let opened = host.threads.blocking(move || db::open(&machine, &directory)).await?;
    Ok(opened.map(|(db, writer, stored)| (writer, Arc::new(State { db, stored: Mutex::new(stored) }))))
}

fn note(outage: &mut Outage, error: &OpenError, host: &Host) -> SourceFailing {
    let (error, now) = (chain(error), host.clock.now());
    if outage.failed(&error, now) {
        warn!(%error, "state unavailable: posted pods are unknown, writes fail; it is retried");
    } else {
        debug!(%error, "state unavailable");
    }
    let since = outage.since().unwrap_or(now);
    SourceFailing { since, attempts: outage.attempts(), error: error.into(), quotes: false }
}
