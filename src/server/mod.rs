//! The HTTP server: Kubernetes' paths for the posted pods, and the agent's health, metrics and updates.
//!
//! It reads snapshots, and writes only through the http source's handle. `transport` accepts
//! connections and reads requests, `api` and `observe` answer them.

mod address;
mod api;
mod body;
mod config;
mod context;
mod observe;
mod overlay;
mod passed;
mod reads;
mod requests;
mod routes;
mod slots;
mod stats;
mod status;
mod transport;
mod view;

pub use self::{
    address::Listen,
    api::select::Selector,
    body::{LARGE_BODIES, SMALL_BODY},
    config::{Config, Generated},
    observe::updates::KEEP_ALIVE,
    passed::{Passed, PassedError, PassedSocket},
    routes::router,
    slots::{MAX_WATCHERS, Watchers},
    stats::{ConnectionStats, RejectReason},
    status::ApiError,
    transport::{
        CredentialReload, Server, StartError, auth::Caller, credential_error::CredentialError,
        credentials::check, limits::Limits, listen::BindError, request_body::read_bodies,
    },
    view::{LastReload, RuntimeView, View},
};
