//! Errors in protobuf, for clients that ask for that first.

use axum::{extract::Request, middleware::Next, response::Response};
use http::header::CONTENT_TYPE;

use super::{form::Form, protobuf};
use crate::server::status::ApiError;

/// Answers an error in protobuf if the client asks for that first. It gets the errors of all paths, with the error in
/// the extensions of its response.
pub(crate) async fn encode(request: Request, next: Next) -> Response {
    let preferred = Form::best(request.headers(), |range| range.form(false, true));
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>()
        && preferred == Some(Form::Protobuf)
    {
        let (mut head, _) = response.into_parts();
        head.headers.insert(CONTENT_TYPE, Form::Protobuf.content_type(false));
        return Response::from_parts(head, protobuf::status(&error).into());
    }
    response
}
