//! The pod of the benchmarks, and of the tests that count.

use serde_json::{Value, json};

/// A pod of about 1.6 kB.
pub fn pod(name: &str, round: usize) -> Value {
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5});
    let container = |name: &str, port: u16| {
        json!({
            "name": name,
            "image": format!("registry.example/bench/{name}:1.2.3"),
            "args": ["--listen=0.0.0.0", format!("--port={port}"), "--log-level=info"],
            "env": [
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "MODE", "value": "production"},
            ],
            "ports": [{"name": "http", "containerPort": port}],
            "livenessProbe": probe("/livez"),
            "readinessProbe": probe("/readyz"),
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "scratch", "mountPath": "/tmp"}],
        })
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "bench",
            "labels": {"app.kubernetes.io/name": name, "tier": "bench"},
            "annotations": {"podmux.example/round": round.to_string()},
        },
        "spec": {
            "containers": [container("server", 8080), container("helper", 8081)],
            "volumes": [
                {"name": "data", "hostPath": {"path": "/var/lib/bench", "type": "DirectoryOrCreate"}},
                {"name": "scratch", "emptyDir": {"sizeLimit": "64Mi"}},
            ],
        },
    })
}
