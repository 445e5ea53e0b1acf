//! Health, metrics, the status of the sources and the update stream.

mod gauges;
pub(super) mod health;
pub(super) mod metrics;
mod process;
pub(super) mod sources;
pub(super) mod updates;
