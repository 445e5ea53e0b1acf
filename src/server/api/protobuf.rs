//! Encodes responses in protobuf: pods, lists of them, events of watches and statuses.

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::{
    manifest::protobuf::{self, MEDIA_TYPE},
    server::{body::chunked, status::ApiError},
};

/// An object in its envelope. The agent wrote its JSON, in pieces.
pub(super) fn object(json: &[Bytes]) -> Bytes {
    value(json).and_then(|object| protobuf::encode(&object)).unwrap_or_default().into()
}

/// The body of a list of pods, with its metadata and its items as JSON.
pub(super) fn list(metadata: &str, items: impl Iterator<Item = Vec<Bytes>>) -> Response {
    let metadata = serde_json::from_str(metadata).unwrap_or_default();
    let items = items.map(|item| value(&item).and_then(|pod| protobuf::message(&pod)).unwrap_or_default());
    let pieces = protobuf::pod_list(&metadata, items.collect());
    let body = chunked(pieces.into_iter().map(Bytes::from));
    ([(CONTENT_TYPE, MEDIA_TYPE)], body).into_response()
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
