//! Wiring: makes the channels, starts the crew, waits for it; the only room that knows all others.

use std::{pin::pin, sync::Arc, time::Duration};

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
    pod::decode::Preparation,
    settings::{self, FileSettings, Settings, SinkSetting},
    sink::{Delivery, Jsonl},
    source::file::{self, FileHandle, FileSource},
    supervise::{BoxError, Crew, CrewError},
    telemetry::{Level, Log},
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

/// Reads the settings anew, as they were read at the start.
pub type Reload = dyn Fn() -> anyhow::Result<Settings> + Send + Sync;

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
    let stops = StopSignals::new().map_err(AgentError::Failed)?;
    let hangups = listen(SignalKind::hangup()).map_err(AgentError::Failed)?;
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    let stop = CancellationToken::new();
    let mut crew = Crew::new(stop.clone());
    let sources: Vec<SourceName> = settings.file.iter().map(|_| SourceName::File).collect();
    let (mux, turning) = Mux::new(&sources);
    start_sinks(settings, &mux, &stop, &mut crew).map_err(AgentError::Refused)?;
    info!(version = env!("CARGO_PKG_VERSION"), node = %settings.node_name, "started");
    crew.spawn("mux", async {
        turning.run().await;
        Ok(())
    });
    let file = start_file_source(settings, &mux, &stop, &mut crew);
    let (grace, grace_now) = watch::channel(time_to_stop(settings));
    let reloader = Reloader { reload, settings: settings.clone(), file, grace, level: log.level() };
    crew.spawn("reload", reloader.run(hangups, stop.clone()));

    attend(crew.run(grace_now), &stop, stops).await.map_err(|error| AgentError::Failed(error.into()))
}

/// A sink that cannot be opened refuses the start; nothing has been delivered by then.
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

/// Waits until the crew has ended, and passes the signals on to it.
async fn attend(
    crew: impl Future<Output = Result<Vec<String>, CrewError>>,
    stop: &CancellationToken,
    mut signals: StopSignals,
) -> Result<(), CrewError> {
    let mut crew = pin!(crew);
    loop {
        tokio::select! {
            ended = &mut crew => {
                if ended?.is_empty() {
                    info!("stopped");
                } else {
                    warn!("stopped: the shutdown grace has run out");
                }
                return Ok(());
            }
            signal = signals.next() => {
                if stop.is_cancelled() {
                    warn!(signal, "stopped at once: asked a second time");
                    return Ok(());
                }
                info!(signal, "stopping: the sinks take what is pending");
                stop.cancel();
            }
        }
    }
}

/// How long the crew may take to stop, of what the whole process may.
fn time_to_stop(settings: &Settings) -> Duration {
    let grace = settings.shutdown_grace;
    grace.saturating_sub((grace / END_SHARE).min(LONGEST_END))
}

fn start_file_source(
    settings: &Settings,
    mux: &Mux,
    stop: &CancellationToken,
    crew: &mut Crew,
) -> Option<FileHandle> {
    let given = settings.file.as_ref()?;
    let preparation = Preparation {
        source: SourceName::File,
        node: settings.node_name.clone(),
        generate: None,
        namespace: None,
    };
    let settings = file::FileSettings {
        check_frequency: given.check_frequency,
        on_invalid: on_invalid(given),
        ..file::FileSettings::new(&given.path, preparation)
    };
    let (source, handle) = FileSource::new(settings, mux.channel(SourceName::File)?);
    let stop = stop.clone();
    crew.spawn("source file", async {
        source.run(stop).await;
        Ok(())
    });
    Some(handle)
}

/// Reads the settings anew at each SIGHUP and tells whom they concern.
struct Reloader {
    reload: Arc<Reload>,
    settings: Settings,
    file: Option<FileHandle>,
    grace: watch::Sender<Duration>,
    level: Level,
}

impl Reloader {
    async fn run(mut self, mut hangups: Signal, stop: CancellationToken) -> Result<(), BoxError> {
        while stop.run_until_cancelled(hangups.recv()).await.is_some() {
            let reload = self.reload.clone();
            // The config file may stand on a network that hangs.
            let reading = tokio::task::spawn_blocking(move || reload());
            let Some(read) = stop.run_until_cancelled(reading).await else { break };
            match read? {
                Ok(settings) => self.take(settings),
                Err(error) => error!(
                    error = format!("{error:#}"),
                    "SIGHUP: the settings cannot be used; those from before stay"
                ),
            }
            // Whatever became of the settings, everything is scanned.
            if let (Some(file), Some(settings)) = (&self.file, &self.settings.file) {
                file.retune(settings.check_frequency, on_invalid(settings));
            }
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

/// What the file source calls what the settings say.
fn on_invalid(given: &FileSettings) -> file::OnInvalid {
    match given.on_invalid {
        settings::OnInvalid::Keep => file::OnInvalid::Keep,
        settings::OnInvalid::Remove => file::OnInvalid::Remove,
    }
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
