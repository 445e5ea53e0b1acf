//! Encodes responses in protobuf: pods, lists of them, events of watches and statuses.

use std::iter;

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde_json::Value;

use crate::{
    manifest::protobuf::{self, MEDIA_TYPE},
    server::{body::made_by_chunk, reads::Reads, status::ApiError},
};

/// An object in its envelope. The agent wrote its JSON, in pieces.
pub(super) fn object(json: &[Bytes]) -> Bytes {
    value(json).and_then(|object| protobuf::encode(&object)).unwrap_or_default().into()
}

/// The body of a list of pods, with its metadata and its items as JSON.
///
/// The list begins with its length, and each item is encoded again when it is sent: an answer that its client does not
/// read holds no more than one in JSON.
pub(super) fn list(reads: Reads, metadata: &str, items: impl Iterator<Item = Vec<Bytes>>) -> Response {
    let metadata = serde_json::from_str(metadata).unwrap_or_default();
    let items: Vec<_> = items.map(|item| (message(&item).len(), item)).collect();
    let size = items.iter().map(|(length, _)| protobuf::item_head(*length).len() + length).sum();
    let (head, end) = protobuf::pod_list(&metadata, size);
    let length = head.len() + size + end.len();
    let items = items.into_iter().flat_map(|(length, item)| [protobuf::item_head(length), message(&item)]);
    let pieces = iter::once(head).chain(items).chain([end.to_vec()]).map(Bytes::from);
    let headers = [(CONTENT_TYPE, MEDIA_TYPE.to_owned()), (CONTENT_LENGTH, length.to_string())];
    (headers, made_by_chunk(reads, pieces)).into_response()
}

/// The message of an item.
fn message(json: &[Bytes]) -> Vec<u8> {
    value(json).and_then(|pod| protobuf::message(&pod)).unwrap_or_default()
}

fn value(json: &[Bytes]) -> Option<Value> {
    serde_json::from_slice(&json.concat()).ok()
}

/// A frame of a watch.
pub(super) fn frame(kind: &str, object: &[Bytes]) -> Bytes {
    protobuf::frame(kind, &object.concat()).into()
}

/// The `Status` of an error.
pub(super) fn status(error: &ApiError) -> Bytes {
    object(&[error.to_json().into()])
}
