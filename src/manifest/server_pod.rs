//! Decodes a pod from the response of an API server.

use serde_json::Value;

#[cfg(feature = "agent")]
use super::protobuf;
use super::{
    go_types, json,
    tree::{Data, Node, lossy},
    typed,
};
use crate::pod::{FieldPath, PodKey, Prepared, Problem, quoted};

/// Skipped unread: they are two thirds of a pod's text, and not needed.
const MANAGED_FIELDS: [&str; 2] = ["metadata", "managedFields"];

/// Why an object of an API server cannot be decoded as a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ServerPodError {
    /// The key of the object, if it can be read.
    pub key: Option<PodKey>,
    /// The first problem.
    pub problem: Problem,
}

impl Prepared {
    /// Decodes a `v1.Pod` that an API server wrote as JSON.
    ///
    /// As with client-go's decoder (`k8s.io/apimachinery`, `pkg/runtime/serializer/json`),
    /// every field must have its Go type. There are no defaults and no validation, and
    /// unknown fields are kept. managedFields are skipped unread. `apiVersion` and `kind`
    /// may be absent, as in the items of a `PodList`.
    ///
    /// # Errors
    /// If the object is not a Pod, has no name, or a field has another type.
    pub fn from_server(text: &[u8]) -> Result<Self, ServerPodError> {
        let text = lossy(text);
        let node = json::read(&text, Some(MANAGED_FIELDS))
            .map_err(|fault| ServerPodError { key: None, problem: fault.into_problem(&text) })?;
        check(&node).map_err(|problem| ServerPodError { key: key(&node), problem })?;
        prepared(node.into_json())
    }

    /// Decodes a `v1.Pod` that an API server wrote as protobuf: the message, without its envelope.
    ///
    /// It is the same as the pod of the server's JSON, without the fields that podmux's API version does not have.
    ///
    /// # Errors
    /// If the message is malformed, has no name, or a field has no value of its Go type.
    #[cfg(feature = "agent")]
    pub fn from_server_protobuf(message: &[u8]) -> Result<Self, ServerPodError> {
        let node = protobuf::tree(&go_types::POD, message, Some(protobuf::MANAGED_FIELDS))
            .map_err(|fault| ServerPodError { key: None, problem: protobuf::problem(fault) })?;
        let object = protobuf::typed_object(&go_types::POD, &node)
            .map_err(|problem| ServerPodError { key: key(&node), problem })?;
        prepared(object.into())
    }
}

/// The pod of an object that was checked.
fn prepared(pod: Value) -> Result<Prepared, ServerPodError> {
    Prepared::from_value(pod)
        .map_err(|error| ServerPodError { key: None, problem: Problem::error(error.to_string()) })
}

fn check(node: &Node<'_>) -> Result<(), Problem> {
    if !matches!(node.data, Data::Map(_)) {
        return Err(Problem::error(format!("a pod is expected, but this is {}", node.kind())));
    }
    for (field, expected) in [("apiVersion", "v1"), ("kind", "Pod")] {
        if let Some(given) = node.get(field).and_then(Node::text)
            && given != expected
        {
            let detail = format!("{} is given; {expected} is expected", quoted(given));
            return Err(Problem::error(detail).of(field));
        }
    }
    typed::check(&go_types::POD, node, &FieldPath::ROOT)
}

/// The key of an object, if it can be read.
fn key(node: &Node<'_>) -> Option<PodKey> {
    let metadata = node.get("metadata")?;
    let name = metadata.get("name")?.text().filter(|name| !name.is_empty())?;
    let namespace = match metadata.get("namespace") {
        Some(namespace) if !namespace.is_null() => namespace.text()?,
        _ => "",
    };
    Some(PodKey::new(if namespace.is_empty() { "default" } else { namespace }, name))
}
