//! What is stored about a listing beside its pods.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, to_value};

use super::{connect::ServerIdentity, reflector::Version};

/// The server, the resource version and the time of a stored listing. The names of its
/// fields are those in the state directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ListingInfo {
    /// The server that the listing is from.
    pub(super) server: ServerIdentity,
    /// The UID of the cluster's kube-system namespace, if this node may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cluster: Option<String>,
    version: String,
    live: String,
}

impl ListingInfo {
    pub(super) fn new(
        server: ServerIdentity,
        cluster: Option<String>,
        version: &Version,
        live: Timestamp,
    ) -> Self {
        Self { server, cluster, version: version.to_string(), live: live.to_string() }
    }

    /// Reads a stored value; returns nothing if it has another form.
    pub(super) fn from_stored(value: Value) -> Option<Self> {
        serde_json::from_value(value).ok()
    }

    pub(super) fn to_stored(&self) -> Value {
        // Strings only: this cannot fail.
        to_value(self).unwrap_or_default()
    }

    /// The resource version of the listing.
    pub(super) fn version(&self) -> Version {
        self.version.as_str().into()
    }

    /// When the listing was last known to be current.
    pub(super) fn live(&self) -> Option<Timestamp> {
        self.live.parse().ok()
    }
}
