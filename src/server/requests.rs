//! Counts requests for the metrics.

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use http::Method;
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use tokio::time::Instant;

/// The methods with a label of their own; a client can invent others.
const METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::PATCH];

type Labels<const N: usize> = [(&'static str, String); N];

/// Counters of answered requests. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    /// By method, route and status code.
    pub(super) answered: Family<Labels<3>, Counter>,
    /// The time until the head of the response, by method and route.
    pub(super) duration: Family<Labels<2>, Histogram, fn() -> Histogram>,
}

impl Default for Requests {
    fn default() -> Self {
        let histogram: fn() -> Histogram =
            || Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0]);
        Self { answered: Family::default(), duration: Family::new_with_constructor(histogram) }
    }
}

/// Counts a request under its route. Its path is not used: the number of names is unlimited.
pub(super) async fn count(State(requests): State<Requests>, request: Request, next: Next) -> Response {
    let known = METHODS.contains(request.method());
    let method = if known { request.method().to_string() } else { "other".to_owned() };
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or_else(|| "none".to_owned(), |route| route.as_str().to_owned());
    let begin = Instant::now();
    let response = next.run(request).await;
    let duration = begin.elapsed().as_secs_f64();
    let code = response.status().as_str().to_owned();
    let (method, route) = (("method", method), ("route", route));
    requests.duration.get_or_create(&[method.clone(), route.clone()]).observe(duration);
    requests.answered.get_or_create(&[method, route, ("code", code)]).inc();
    response
}
