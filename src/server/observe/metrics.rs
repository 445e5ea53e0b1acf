//! `/metrics`: the agent's metrics in the `OpenMetrics` format.

use std::{
    fmt, fs, io,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use jiff::Timestamp;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet, text},
    metrics::{MetricType, counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};
use rustix::{
    param::page_size,
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

use super::{
    health,
    sinks::{self, Consumer},
    sources,
};
use crate::server::{
    context::Context,
    stats::{ConnectionStats, RejectReason},
    status::ApiError,
    view::View,
};
use crate::{
    host::Moment,
    runtime::{Histogram, QueueMetrics},
    source::api::ReflectorMetrics,
    storage::SourceState,
};

const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels<const N: usize> = [(&'static str, String); N];
/// A gauge of a fractional number.
type FloatGauge = Gauge<f64, AtomicU64>;
type FloatGauges<const N: usize> = Family<Labels<N>, FloatGauge>;
/// A gauge of a whole number.
type IntGauge = Gauge<u64, AtomicU64>;
type IntGauges<const N: usize> = Family<Labels<N>, IntGauge>;

/// The current values of all metrics.
pub(crate) async fn scrape(State(server): State<Arc<Context>>) -> Result<Response, ApiError> {
    let mut registry = Registry::with_prefix("podmux");
    let view = &server.view;
    agent(&mut registry, view, view.host.clock.now());
    source(&mut registry, view);
    reflector(&mut registry, view);
    sink(&mut registry, view);
    // The other metrics do not depend on the history, which may wait for a disk.
    if let Ok(snapshot) = server.snapshot().await {
        set(
            &mut registry,
            "updates_seq",
            "The number at which a list is true now: of the last update, or of a later write",
            snapshot.seq,
        );
    }
    let watchers = view.connections.watchers.clone();
    registry.register(
        "updates_watchers",
        "How many clients watch updates, pods, events, nodes, namespaces or services",
        watchers,
    );
    let requests = server.requests.clone();
    registry.register("http_requests", "How many HTTP requests were answered", requests.answered);
    let help = "How long requests took until the head of the response, in seconds";
    registry.register_with_unit("http_request_duration", help, Unit::Seconds, requests.duration);
    connections(&mut registry, view);
    let mut registries = vec![registry, process(view.started)];
    registries.extend(view.runtime.as_ref().map(|runtime| work_queue(&runtime.queue.metrics())));
    let body = encode(&registries).map_err(|error| {
        let message = format!("the metrics cannot be encoded: {error}: this is a bug in podmux");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    })?;
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE))], body).into_response())
}

/// Encodes registries, whose names have different prefixes.
fn encode(registries: &[Registry]) -> Result<String, fmt::Error> {
    let mut body = String::new();
    registries.iter().try_for_each(|registry| text::encode_registry(&mut body, registry))?;
    text::encode_eof(&mut body)?;
    Ok(body)
}

fn agent(registry: &mut Registry, view: &View, now: Timestamp) {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let labels = vec![("version", version), ("node", view.node.to_string())];
    registry.register("build", "The version of podmux and the name of the node", Info::new(labels));
    set_time(registry, "start_time", "When the agent started, in seconds since 1970", view.started);
    let ready = health::readiness(view, now).iter().all(|(_, outcome)| outcome.is_ok());
    set(registry, "ready", "1 if /readyz answers ok, else 0", u64::from(ready));
    let reload = *view.reload.borrow();
    // Prometheus' own names with another prefix.
    let help = "1 if the settings and the files that they name were valid at the last reload, else 0";
    set(registry, "config_last_reload_successful", help, u64::from(reload.successful));
    let help = "When valid settings with valid files were last loaded, in seconds since 1970";
    set_time(registry, "config_last_reload_success_timestamp", help, reload.succeeded);
}

fn source(registry: &mut Registry, view: &View) {
    let merged = view.merged.borrow().clone();
    let (pods, progress, rejections) =
        (IntGauges::<1>::default(), IntGauges::<2>::default(), IntGauges::<2>::default());
    let (success, restored) = (FloatGauges::<1>::default(), FloatGauges::<1>::default());
    let (failing, attempts) = (FloatGauges::<1>::default(), IntGauges::<1>::default());
    for rejection in merged.rejections() {
        let reason = rejection.reason.as_str().to_owned();
        rejections.get_or_create(&[("source", rejection.source.to_string()), ("reason", reason)]).inc();
    }
    for (name, status) in view.sources.iter() {
        let (status, label) = (status.borrow().clone(), ("source", name.to_string()));
        let own = [label.clone()];
        pods.get_or_create(&own).set(sources::pods(&merged, *name) as u64);
        let state = sources::progress(&merged, *name);
        for possible in [SourceState::Waiting, SourceState::Restored, SourceState::Synced] {
            let labels = [label.clone(), ("state", possible.as_str().to_owned())];
            progress.get_or_create(&labels).set(u64::from(possible == state));
        }
        if let Some(time) = status.last_success {
            success.get_or_create(&own).set(unix_seconds(time));
        }
        if let Some(time) = status.restored.filter(|_| state == SourceState::Restored) {
            restored.get_or_create(&own).set(unix_seconds(time));
        }
        failing.get_or_create(&own).set(age(status.failing.as_ref().map(|failing| failing.since)));
        attempts.get_or_create(&own).set(status.failing.map_or(0, |failing| failing.attempts));
    }
    registry.register("pods", "How many pods of a source are in the merged view", pods);
    registry.register("source_state", "1 for the current state of a source, 0 for the others", progress);
    let help = "How many manifests, pods and updates of a source are rejected, by reason";
    registry.register("source_rejections", help, rejections);
    let help = "When a source last read everything without an error, in seconds since 1970";
    registry.register_with_unit("source_last_success_timestamp", help, Unit::Seconds, success);
    let help = "When the restored pods of a source were last live, in seconds since 1970; absent when synced";
    registry.register_with_unit("source_restored_timestamp", help, Unit::Seconds, restored);
    let help = "How long a source has been failing, in seconds; 0 if it is not";
    registry.register_with_unit("source_failing", help, Unit::Seconds, failing);
    let help = "How many attempts of a source have failed since its last success";
    registry.register("source_failed_attempts", help, attempts);
}

fn reflector(registry: &mut Registry, view: &View) {
    if let Some(metrics) = view.reflector.clone() {
        reflector_counters(registry, metrics);
    }
    // There is one reflector at most, so its metrics have no label.
    let Some(status) = view.sources.iter().find_map(|(_, status)| status.borrow().reflector.clone()) else {
        return;
    };
    // A version is opaque. Where it is a number, the metric shows people that it moves.
    // A number above the largest i64 would make the whole text invalid.
    let number = |version: Arc<str>| u64::try_from(version.parse::<i64>().ok()?).ok();
    if let Some(version) = status.resource_version.and_then(number) {
        let help = "The resource version of the last list, event or bookmark";
        set(registry, "reflector_last_resource_version", help, version);
    }
    if let Some(time) = status.last_event {
        let help = "When the API server last sent an event, a bookmark or a page, in seconds since 1970";
        set_time(registry, "reflector_last_event_timestamp", help, time);
    }
}

fn reflector_counters(registry: &mut Registry, metrics: ReflectorMetrics) {
    registry.register("reflector_lists", "How many LIST and WatchList requests were sent", metrics.lists);
    let help = "How long lists took, in seconds";
    registry.register_with_unit("reflector_list_duration", help, Unit::Seconds, metrics.list_duration);
    registry.register("reflector_items_per_list", "How many pods lists had", metrics.items_per_list);
    registry.register("reflector_watches", "How many watches were started", metrics.watches);
    let help = "How many watches ended within a second without an event";
    registry.register("reflector_short_watches", help, metrics.short_watches);
    let help = "How long watches lasted, in seconds";
    registry.register_with_unit("reflector_watch_duration", help, Unit::Seconds, metrics.watch_duration);
    registry.register("reflector_items_per_watch", "How many events watches had", metrics.items_per_watch);
    let help = "How many requests to the API server failed, by kind of error";
    registry.register("reflector_errors", help, metrics.errors);
}

fn sink(registry: &mut Registry, view: &View) {
    let (acknowledged, attempts) = (IntGauges::<1>::default(), IntGauges::<1>::default());
    let (busy, failing) = (FloatGauges::<1>::default(), FloatGauges::<1>::default());
    let differing = IntGauges::<1>::default();
    for Consumer { status, behind, failing: pods } in sinks::all(view) {
        if view.runtime.as_ref().is_some_and(|runtime| *runtime.name == *status.name) {
            let help = "How many pods the runtime could not start, keep running or stop at its last attempt";
            set(registry, "runtime_failing_pods", help, pods.len() as u64);
        }
        // Of texts in labels only this one is free, and the encoder escapes nothing.
        let name = status.name.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let own = [("sink", name)];
        if let Some(seq) = status.acknowledged {
            acknowledged.get_or_create(&own).set(seq);
        }
        differing.get_or_create(&own).set(behind as u64);
        busy.get_or_create(&own).set(age(status.busy_since));
        failing.get_or_create(&own).set(age(status.failing.as_ref().map(|failing| failing.since)));
        attempts.get_or_create(&own).set(status.failing.map_or(0, |failing| failing.attempts));
    }
    let help = "The number of the last update that a sink has acknowledged";
    registry.register("sink_acknowledged_seq", help, acknowledged);
    let help = "How many pods differ between what a sink has acknowledged and the merged view; of a runtime: how many are worked on, wait or fail";
    registry.register("sink_pods_behind", help, differing);
    let help = "How long a sink has been processing one update or waiting for its number, in seconds; 0 if it is idle";
    registry.register_with_unit("sink_busy", help, Unit::Seconds, busy);
    let help = "How long a sink has been failing, in seconds; 0 if it is not";
    registry.register_with_unit("sink_failing", help, Unit::Seconds, failing);
    let help = "How many attempts to deliver the current update to a sink have failed";
    registry.register("sink_failed_attempts", help, attempts);
}

/// The metrics of the pod workers' queue, `workqueue_…`, under the names of client-go.
fn work_queue(queue: &QueueMetrics) -> Registry {
    let mut all = Registry::with_prefix("workqueue");
    let registry = all.sub_registry_with_label(("name".into(), "pods".into()));
    set(registry, "depth", "How many pods wait for a pod worker", queue.depth as u64);
    let counters = [
        ("adds", "How many times a pod was queued", queue.adds),
        ("retries", "How many times a pod was queued with a delay", queue.retries),
    ];
    for (name, help, value) in counters {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    let histograms = [
        ("queue_duration", "How long pods waited for a pod worker, in seconds", &queue.queue_duration),
        ("work_duration", "How long pod workers took for one pod, in seconds", &queue.work_duration),
    ];
    for (name, help, durations) in histograms {
        registry.register_with_unit(name, help, Unit::Seconds, Durations(durations.clone()));
    }
    let gauges = [
        ("unfinished_work", "How long pods have been worked on, in seconds, as a sum", queue.unfinished_work),
        ("longest_running_processor", "The longest of these times, in seconds", queue.longest_running),
    ];
    for (name, help, duration) in gauges {
        let gauge = FloatGauge::default();
        gauge.set(duration.as_secs_f64());
        registry.register_with_unit(name, help, Unit::Seconds, gauge);
    }
    all
}

/// Durations as a histogram.
#[derive(Debug)]
struct Durations(Histogram);

impl EncodeMetric for Durations {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        let Self(Histogram { buckets, count, sum }) = self;
        let bounds = Histogram::BOUNDS.iter().map(Duration::as_secs_f64);
        let mut buckets: Vec<(f64, u64)> = bounds.zip(buckets.iter().copied()).collect();
        let beyond = count - buckets.iter().map(|(_, count)| count).sum::<u64>();
        buckets.push((f64::MAX, beyond));
        encoder.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), *count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

fn connections(registry: &mut Registry, view: &View) {
    let ConnectionStats { open, accepted, rejected, certificate_end, .. } = view.connections.clone();
    registry.register("connections", "How many connections are open", open);
    registry.register("connections_accepted", "How many connections were accepted", accepted);
    // A reason that has not occurred is shown, too.
    for (_, label) in RejectReason::LABELS {
        drop(rejected.get_or_create(&[("reason", label)]));
    }
    let help = "How many connections and requests were rejected or closed early, by reason";
    registry.register("http_refusals", help, rejected);
    if certificate_end.get() != 0 {
        let help = "When the server's certificate expires, in seconds since 1970";
        let name = "server_certificate_expiration_timestamp";
        registry.register_with_unit(name, help, Unit::Seconds, certificate_end);
    }
}

/// The seconds since a moment; 0 without one.
fn age(since: Option<Moment>) -> f64 {
    since.map_or(0.0, |since| since.instant.elapsed().as_secs_f64())
}

/// The metrics of the process, `process_…`, under the names of all Prometheus clients.
///
/// Only `/proc/self` is read: systemd's `ProcSubset=pid` hides the rest. A value that cannot
/// be read is left out. Reading does not block: these files are in memory.
fn process(started: Timestamp) -> Registry {
    let mut registry = Registry::with_prefix("process");
    let cpu = Counter::<f64, AtomicU64>::default();
    cpu.inc_by(cpu_seconds());
    let help = "Processor time spent in user and kernel mode, in seconds";
    registry.register_with_unit("cpu", help, Unit::Seconds, cpu);
    let help = "When the process started, in seconds since 1970";
    set_time(&mut registry, "start_time", help, started);
    if let Some(bytes) = resident() {
        let memory = IntGauge::default();
        memory.set(bytes);
        let help = "The resident memory, in bytes";
        registry.register_with_unit("resident_memory", help, Unit::Bytes, memory);
    }
    if let Ok(open) = open_files() {
        set(&mut registry, "open_fds", "How many file descriptors are open", open);
    }
    // Absent without a limit.
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        set(&mut registry, "max_fds", "How many file descriptors may be open", limit);
    }
    registry
}

/// The processor time of all threads, including those that have ended.
fn cpu_seconds() -> f64 {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default().as_secs_f64()
}

/// The resident memory in bytes.
fn resident() -> Option<u64> {
    // The second number is the resident memory, in pages.
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let resident: u64 = pages.split_ascii_whitespace().nth(1)?.parse().ok()?;
    resident.checked_mul(page_size().try_into().ok()?)
}

fn open_files() -> io::Result<u64> {
    let open = fs::read_dir("/proc/self/fd")?.count();
    // One of them is the directory that is being read.
    Ok(open.saturating_sub(1) as u64)
}

/// Registers a whole number.
fn set(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = IntGauge::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

/// Registers a time.
fn set_time(registry: &mut Registry, name: &str, help: &str, time: Timestamp) {
    let gauge = FloatGauge::default();
    gauge.set(unix_seconds(time));
    registry.register_with_unit(name, help, Unit::Seconds, gauge);
}

/// The seconds since the Unix epoch.
fn unix_seconds(time: Timestamp) -> f64 {
    time.duration_since(Timestamp::UNIX_EPOCH).as_secs_f64()
}
