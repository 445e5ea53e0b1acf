//! Wiring: makes the channels, starts the crew, waits for it; the only room that knows all others.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    mux::Mux,
    pod::SourceName,
    settings::{FileSettings, Settings, SinkSetting},
    sink::{Delivery, Jsonl, Sink},
    source::FileSource,
    supervise::Crew,
    telemetry::Log,
};

/// Threads for what never blocks. The work is small, and a node agent shares its node.
const WORKERS: usize = 2;
/// The share of the shutdown grace that is kept for the end of the process
/// itself, so that the whole is over when the grace is; at most [`LONGEST_END`].
const END_SHARE: u32 = 10;
const LONGEST_END: Duration = Duration::from_millis(500);

/// Why the agent ended other than as it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It did not start: something it was given cannot be used.
    #[error(transparent)]
    Refused(anyhow::Error),
    /// It failed while it ran.
    #[error(transparent)]
    Failed(anyhow::Error),
}

impl AgentError {
    /// The process's exit status: 2 refused at start, 1 failed while running.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 2,
            Self::Failed(_) => 1,
        }
    }
}

/// Reads the settings anew, as they were read at the start. The error is for a person.
pub type Reload = dyn Fn() -> Result<Settings, String> + Send + Sync;

/// Runs the agent until a signal stops it.
///
/// SIGTERM and SIGINT stop it within the shutdown grace: sources end, the mux
/// merges what is left, the sinks take what is pending. A second one ends it at
/// once. SIGHUP reads the settings anew and has everything rescanned.
///
/// # Errors
///
/// If it could not start, if a long-lived task ended, failed or panicked, or if
/// a sink's reader went away.
pub fn run(settings: &Settings, reload: Arc<Reload>, log: &Log) -> Result<(), AgentError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("cannot start the runtime")
        .map_err(AgentError::Failed)?;
    let ended = runtime.block_on(work(settings, reload, log));
    // A thread that hangs in a write to stdout must not keep the process.
    Runtime::shutdown_background(runtime);
    ended
}

async fn work(settings: &Settings, reload: Arc<Reload>, log: &Log) -> Result<(), AgentError> {
    let mut stops = StopSignals::new().map_err(AgentError::Failed)?;
    let stop = CancellationToken::new();
    let mut crew = Crew::new(stop.clone());
    let sources: Vec<SourceName> = settings.file.iter().map(|_| SourceName::File).collect();
    let (mux, turning) = Mux::new(&sources);
    start_sinks(settings, &mux, &stop, &mut crew).map_err(AgentError::Refused)?;
    crew.spawn("mux", async {
        turning.run().await;
        Ok(())
    });
    let (grace, grace_now) = watch::channel(time_to_stop(settings));
    let file = start_file_source(settings, &mux, &stop, &mut crew);
    let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP").map_err(AgentError::Failed)?;
    let reloader = Reloader { reload, file, grace, log: log.clone(), settings: settings.clone() };
    crew.spawn("reload", reloader.run(hangups, stop.clone()));

    let mut working = std::pin::pin!(crew.run(grace_now));
    loop {
        tokio::select! {
            ended = &mut working => return match ended {
                Ok(laggards) if laggards.is_empty() => Ok(info!("stopped")),
                Ok(_) => Ok(warn!("stopped: the shutdown grace has run out")),
                Err(error) => Err(AgentError::Failed(error.into())),
            },
            signal = stops.next() => {
                if stop.is_cancelled() {
                    return Ok(warn!(signal, "stopped at once: asked a second time"));
                }
                info!(signal, "stopping: sinks take what is pending");
                stop.cancel();
            }
        }
    }
}

/// Opens every sink before any is started, so that a bad one refuses the start.
fn start_sinks(
    settings: &Settings,
    mux: &Mux,
    stop: &CancellationToken,
    crew: &mut Crew,
) -> anyhow::Result<()> {
    for sink in &settings.sinks {
        let (name, jsonl) = match sink {
            SinkSetting::Stdout => ("jsonl".to_owned(), Jsonl::stdout()?),
            SinkSetting::File(path) => (format!("jsonl={}", path.display()), Jsonl::file(path)?),
        };
        let (delivery, _status) = Delivery::new(&name, jsonl, mux.updates(settings.notify));
        let stop = stop.clone();
        crew.spawn(format!("sink {name}"), async move { Ok(delivery.run(stop).await?) });
    }
    Ok(())
}

/// How long the crew may take to stop, of what the whole process may.
fn time_to_stop(settings: &Settings) -> Duration {
    let grace = settings.shutdown_grace;
    grace - (grace / END_SHARE).min(LONGEST_END)
}

/// SIGTERM and SIGINT.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
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
