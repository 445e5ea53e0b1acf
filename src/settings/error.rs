//! Invalid settings.

use std::{io, path::PathBuf};

use crate::{pod::NodeNameError, server::Listen};

/// The settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A value is invalid.
    #[error("{place}: {problem}")]
    Value {
        /// Where it was given: `--flag`, `PODMUX_VARIABLE` or `FILE:LINE:COLUMN: field`.
        place: String,
        /// What is wrong and what is accepted.
        problem: String,
    },
    /// A passed socket cannot be protected.
    #[error(
        "systemd passed the socket {address} ({name}): {problem}; or write a path in ListenStream= of the .socket unit"
    )]
    Passed {
        /// The address that it listens on.
        address: Listen,
        /// Its name.
        name: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// No source of pods is configured.
    #[error(
        "no source of pods: give --pod-manifest-path PATH, --manifest-url URL or --kubeconfig FILE (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE), or leave --listen none out"
    )]
    NoSource,
    /// There is no default state directory.
    #[error(
        "no state directory: HOME is not set; give --state-dir DIR, or --state-dir none to store nothing"
    )]
    NoStateDir,
    /// The host name is not a valid node name.
    #[error("the host name is not a valid node name; give one with --node-name")]
    HostName(#[source] NodeNameError),
    /// A config file cannot be read.
    #[error("--config {}: cannot be read; does it exist, and may this process read it?", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
}
