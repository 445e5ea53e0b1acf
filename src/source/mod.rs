//! Sources of pods.

pub mod api;
pub mod file;
pub mod http;
pub mod last_good;
mod state;
mod status;
pub mod url;

pub use self::{
    state::{State, StateWatch},
    status::{ReflectorStatus, SourceFailing, SourceStatus},
};
