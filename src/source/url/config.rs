//! The settings of the url source.

use std::{fmt, path::PathBuf, time::Duration};

use http::{HeaderMap, Uri};

use crate::{
    client::{Identity, shown},
    hex::hex,
    manifest::Preparation,
};

/// The url source's settings.
#[derive(Clone)]
pub struct UrlSettings {
    /// What is polled: an `http` or `https` URL, perhaps with user and password.
    pub url: Uri,
    /// What every request says besides.
    pub headers: HeaderMap,
    /// The CAs that are trusted, as PEM, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// Who this node is, where the server wants to know.
    pub identity: Option<Identity>,
    /// The only body that is taken, by its SHA-256.
    pub sha256: Option<[u8; 32]>,
    /// The time between the end of one poll and the beginning of the next.
    pub check_frequency: Duration,
    /// How long a poll may take, redirects and the whole body included.
    pub timeout: Duration,
    /// For whom manifests are prepared.
    pub preparation: Preparation,
}

impl UrlSettings {
    /// The kubelet's check frequency (20 s) and time limit (10 s), and nothing special.
    #[must_use]
    pub fn new(url: Uri, preparation: Preparation) -> Self {
        Self {
            url,
            headers: HeaderMap::new(),
            ca_file: None,
            identity: None,
            sha256: None,
            check_frequency: Duration::from_secs(20),
            timeout: Duration::from_secs(10),
            preparation,
        }
    }
}

impl fmt::Debug for UrlSettings {
    /// Without what may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.keys().map(http::HeaderName::as_str).collect();
        f.debug_struct("UrlSettings")
            .field("url", &shown(&self.url))
            .field("headers", &headers)
            .field("ca_file", &self.ca_file)
            .field("identity", &self.identity)
            .field("sha256", &self.sha256.map(|sum| hex(&sum)))
            .field("check_frequency", &self.check_frequency)
            .field("timeout", &self.timeout)
            .field("preparation", &self.preparation)
            .finish()
    }
}
