//! Reads a manifest: YAML or JSON text becomes pods with Go's types, defaults and preparation. Pure.

mod decode;
mod defaults;
mod go_types;
mod image;
mod json;
#[cfg(feature = "agent")]
pub mod patch;
#[cfg(feature = "agent")]
pub mod protobuf;
mod scalar;
mod server_pod;
mod tabs;
mod time;
mod tree;
mod typed;
mod workload;
pub mod yaml;

pub use decode::{
    Generate, MAX_GENERATED_PREFIX, MAX_MANIFEST, Manifest, NAME_ATTEMPTS, Preparation, admit, decode, read,
};
#[cfg(feature = "agent")]
pub(crate) use decode::{Syntax, admit_each, admit_templates};
pub use server_pod::ServerPodError;
pub use typed::MAX_LOOKS;
#[cfg(feature = "agent")]
pub(crate) use typed::{DUPLICATE_KEY, UNKNOWN_FIELD, number_of};
