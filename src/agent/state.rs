//! Opens the state directory, and tries again if that fails.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    backoff::Backoff,
    db::{self, OpenError, Sequence, Writer},
    host::{Host, Moment},
    outage::Outage,
    pod::NodeName,
    runtime::exec,
    source::{SourceFailing, State, StateWatch, http},
    supervise::BoxError,
};

/// The delay before the state is opened again; it doubles with each further failure.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

type Seen = Result<Arc<State>, SourceFailing>;

/// Opens the state directory, and writes to it until its last user has ended.
pub(super) struct StateKeeper {
    path: PathBuf,
    node: NodeName,
    host: Host,
    sequence: Sequence,
    outage: Outage,
    /// Tries again at once.
    pub(super) retry: Arc<Notify>,
    /// The ledger of the exec runtime, if there is one.
    ledger: Option<watch::Sender<Result<exec::State, Arc<str>>>>,
}

impl StateKeeper {
    /// `sequence` continues after the numbers in the state.
    pub(super) fn new(path: PathBuf, node: NodeName, host: Host, sequence: Sequence) -> Self {
        let (outage, retry) = (Outage::default(), Arc::default());
        Self { path, node, host, sequence, outage, retry, ledger: None }
    }

    /// The ledger of the exec runtime, which is open when the state is.
    pub(super) fn ledger(&mut self) -> exec::StateWatch {
        let (publish, watch) = watch::channel(Err("it is being opened".into()));
        self.ledger = Some(publish);
        watch
    }

    /// Opens the state, and returns the task that writes to it. If it cannot be opened now, the
    /// task opens it later.
    ///
    /// # Errors
    /// If only a change of the settings can help.
    pub(super) async fn start(
        mut self,
        stop: CancellationToken,
    ) -> anyhow::Result<(StateWatch, impl Future<Output = Result<(), BoxError>>)> {
        let (writer, seen) = match self.open().await {
            Err(error) if error.downcast_ref().is_some_and(OpenError::is_final) => return Err(error),
            opened => self.note(opened).await,
        };
        let (publish, watch) = watch::channel(seen);
        Ok((watch, self.run(writer, publish, stop)))
    }

    async fn run(
        mut self,
        mut opened: Option<Writer>,
        publish: watch::Sender<Seen>,
        stop: CancellationToken,
    ) -> Result<(), BoxError> {
        let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        let writer = loop {
            if let Some(writer) = opened {
                break writer;
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = sleep(backoff.next(self.host.random.fraction())) => {}
                () = self.retry.notified() => backoff.reset(),
            }
            let Some(result) = stop.run_until_cancelled(self.open()).await else { return Ok(()) };
            let (writer, seen) = self.note(result).await;
            opened = writer;
            publish.send_modify(|now| *now = seen);
        };
        // The writer ends when nothing holds the database any more; the numbers hold it too.
        drop((publish, self.ledger, self.sequence));
        Ok(writer.run_on(&self.host.threads).await?)
    }

    /// Opens the state. The check of the whole file may take long.
    async fn open(&self) -> anyhow::Result<(Writer, State)> {
        let (host, path, node) = (self.host.clone(), self.path.clone(), self.node.clone());
        let opening = self.host.threads.blocking(move || {
            let (db, writer, mut stored) = db::open(&host, &path)?;
            // On the same thread, which reuses the memory of the rows for the pods.
            let posted = http::load(&mut stored, &node)?;
            Ok((writer, State::new(db, posted, stored)))
        });
        opening.await?
    }

    async fn note(&mut self, opened: anyhow::Result<(Writer, State)>) -> (Option<Writer>, Seen) {
        match opened {
            Ok((writer, state)) => {
                if let Some(attempts) = self.outage.recovered() {
                    info!(path = %self.path.display(), attempts, "state recovered");
                }
                self.sequence.attach(state.db.clone(), &state.stored(), state.posted.version());
                if let Some(ledger) = &self.ledger {
                    let open = exec::State::new(state.db.clone(), &mut state.stored());
                    ledger.send_modify(|now| *now = Ok(open));
                }
                // An agent that is killed right after its start has given out the numbers after the ones
                // in this state, and a copy that is put back does not know of them.
                sleep(self.sequence.ahead_of(self.host.clock.now())).await;
                (Some(writer), Ok(Arc::new(state)))
            }
            Err(error) => {
                let (error, now) = (format!("{error:#}"), self.host.clock.now());
                if self.outage.failed(&error, now) {
                    warn!(error, "state unavailable: posted pods are unknown, writes fail; it is retried");
                } else {
                    debug!(error, "state unavailable");
                }
                let since = self.outage.since().unwrap_or_else(|| Moment::at(now));
                let attempts = self.outage.attempts();
                let error: Arc<str> = error.into();
                if let Some(ledger) = &self.ledger {
                    ledger.send_modify(|now| *now = Err(error.clone()));
                }
                (None, Err(SourceFailing { since, attempts, error, quotes: false }))
            }
        }
    }
}
