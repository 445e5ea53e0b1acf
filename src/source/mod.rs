//! Sources of pods.

pub mod api;
pub mod file;
pub mod http;
pub mod last_good;
mod outage;
mod status;
pub mod url;

use uuid::Uuid;

pub use self::status::{ReflectorStatus, SourceFailing, SourceStatus};

/// A number from 0 to 1, for delays that shall not be the same on all nodes.
fn dice() -> f64 {
    // The upper bits of a random UUID.
    f64::from(u32::try_from(Uuid::new_v4().as_u128() >> 96).unwrap_or_default()) / f64::from(u32::MAX)
}

/// A digest as people write it.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}
