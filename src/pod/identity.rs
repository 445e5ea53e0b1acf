//! The UID and the content hash that podmux derives for a pod.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::{Digest, SourceName, digest::canonical};

/// The namespace of all UIDs that podmux derives. A change would restart every
/// static pod on every node.
const NAMESPACE: Uuid = Uuid::from_u128(0x6f2d_1c5e_8a43_4b7f_9e10_3c58_d7a2_b964);

/// The annotation that holds a pod's content hash, as the kubelet calls it.
pub const HASH: &str = "kubernetes.io/config.hash";

/// The UID of a pod whose manifest has none: a version-5 UUID of source, node, namespace
/// and name. An edit of the manifest is therefore an update of the same pod, and neither
/// the file's name nor the release of podmux changes the UID.
pub(crate) fn uid(source: SourceName, node: &str, namespace: &str, name: &str) -> Uuid {
    let text = [source.as_str(), node, namespace, name].join("/");
    Uuid::new_v5(&NAMESPACE, text.as_bytes())
}

/// The hash of a pod's content: namespace, name, labels, annotations (except
/// `kubernetes.io/config.*`) and spec as decoded, before defaults and preparation.
/// It changes exactly when the content does.
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
