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
    /// The server's certificate; with it TCP is served over TLS.
    pub tls: Option<CertificateFiles>,
    /// The CAs that sign client certificates, in PEM; only with `tls`.
    pub client_ca_file: Option<PathBuf>,
    /// The level that posted pods may not exceed.
    pub pod_security: SecurityLevel,
}

impl Config {
    /// Whether the server has a socket, so that pods can be posted.
    pub fn listens(&self) -> bool {
        !self.listen.is_empty() || !self.passed.is_empty()
    }
}
