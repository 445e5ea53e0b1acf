//! Discovery: the API groups, resources and the `OpenAPI` document that kubectl reads first.

use axum::response::Response;
use serde_json::{Value, json};

use crate::server::context::{Params, json_response};

/// The documents with their paths.
///
/// The `OpenAPI` document says that the server validates fields itself, which kubectl checks
/// before it creates an object. It reads the parameters of PATCH
/// (`cli-runtime/pkg/resource/query_param_verifier_v3.go`), which is not supported.
pub(crate) fn documents() -> [(&'static str, Value); 5] {
    let groups = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []});
    let resources = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1",
        "resources": [
            {
                "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
                "verbs": ["create", "delete", "get", "list", "update", "watch"],
                "shortNames": ["po"], "categories": ["all"],
            },
            {
                "name": "events", "singularName": "event", "namespaced": true, "kind": "Event",
                "verbs": ["get", "list", "watch"], "shortNames": ["ev"],
            },
            {"name": "pods/log", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["get"]},
        ],
    });
    let openapi = json!({
        "openapi": "3.0.0", "info": {"title": "podmux", "version": env!("CARGO_PKG_VERSION")},
        "paths": {"/api/v1/namespaces/{namespace}/pods/{name}": {"patch": {
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "responses": {"405": {"description": "not supported"}},
            "x-kubernetes-group-version-kind": {"group": "", "kind": "Pod", "version": "v1"},
        }}},
    });
    [
        ("/api", json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ("/apis", groups),
        ("/api/v1", resources),
        ("/openapi/v3", json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}})),
        ("/openapi/v3/api/v1", openapi),
    ]
}

/// `GET /api/v1/namespaces/{namespace}`: every namespace exists, so that kubectl names a missing pod and not its namespace.
pub(crate) async fn namespace(params: Params) -> Response {
    let name = params.part("namespace").unwrap_or_default();
    json_response(&json!({
        "kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}, "status": {"phase": "Active"},
    }))
}
