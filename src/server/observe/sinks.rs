//! `GET /sinks`: the status of each sink and of the runtime, and how far it is behind.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde_json::{Value, json};

use super::sources::present;
use crate::{
    pod::PodKey,
    runtime::Failing,
    server::{
        context::{Context, json_response},
        view::{RuntimeView, View},
    },
    sink::SinkStatus,
};

/// Every sink, in the order of the settings, and the runtime.
pub(crate) async fn list(State(server): State<Arc<Context>>) -> Response {
    let items: Vec<Value> = all(&server.view).iter().map(item).collect();
    json_response(&json!({"kind": "SinkList", "apiVersion": "podmux/v1", "items": items}))
}

/// A sink or a runtime at one moment.
pub(crate) struct Consumer {
    pub(crate) status: SinkStatus,
    /// How many pods differ between what it has acknowledged and what is wanted. Of a runtime: how many
    /// are worked on, wait or fail.
    pub(crate) behind: usize,
    /// The pods that a runtime cannot start, keep running or stop now, the one that has failed longest first.
    pub(crate) failing: Vec<(PodKey, Failing)>,
}

/// Every sink, in the order of the settings, and the runtime. O(differences × log n).
pub(crate) fn all(view: &View) -> Vec<Consumer> {
    let merged = view.merged.borrow().clone();
    let acknowledged = view.acknowledged.borrow().clone();
    let sinks = view.sinks.iter().enumerate().map(|(index, sink)| Consumer {
        status: sink.borrow().clone(),
        behind: acknowledged.get(index).map_or(0, |held| held.differences(&merged)),
        failing: Vec::new(),
    });
    sinks.chain(view.runtime.iter().map(|of| runtime(of, merged.len()))).collect()
}

/// A runtime, of which so many pods are wanted.
fn runtime(runtime: &RuntimeView, wanted: usize) -> Consumer {
    let status = runtime.status.borrow().clone();
    let failing = status.failing().map(|(key, failing)| (key.clone(), failing.clone()));
    let mut failing: Vec<_> = failing.collect();
    failing.sort_by_key(|(_, failing)| failing.since);
    // What runs is not known before the first list.
    let is_other = |key: &PodKey| !status.pods.contains_key(key);
    let queued = || runtime.queue.count(|key| is_other(key) && !status.failing_containers.contains_key(key));
    let containers = status.failing_containers.keys().filter(|key| is_other(key)).count();
    let behind = if status.is_listed { status.pods.len() + containers + queued() } else { wanted };
    Consumer { status: runtime.as_sink(&status), behind, failing }
}

/// The state of a sink: `failing`, `waiting` (for a number), `stuck`, `behind` or `current`.
fn state(consumer: &Consumer) -> &'static str {
    let status = &consumer.status;
    match status.failing {
        _ if status.lacks_number && (status.failing.is_some() || status.stuck().is_some()) => "waiting",
        Some(_) => "failing",
        None if !consumer.failing.is_empty() => "failing",
        None if status.stuck().is_some() => "stuck",
        None if consumer.behind > 0 || status.busy_since.is_some() => "behind",
        None => "current",
    }
}

fn item(consumer: &Consumer) -> Value {
    let status = &consumer.status;
    let own = status.failing.as_ref().map(|failing| {
        json!({
            "seq": failing.seq,
            "since": failing.since.time.to_string(),
            "attempts": failing.attempts,
            "nextAttempt": failing.next_attempt.to_string(),
            "error": &*failing.error,
        })
    });
    let pods: Vec<Value> = consumer.failing.iter().map(|(key, failing)| pod(key, failing)).collect();
    // The sink itself comes before its pods.
    let failing = own.or_else(|| pods.first().cloned()).map(present);
    let since = failing.as_ref().map(|failing| failing["since"].clone());
    let since = since.or_else(|| Some(status.busy_since?.time.to_string().into()));
    present(json!({
        "name": status.name,
        "state": state(consumer),
        "since": since,
        "podsBehind": consumer.behind,
        "acknowledged": status.acknowledged,
        "failing": failing,
        "failingPods": (!pods.is_empty()).then_some(pods),
    }))
}

fn pod(key: &PodKey, failing: &Failing) -> Value {
    json!({
        "pod": key.as_str(),
        "since": failing.since.time.to_string(),
        "attempts": failing.attempts,
        "nextAttempt": failing.next_attempt.to_string(),
        "reason": failing.reason,
        "error": format!("{}: {}", key.as_str(), failing.error),
    })
}
