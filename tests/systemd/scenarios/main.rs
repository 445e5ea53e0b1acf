//! podmux's package on a real systemd: installed, supervised, reloaded, upgraded, taken away.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and wait by the clock"
)]

mod bad_start;
mod drop_ins;
mod install;
mod journal;
mod newer;
mod reload;
mod remove;
mod socket;
mod sources;
mod stop;
mod supervision;
mod upgrade;
