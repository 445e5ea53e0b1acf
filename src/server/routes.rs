//! The paths and their handlers.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::Request,
    middleware,
    response::Response,
    routing::{get, post},
};
use http::{HeaderValue, Method, StatusCode, Uri, header::CACHE_CONTROL, uri::PathAndQuery};
use serde_json::{Value, json};
use tower_service::Service as _;

use super::{
    api::{
        access, collections, delete, discovery, events, form::Form, log, openapi, patch, pods,
        protobuf_errors, watch::Frames,
    },
    context::{Context, Params, json_response},
    observe::{credentials, details, health, metrics, sinks, sources, updates},
    requests::{self, Requests},
    status::ApiError,
    transport::auth::{REVIEWS, plain_path},
    view::View,
};

/// The router of all paths. The transport authenticates callers and limits requests, not the router.
pub fn router(view: View) -> Router {
    let requests = Requests::default();
    let collections = collections::routes(&view.host);
    let server = Arc::new(Context::new(view, requests.clone()));
    let pods_path = "/api/v1/namespaces/{namespace}/pods";
    let pod_path = "/api/v1/namespaces/{namespace}/pods/{name}";
    let discovery = discovery::documents().into_iter();
    let discovery = discovery.fold(Router::new(), |router, (path, document)| {
        router.route(path, get(async move |params: Params| fixed(&params, &document)))
    });
    let [whoami, can_i, rules] = REVIEWS;
    let router = discovery
        .merge(collections)
        .merge(openapi::routes())
        .route(whoami, post(access::whoami))
        .route(can_i, post(access::can_i))
        .route(rules, post(access::rules))
        .route("/", get(async || json_response(&json!({"paths": discovery::PATHS}))))
        .route("/pods", get(pods::list_merged).post(pods::apply).put(pods::replace_all))
        .route("/pods/{namespace}/{name}", get(details::pod))
        .route("/api/v1/pods", get(pods::list))
        .route(pods_path, get(pods::list).post(pods::create).delete(delete::delete_collection))
        .route(pod_path, get(pods::read).put(pods::replace).patch(patch::patch).delete(delete::delete))
        .route("/api/v1/namespaces/{namespace}/pods/{name}/log", get(log::read))
        .route("/api/v1/events", get(events::list))
        .route("/api/v1/namespaces/{namespace}/events", get(events::list))
        .route("/api/v1/namespaces/{namespace}/events/{name}", get(events::read))
        .route("/api/v1/namespaces/{namespace}/pods/{name}/status", get(pods::read))
        .route("/updates", get(updates::watch))
        .route("/sinks", get(sinks::list))
        .route("/sources", get(sources::list))
        .route("/sources/{name}", get(details::of_source))
        .route("/credentials", get(credentials::read))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/healthz", get(health::healthy))
        .route("/version", get(async |params: Params| fixed(&params, &version())))
        .route("/metrics", get(metrics::scrape))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(Extension(Arc::new(Frames::default())))
        .layer(Extension(Arc::new(patch::Turns::default())))
        .layer(middleware::from_fn(protobuf_errors::encode))
        .layer(middleware::map_response(uncached))
        .layer(middleware::from_fn_with_state(requests, requests::count))
        .with_state(server);
    Router::new().fallback(async move |request: Request| router.clone().call(without_slash(request)).await)
}

/// Keeps caches from what has no rule of its own, as an API server does.
async fn uncached(mut response: Response) -> Response {
    let rule = response.headers_mut().entry(CACHE_CONTROL);
    rule.or_insert(HeaderValue::from_static("no-cache, private"));
    response
}

/// A request whose path ends with a slash is one for the path without it, as at an API server.
fn without_slash(mut request: Request) -> Request {
    let uri = request.uri();
    let path = plain_path(uri.path());
    if path.len() < uri.path().len() && !path.is_empty() {
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = format!("{path}{query}").parse::<PathAndQuery>().ok();
        // They were valid before.
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    }
    request
}

/// A document, if the client accepts JSON.
fn fixed(params: &Params, document: &Value) -> Result<Response, ApiError> {
    Form::new(params, false)?;
    Ok(json_response(document))
}

async fn unknown_path(uri: Uri) -> ApiError {
    // Clients read of the details that it is the path that is unknown, and no object.
    let hint = match uri.path().rsplit('/').next().unwrap_or_default() {
        "exec" | "attach" | "portforward" | "ephemeralcontainers" => {
            "the agent does not reach into containers: use a command of their runtime, such as podman exec"
        }
        _ => "GET / lists the paths that it serves",
    };
    let message = format!("the server does not serve {}; {hint}", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "NotFound", message)
}

async fn unknown_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("the server does not allow {method} on {}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
}

/// In the format of Kubernetes (`apimachinery/pkg/version`), which its clients can read.
fn version() -> Value {
    json!({
        "major": env!("CARGO_PKG_VERSION_MAJOR"), "minor": env!("CARGO_PKG_VERSION_MINOR"),
        "gitVersion": concat!("v", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
        "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, collections::architecture()),
    })
}
