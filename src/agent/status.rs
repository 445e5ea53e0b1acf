//! The state of the agent, and the one line about it that `systemctl status` shows.

use std::{future::pending, iter, pin::Pin, sync::Arc, time::Duration};

use futures_util::future::select_all;
use tokio::sync::watch;

use crate::{
    pod::SourceName,
    runtime::WorkersStatus,
    server::RuntimeView,
    sink::SinkStatus,
    source::{ScanProgress, SourceFailing, SourceStatus},
    storage::{Merged, SourceState},
};

/// The longest part of an error in the line, in characters, so that several fit in.
const LONGEST_ERROR: usize = 240;
/// The text for an error that may contain values of pods: every user of the machine can read the status.
const CONFIDENTIAL: &str = "its input is invalid; podmux get sources shows why";

/// The number of reloads, and the result of the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct Reloads {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) failure: Option<ReloadFailure>,
}

/// Why the last reload failed.
#[derive(Clone, Debug)]
pub(super) enum ReloadFailure {
    /// The settings are invalid; the previous ones stay in effect.
    Settings(String),
    /// A file that they name is invalid; its previous content stays in effect.
    File(String),
}

type Change<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A watch channel whose end counts as one change.
struct Watched<T> {
    receiver: watch::Receiver<T>,
    end_seen: bool,
}

impl<T: Clone> Watched<T> {
    fn new(receiver: watch::Receiver<T>) -> Self {
        Self { receiver, end_seen: false }
    }

    /// The value, and whether its sender has ended.
    fn look(&mut self) -> (T, bool) {
        let value = self.receiver.borrow_and_update().clone();
        (value, self.receiver.has_changed().is_err())
    }

    fn changed(&mut self) -> Change<'_> {
        Box::pin(async {
            if self.end_seen {
                pending::<()>().await;
            }
            self.end_seen = self.receiver.changed().await.is_err();
        })
    }
}

/// The merged pods and the status of all sources and sinks.
pub(super) struct AgentState {
    merged: Watched<Merged>,
    sources: Vec<(SourceName, Watched<SourceStatus>)>,
    sinks: Vec<Watched<SinkStatus>>,
    runtime: Option<(RuntimeView, Watched<WorkersStatus>)>,
}

impl AgentState {
    pub(super) fn new(
        merged: watch::Receiver<Merged>,
        sources: &[(SourceName, watch::Receiver<SourceStatus>)],
        sinks: &[watch::Receiver<SinkStatus>],
        runtime: Option<&RuntimeView>,
    ) -> Self {
        Self {
            merged: Watched::new(merged),
            sources: sources.iter().map(|(name, source)| (*name, Watched::new(source.clone()))).collect(),
            sinks: sinks.iter().cloned().map(Watched::new).collect(),
            runtime: runtime.map(|runtime| (runtime.clone(), Watched::new(runtime.status.clone()))),
        }
    }

    /// Waits until something has changed or ended since the last snapshot. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        let Self { merged, sources, sinks, runtime } = self;
        let changes = iter::once(merged.changed())
            .chain(sources.iter_mut().map(|(_, source)| source.changed()))
            .chain(sinks.iter_mut().map(Watched::changed))
            .chain(runtime.iter_mut().map(|(_, status)| status.changed()));
        select_all(changes).await;
    }

    pub(super) fn snapshot(&mut self) -> Snapshot {
        let (merged, _) = self.merged.look();
        let sources = self.sources.iter_mut().map(|(name, source)| {
            let (status, ended) = source.look();
            let known = merged.state(*name).is_some_and(|state| state != SourceState::Waiting);
            Source { name: *name, known, failing: status.failing, scanning: status.scanning, ended }
        });
        let sources = sources.collect();
        let mut sinks: Vec<_> = self.sinks.iter_mut().map(Watched::look).collect();
        let runtime = self.runtime.as_mut().map(|(runtime, status)| {
            let (status, ended) = status.look();
            sinks.push((runtime.as_sink(&status), ended));
            (runtime.name.clone(), status)
        });
        Snapshot { pods: merged.len(), sources, sinks, runtime }
    }
}

/// The state of the agent at one moment.
pub(super) struct Snapshot {
    pods: usize,
    sources: Vec<Source>,
    /// Each sink and the runtime, and whether its delivery has ended.
    sinks: Vec<(SinkStatus, bool)>,
    /// The runtime's name and what its pod workers do.
    runtime: Option<(Arc<str>, WorkersStatus)>,
}

struct Source {
    name: SourceName,
    /// Whether it is synced or restored.
    known: bool,
    failing: Option<SourceFailing>,
    /// How far a long first scan is.
    scanning: Option<ScanProgress>,
    ended: bool,
}

/// The phases of the agent's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Running,
    /// Pending requests are answered; the sources still run.
    Finishing,
    Stopping,
}

impl Snapshot {
    /// Whether every source is synced, restored, or known to fail.
    pub(super) fn is_started(&self) -> bool {
        self.sources.iter().all(|source| source.known || source.failing.is_some())
    }

    /// The time until the line changes by itself: a sink begins to count as stuck.
    pub(super) fn stuck_in(&self) -> Option<Duration> {
        let waits = self.sinks.iter().filter_map(|(sink, _)| {
            let busy = sink.busy_since?.instant.elapsed();
            (busy < SinkStatus::STUCK_AFTER).then(|| SinkStatus::STUCK_AFTER.saturating_sub(busy))
        });
        waits.min()
    }

    /// The line, with the failure of the last reload.
    pub(super) fn line(&self, phase: Phase, failure: Option<&ReloadFailure>) -> String {
        let mut parts = Vec::new();
        match phase {
            Phase::Starting => parts.push(format!("starting: waiting for {}", self.unknown())),
            Phase::Finishing => parts.push("stopping: pending requests are answered".to_owned()),
            Phase::Stopping => parts.push(format!("stopping: waiting for {}", self.unfinished())),
            Phase::Running => {}
        }
        parts.push(format!("{} pod{}", self.pods, if self.pods == 1 { "" } else { "s" }));
        parts.extend(failure.map(|failure| match failure {
            ReloadFailure::Settings(why) => {
                format!("reload failed, the previous settings stay in effect: {}", clip(why))
            }
            // It may have been corrected since then.
            ReloadFailure::File(why) => {
                format!("settings reloaded, a file was invalid at that time: {}", clip(why))
            }
        }));
        for source in &self.sources {
            if let Some(scanning) = source.scanning.filter(|_| phase != Phase::Starting) {
                parts.push(format!("{} {scanning}", source.name));
            }
            if let Some(SourceFailing { since, error, quotes, .. }) = &source.failing {
                let why = if *quotes { CONFIDENTIAL.to_owned() } else { clip(error) };
                parts.push(format!("{} failing since {:.0}: {why}", source.name, since.time));
            }
        }
        parts.extend(self.sinks.iter().filter_map(|(sink, _)| sink_problem(sink)));
        parts.extend(self.runtime.iter().filter_map(|(name, status)| failing_pods(name, status)));
        parts.join("; ")
    }

    fn unknown(&self) -> String {
        let waiting = self.sources.iter().filter(|source| !source.known && source.failing.is_none());
        list(waiting.map(|source| match source.scanning {
            Some(scanning) => format!("source {} ({scanning})", source.name),
            None => format!("source {}", source.name),
        }))
    }

    fn unfinished(&self) -> String {
        let sources = self.sources.iter().filter(|source| !source.ended);
        let sinks = self.sinks.iter().filter(|(_, ended)| !ended);
        let sources = sources.map(|source| format!("source {}", source.name));
        list(sources.chain(sinks.map(|(sink, _)| format!("sink {}", sink.name))))
    }
}

fn list(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    if names.is_empty() { "the rest".to_owned() } else { names.join(", ") }
}

fn sink_problem(sink: &SinkStatus) -> Option<String> {
    let name = &sink.name;
    if let Some(failing) = &sink.failing {
        return Some(format!(
            "sink {name} failing since {:.0}: {}",
            failing.since.time,
            clip(&failing.error)
        ));
    }
    let busy = sink.stuck()?.time;
    let what = if sink.lacks_number { "waiting for a number" } else { "busy with one update" };
    Some(format!("sink {name} {what} since {busy:.0}"))
}

/// The pods that the runtime cannot start, keep running or stop: how many, and the one that has failed longest.
fn failing_pods(name: &str, status: &WorkersStatus) -> Option<String> {
    let (key, first) = status.failing().min_by_key(|(_, failing)| failing.since)?;
    let count = status.failing().count();
    let (noun, since) = (if count == 1 { "pod" } else { "pods" }, first.since.time);
    let error = clip(&first.error);
    Some(format!("{count} {noun} failing in {name}, {key} since {since:.0}: {error}"))
}

fn clip(error: &str) -> String {
    match error.char_indices().nth(LONGEST_ERROR) {
        Some((end, _)) => format!("{}…", &error[..end]),
        None => error.to_owned(),
    }
}
