//! Sources of pods.

pub mod api;
pub mod file;
pub mod http;
pub mod last_good;
mod status;
pub mod url;

pub use self::status::{ReflectorStatus, SourceFailing, SourceStatus};
