//! The shutdown: its signals, its two steps and its time limits.

use std::{pin::pin, time::Duration};

use anyhow::Context as _;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    settings::Settings,
    supervise::{BoxError, TaskError},
};

/// The share of the shutdown grace that is reserved for the end of the process
/// itself, so that the whole shutdown fits in it; at most [`LONGEST_EXIT`].
const EXIT_SHARE: u32 = 10;
const LONGEST_EXIT: Duration = Duration::from_millis(500);
/// The share of the rest in which pending requests are answered while all sources
/// still run; at most [`LONGEST_FINISH`], the time limit for a request's body.
const FINISH_SHARE: u32 = 4;
const LONGEST_FINISH: Duration = Duration::from_secs(10);
/// Signals within this time are one: `timeout` sends it to the process and to its group.
const TOGETHER: Duration = Duration::from_millis(500);

/// How long the tasks may take to stop: a part of what the whole process may.
pub(super) fn shutdown_time(settings: &Settings) -> Duration {
    let grace = settings.shutdown_grace;
    grace.saturating_sub((grace / EXIT_SHARE).min(LONGEST_EXIT))
}

/// The tokens of the shutdown's steps.
#[derive(Clone)]
pub(super) struct Shutdown {
    /// First step: pending requests are finished. Passed sockets are left to the kernel, which
    /// keeps new connections for the next process.
    pub(super) finish: CancellationToken,
    /// Second step: the sources stop, and all other tasks after them.
    pub(super) stop: CancellationToken,
    /// Aborts the tasks that still run.
    pub(super) abort: CancellationToken,
}

impl Shutdown {
    pub(super) fn new() -> Self {
        let stop = CancellationToken::new();
        Self { finish: stop.child_token(), stop, abort: CancellationToken::new() }
    }

    /// Waits for the first step, and starts the second when the server has finished its requests.
    pub(super) async fn stop_after_requests(
        self,
        finished: Option<CancellationToken>,
        grace: watch::Receiver<Duration>,
    ) -> Result<(), BoxError> {
        self.finish.cancelled().await;
        if let Some(finished) = finished {
            let time = (*grace.borrow() / FINISH_SHARE).min(LONGEST_FINISH);
            let in_time = self.stop.run_until_cancelled(timeout(time, finished.cancelled())).await;
            if matches!(in_time, Some(Err(_))) {
                warn!("requests unfinished when the sources stop");
            }
        }
        self.stop.cancel();
        Ok(())
    }

    /// Waits until all tasks have ended. The first signal begins the shutdown, a later one aborts it.
    pub(super) async fn attend(
        &self,
        tasks: impl Future<Output = Result<Vec<String>, TaskError>>,
        mut signals: StopSignals,
    ) -> Result<(), TaskError> {
        let mut tasks = pin!(tasks);
        let mut requested: Option<Instant> = None;
        loop {
            tokio::select! {
                ended = &mut tasks => {
                    let unfinished = ended?;
                    if unfinished.is_empty() {
                        info!("stopped");
                    } else if !self.abort.is_cancelled() {
                        warn!("stopped: the shutdown grace is over");
                    }
                    return Ok(());
                }
                signal = signals.next() => {
                    // Before it is logged, so that what follows the log line sees it.
                    let (was_stopping, first) = (self.finish.is_cancelled(), requested);
                    self.finish.cancel();
                    requested.get_or_insert_with(Instant::now);
                    if first.is_some_and(|first| first.elapsed() < TOGETHER) {
                        debug!(signal, "signal ignored: it belongs to the first one");
                    } else if first.is_some() {
                        warn!(signal, "stopped at once: second signal");
                        self.abort.cancel();
                    } else if was_stopping {
                        info!(signal, "already stopping after a failure; a second signal stops at once");
                    } else {
                        info!(signal, "stopping: pending updates are delivered");
                    }
                }
            }
        }
    }
}

pub(super) fn listen(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("cannot listen for signals")
}

/// SIGTERM and SIGINT.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// The name of the next signal.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
