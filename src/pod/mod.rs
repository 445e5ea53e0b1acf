//! The nouns: pods, their names, the listings of them and the updates about them. Pure.

mod digest;
pub mod identity;
mod listing;
mod object;
mod path;
mod problem;
pub(crate) mod quantity;
mod resources;
mod update;

pub use digest::Digest;
pub use identity::{NodeName, NodeNameError};
pub use listing::{Entry, Incarnation, Listing, ListingBuilder, Origin, Rejection, RejectionReason};
pub use object::{MIRROR, Pod, PodError, PodKey, Prepared, SEEN, SOURCE, Uid};
pub use path::FieldPath;
pub(crate) use path::Step;
pub(crate) use problem::quoted;
pub use problem::{Problem, Refusal, Severity, Stage};
pub(crate) use quantity::Quantity;
pub(crate) use resources::aggregate;
pub use update::{Op, PodUpdate, SequencedUpdate, SourceName, UnknownSource, UpdateSource, classify};
