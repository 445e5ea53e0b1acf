//! Pods and manifests.

use serde_json::{Value, json};

/// A small pod.
pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "registry.example/main:1"}]},
    })
}

/// A small pod with a version in a label.
pub fn version(name: &str, version: u64) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["labels"] = json!({"version": version.to_string()});
    pod
}

/// A list of small pods, as a URL serves it.
pub fn list(names: &[&str]) -> String {
    let items = names.iter().map(|name| pod(name)).collect::<Vec<_>>();
    json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()
}
