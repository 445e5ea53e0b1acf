//! Health, metrics, the status of sources and sinks, and the update stream.

pub(super) mod credentials;
pub(super) mod details;
pub(super) mod health;
pub(super) mod metrics;
pub(super) mod sinks;
pub(super) mod sources;
pub(super) mod updates;
