//! Encodes responses in protobuf: pods, lists of them, events of watches and statuses.

use std::{
    iter,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde_json::Value;

use crate::{
    manifest::protobuf::{self, MEDIA_TYPE},
    server::{
        body::{CHUNK, made_by_chunk},
        reads::Reads,
        status::ApiError,
    },
};

/// A large message, with its kind and what it was encoded from.
struct Sent {
    kind: &'static str,
    from: Vec<Bytes>,
    message: Vec<u8>,
}

/// A receiver's share of it.
struct Share(Arc<Sent>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        &self.0.message
    }
}

/// The large messages that are being sent, and some that were.
static SENT: Mutex<Vec<Weak<Sent>>> = Mutex::new(Vec::new());

/// Encodes a message, or returns it while a client receives it: one that reads nothing has no copy of its own.
fn shared(kind: &'static str, from: &[Bytes], encode: impl FnOnce() -> Vec<u8>) -> Bytes {
    if from.iter().map(Bytes::len).sum::<usize>() <= CHUNK {
        return encode().into();
    }
    let all = || SENT.lock().unwrap_or_else(PoisonError::into_inner);
    all().retain(|sent| sent.strong_count() > 0);
    let known = all().iter().filter_map(Weak::upgrade).find(|sent| sent.kind == kind && sent.from == from);
    let sent = known.unwrap_or_else(|| {
        let new = Arc::new(Sent { kind, from: from.to_vec(), message: encode() });
        all().push(Arc::downgrade(&new));
        new
    });
    Bytes::from_owner(Share(sent))
}

/// An object in its envelope. The agent wrote its JSON, in pieces.
pub(super) fn object(json: &[Bytes]) -> Bytes {
    let encode = || value(json).and_then(|object| protobuf::encode(&object)).unwrap_or_default();
    shared("object", json, encode)
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
    let items =
        items.into_iter().flat_map(|(length, item)| [protobuf::item_head(length).into(), message(&item)]);
    let pieces = iter::once(Bytes::from(head)).chain(items).chain([Bytes::from_static(end)]);
    let headers = [(CONTENT_TYPE, MEDIA_TYPE.to_owned()), (CONTENT_LENGTH, length.to_string())];
    (headers, made_by_chunk(reads, pieces)).into_response()
}

/// The message of an item.
fn message(json: &[Bytes]) -> Bytes {
    shared("message", json, || value(json).and_then(|pod| protobuf::message(&pod)).unwrap_or_default())
}

fn value(json: &[Bytes]) -> Option<Value> {
    serde_json::from_slice(&json.concat()).ok()
}

/// A frame of a watch.
pub(super) fn frame(kind: &'static str, object: &[Bytes]) -> Bytes {
    shared(kind, object, || protobuf::frame(kind, &object.concat()))
}

/// The `Status` of an error.
pub(super) fn status(error: &ApiError) -> Bytes {
    object(&[error.to_json().into()])
}
