//! A real systemd for tests: a Debian that boots in half a second with systemd-nspawn,
//! into which podmux's package is installed. See README.md.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, say why, wait by the clock, and are nobody's library"
)]

pub mod apiserver;
pub mod client;
pub mod load;
pub mod machine;
pub mod pods;
mod slot;
pub mod web;

/// The plain client of the integration tests.
#[path = "../../it/support/plain.rs"]
#[allow(clippy::should_implement_trait, reason = "lines that may fail, read one by one")]
pub mod plain;
