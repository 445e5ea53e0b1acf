//! `/credentials`: what a client needs to reach the server over TCP.

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::{HeaderValue, StatusCode, header::CACHE_CONTROL};

use crate::{
    error_chain::chain,
    server::{
        context::{Context, json_response},
        status::ApiError,
        transport::{auth::Caller, credentials::CredentialReader},
    },
};

/// `/credentials`, for callers of a Unix socket: they may do everything already.
pub(crate) async fn read(
    State(server): State<Arc<Context>>,
    caller: Option<Extension<Caller>>,
    reader: Option<Extension<CredentialReader>>,
) -> Result<Response, ApiError> {
    let (Some(Extension(Caller::Unix { .. })), Some(Extension(reader))) = (caller, reader) else {
        let message =
            "credentials are given to callers of the Unix socket only: name it with --server unix:PATH";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message.to_owned()));
    };
    let disk = server.view.host.disk.clone();
    match server.blocking(move || reader.read(&disk)).await? {
        Some(Ok(credentials)) => {
            let mut response = json_response(&credentials).into_response();
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            Ok(response)
        }
        Some(Err(error)) => {
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", chain(&error)))
        }
        None => {
            let message =
                "the agent listens on no TCP address: give it one with --listen, and a state directory";
            Err(ApiError::new(StatusCode::NOT_FOUND, "NotFound", message.to_owned()))
        }
    }
}
