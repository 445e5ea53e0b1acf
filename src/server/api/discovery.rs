//! Discovery: the API groups and resources that clients read first.

use serde_json::{Value, json};

/// The paths that are not Kubernetes' objects, and the roots of those that are.
pub(crate) const PATHS: [&str; 19] = [
    "/api",
    "/api/v1",
    "/api/v1/events",
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/pods",
    "/apis",
    "/credentials",
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/pods",
    "/readyz",
    "/sinks",
    "/sources",
    "/updates",
    "/version",
];

/// The documents with their paths.
pub(crate) fn documents() -> [(&'static str, Value); 7] {
    let [authentication, authorization] = ["authentication.k8s.io", "authorization.k8s.io"].map(group);
    let mut groups = json!([authentication, authorization]);
    for group in groups.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        group.retain(|field, _| !["kind", "apiVersion"].contains(&field.as_str()));
    }
    [
        ("/api", json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ("/api/v1", resources("v1", &core())),
        ("/apis", json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})),
        ("/apis/authentication.k8s.io", authentication),
        (
            "/apis/authentication.k8s.io/v1",
            resources("authentication.k8s.io/v1", &json!([review("SelfSubjectReview")])),
        ),
        ("/apis/authorization.k8s.io", authorization),
        (
            "/apis/authorization.k8s.io/v1",
            resources(
                "authorization.k8s.io/v1",
                &json!([review("SelfSubjectAccessReview"), review("SelfSubjectRulesReview")]),
            ),
        ),
    ]
}

fn group(name: &str) -> Value {
    let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": [version], "preferredVersion": version})
}

fn resources(version: &str, resources: &Value) -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
}

/// The resources of the core group.
fn core() -> Value {
    let reads = ["get", "list", "watch"];
    json!([
        {
            "name": "events", "singularName": "event", "namespaced": true, "kind": "Event",
            "verbs": reads, "shortNames": ["ev"],
        },
        {
            "name": "namespaces", "singularName": "namespace", "namespaced": false, "kind": "Namespace",
            "verbs": reads, "shortNames": ["ns"],
        },
        {
            "name": "nodes", "singularName": "node", "namespaced": false, "kind": "Node",
            "verbs": reads, "shortNames": ["no"],
        },
        {
            "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": ["po"], "categories": ["all"],
        },
        {"name": "pods/log", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["get"]},
        {"name": "pods/status", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["get"]},
        {
            "name": "services", "singularName": "service", "namespaced": true, "kind": "Service",
            "verbs": reads, "shortNames": ["svc"],
        },
    ])
}

fn review(kind: &str) -> Value {
    let singular = kind.to_lowercase();
    json!({
        "name": format!("{singular}s"), "singularName": singular, "namespaced": false, "kind": kind,
        "verbs": ["create"],
    })
}
