//! The pod API: podmux's own paths for whole sets, and Kubernetes' paths.

pub(super) mod access;
pub(super) mod collections;
pub(super) mod delete;
pub(super) mod discovery;
pub(super) mod events;
pub(super) mod form;
pub(super) mod log;
mod manifests;
mod objects;
pub(super) mod openapi;
mod page;
pub(super) mod patch;
pub(super) mod pods;
mod protobuf;
pub(super) mod protobuf_errors;
pub(super) mod resource;
pub(super) mod select;
mod warnings;
pub(super) mod watch;
