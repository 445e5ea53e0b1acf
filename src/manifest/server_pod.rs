//! A pod as an API server gives it.

use std::borrow::Cow;

use super::{
    go_types, json,
    tree::{Data, Node, lossy, place},
    typed,
};
use crate::pod::{FieldPath, PodError, PodKey, Prepared, Problem, quoted};

/// Dropped on arrival: they are two thirds of a pod's text, and of no use here.
const MANAGED_FIELDS: [&str; 2] = ["metadata", "managedFields"];

/// Why an object of an API server is no pod that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ServerPodError {
    /// Which pod it should have been, if that can still be read.
    pub key: Option<PodKey>,
    /// The first thing that is wrong.
    pub problem: Problem,
}

impl Prepared {
    /// Takes a `v1.Pod` as an API server writes it, in JSON.
    ///
    /// It is refused where client-go's decoder (`k8s.io/apimachinery`,
    /// `pkg/runtime/serializer/json`) would refuse it: when a field is not of its
    /// Go type. Otherwise it stays as it is: nothing is defaulted or validated,
    /// and fields that this program does not know are kept. Its managedFields are
    /// dropped unread. `apiVersion` and `kind` may be absent, as they are in the
    /// items of a `PodList`.
    ///
    /// # Errors
    /// If it is no Pod, has no name, or a field is of another type.
    pub fn from_server(text: &[u8]) -> Result<Self, ServerPodError> {
        let text = str::from_utf8(text).map_or_else(|_| Cow::Owned(lossy(text)), Cow::Borrowed);
        let node = json::read_without(&text, Some(MANAGED_FIELDS)).map_err(|fault| {
            let problem = Problem::error(fault.detail).at(Some(place(&text, fault.at)));
            ServerPodError { key: None, problem }
        })?;
        match check(&node) {
            Ok(()) => Self::from_value(node.into_json())
                .map_err(|error| ServerPodError { key: None, problem: problem(&error) }),
            Err(problem) => Err(ServerPodError { key: key(&node), problem }),
        }
    }
}

fn check(node: &Node<'_>) -> Result<(), Problem> {
    if !matches!(node.data, Data::Map(_)) {
        return Err(Problem::error(format!("a pod is expected, but this is {}", node.describe())));
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

/// The key of what should have been a pod.
fn key(node: &Node<'_>) -> Option<PodKey> {
    let metadata = node.get("metadata")?;
    let name = metadata.get("name")?.text().filter(|name| !name.is_empty())?;
    let namespace = match metadata.get("namespace") {
        None => "default",
        Some(namespace) if namespace.is_null() => "default",
        Some(namespace) => namespace.text()?,
    };
    Some(PodKey::new(if namespace.is_empty() { "default" } else { namespace }, name))
}

/// What the types did not show: an object that is none, or has no name.
fn problem(error: &PodError) -> Problem {
    Problem::error(error.to_string())
}
