//! What is kept about a listing, beside its pods: whose it is, and of when.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, to_value};

use super::{Identity, reflector::Version};

/// See the [module](self).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    /// The server that gave it.
    pub(super) server: Identity,
    /// The UID of that cluster's kube-system namespace, where it may be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cluster: Option<String>,
    version: String,
    live: String,
}

impl Kept {
    pub(super) fn new(server: Identity, cluster: Option<String>, version: &Version, live: Timestamp) -> Self {
        Self { server, cluster, version: version.to_string(), live: live.to_string() }
    }

    /// Reads it back; nothing if it is not what this release writes.
    pub(super) fn read(about: Value) -> Option<Self> {
        serde_json::from_value(about).ok()
    }

    pub(super) fn about(&self) -> Value {
        // Texts only: there is nothing that could fail.
        to_value(self).unwrap_or_default()
    }

    /// The version of the listing.
    pub(super) fn version(&self) -> Version {
        self.version.as_str().into()
    }

    /// When it was last known to be true.
    pub(super) fn live(&self) -> Option<Timestamp> {
        self.live.parse().ok()
    }
}
