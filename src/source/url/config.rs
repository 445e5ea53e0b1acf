//! The settings of the url source.

use std::{fmt, path::PathBuf, time::Duration};

use http::{HeaderMap, Uri};

use crate::{certificate_files::CertificateFiles, client::shown, hex::hex, pod::SecurityLevel};

/// The url source's settings.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// The `http` or `https` URL that is polled; it may hold a user and a password.
    pub url: Uri,
    /// Headers of every request. Values that are marked as sensitive are not printed.
    pub headers: HeaderMap,
    /// The CAs that are trusted in place of the system's, as PEM.
    pub ca_file: Option<PathBuf>,
    /// The certificate that the source presents to the server.
    pub client_certificate: Option<CertificateFiles>,
    /// The SHA-256 that the body must have.
    pub sha256: Option<[u8; 32]>,
    /// The time between the end of one poll and the beginning of the next.
    pub check_frequency: Duration,
    /// The level that its pods may not exceed.
    pub pod_security: SecurityLevel,
}

impl Config {
    /// The kubelet's check frequency (20 s), and nothing but the URL.
    pub fn new(url: Uri) -> Self {
        Self {
            url,
            headers: HeaderMap::new(),
            ca_file: None,
            client_certificate: None,
            sha256: None,
            check_frequency: Duration::from_secs(20),
            pod_security: SecurityLevel::default(),
        }
    }
}

impl fmt::Debug for Config {
    /// Without user, password and query of the URL and without the headers' values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.keys().map(http::HeaderName::as_str).collect();
        f.debug_struct("Config")
            .field("url", &shown(&self.url))
            .field("headers", &headers)
            .field("ca_file", &self.ca_file)
            .field("client_certificate", &self.client_certificate)
            .field("sha256", &self.sha256.map(|sum| hex(&sum)))
            .field("check_frequency", &self.check_frequency)
            .field("pod_security", &self.pod_security)
            .finish()
    }
}
