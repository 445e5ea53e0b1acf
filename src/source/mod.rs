//! Sources of pods.

pub mod api;
mod control;
pub mod file;
pub mod http;
pub mod last_good;
mod status;
pub mod url;

pub use self::{
    control::Handle,
    status::{ReflectorStatus, SourceFailing, SourceStatus},
};
