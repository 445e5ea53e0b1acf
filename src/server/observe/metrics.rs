//! `/metrics`: how the agent is doing, as Prometheus reads it.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::AtomicU64},
};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use jiff::Timestamp;
use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};
use tokio::time::Instant;

use super::{health, process, sources, updates::MAX_WATCHERS};
use crate::server::{Refusal, View, context::Context, status::ApiError};
use crate::{clock, source::api::ReflectorMetrics, storage::SourceState};

const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels<const N: usize> = [(&'static str, String); N];
/// A number that may be a fraction.
pub(in crate::server) type Level = Gauge<f64, AtomicU64>;
type Levels<const N: usize> = Family<Labels<N>, Level>;
type Numbers<const N: usize> = Family<Labels<N>, Gauge>;

/// What was asked of the server and answered so far.
#[derive(Clone, Debug)]
pub(in crate::server) struct Requests {
    answered: Family<Labels<3>, Counter>,
    took: Family<Labels<2>, Histogram, fn() -> Histogram>,
}

impl Default for Requests {
    fn default() -> Self {
        let took: fn() -> Histogram =
            || Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0]);
        Self { answered: Family::default(), took: Family::new_with_constructor(took) }
    }
}

/// Counts each request under its route (not its path: names are without number)
/// and measures the time to the head of the answer.
pub(in crate::server) async fn count(
    State(server): State<Arc<Context>>,
    request: Request,
    next: Next,
) -> Response {
    let method = match request.method() {
        known @ (&Method::GET
        | &Method::HEAD
        | &Method::POST
        | &Method::PUT
        | &Method::DELETE
        | &Method::PATCH) => known.to_string(),
        _ => "other".to_owned(),
    };
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or_else(|| "none".to_owned(), |route| route.as_str().to_owned());
    let begin = Instant::now();
    let answer = next.run(request).await;
    let requests = &server.requests;
    let labels =
        [("method", method.clone()), ("route", route.clone()), ("code", answer.status().as_str().to_owned())];
    requests.answered.get_or_create(&labels).inc();
    let took = begin.elapsed().as_secs_f64();
    requests.took.get_or_create(&[("method", method), ("route", route)]).observe(took);
    answer
}

/// Everything, as it is now.
pub(in crate::server) async fn scrape(State(server): State<Arc<Context>>) -> Result<Response, ApiError> {
    let mut registry = Registry::with_prefix("podmux");
    let (view, now) = (&server.view, clock::now());
    agent(&mut registry, view, now);
    source(&mut registry, view, now);
    reflector(&mut registry, view);
    sink(&mut registry, view, now);
    let watchers = MAX_WATCHERS - server.watchers.available_permits();
    // Everything else is told even if nobody knows this.
    if let Ok(snapshot) = server.snapshot().await {
        set(&mut registry, "updates_seq", "The number of the last update of /updates", snapshot.seq);
    }
    set(&mut registry, "updates_watchers", "How many watch /updates", watchers as u64);
    let requests = server.requests.clone();
    registry.register("http_requests", "Requests that were answered", requests.answered);
    let help = "Time to the head of the answer";
    registry.register_with_unit("http_request_duration", help, Unit::Seconds, requests.took);
    connections(&mut registry, view);
    let body = encode(&registry, &process::registry(view.started)).map_err(|error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", format!("no metrics: {error}"))
    })?;
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE))], body).into_response())
}

/// Two registries, for their names begin differently.
fn encode(agent: &Registry, process: &Registry) -> Result<String, fmt::Error> {
    let mut body = String::new();
    text::encode_registry(&mut body, agent)?;
    text::encode(&mut body, process)?;
    Ok(body)
}

/// Registers a single number.
pub(in crate::server) fn set(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Gauge::<u64, AtomicU64>::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

fn agent(registry: &mut Registry, view: &View, now: Timestamp) {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let labels = vec![("version", version), ("node", view.node.to_string())];
    registry.register("build", "What runs here", Info::new(labels));
    let started = Level::default();
    started.set(seconds(view.started));
    let help = "When the agent was started, since 1970";
    registry.register_with_unit("start_time", help, Unit::Seconds, started);
    let ready = health::readiness(view, now).iter().all(|(_, outcome)| outcome.is_ok());
    set(registry, "ready", "Whether /readyz says ok", u64::from(ready));
    let reload = *view.reload.borrow();
    // Under Prometheus' own names, but for the prefix.
    let help = "Whether the settings could be used when they were last read";
    set(registry, "config_last_reload_successful", help, u64::from(reload.successful));
    let success = Level::default();
    success.set(seconds(reload.succeeded));
    let help = "When the settings were last read and could be used, since 1970";
    registry.register_with_unit("config_last_reload_success_timestamp", help, Unit::Seconds, success);
}

fn source(registry: &mut Registry, view: &View, now: Timestamp) {
    let merged = view.merged.borrow().clone();
    let (pods, progress, rejections) =
        (Numbers::<1>::default(), Numbers::<2>::default(), Numbers::<2>::default());
    let (success, restored) = (Levels::<1>::default(), Levels::<1>::default());
    let (failing, attempts) = (Levels::<1>::default(), Numbers::<1>::default());
    let mut counts: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for rejection in merged.rejections() {
        *counts.entry((rejection.source.as_str(), rejection.reason.as_str())).or_default() += 1;
    }
    for ((source, reason), count) in counts {
        rejections.get_or_create(&[("source", source.to_owned()), ("reason", reason.to_owned())]).set(count);
    }
    for (name, status) in view.sources.iter() {
        let (status, label) = (status.borrow().clone(), ("source", name.to_string()));
        let own = [label.clone()];
        pods.get_or_create(&own).set(whole(sources::pods(&merged, *name)));
        let state = sources::progress(&merged, *name);
        for possible in [SourceState::Waiting, SourceState::Restored, SourceState::Synced] {
            let labels = [label.clone(), ("state", possible.as_str().to_owned())];
            progress.get_or_create(&labels).set(i64::from(possible == state));
        }
        if let Some(time) = status.last_success {
            success.get_or_create(&own).set(seconds(time));
        }
        if let Some(time) = status.restored.filter(|_| state == SourceState::Restored) {
            restored.get_or_create(&own).set(seconds(time));
        }
        failing
            .get_or_create(&own)
            .set(status.failing.as_ref().map_or(0.0, |failing| age(failing.since, now)));
        let tried = status.failing.map_or(0, |failing| failing.attempts);
        attempts.get_or_create(&own).set(i64::try_from(tried).unwrap_or(i64::MAX));
    }
    registry.register("pods", "Pods that are wanted, by the source that wants them", pods);
    registry.register("source_state", "How far a source has come: 1 for the state it is in", progress);
    registry.register("source_rejections", "What was not taken, by source and reason", rejections);
    let help = "When a source last looked and all was well, since 1970";
    registry.register_with_unit("source_last_success_timestamp", help, Unit::Seconds, success);
    let help = "Of when the pods of a source are, since 1970, while they are an earlier run's";
    registry.register_with_unit("source_restored_timestamp", help, Unit::Seconds, restored);
    let help = "For how long a source has been failing; 0 if it is not";
    registry.register_with_unit("source_failing", help, Unit::Seconds, failing);
    registry.register(
        "source_failed_attempts",
        "How often a source has failed since it last succeeded",
        attempts,
    );
}

/// What the reflector counts, and where it is, if there is one.
fn reflector(registry: &mut Registry, view: &View) {
    if let Some(counted) = view.reflector.clone() {
        counts(registry, counted);
    }
    // There is one reflector, so its numbers carry no label.
    let Some(status) = view.sources.iter().find_map(|(_, status)| status.borrow().reflector.clone()) else {
        return;
    };
    // A version is opaque: as a number, where it is one, it is for people to see it move.
    // The text format fails altogether over what is larger than an i64.
    let number = |version: Arc<str>| u64::try_from(version.parse::<i64>().ok()?).ok();
    if let Some(version) = status.resource_version.and_then(number) {
        let help = "The resource version of the last listing, event or bookmark";
        set(registry, "reflector_last_resource_version", help, version);
    }
    if let Some(time) = status.last_event {
        let last = Level::default();
        last.set(seconds(time));
        let help = "When the API server last said anything, since 1970";
        registry.register_with_unit("reflector_last_event_timestamp", help, Unit::Seconds, last);
    }
}

fn counts(registry: &mut Registry, counted: ReflectorMetrics) {
    registry.register("reflector_lists", "Lists that were begun, by LIST or by WatchList", counted.lists);
    let help = "How long a list took to its end";
    registry.register_with_unit("reflector_list_duration", help, Unit::Seconds, counted.list_duration);
    registry.register("reflector_items_per_list", "How many pods a list had", counted.items_per_list);
    registry.register("reflector_watches", "Watches that were begun", counted.watches);
    let help = "Watches that ended within a second without an event";
    registry.register("reflector_short_watches", help, counted.short_watches);
    let help = "How long a watch stood";
    registry.register_with_unit("reflector_watch_duration", help, Unit::Seconds, counted.watch_duration);
    registry.register("reflector_items_per_watch", "How many events a watch had", counted.items_per_watch);
    registry.register("reflector_errors", "What went wrong with the API server, by kind", counted.errors);
}

fn sink(registry: &mut Registry, view: &View, now: Timestamp) {
    let (acknowledged, attempts) = (Numbers::<1>::default(), Numbers::<1>::default());
    let (busy, failing) = (Levels::<1>::default(), Levels::<1>::default());
    for status in view.sinks.iter() {
        let status = status.borrow().clone();
        let own = [("sink", status.name)];
        if let Some(seq) = status.acknowledged {
            acknowledged.get_or_create(&own).set(i64::try_from(seq).unwrap_or(i64::MAX));
        }
        busy.get_or_create(&own).set(status.busy_since.map_or(0.0, |since| age(since, now)));
        failing
            .get_or_create(&own)
            .set(status.failing.as_ref().map_or(0.0, |failing| age(failing.since, now)));
        let tried = status.failing.map_or(0, |failing| failing.attempts);
        attempts.get_or_create(&own).set(i64::try_from(tried).unwrap_or(i64::MAX));
    }
    registry.register("sink_acknowledged_seq", "The last update that a sink has acknowledged", acknowledged);
    let help = "For how long a sink has been busy with one update; 0 if it is not";
    registry.register_with_unit("sink_busy", help, Unit::Seconds, busy);
    let help = "For how long a sink has been failing; 0 if it is not";
    registry.register_with_unit("sink_failing", help, Unit::Seconds, failing);
    registry.register(
        "sink_failed_attempts",
        "How often a sink has failed to take the update in hand",
        attempts,
    );
}

fn connections(registry: &mut Registry, view: &View) {
    let stats = &view.connections;
    set(registry, "connections", "Connections that are open", stats.open() as u64);
    let (accepted, refused) = (Counter::<u64>::default(), Family::<Labels<1>, Counter>::default());
    accepted.inc_by(stats.accepted());
    registry.register("connections_accepted", "Connections that were ever accepted", accepted);
    for reason in Refusal::ALL {
        let labels = [("reason", reason.label().to_owned())];
        refused.get_or_create(&labels).inc_by(stats.refused(reason));
    }
    registry.register("http_refusals", "Connections and requests that were refused or cut off", refused);
}

fn whole(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(in crate::server) fn seconds(time: Timestamp) -> f64 {
    time.duration_since(Timestamp::UNIX_EPOCH).as_secs_f64()
}

fn age(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}
