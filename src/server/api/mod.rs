//! The pod API: podmux's own paths for whole sets, and Kubernetes' paths.

pub(super) mod discovery;
pub(super) mod events;
mod form;
pub(super) mod log;
mod manifests;
mod objects;
mod page;
pub(super) mod pods;
pub(super) mod resource;
pub(super) mod select;
pub(super) mod watch;
