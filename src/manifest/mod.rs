//! Reads a manifest: YAML or JSON text becomes pods with Go's types, defaults and preparation. Pure.

mod decode;
#[cfg(feature = "agent")]
mod defaulted;
mod defaults;
mod go_types;
mod image;
mod json;
mod other_kinds;
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
mod yaml_advice;

pub use decode::{
    Generate, MAX_GENERATED_PREFIX, MAX_MANIFEST, Manifest, NAME_ATTEMPTS, Preparation, admit, decode, read,
    review,
};
#[cfg(feature = "agent")]
pub(crate) use decode::{Syntax, admit_each, admit_templates};
#[cfg(feature = "agent")]
pub(crate) use defaulted::defaulted;
pub use server_pod::ServerPodError;
pub use typed::MAX_LOOKS;
#[cfg(feature = "agent")]
pub(crate) use typed::{DUPLICATE_KEY, UNKNOWN_FIELD, is_strict, number_of, strictly};
