//! How all is, in the one line that `systemctl status` shows.

use jiff::{SignedDuration, Timestamp};

use super::{levels::Levels, service::Trouble};
use crate::{pod::SourceName, server::SinkStatus, source::SourceFailing, storage::SourceState};

/// How many characters of an error are told, so that the line has room for several.
const LONGEST_ERROR: usize = 240;

/// What is told of an error that may have values of pods in it.
const QUOTES: &str = "what it was given cannot be used; podmux get sources says why";

/// How all is at one moment.
pub(super) struct Standing {
    pods: usize,
    sources: Vec<SourceStanding>,
    sinks: Vec<SinkStanding>,
}

struct SourceStanding {
    name: SourceName,
    /// Whether it has been seen or restored.
    heard: bool,
    failing: Option<SourceFailing>,
    ended: bool,
}

struct SinkStanding {
    status: SinkStatus,
    ended: bool,
}

/// What the agent is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Running,
    /// Requests that have begun are answered; the sources are still there.
    Finishing,
    Stopping,
}

impl Standing {
    pub(super) fn of(levels: &mut Levels) -> Self {
        let merged = levels.merged.now();
        let sources = levels.sources.iter_mut().map(|(name, level)| SourceStanding {
            name: *name,
            heard: merged.state(*name).is_some_and(|state| state != SourceState::Waiting),
            failing: level.now().failing,
            ended: level.has_ended(),
        });
        let sinks = levels
            .sinks
            .iter_mut()
            .map(|level| SinkStanding { status: level.now(), ended: level.has_ended() });
        Self { pods: merged.len(), sources: sources.collect(), sinks: sinks.collect() }
    }

    /// Whether every source has been seen, restored, or is known to fail.
    pub(super) fn is_settled(&self) -> bool {
        self.sources.iter().all(|source| source.heard || source.failing.is_some())
    }

    /// When the line will be another one though nothing changes: a sink begins to count as stuck.
    pub(super) fn stuck_in(&self, now: Timestamp) -> Option<SignedDuration> {
        let waits = self.sinks.iter().filter_map(|sink| {
            let busy = now.duration_since(sink.status.busy_since?);
            (busy < SinkStatus::STUCK_AFTER).then(|| SinkStatus::STUCK_AFTER - busy)
        });
        waits.min()
    }

    /// The line, with what was wrong with the last reload.
    pub(super) fn line(&self, phase: Phase, trouble: Option<&Trouble>, now: Timestamp) -> String {
        let mut parts = Vec::new();
        match phase {
            Phase::Starting => parts.push(format!("starting: waiting for {}", self.unheard())),
            Phase::Finishing => parts.push("stopping: requests in hand are answered".to_owned()),
            Phase::Stopping => parts.push(format!("stopping: waiting for {}", self.laggards())),
            Phase::Running => {}
        }
        parts.push(format!("{} pod{}", self.pods, if self.pods == 1 { "" } else { "s" }));
        match trouble {
            None => {}
            Some(Trouble::Refused(why)) => {
                parts.push(format!("the new settings were refused, the old ones stay: {}", clip(why)));
            }
            Some(Trouble::Unusable(why)) => {
                parts.push(format!("the new settings were read, but {}", clip(why)));
            }
        }
        for source in &self.sources {
            if let Some(SourceFailing { since, error, quotes, .. }) = &source.failing {
                // Everybody on this machine can read the status.
                let why = if *quotes { QUOTES.to_owned() } else { clip(error) };
                parts.push(format!("{} failing since {since:.0}: {why}", source.name));
            }
        }
        parts.extend(self.sinks.iter().filter_map(|sink| ailment(&sink.status, now)));
        parts.join("; ")
    }

    fn unheard(&self) -> String {
        let waiting = self.sources.iter().filter(|source| !source.heard && source.failing.is_none());
        list(waiting.map(|source| format!("source {}", source.name)))
    }

    fn laggards(&self) -> String {
        let sources = self.sources.iter().filter(|source| !source.ended);
        let sinks = self.sinks.iter().filter(|sink| !sink.ended);
        let sources = sources.map(|source| format!("source {}", source.name));
        list(sources.chain(sinks.map(|sink| format!("sink {}", sink.status.name))))
    }
}

fn list(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    if names.is_empty() { "the rest".to_owned() } else { names.join(", ") }
}

/// What is wrong with a sink, if anything.
fn ailment(sink: &SinkStatus, now: Timestamp) -> Option<String> {
    let name = &sink.name;
    if let Some(failing) = &sink.failing {
        return Some(format!("sink {name} failing since {:.0}: {}", failing.since, clip(&failing.error)));
    }
    let busy = sink.stuck(now)?;
    Some(format!("sink {name} busy with one update since {busy:.0}"))
}

fn clip(error: &str) -> String {
    match error.char_indices().nth(LONGEST_ERROR) {
        Some((end, _)) => format!("{}…", &error[..end]),
        None => error.to_owned(),
    }
}
