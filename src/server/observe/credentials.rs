//! `/credentials`: what a client needs to reach the server over TCP.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use http::StatusCode;

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
    let error = |code, reason, message: String| Err(ApiError::new(code, reason, message));
    let (Some(Extension(Caller::Unix { .. })), Some(Extension(reader))) = (caller, reader) else {
        let message = "credentials are for callers of the agent's Unix socket only: use --server unix:PATH";
        return error(StatusCode::FORBIDDEN, "Forbidden", message.to_owned());
    };
    let disk = server.view.host.disk.clone();
    match server.blocking(move || reader.read(&disk)).await? {
        Some(Ok(credentials)) => Ok(json_response(&credentials)),
        Some(Err(failed)) => error(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", chain(&failed)),
        None => {
            let message =
                "the agent listens on no TCP address: it needs one in --listen, and a state directory";
            error(StatusCode::NOT_FOUND, "NotFound", message.to_owned())
        }
    }
}
