//! Sources of pods.

pub mod api;
mod control;
pub mod file;
pub mod http;
pub mod last_good;
mod state;
mod status;
pub mod url;

pub use self::{
    control::Handle,
    state::{State, StateWatch},
    status::{KeptManifest, ReflectorStatus, ScanProgress, SourceFailing, SourceStatus},
};
