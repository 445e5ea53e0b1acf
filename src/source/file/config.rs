//! The settings of the file source.

use std::{path::PathBuf, time::Duration};

use crate::manifest::Preparation;

/// What becomes of a manifest's pods when it is not valid any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInvalid {
    /// They stay until it is valid again or gone.
    #[default]
    Keep,
    /// They are removed.
    Remove,
}

/// The file source's settings.
#[derive(Clone, Debug)]
pub struct FileSettings {
    /// A directory of manifests, or one manifest. It may be missing.
    pub path: PathBuf,
    /// The time between two scans of everything.
    pub check_frequency: Duration,
    /// For how long a file must be gone before it is told, and for how long one
    /// that is perhaps being written must stay the same before it is read.
    pub quiet: Duration,
    /// For how long the pods of a directory that vanished are kept.
    pub missing_grace: Duration,
    /// What becomes of the pods of a manifest that is not valid any more.
    pub on_invalid: OnInvalid,
    /// For whom manifests are prepared.
    pub preparation: Preparation,
}

impl FileSettings {
    /// The kubelet's check frequency (20 s), a quiet time of 100 ms, a grace of a minute.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, preparation: Preparation) -> Self {
        Self {
            path: path.into(),
            check_frequency: Duration::from_secs(20),
            quiet: Duration::from_millis(100),
            missing_grace: Duration::from_mins(1),
            on_invalid: OnInvalid::Keep,
            preparation,
        }
    }
}
