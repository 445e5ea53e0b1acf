//! The agent: makes and starts all tasks, reloads, shuts down, and reports to the service manager.
//! It is the only module that knows all others.

mod certificates;
mod instance;
mod notifier;
mod progress;
mod reload;
mod shutdown;
mod sources;
mod state;
mod status;
mod summary;
mod wiring;

use std::{future::pending, sync::Arc, time::Duration};

use anyhow::Context as _;
use futures_util::{Stream, stream};
use rustix::process::Signal;
use tokio::{signal::unix::SignalKind, sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use self::{
    certificates::warnings,
    instance::{ClaimError, Instance},
    notifier::{extend, watchdog},
    reload::{Reload, check},
};
use self::{
    notifier::{Sent, ServiceNotifier},
    reload::Reloader,
    shutdown::{Shutdown, StopSignals, listen, shutdown_time},
    wiring::Wired,
};
use crate::{
    host::Host,
    mux::Mux,
    server::PassedSocket,
    settings::Settings,
    supervise::{TaskError, Tasks},
    systemd::Manager,
    telemetry::Log,
};

/// Worker threads of the runtime, for work that never blocks. It is small, and the agent shares
/// its node. One alone needs half of the wake-ups and gains 5 % of a POST's time, no throughput;
/// but then a list of all pods holds up everything else.
const WORKERS: usize = 2;
/// How long the end waits for aborted tasks: the programs of a runtime get SIGTERM when theirs are dropped.
const ABORT_TIMEOUT: Duration = Duration::from_millis(300);

/// Why the agent ended without a request.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It did not start, and fails again until something is changed: a setting or a file cannot be used.
    #[error(transparent)]
    Refused(anyhow::Error),
    /// It failed while it ran.
    #[error(transparent)]
    Failed(anyhow::Error),
}

/// Runs the agent until a signal stops it.
///
/// SIGTERM and SIGINT shut it down within the shutdown grace: pending requests are answered,
/// the sources stop, the mux merges the rest, the sinks deliver what is pending. A second
/// signal ends it at once. SIGHUP reloads the settings and rescans all sources. The service
/// manager gets the state of the agent.
///
/// # Errors
///
/// If it cannot start, if a long-lived task ended, failed or panicked, or if the reader of
/// a sink is gone.
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
    // A thread that hangs in a write to stdout must not keep the process alive.
    runtime.shutdown_timeout(ABORT_TIMEOUT);
    ended
}

/// The tasks of an agent without a process around them, which has signals, a service manager and a terminal: for a
/// simulation. Dropping it is a kill.
pub struct Crew {
    tasks: Tasks,
    mux: Mux,
    grace: watch::Receiver<Duration>,
    shutdown: Shutdown,
}

impl Crew {
    /// Makes and starts all tasks. It reloads at each of `hangups`, as the agent does at SIGHUP.
    ///
    /// # Errors
    /// If the agent would not start.
    pub async fn start(
        settings: &Settings,
        host: &Host,
        reload: Arc<Reload>,
        hangups: impl Stream<Item = ()> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let shutdown = Shutdown::new();
        let Shutdown { finish, stop, abort } = shutdown.clone();
        let mut tasks = Tasks::new(stop).deadline_between(finish, abort);
        let wired = wiring::wire(settings, Vec::new(), host, &shutdown, &mut tasks).await?;
        let (settings, host, reloads) = (settings.clone(), host.clone(), watch::Sender::default());
        let reloader = Reloader { reload, settings, handles: wired.handles, reloads, host };
        let grace = attend(&mut tasks, &shutdown, reloader, hangups);
        Ok(Self { tasks, mux: wired.mux, grace, shutdown })
    }

    /// Waits until the mux has begun to merge. Returns false if it has ended before.
    pub fn begun(&self) -> impl Future<Output = bool> + use<> {
        let mux = self.mux.clone();
        async move { mux.turns().await }
    }

    /// Runs until `stop` is cancelled and all tasks have ended. Returns those that did not end in time.
    ///
    /// # Errors
    /// If a task ended too early, failed or panicked.
    pub async fn run(self, stop: &CancellationToken) -> Result<Vec<String>, TaskError> {
        let finish = self.shutdown.finish.clone();
        let stopping = async {
            stop.cancelled().await;
            finish.cancel();
            pending().await
        };
        tokio::select! {
            ended = self.tasks.run(self.grace) => ended,
            never = stopping => match never {},
        }
    }
}

/// Starts the tasks that attend to the others: for the end of the requests at a stop, and for reloads. Returns how long a
/// stop may take.
fn attend(
    tasks: &mut Tasks,
    shutdown: &Shutdown,
    mut reloader: Reloader,
    hangups: impl Stream<Item = ()> + Send + 'static,
) -> watch::Receiver<Duration> {
    let (grace, now) = watch::channel(shutdown_time(&reloader.settings));
    reloader.handles.add(move |settings| _ = grace.send_replace(shutdown_time(settings)));
    let finished = reloader.handles.finished.clone();
    tasks.spawn("finish", shutdown.clone().stop_after_requests(finished, now.clone()));
    tasks.spawn("reload", reloader.run(hangups, shutdown.stop.clone()));
    now
}

async fn work(
    settings: &Settings,
    passed: Vec<PassedSocket>,
    reload: Arc<Reload>,
    log: &Log,
    manager: &Manager,
) -> Result<(), AgentError> {
    let (host, begun) = (Host::default(), Instant::now());
    let mut signals = StopSignals::new().map_err(AgentError::Failed)?;
    let mut hangups = listen(SignalKind::hangup()).map_err(AgentError::Failed)?;
    // A write beyond a limit of file sizes fails as on a full disk, instead of ending the process.
    let _ = listen(SignalKind::from_raw(Signal::XFSZ.as_raw())).map_err(AgentError::Failed)?;
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    let shutdown = Shutdown::new();
    let Shutdown { finish, stop, abort } = shutdown.clone();
    let mut tasks = Tasks::new(stop.clone()).deadline_between(finish.clone(), abort);
    let wiring = wiring::wire(settings, passed, &host, &shutdown, &mut tasks);
    let wired = tokio::select! {
        biased;
        wired = notifier::while_opening(manager, begun, wiring) => wired,
        signal = signals.next() => {
            info!(signal, "stopped before the start was complete");
            return Ok(());
        }
    };
    let Wired { mut handles, state, mux, observed, sources, .. } =
        wired.map_err(|error| match error.downcast_ref::<ClaimError>() {
            Some(claim) if claim.may_pass() => AgentError::Failed(error),
            _ => AgentError::Refused(error),
        })?;
    info!(version = env!("CARGO_PKG_VERSION"), node = %settings.node_name, "started");
    let level = log.level();
    handles.add(move |settings| level.set(settings.log.verbosity));
    let (reloads, settings_now) = (watch::Sender::default(), settings.clone());
    let (reload_status, host) = (reloads.subscribe(), host.clone());
    let reloader = Reloader { reload, settings: settings_now, handles, reloads, host };
    let hangups = stream::poll_fn(move |context| hangups.poll_recv(context));
    let grace = attend(&mut tasks, &shutdown, reloader, hangups);
    if let Some(line) = log.progress_line() {
        tasks.spawn(
            "summary",
            summary::show(line.clone(), settings.clone(), mux.merged(), sources.clone(), stop.clone()),
        );
        tasks.spawn("progress", progress::show(line, observed, sources, stop));
    }
    let notifier = ServiceNotifier {
        manager: manager.clone(),
        state,
        reloads: reload_status,
        grace: grace.clone(),
        shutdown: shutdown.clone(),
        started: CancellationToken::new(),
        sent: Sent::default(),
    };
    let heartbeats = tasks.take_heartbeats();

    tokio::select! {
        // The service manager is notified of the shutdown before it ends, however short it is.
        biased;
        never = notifier.run(&mux, &heartbeats, begun) => match never {},
        ended = shutdown.attend(tasks.run(grace), signals) => {
            ended.map_err(|error| AgentError::Failed(error.into()))
        }
    }
}
