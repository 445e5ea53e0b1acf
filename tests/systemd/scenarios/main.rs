//! podmux's package on a real systemd: installation, supervision, reload, upgrade, removal.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests panic on failure and use the real clock"
)]

mod bad_start;
mod drop_ins;
mod install;
mod journal;
mod nemesis;
mod newer;
mod podman;
mod reload;
mod remove;
mod runtime;
mod socket;
mod sources;
mod stop;
mod supervision;
mod upgrade;
