//! The HTTP server: Kubernetes' own paths for the posted pods, and what the agent shows of itself.
//!
//! It reads snapshots, and it writes only to the http source's handle.

mod address;
mod api;
mod body;
mod config;
mod context;
mod observe;
mod passed;
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
    sink::SinkStatus,
    source::{SourceStatus, api::ReflectorMetrics, http::Posts},
    storage::Merged,
};

pub use self::{
    address::Listen,
    api::select::Selector,
    body::{LARGE_BODIES, SMALL_BODY},
    config::Config,
    observe::updates::{KEEP_ALIVE, MAX_WATCHERS},
    passed::{Passed, PassedError, PassedListener, PassedSocket},
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
    /// The status of each configured source.
    pub sources: Arc<[(SourceName, watch::Receiver<SourceStatus>)]>,
    /// What the reflector counts, if there is one.
    pub reflector: Option<ReflectorMetrics>,
    /// The status of each sink.
    pub sinks: Arc<[watch::Receiver<SinkStatus>]>,
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
