//! Responses in protobuf: pods, lists of them, watches and statuses, for clients that ask for it first.

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use serde_json::Value;

use super::form::Form;
use crate::{
    manifest::protobuf::{self, MEDIA_TYPE},
    server::{body::chunked, status::ApiError},
};

/// The media type of a watch.
const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// The value of `Content-Type` for a form.
pub(super) fn content_type(form: Form, is_watch: bool) -> HeaderValue {
    HeaderValue::from_static(match form {
        Form::Protobuf if is_watch => STREAM,
        Form::Protobuf => MEDIA_TYPE,
        _ => "application/json",
    })
}

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
    ([(CONTENT_TYPE, content_type(Form::Protobuf, false))], body).into_response()
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

/// Answers an error in protobuf if the client asks for that first. It gets the errors of all paths, with the error in
/// the extensions of its response.
pub(crate) async fn errors(request: Request, next: Next) -> Response {
    let is_wanted = prefers_protobuf(request.headers());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>()
        && is_wanted
    {
        let (mut head, _) = response.into_parts();
        head.headers.insert(CONTENT_TYPE, content_type(Form::Protobuf, false));
        return Response::from_parts(head, status(&error).into());
    }
    response
}

/// Whether a client accepts protobuf, and nothing rather.
fn prefers_protobuf(headers: &HeaderMap) -> bool {
    Form::best(headers, |range| range.form(false, true)) == Some(Form::Protobuf)
}
