//! Why the API server cannot be asked.

use std::{io, path::PathBuf};

use jiff::Timestamp;
use tokio::task::JoinError;

/// Why there is no client. Says what to do about it; nothing in it is secret.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no such kubeconfig.
    #[error("there is no kubeconfig {}; put one there, or give --kubeconfig another path", .0.display())]
    Missing(PathBuf),
    /// A file cannot be read.
    #[error("cannot read the {what} {}; does it exist, and may this process read it?", .path.display())]
    File {
        /// What is in it.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The kubeconfig is not one.
    #[error(
        "{}:{line}: this is no kubeconfig: YAML is expected, with clusters, contexts, users and a current-context", .path.display()
    )]
    Yaml {
        /// Which.
        path: PathBuf,
        /// From 1; 0 if it is not known.
        line: u64,
    },
    /// What it says cannot be used.
    #[error("{place}: {problem}")]
    Said {
        /// The kubeconfig, or the directory of what a pod finds.
        place: String,
        /// What is wrong and what is expected.
        problem: String,
    },
    /// Something is not what it should be.
    #[error("no {what} in {place}: PEM text is expected, which begins with -----BEGIN")]
    Pem {
        /// What was expected.
        what: &'static str,
        /// Where.
        place: String,
    },
    /// A certificate and a key cannot be used together.
    #[error("cannot use the certificate of {certificate} with the key of {key}; do they belong together?")]
    Pair {
        /// Where the certificate is.
        certificate: String,
        /// Where the key is.
        key: String,
        /// Why not.
        #[source]
        error: rustls::Error,
    },
    /// A client certificate is no longer valid.
    #[error(
        "the client certificate of {place} expired at {at}; put a new one in its place (if it has not expired, set this machine's clock)"
    )]
    Expired {
        /// Where it is.
        place: String,
        /// When that was.
        at: Timestamp,
    },
    /// The system's CAs cannot be had.
    #[error(
        "cannot read this system's CA certificates; install them (ca-certificates), or give the cluster a certificate-authority"
    )]
    Roots(#[source] io::Error),
    /// A credential plugin gave nothing that can be used.
    #[error("the credential plugin {command} {problem}")]
    Plugin {
        /// What was run.
        command: String,
        /// What happened.
        problem: String,
    },
    /// No client can be made of it all.
    #[error("no client can be made of the kubeconfig")]
    Client(#[source] kube::Error),
    /// The runtime ended while files were read.
    #[error("the files of the kubeconfig were not read to their end")]
    Cut(#[source] JoinError),
}
