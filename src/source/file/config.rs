//! The settings of the file source.

use std::{path::PathBuf, time::Duration};

use crate::pod::SecurityLevel;

/// What happens to the pods of a manifest that has become invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInvalid {
    /// The last valid ones stay until the manifest is valid again or removed.
    #[default]
    Keep,
    /// They are removed.
    Remove,
}

/// The file source's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// A directory of manifests, or one manifest. It may be missing.
    pub path: PathBuf,
    /// The time between two scans of everything.
    pub check_frequency: Duration,
    /// What happens to the pods of a manifest that has become invalid.
    pub on_invalid: OnInvalid,
    /// The level that its pods may not exceed.
    pub pod_security: SecurityLevel,
}

/// Delays of the file source; tests shorten or stretch them.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// How long a file must be gone before its pods are removed, and how long a file that is
    /// perhaps being written must stay the same before it is read.
    pub quiet: Duration,
    /// How long the pods of a directory that vanished are kept.
    pub missing_grace: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self { quiet: Duration::from_millis(100), missing_grace: Duration::from_mins(1) }
    }
}
