//! Protobuf of the API's objects, in both directions, by the table of Go's types.
//!
//! One table and one walker serve YAML, JSON and protobuf: a message is decoded to the tree of values that a text
//! gives. Fields that the table does not have are lost, as in every client that has the types of its API version.

mod decode;
mod encode;
mod envelope;
mod watch;
mod wire;

use serde_json::{Map, Value};

pub(super) use self::decode::tree;
pub(crate) use self::wire::{tag, varint};
pub use self::{
    envelope::{Envelope, EnvelopeError, MAGIC},
    watch::{WatchEvent, frame},
    wire::{Fields, WireError, WireValue},
};
use super::{
    go_types::{self, Struct},
    tree::{Data, Fault, Node},
    typed::{self, Findings},
};
use crate::pod::{FieldPath, Problem, Severity};

/// The media type of an object in protobuf.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The field of a list that has its items, in `PodList` as in each list of the API.
pub(crate) const ITEMS: u8 = 2;

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

/// The tree of a manifest in an envelope. What is of an unknown kind has nothing but its kind.
pub(super) fn document(bytes: &[u8]) -> Result<Node<'_>, Problem> {
    let Envelope { api_version, kind, message } = open(bytes)?;
    let of = type_of(if kind.is_empty() { "Pod" } else { &kind });
    let empty = decode::node(Data::Map(Vec::new()));
    let mut node = of.map_or(Ok(empty), |of| tree(of, message, None)).map_err(problem)?;
    if let Data::Map(entries) = &mut node.data {
        for (key, text) in [("apiVersion", api_version), ("kind", kind)] {
            entries.push(decode::entry(key, Data::Text(text.into())));
        }
    }
    Ok(node)
}

/// Decodes a message as a Go struct.
fn decode_as(of: &'static Struct, message: &[u8]) -> Result<Map<String, Value>, Problem> {
    typed_object(of, &tree(of, message, None).map_err(problem)?)
}

/// The object of a tree, with the zero values that Go writes, or the first problem.
pub(super) fn typed_object(of: &Struct, node: &Node<'_>) -> Result<Map<String, Value>, Problem> {
    let mut findings = Findings::of_message();
    let mut object = typed::object(of, node, &FieldPath::ROOT, &mut findings);
    let (_, problems) = findings.into_problems();
    if let Some(problem) = problems.into_iter().find(|problem| problem.severity == Severity::Error) {
        return Err(problem);
    }
    typed::complete(of, &mut object);
    Ok(object)
}

/// The problem of a fault, which has no position.
pub(super) fn problem(fault: Fault) -> Problem {
    Problem::error(fault.detail)
}

/// Encodes a Pod, PodList, `DeleteOptions` or Status, of JSON in Go's form. `None` if it is of another kind.
pub fn encode(object: &Value) -> Option<Vec<u8>> {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let message = message(object)?;
    let (head, end) = Envelope::around(text("apiVersion"), text("kind"), message.len());
    Some([&head, &*message, end].concat())
}

/// The message of such an object, without an envelope: an item of a list.
pub fn message(object: &Value) -> Option<Vec<u8>> {
    let object = object.as_object()?;
    let kind = object.get("kind").and_then(Value::as_str)?;
    Some(encode::message(type_of(kind)?, object))
}

/// The bytes before and after the items of a list of pods with this metadata. The items have this size with their heads.
pub(crate) fn pod_list(metadata: &Value, size: usize) -> (Vec<u8>, &'static [u8]) {
    let list = Map::from_iter([("metadata".to_owned(), metadata.clone())]);
    let list = encode::message(&go_types::POD_LIST, &list);
    let (mut head, end) = Envelope::around("v1", "PodList", list.len() + size);
    head.extend(list);
    (head, end)
}

/// The bytes before an item of a list, whose message has this length.
pub(crate) fn item_head(length: usize) -> Vec<u8> {
    let mut head = Vec::new();
    wire::put_head(&mut head, ITEMS, length);
    head
}
