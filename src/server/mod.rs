//! The HTTP server: Kubernetes' paths for the posted pods, and the agent's health, metrics and updates.
//!
//! It reads snapshots, and writes only through the http source's handle. `transport` accepts
//! connections and reads requests, `api` and `observe` answer them.

mod api;
mod body;
mod context;
mod observe;
mod requests;
mod routes;
mod stats;
mod status;
mod transport;
mod view;

use std::sync::Arc;

use jiff::Timestamp;

pub use self::{
    api::select::Selector,
    body::{LARGE_BODIES, SMALL_BODY},
    observe::updates::{KEEP_ALIVE, MAX_WATCHERS},
    routes::router,
    stats::{ConnectionStats, RejectReason},
    status::ApiError,
    transport::{
        CredentialReload, Server, StartError,
        auth::Caller,
        credentials::{CredentialError, check},
        limits::Limits,
        listen::BindError,
    },
    view::{LastReload, Probe, View},
};

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
