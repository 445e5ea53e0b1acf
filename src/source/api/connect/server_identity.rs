//! The identity of an API server.

use serde::{Deserialize, Serialize};

/// What identifies an API server, so that a stored listing is restored for the same server
/// only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerIdentity {
    /// Its URL, without what may be secret.
    pub url: String,
    /// A digest of the CAs that it is trusted by; empty for the system's.
    pub ca: String,
}
