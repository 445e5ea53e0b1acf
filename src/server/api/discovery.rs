//! Discovery: the API groups, resources and the `OpenAPI` document that kubectl reads first.

use serde_json::{Value, json};

pub(crate) fn api_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

pub(crate) fn api_groups() -> Value {
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})
}

pub(crate) fn api_resources() -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1",
        "resources": [{
            "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
            "verbs": ["create", "delete", "get", "list", "update"],
            "shortNames": ["po"], "categories": ["all"],
        }],
    })
}

pub(crate) fn openapi_index() -> Value {
    json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}})
}

/// The `OpenAPI` document: that the server validates fields itself, which kubectl checks before
/// it creates an object. It reads the parameters of PATCH
/// (`cli-runtime/pkg/resource/query_param_verifier_v3.go`), which is not supported.
pub(crate) fn openapi() -> Value {
    json!({
        "openapi": "3.0.0", "info": {"title": "podmux", "version": env!("CARGO_PKG_VERSION")},
        "paths": {"/api/v1/namespaces/{namespace}/pods/{name}": {"patch": {
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "responses": {"405": {"description": "not supported"}},
            "x-kubernetes-group-version-kind": {"group": "", "kind": "Pod", "version": "v1"},
        }}},
    })
}
