//! A real systemd for tests: a Debian in systemd-nspawn with podmux's package. See README.md.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests panic on failure, print why, use the real clock, and are not a library"
)]

pub mod apiserver;
pub mod client;
pub mod load;
pub mod machine;
pub mod pods;
mod slot;
pub mod web;

/// The lines that come at the end of a file, as the integration tests read them.
#[path = "../../it/support/appended.rs"]
pub mod appended;

/// Random choices of the integration tests.
#[path = "../../it/support/random.rs"]
pub mod random;

/// The TCP relay of the integration tests.
#[path = "../../it/support/relay.rs"]
pub mod relay;

/// The HTTP client of the integration tests.
#[path = "../../it/support/plain.rs"]
#[allow(clippy::should_implement_trait, reason = "it is an iterator whose items may be errors")]
pub mod plain;
