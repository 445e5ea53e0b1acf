//! The server's settings.

use std::path::PathBuf;

use super::{address::Listen, passed::Passed};
use crate::{certificate_files::CertificateFiles, pod::SecurityLevel};

/// The server's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The addresses to listen on, without those of passed sockets; none occurs twice.
    pub listen: Vec<Listen>,
    /// The sockets that systemd passed; they are always served.
    pub passed: Vec<Passed>,
    /// The file with the token of requests over TCP.
    pub token_file: Option<PathBuf>,
    /// The server's certificate.
    pub tls: Option<CertificateFiles>,
    /// The CAs that sign client certificates, in PEM; only with TLS.
    pub client_ca_file: Option<PathBuf>,
    /// The level that posted pods may not exceed.
    pub pod_security: SecurityLevel,
    /// Makes and keeps the token and the certificate that are not given; `None` without a state
    /// directory.
    pub generated: Option<Generated>,
    /// TCP is plain HTTP, and its callers need no credentials.
    pub anonymous: bool,
    /// The default Unix socket: its directory is made if it is missing.
    pub default_socket: Option<PathBuf>,
}

/// What the agent makes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Its directory, in the state directory.
    pub directory: PathBuf,
    /// The names of the server's certificate, beside the host name.
    pub names: Vec<String>,
}

impl Config {
    /// Whether the server has a socket, so that pods can be posted.
    pub fn listens(&self) -> bool {
        !self.listen.is_empty() || !self.passed.is_empty()
    }
}
