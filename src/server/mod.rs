//! The HTTP server: Kubernetes' own paths for the posted pods, and what the agent shows of itself.
//!
//! It reads snapshots, and it writes only to the http source's handle.

mod api;
mod body;
mod context;
mod observe;
mod routes;
mod status;
mod transport;

use std::{future::Future, pin::Pin, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    history::HistoryReader,
    pod::{NodeName, SourceName},
    source::{SourceStatus, api::ReflectorMetrics, http::Posts},
    storage::Merged,
};

pub use self::{
    api::select::Selector,
    body::{LARGE_BODIES, SMALL_BODY},
    observe::updates::{KEEP_ALIVE, MAX_WATCHERS},
    routes::router,
    status::ApiError,
    transport::{
        Reread, Server, StartError,
        auth::Caller,
        credentials::{CredentialError, check},
        limits::Limits,
        listen::BindError,
        stats::{ConnectionStats, Refusal},
    },
};

/// What the server shows and whom it writes to. Cheap to clone.
#[derive(Clone)]
pub struct View {
    /// This node.
    pub node: NodeName,
    /// What all sources want.
    pub merged: watch::Receiver<Merged>,
    /// The posted set; writes go there.
    pub posts: Posts,
    /// The update stream.
    pub history: HistoryReader,
    /// How each configured source is doing, asked anew each time.
    pub sources: Arc<[(SourceName, Probe<SourceStatus>)]>,
    /// What the reflector counts, if there is one.
    pub reflector: Option<ReflectorMetrics>,
    /// How each sink is doing, asked anew each time.
    pub sinks: Arc<[Probe<SinkStatus>]>,
    /// Whether the merge loop turns.
    pub turns: Arc<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>,
    /// Cancelled when the agent is asked to stop.
    pub stopping: CancellationToken,
    /// When the agent was started.
    pub started: Timestamp,
    /// How the last reload went.
    pub reload: watch::Receiver<LastReload>,
    /// What the transport has seen.
    pub connections: ConnectionStats,
}

/// Asks somebody how they are.
pub type Probe<T> = Arc<dyn Fn() -> T + Send + Sync>;

/// How the settings were found when they were last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastReload {
    /// Whether they could be used.
    pub successful: bool,
    /// When they were last read and could be used: at the start, or since.
    pub succeeded: Timestamp,
}

impl LastReload {
    /// The settings that an agent is started with are good, or it would not start.
    #[must_use]
    pub fn at_start(started: Timestamp) -> Self {
        Self { successful: true, succeeded: started }
    }

    /// Notes that the settings have been read anew.
    pub fn note(&mut self, successful: bool, now: Timestamp) {
        self.successful = successful;
        if successful {
            self.succeeded = now;
        }
    }
}

/// How a sink is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkStatus {
    /// Its name: `jsonl`, `jsonl=/var/log/podmux.jsonl`.
    pub name: String,
    /// The number of the last update that it has acknowledged.
    pub acknowledged: Option<u64>,
    /// Since when it has been busy with the update in hand.
    pub busy_since: Option<Timestamp>,
    /// How it fails, if it does.
    pub failing: Option<SinkFailing>,
}

/// How a sink fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkFailing {
    /// Since when.
    pub since: Timestamp,
    /// How often the update in hand was tried.
    pub attempts: u64,
    /// When it will be tried again.
    pub next_attempt: Timestamp,
    /// The last error, with its causes.
    pub error: Arc<str>,
}
