//! What the agent shows of itself: health, metrics, sources and the update stream.

pub(super) mod health;
pub(super) mod metrics;
mod process;
pub(super) mod sources;
pub(super) mod updates;
