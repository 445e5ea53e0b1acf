//! The paths and their handlers.

use std::sync::Arc;

use axum::{Extension, Router, middleware, routing::get};
use http::{Method, StatusCode, Uri};
use serde_json::{Value, json};

use super::{
    api::{discovery, events, log, pods, watch::Frames},
    context::{Context, json_response},
    observe::{credentials, health, metrics, sinks, sources, updates},
    requests::{self, Requests},
    status::ApiError,
    view::View,
};

/// The router of all paths. The transport authenticates callers and limits requests, not the router.
pub fn router(view: View) -> Router {
    let requests = Requests::default();
    let server = Arc::new(Context::new(view, requests.clone()));
    let pods_path = "/api/v1/namespaces/{namespace}/pods";
    let pod_path = "/api/v1/namespaces/{namespace}/pods/{name}";
    let discovery = discovery::documents().into_iter();
    let discovery = discovery.fold(Router::new(), |router, (path, document)| {
        router.route(path, get(async move || json_response(&document)))
    });
    discovery
        .route("/", get(async || json_response(&paths())))
        .route("/pods", get(pods::list_merged).post(pods::apply).put(pods::replace_all))
        .route("/api/v1/namespaces/{namespace}", get(discovery::namespace))
        .route("/api/v1/pods", get(pods::list))
        .route(pods_path, get(pods::list).post(pods::create))
        .route(pod_path, get(pods::read).put(pods::replace).delete(pods::delete))
        .route("/api/v1/namespaces/{namespace}/pods/{name}/log", get(log::read))
        .route("/api/v1/events", get(events::list))
        .route("/api/v1/namespaces/{namespace}/events", get(events::list))
        .route("/api/v1/namespaces/{namespace}/events/{name}", get(events::read))
        .route("/updates", get(updates::watch))
        .route("/sinks", get(sinks::list))
        .route("/sources", get(sources::list))
        .route("/credentials", get(credentials::read))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/healthz", get(health::healthy))
        .route("/version", get(async || json_response(&version())))
        .route("/metrics", get(metrics::scrape))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(Extension(Arc::new(Frames::default())))
        .layer(middleware::from_fn_with_state(requests, requests::count))
        .with_state(server)
}

async fn unknown_path(uri: Uri) -> ApiError {
    let message = format!("the server does not serve {}; GET / lists the paths that it serves", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "NotFound", message)
}

async fn unknown_method(method: Method, uri: Uri) -> ApiError {
    let hint =
        if method == Method::PATCH { ": replace the whole pod with PUT or with POST /pods" } else { "" };
    let message = format!("the server does not allow {method} on {}{hint}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
}

fn paths() -> Value {
    json!({"paths": [
        "/api", "/api/v1", "/api/v1/events", "/api/v1/pods", "/apis", "/credentials", "/healthz", "/livez", "/metrics", "/pods", "/readyz",
        "/sinks", "/sources", "/updates", "/version",
    ]})
}

/// In the format of Kubernetes (`apimachinery/pkg/version`), which its clients can read.
fn version() -> Value {
    json!({
        "major": env!("CARGO_PKG_VERSION_MAJOR"), "minor": env!("CARGO_PKG_VERSION_MINOR"),
        "gitVersion": concat!("v", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
        "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}
