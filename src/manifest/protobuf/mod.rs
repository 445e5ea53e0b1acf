//! Protobuf of the API's objects, in both directions, by the table of Go's types.
//!
//! One table and one walker serve YAML, JSON and protobuf: a message is decoded to the tree of values that a text
//! gives. Fields that the table does not have are lost, as in every client that has the types of its API version.

mod decode;
mod encode;
mod envelope;
mod wire;

use serde_json::{Map, Value};

pub(super) use self::decode::tree;
pub use self::{
    envelope::{Envelope, EnvelopeError, MAGIC},
    wire::{Fields, WireError, WireValue},
};
use super::{
    go_types::{self, Struct},
    tree::{Fault, Node},
    typed::{self, Findings},
};
use crate::pod::{FieldPath, Problem, Severity};

/// The media type of an object in protobuf.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The field that is two thirds of a pod of an API server, and not needed.
pub(super) const MANAGED_FIELDS: &str = "managedFields";

/// The type of an object that clients and servers send.
fn type_of(kind: &str) -> Option<&'static Struct> {
    match kind {
        "Pod" => Some(&go_types::POD),
        "PodList" => Some(&go_types::POD_LIST),
        "DeleteOptions" => Some(&go_types::DELETE_OPTIONS),
        "Status" => Some(&go_types::STATUS),
        _ => None,
    }
}

/// Decodes a Pod, PodList, `DeleteOptions` or Status to JSON in Go's form. Without a kind in its envelope it has the
/// expected one.
///
/// # Errors
/// If the bytes are not such an object.
pub fn decode(bytes: &[u8], expected: &str) -> Result<Value, Problem> {
    let Envelope { api_version, kind, message } = open(bytes)?;
    let kind = if kind.is_empty() { expected.to_owned() } else { kind };
    let of = type_of(&kind).ok_or_else(|| Problem::error(format!("the kind {kind:?} is unknown")))?;
    let mut object = decode_as(of, message)?;
    let version = if api_version.is_empty() { "v1".to_owned() } else { api_version };
    object.insert("apiVersion".to_owned(), version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(object.into())
}

/// Opens an envelope.
pub(crate) fn open(bytes: &[u8]) -> Result<Envelope<'_>, Problem> {
    Envelope::open(bytes).map_err(|error| Problem::error(error.to_string()))
}

/// Decodes the kind and the spec of a review. The spec is field 2 of each review, and that of one without an own table
/// is empty.
///
/// # Errors
/// If the bytes are not a review.
pub(crate) fn review(bytes: &[u8]) -> Result<(String, Map<String, Value>), Problem> {
    let Envelope { kind, message, .. } = open(bytes)?;
    let of = match &*kind {
        "SelfSubjectAccessReview" => &go_types::SELF_SUBJECT_ACCESS_REVIEW_SPEC,
        "SelfSubjectRulesReview" => &go_types::SELF_SUBJECT_RULES_REVIEW_SPEC,
        _ => return Ok((kind, Map::new())),
    };
    let mut spec = &[][..];
    for field in Fields::new(message) {
        if let (2, WireValue::Bytes(bytes)) = field.map_err(|error| Problem::error(error.to_string()))? {
            spec = bytes;
        }
    }
    Ok((kind, decode_as(of, spec)?))
}

/// Decodes a message as a Go struct.
fn decode_as(of: &'static Struct, message: &[u8]) -> Result<Map<String, Value>, Problem> {
    typed_object(of, &tree(of, message, None).map_err(problem)?)
}

/// The object of a tree, with the zero values that Go writes, or the first problem.
pub(super) fn typed_object(of: &Struct, node: &Node<'_>) -> Result<Map<String, Value>, Problem> {
    let mut findings = Findings::new("");
    let mut object = typed::object(of, node, &FieldPath::ROOT, &mut findings);
    let (_, problems) = findings.into_problems();
    match problems.into_iter().find(|problem| problem.severity == Severity::Error) {
        Some(problem) => Err(problem.at(None)),
        None => {
            typed::complete(of, &mut object);
            Ok(object)
        }
    }
}

/// The problem of a fault, which has no position.
pub(super) fn problem(fault: Fault) -> Problem {
    Problem::error(fault.detail)
}

/// Encodes a Pod, PodList, `DeleteOptions` or Status, of JSON in Go's form. `None` if it is of another kind.
pub fn encode(object: &Value) -> Option<Vec<u8>> {
    let object = object.as_object()?;
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let message = encode::message(type_of(text("kind"))?, object);
    let (mut whole, end) = Envelope::around(text("apiVersion"), text("kind"), message.len());
    whole.extend_from_slice(&message);
    whole.extend_from_slice(end);
    Some(whole)
}
