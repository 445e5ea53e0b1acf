//! How a built-in runtime is opened with its pod workers.

use std::{path::PathBuf, pin::Pin, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    contract::PodRuntime,
    exec,
    pod_workers::{LogReader, PodWorkers, Rank},
    status::{Gone, Observed, WorkersStatus},
    work_queue::WorkQueue,
};
use crate::{
    host::Host,
    kind::{Given, Kind},
    pod::PodKey,
    storage::Merged,
};

/// A kind of runtime.
pub struct RuntimeKind {
    /// How it is written in the settings.
    pub kind: Kind,
    /// Makes it, without input or output.
    pub open: fn(&Given, Opening) -> OpenRuntime,
}

/// What a runtime and its pod workers need.
#[derive(Debug)]
pub struct Opening {
    /// What is wanted.
    pub merged: watch::Receiver<Merged>,
    /// How many pods are synced at once: see [`PodWorkers::concurrency`].
    pub concurrency: usize,
    /// A directory of this instance that a reboot empties.
    pub directory: PathBuf,
    /// The open state, or why it is not open.
    pub state: exec::StateWatch,
    /// The boot of the machine that the agent runs in.
    pub boot: String,
    /// When that boot began, if it is known.
    pub booted: Option<Timestamp>,
    /// What tells the pods of this agent from those of others, over restarts.
    pub instance: Arc<str>,
    /// Where the sockets of the user's own services are, if the agent is not root's.
    pub user_dir: Option<PathBuf>,
    /// The machine.
    pub host: Host,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A runtime and its pod workers.
pub struct OpenRuntime {
    /// What the workers do now, and what fails.
    pub status: watch::Receiver<WorkersStatus>,
    /// What is observed of the wanted pods.
    pub observed: watch::Receiver<Observed>,
    /// The graceful deletions that are complete.
    pub gone: watch::Receiver<Gone>,
    /// The work queue, for its metrics.
    pub queue: WorkQueue<PodKey, Rank>,
    /// The output of containers.
    pub logs: LogReader,
    /// Runs the workers: see [`PodWorkers::run`].
    pub run: Box<dyn FnOnce(CancellationToken) -> Running + Send>,
}

impl Opening {
    /// The pod workers of a runtime.
    pub fn drive(self, runtime: impl PodRuntime + 'static) -> OpenRuntime {
        let workers = PodWorkers::new(runtime, self.merged).on(self.host).concurrency(self.concurrency);
        OpenRuntime {
            status: workers.status(),
            observed: workers.observed(),
            gone: workers.gone(),
            queue: workers.queue(),
            logs: workers.logs(),
            run: Box::new(|stop| Box::pin(workers.run(stop))),
        }
    }
}
