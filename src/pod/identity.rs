//! Who a pod is: the node's name, and the names, UIDs and hashes that follow from it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde_json::{Map, Value};
use uuid::Uuid;

use super::{Digest, SourceName, object::canonical};

/// The name of this node: a DNS-1123 subdomain, lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Arc<str>);

/// The text cannot be a node's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a node name: up to 253 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit"
)]
pub struct NodeNameError(pub String);

impl NodeName {
    /// Takes a host name, in lower case, for the node's name.
    ///
    /// # Errors
    /// If it is not a DNS-1123 subdomain.
    pub fn new(name: &str) -> Result<Self, NodeNameError> {
        let lower = name.trim().to_lowercase();
        let fine = |label: &str| {
            let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            let bytes = label.as_bytes();
            edge(bytes.first())
                && edge(bytes.last())
                && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        };
        if lower.len() <= 253 && lower.split('.').all(fine) {
            Ok(Self(lower.into()))
        } else {
            Err(NodeNameError(name.to_owned()))
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The namespace of all UIDs that podmux derives. Changing it would restart
/// every static pod of every node.
const NAMESPACE: Uuid = Uuid::from_u128(0x6f2d_1c5e_8a43_4b7f_9e10_3c58_d7a2_b964);

/// The annotation that holds a pod's content hash, as the kubelet calls it.
pub const HASH: &str = "kubernetes.io/config.hash";

/// The UID of a pod that came without one: a version-5 UUID of where it runs
/// and what it is called. So an edit of the manifest is an update of the same
/// pod, and neither the file's name nor a release of podmux matters.
pub(crate) fn uid(source: SourceName, node: &NodeName, namespace: &str, name: &str) -> String {
    let text = format!("{source}/{node}/{namespace}/{name}");
    Uuid::new_v5(&NAMESPACE, text.as_bytes()).hyphenated().to_string()
}

/// The hash of a pod's content: namespace, name, labels, annotations (but for
/// `kubernetes.io/config.*`) and spec as they were given, in Go's normal form,
/// before defaults and preparation. It changes exactly when the content does.
pub(crate) fn hash(given: &Map<String, Value>) -> String {
    let empty = Map::new();
    let metadata = given.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let annotations: BTreeMap<&str, &Value> = metadata
        .get("annotations")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(name, _)| !name.starts_with("kubernetes.io/config."))
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    let map = |value: Option<&Value>| match value {
        Some(Value::Object(map)) if !map.is_empty() => canonical(map),
        _ => Vec::new(),
    };
    Digest::of(&[
        &metadata.get("namespace").map(canonical).unwrap_or_default(),
        &metadata.get("name").map(canonical).unwrap_or_default(),
        &map(metadata.get("labels")),
        &if annotations.is_empty() { Vec::new() } else { canonical(&annotations) },
        &map(given.get("spec")),
    ])
    .to_string()
}
