//! Why no client for the API server can be made.

use std::{io, path::PathBuf};

use jiff::Timestamp;

use crate::{
    host::Cancelled,
    pem::{PemError, identity_hint},
};

/// Why no client can be made, and what to do about it. It contains nothing secret.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig does not exist.
    #[error("the kubeconfig {} does not exist (create it, or set another path with --kubeconfig)", .0.display())]
    Missing(PathBuf),
    /// A file cannot be read.
    #[error("cannot read the {what} {} (does it exist, and may this process read it?)", .path.display())]
    File {
        /// What it contains.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// The file is not a kubeconfig.
    #[error(
        "{}:{line}: not a kubeconfig; expected YAML in UTF-8 with clusters, contexts, users and a current-context", .path.display()
    )]
    Yaml {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: u64,
    },
    /// A value in the kubeconfig or in a file that it names is invalid.
    #[error("{place}: {problem}")]
    Invalid {
        /// The file, or the directory of the service account.
        place: String,
        /// What is wrong and what is expected.
        problem: String,
    },
    /// A certificate or a key is not the PEM text that is expected.
    #[error("cannot use {place}")]
    Pem {
        /// Where it is.
        place: String,
        /// What is missing.
        #[source]
        error: PemError,
    },
    /// A certificate and a key cannot be used together.
    #[error("cannot use the certificate in {certificate} with the key in {key} ({})", identity_hint(.error))]
    CertificateAndKey {
        /// Where the certificate is.
        certificate: String,
        /// Where the key is.
        key: String,
        /// The reason.
        #[source]
        error: rustls::Error,
    },
    /// A client certificate has expired.
    #[error(
        "the client certificate in {place} expired at {at}; replace it (if it has not expired, set this machine's clock)"
    )]
    Expired {
        /// Where it is.
        place: String,
        /// When it expired.
        at: Timestamp,
    },
    /// The system's CAs cannot be read.
    #[error(
        "cannot read the system's CA certificates (install the package ca-certificates, or set a certificate-authority for the cluster)"
    )]
    Roots(#[source] io::Error),
    /// A credential plugin failed.
    #[error("the credential plugin {command} {problem}")]
    Plugin {
        /// The program.
        command: String,
        /// What happened.
        problem: String,
    },
    /// The kubeconfig cannot be used for another reason.
    #[error("no client can be made from the kubeconfig")]
    Client(#[source] kube::Error),
    /// Reading the files was cancelled.
    #[error("the files of the kubeconfig were not read to the end")]
    Cancelled(#[source] Cancelled),
}
