//! The nouns: pods, their names, listings of pods and the updates about them. Pure.

mod digest;
mod host_port;
pub mod identity;
mod listing;
pub(crate) mod names;
mod object;
mod path;
mod problem;
pub(crate) mod quantity;
mod resources;
mod security_level;
mod source;
mod text;
mod update;
mod version;

pub use digest::Digest;
pub use host_port::HostPort;
pub(crate) use listing::changed as changed_rejections;
pub use listing::{Entry, Incarnation, Listing, ListingBuilder, Origin, Rejection, RejectionReason};
pub use names::{NodeName, NodeNameError};
pub(crate) use object::Object;
#[cfg(feature = "agent")]
pub(crate) use object::drop_nulls;
pub use object::{MIRROR, Pod, PodError, PodKey, Prepared, SEEN, SOURCE, Uid};
pub use path::FieldPath;
pub(crate) use path::Step;
pub use problem::{InvalidManifest, Problem, Severity, Stage};
pub(crate) use problem::{SUGGESTION, quoted};
pub(crate) use quantity::Quantity;
pub(crate) use resources::aggregate;
pub use security_level::SecurityLevel;
pub use source::{SourceName, UnknownSource};
pub use update::{Op, PodUpdate, SequencedUpdate, UpdateSource, classify};
