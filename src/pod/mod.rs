//! The nouns: pods, their names, the listings of them and the updates about them. Pure.

pub mod decode;
mod defaults;
mod digest;
mod go_types;
pub mod identity;
mod image;
mod json;
mod listing;
mod node;
mod object;
mod path;
mod problem;
mod quantity;
mod scalar;
mod server;
mod tabs;
mod time;
mod typed;
mod update;
pub mod yaml;

pub(crate) use defaults::aggregate;
pub use digest::Digest;
pub use identity::{NodeName, NodeNameError};
pub use listing::{Entry, Incarnation, Listing, ListingBuilder, Origin, Rejection, RejectionReason};
pub(crate) use node::quoted;
pub use object::{MIRROR, Pod, PodError, PodKey, Prepared, SEEN, SOURCE, Uid};
pub use path::FieldPath;
pub use problem::{Problem, Refusal, Severity, Stage};
pub(crate) use quantity::Quantity;
pub use server::ServerPodError;
pub use update::{Op, PodUpdate, SequencedUpdate, SourceName, UnknownSource, UpdateSource, classify};
