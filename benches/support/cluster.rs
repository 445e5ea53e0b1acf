//! A real kube-apiserver with pods of realistic size on the node `bench` or on many nodes.

use std::{env, thread};

use serde_json::{Value, json};

use crate::{
    kubernetes::{Apiserver, Tls},
    support::pod,
};

/// The node that benchmarks run podmux on.
pub const NODE: &str = "bench";
/// The path of its pods.
pub const PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dbench";
/// More writers would not be faster: they wait for etcd's disk and the two cores.
const WRITERS: usize = 16;

pub struct Cluster {
    apiserver: Apiserver,
    pods: usize,
    /// The number of nodes; a single one is [`NODE`].
    nodes: usize,
}

impl Cluster {
    /// Starts the server. Without the Go programs it prints that and returns nothing.
    pub fn start(benchmark: &str) -> Option<Self> {
        if env::var_os("PODMUX_KUBERNETES").is_none() {
            println!("{benchmark}: skipped, it needs PODMUX_KUBERNETES=$(tests/kubernetes/build)");
            return None;
        }
        let cluster = Self { apiserver: Apiserver::start().unwrap(), pods: 0, nodes: 1 };
        let namespace = r#"{"metadata": {"name": "bench"}}"#;
        let made = cluster.connect().ask("POST", "/api/v1/namespaces", namespace.as_bytes()).unwrap();
        assert_eq!(made.code, 201, "{}", made.text());
        Some(cluster)
    }

    pub fn kubeconfig(&self) -> &str {
        self.apiserver.at.kubeconfig.to_str().unwrap()
    }

    /// Spreads the pods over so many nodes.
    #[must_use]
    pub fn of_nodes(self, nodes: usize) -> Self {
        Self { nodes, ..self }
    }

    /// The name of a node.
    pub fn node(&self, number: usize) -> String {
        if self.nodes == 1 { NODE.to_owned() } else { format!("node-{:05}", number % self.nodes) }
    }

    /// Sends a command such as `stop` to the server; see `tests/kubernetes/README.md`.
    pub fn command(&self, command: &str) {
        self.apiserver.command(command);
    }

    /// A connection of the admin.
    pub fn connect(&self) -> Tls {
        self.apiserver.at.connect(&self.apiserver.at.token).unwrap()
    }

    /// Creates pods until there are so many, each bound and with the status of a running pod.
    pub fn fill(&mut self, count: usize) {
        let numbers: Vec<_> = (self.pods..count).collect();
        thread::scope(|scope| {
            for numbers in numbers.chunks(numbers.len().div_ceil(WRITERS).max(1)) {
                let cluster = &*self;
                scope.spawn(move || {
                    let mut connection = cluster.connect();
                    for number in numbers {
                        make(&mut connection, *number, &cluster.node(*number));
                    }
                });
            }
        });
        self.pods = count;
    }

    /// The size of a pod as the server sends it, with and without its managedFields.
    pub fn sizes(&self) -> (usize, usize) {
        let mut pod = self.connect().ask("GET", &path(0), b"").unwrap().json();
        let whole = pod.to_string().len();
        pod["metadata"].as_object_mut().unwrap().remove("managedFields");
        (whole, pod.to_string().len())
    }
}

pub fn name(number: usize) -> String {
    format!("pod-{number:05}")
}

pub fn path(number: usize) -> String {
    format!("/api/v1/namespaces/bench/pods/{}", name(number))
}

fn make(connection: &mut Tls, number: usize, node: &str) {
    let body = bound(&name(number), node).to_string();
    let made =
        connection.ask("POST", "/api/v1/namespaces/bench/pods?fieldManager=controller", body.as_bytes());
    let made = made.unwrap();
    assert_eq!(made.code, 201, "{}", made.text());
    let status = status().to_string();
    let path = format!("{}/status?fieldManager=kubelet", path(number));
    let patched =
        connection.ask_as("PATCH", &path, "application/merge-patch+json", status.as_bytes()).unwrap();
    assert_eq!(patched.code, 200, "{}", patched.text());
}

/// A pod as a controller and the scheduler leave it.
fn bound(name: &str, node: &str) -> Value {
    let mut pod = pod(name, 0);
    pod["metadata"]["generateName"] = json!("bench-7c5ddbdf54-");
    pod["metadata"]["labels"]["pod-template-hash"] = json!("7c5ddbdf54");
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "bench-7c5ddbdf54",
        "uid": "5f3c1a5e-7d0a-4c58-9a0e-0c2f6a0f4b11", "controller": true, "blockOwnerDeletion": true,
    }]);
    let spec = &mut pod["spec"];
    spec["nodeName"] = json!(node);
    spec["serviceAccountName"] = json!("bench");
    spec["tolerations"] = json!(["not-ready", "unreachable"].map(|taint| json!({
        "key": format!("node.kubernetes.io/{taint}"), "operator": "Exists",
        "effect": "NoExecute", "tolerationSeconds": 300,
    })));
    spec["volumes"].as_array_mut().unwrap().push(json!({
        "name": "kube-api-access",
        "projected": {"sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]},
    }));
    for container in spec["containers"].as_array_mut().unwrap() {
        container["volumeMounts"].as_array_mut().unwrap().push(json!({
            "name": "kube-api-access", "readOnly": true,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }));
    }
    pod
}

/// The status that the kubelet sets for a running pod.
fn status() -> Value {
    let time = "2026-01-01T00:00:00Z";
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": time, "observedGeneration": 1}));
    let containers = ["server", "helper"].map(|name| {
        json!({
            "name": name,
            "image": format!("registry.example/bench/{name}:1.2.3"),
            "imageID": format!("registry.example/bench/{name}@sha256:{}", "0123456789abcdef".repeat(4)),
            "containerID": format!("containerd://{}", "fedcba9876543210".repeat(4)),
            "ready": true, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": time}}, "lastState": {},
        })
    });
    json!({"status": {
        "phase": "Running", "startTime": time, "hostIP": "192.0.2.7", "hostIPs": [{"ip": "192.0.2.7"}],
        "podIP": "198.51.100.7", "podIPs": [{"ip": "198.51.100.7"}], "observedGeneration": 1,
        "conditions": conditions, "containerStatuses": containers, "qosClass": "Burstable",
    }})
}
