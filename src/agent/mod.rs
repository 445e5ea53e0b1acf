//! Wiring: makes the channels, starts the crew, waits for it; the only room that knows all others.

mod check;
mod levels;
mod reload;
mod service;
mod status;
mod wiring;

use std::{pin::pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use self::check::check;
use self::{
    reload::Reloader,
    service::{ReloadTeller, Service},
    wiring::Wired,
};
use crate::{
    clock,
    server::{BindError, StartError},
    settings::{PassedSocket, Settings},
    sink::OpenError,
    supervise::{BoxError, TaskError, Tasks},
    systemd::Manager,
    telemetry::Log,
};

pub use self::service::{extend, watchdog};

/// Threads for what never blocks. The work is small, and a node agent shares its node.
const WORKERS: usize = 2;
/// The share of the shutdown grace that is kept for the end of the process
/// itself, so that the whole is over when the grace is; at most [`LONGEST_END`].
const END_SHARE: u32 = 10;
const LONGEST_END: Duration = Duration::from_millis(500);
/// The share of the time to stop in which requests that have begun are answered,
/// while everything still works; at most [`LONGEST_FINISH`], the time in which a
/// body has to come.
const FINISH_SHARE: u32 = 4;
const LONGEST_FINISH: Duration = Duration::from_secs(10);

/// Why the agent ended other than as it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It did not start: something it was given cannot be used.
    #[error(transparent)]
    Refused(anyhow::Error),
    /// It did not start: something that it needs is not there yet, and may come.
    #[error(transparent)]
    TooEarly(anyhow::Error),
    /// It failed while it ran.
    #[error(transparent)]
    Failed(anyhow::Error),
}

impl AgentError {
    /// The process's exit status: 2 refused at start, 1 failed while running, or
    /// started too early. A service manager takes 2 for "not again".
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 2,
            Self::TooEarly(_) | Self::Failed(_) => 1,
        }
    }

    /// Why it did not start: for good, or only now. Addresses come when the
    /// network does, and a pipe's reader may be started after us.
    fn at_start(error: anyhow::Error) -> Self {
        let no_address = matches!(error.downcast_ref(), Some(StartError::Bind(BindError::NotLocal { .. })));
        let no_reader = matches!(error.downcast_ref(), Some(OpenError::NoReader(_)));
        if no_address || no_reader { Self::TooEarly(error) } else { Self::Refused(error) }
    }
}

/// Reads the settings anew, as they were read at the start.
pub type Reload = dyn Fn() -> anyhow::Result<Settings> + Send + Sync;

/// Runs the agent until a signal stops it.
///
/// SIGTERM and SIGINT stop it within the shutdown grace: requests that have begun
/// are answered, sources end, the mux merges what is left, the sinks take what is
/// pending. A second one ends it at once. SIGHUP reads the settings anew and has
/// everything rescanned. The service manager is told how the agent is.
///
/// # Errors
///
/// If it could not start, if a long-lived task ended, failed or panicked, or if
/// a sink's reader went away.
pub fn run(
    settings: &Settings,
    passed: Vec<PassedSocket>,
    reload: Arc<Reload>,
    log: &Log,
    manager: &Manager,
) -> Result<(), AgentError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("cannot start the runtime")
        .map_err(AgentError::Failed)?;
    let ended = runtime.block_on(work(settings, passed, reload, log, manager));
    // A thread that hangs in a write to stdout must not keep the process.
    Runtime::shutdown_background(runtime);
    ended
}

async fn work(
    settings: &Settings,
    passed: Vec<PassedSocket>,
    reload: Arc<Reload>,
    log: &Log,
    manager: &Manager,
) -> Result<(), AgentError> {
    let (started, begun) = (clock::now(), Instant::now());
    let mut stops = StopSignals::new().map_err(AgentError::Failed)?;
    let hangups = listen(SignalKind::hangup()).map_err(AgentError::Failed)?;
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    let stop = CancellationToken::new();
    // Cancelled first, or with it: requests are finished, and then all stop.
    let finish = stop.child_token();
    let cut = CancellationToken::new();
    let mut crew =
        Tasks::new(stop.clone()).deadline_starts_with(finish.clone()).deadline_ends_with(cut.clone());
    let ends = Ends { finish: finish.clone(), stop };
    let wiring = wiring::wire(settings, passed, started, &ends, &mut crew);
    let wired = tokio::select! {
        biased;
        wired = service::while_opening(manager, begun, wiring) => wired,
        signal = stops.next() => {
            info!(signal, "stopped before it had started");
            return Ok(());
        }
    };
    let Wired { handles, levels, mux } = wired.map_err(AgentError::at_start)?;
    info!(version = env!("CARGO_PKG_VERSION"), node = %settings.node_name, "started");
    let (grace, grace_now) = watch::channel(time_to_stop(settings));
    let (teller, reloads) = ReloadTeller::new();
    let stop = ends.stop.clone();
    crew.spawn("finish", finished(handles.finished(), ends, grace_now.clone()));
    let reloader =
        Reloader { reload, settings: settings.clone(), handles, grace, level: log.level(), teller };
    crew.spawn("reload", reloader.run(hangups, stop.clone()));
    let service = Service {
        manager: manager.clone(),
        levels,
        mux,
        pulses: crew.take_heartbeats(),
        reloads,
        grace: grace_now.clone(),
        finish: finish.clone(),
        stop,
        begun,
    };

    tokio::select! {
        // The end is told before it comes, however short it is.
        biased;
        never = service.run() => match never {},
        ended = attend(crew.run(grace_now), &finish, &cut, stops) => {
            ended.map_err(|error| AgentError::Failed(error.into()))
        }
    }
}

/// Waits until the crew has ended, and passes the signals on to it.
async fn attend(
    crew: impl Future<Output = Result<Vec<String>, TaskError>>,
    finish: &CancellationToken,
    cut: &CancellationToken,
    mut signals: StopSignals,
) -> Result<(), TaskError> {
    let mut crew = pin!(crew);
    let mut asked = false;
    loop {
        tokio::select! {
            ended = &mut crew => {
                let laggards = ended?;
                if laggards.is_empty() {
                    info!("stopped");
                } else if !cut.is_cancelled() {
                    warn!("stopped: the shutdown grace has run out");
                }
                return Ok(());
            }
            signal = signals.next() => {
                // The crew says how it ends: what has failed before has failed.
                if asked {
                    warn!(signal, "stopped at once: asked a second time");
                    cut.cancel();
                } else if finish.is_cancelled() {
                    info!(signal, "stopping already, after a failure; a second signal ends it at once");
                } else {
                    info!(signal, "stopping: the sinks take what is pending");
                }
                asked = true;
                finish.cancel();
            }
        }
    }
}

/// The two steps of the agent's end.
struct Ends {
    /// What has begun is to be finished, and the kernel to keep what comes on
    /// sockets that were passed.
    finish: CancellationToken,
    /// The sources are to end, and all others after them.
    stop: CancellationToken,
}

/// Waits for the first step, and takes the second when the server has finished.
async fn finished(
    finished: Option<CancellationToken>,
    Ends { finish, stop }: Ends,
    grace: watch::Receiver<Duration>,
) -> Result<(), BoxError> {
    finish.cancelled().await;
    if let Some(finished) = finished {
        let time = (*grace.borrow() / FINISH_SHARE).min(LONGEST_FINISH);
        let in_time = stop.run_until_cancelled(timeout(time, finished.cancelled())).await;
        if matches!(in_time, Some(Err(_))) {
            warn!("not all requests could be answered before the sources stop");
        }
    }
    stop.cancel();
    Ok(())
}

/// How long the crew may take to stop, of what the whole process may.
fn time_to_stop(settings: &Settings) -> Duration {
    let grace = settings.shutdown_grace;
    grace.saturating_sub((grace / END_SHARE).min(LONGEST_END))
}

fn listen(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("cannot listen for signals")
}

/// SIGTERM and SIGINT.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
