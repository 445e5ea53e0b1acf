//! The settings of a client.

use std::{path::PathBuf, time::Duration};

use crate::certificate_files::CertificateFiles;

/// How a client connects, which authorities it trusts, and how long it waits.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// The trusted CAs, as PEM; the system's without.
    pub ca_file: Option<PathBuf>,
    /// The client certificate, for servers that ask for one.
    pub identity: Option<CertificateFiles>,
    /// The Unix socket that every request goes to, whatever the host of its URL is,
    /// as with `curl --unix-socket`. Plain HTTP only.
    pub socket: Option<PathBuf>,
    /// The time limit for connecting to one address.
    pub connect_timeout: Duration,
    /// The time limit from the request to the head of the response, redirects
    /// included, and to the end of a body that is read whole.
    pub timeout: Duration,
    /// Which redirects are followed.
    pub redirects: Redirects,
    /// Whether the certificate of a server is not verified.
    pub accepts_any_server: bool,
}

/// Which redirects are followed. The others are returned as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// None.
    None,
    /// Those to the same host name, as the kubelet's probes do.
    SameHost,
    /// All.
    All,
}

impl Default for ClientSettings {
    /// The system's CAs, TCP, ten seconds for everything, redirects returned.
    fn default() -> Self {
        let timeout = Duration::from_secs(10);
        Self {
            ca_file: None,
            identity: None,
            socket: None,
            connect_timeout: timeout,
            timeout,
            redirects: Redirects::None,
            accepts_any_server: false,
        }
    }
}
