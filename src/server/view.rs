//! What the server reads of the agent.

use std::{future::Future, pin::Pin, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::stats::ConnectionStats;
use crate::{
    events::EventReader,
    history::HistoryReader,
    host::Host,
    pod::{NodeName, PodKey, SecurityLevel, SourceName},
    runtime::{LogReader, Observed, Rank, WorkQueue, WorkersStatus},
    sink::{SinkFailing, SinkStatus},
    source::{SourceStatus, api::ReflectorMetrics, http::Posts},
    storage::{Delivered, Merged},
};

/// What the server shows of the agent, and the handle for posted pods. Cheap to clone.
#[derive(Clone)]
pub struct View {
    /// The name of this node.
    pub node: NodeName,
    /// The merged pods of all sources.
    pub merged: watch::Receiver<Merged>,
    /// What the runtime observes of its pods; none if the agent runs no pods.
    pub observed: Option<watch::Receiver<Observed>>,
    /// The posted pods: reads and writes.
    pub posts: Posts,
    /// The level that a posted pod may not exceed.
    pub pod_security: watch::Receiver<SecurityLevel>,
    /// The update stream.
    pub history: HistoryReader,
    /// The `v1.Event`s of pods and of the node.
    pub events: EventReader,
    /// The status of each configured source.
    pub sources: Arc<[(SourceName, watch::Receiver<SourceStatus>)]>,
    /// The reflector's metrics, if there is an api source.
    pub reflector: Option<ReflectorMetrics>,
    /// The status of each sink.
    pub sinks: Arc<[watch::Receiver<SinkStatus>]>,
    /// What each sink has acknowledged, in the same order.
    pub acknowledged: watch::Receiver<Vec<Delivered>>,
    /// The runtime, if pods run here.
    pub runtime: Option<RuntimeView>,
    /// Waits until the merge loop has run once more; false if it has ended.
    pub turns: Arc<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>,
    /// Cancelled when the agent begins to shut down.
    pub stopping: CancellationToken,
    /// When the agent started.
    pub started: Timestamp,
    /// The result of the last reload.
    pub reload: watch::Receiver<LastReload>,
    /// The transport's counters.
    pub connections: ConnectionStats,
    /// The clock, random numbers and threads.
    pub host: Host,
}

/// A runtime and its pod workers. Cheap to clone.
#[derive(Clone)]
pub struct RuntimeView {
    /// The name, as `--sink` gives it.
    pub name: Arc<str>,
    /// What the pod workers do.
    pub status: watch::Receiver<WorkersStatus>,
    /// Their work queue.
    pub queue: WorkQueue<PodKey, Rank>,
    /// The output of containers.
    pub logs: LogReader,
}

impl RuntimeView {
    /// The runtime as a sink: it fails if what runs is not known. What fails of a pod is the pod's
    /// matter.
    pub fn as_sink(&self, status: &WorkersStatus) -> SinkStatus {
        let failing = status.list_failing.as_ref().map(|failing| SinkFailing {
            seq: None,
            since: failing.since,
            attempts: failing.attempts,
            next_attempt: failing.next_attempt,
            error: failing.error.clone(),
        });
        SinkStatus { name: self.name.to_string(), failing, ..SinkStatus::default() }
    }
}

/// The result of the last reload of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastReload {
    /// Whether the settings were valid.
    pub successful: bool,
    /// When valid settings were last read, at the start or by a reload.
    pub succeeded: Timestamp,
}

impl LastReload {
    /// The result before any reload: an agent starts with valid settings only.
    pub fn at_start(started: Timestamp) -> Self {
        Self { successful: true, succeeded: started }
    }

    /// Records a reload.
    pub fn note(&mut self, successful: bool, now: Timestamp) {
        self.successful = successful;
        if successful {
            self.succeeded = now;
        }
    }
}
