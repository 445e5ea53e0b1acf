//! `GET /sinks`: the status of each sink, and how far it is behind.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::sources::present;
use crate::{
    server::{
        context::{Context, json_response},
        view::View,
    },
    sink::SinkStatus,
};

/// Every sink, in the order of the settings.
pub(crate) async fn list(State(server): State<Arc<Context>>) -> Response {
    let now = server.view.host.clock.now();
    let items: Vec<Value> =
        all(&server.view).iter().map(|(status, behind)| sink(status, *behind, now)).collect();
    json_response(&json!({"kind": "SinkList", "apiVersion": "podmux/v1", "items": items}))
}

/// The status of each sink, and how many pods differ between what it has acknowledged and what is
/// wanted. O(differences × log n).
pub(crate) fn all(view: &View) -> Vec<(SinkStatus, usize)> {
    let merged = view.merged.borrow().clone();
    let acknowledged = view.acknowledged.borrow().clone();
    let behind = |index: usize| acknowledged.get(index).map_or(0, |held| held.differences(&merged));
    view.sinks.iter().enumerate().map(|(index, sink)| (sink.borrow().clone(), behind(index))).collect()
}

/// The state of a sink: `failing`, `waiting` (for a number), `stuck`, `behind` or `current`.
fn state(status: &SinkStatus, behind: usize, now: Timestamp) -> &'static str {
    match status.failing {
        _ if status.lacks_number && (status.failing.is_some() || status.stuck(now).is_some()) => "waiting",
        Some(_) => "failing",
        None if status.stuck(now).is_some() => "stuck",
        None if behind > 0 || status.busy_since.is_some() => "behind",
        None => "current",
    }
}

fn sink(status: &SinkStatus, behind: usize, now: Timestamp) -> Value {
    let failing = status.failing.as_ref();
    let since = failing.map(|failing| failing.since).or(status.busy_since);
    present(json!({
        "name": status.name,
        "state": state(status, behind, now),
        "since": since.map(|since| since.to_string()),
        "podsBehind": behind,
        "acknowledged": status.acknowledged,
        "failing": failing.map(|failing| present(json!({
            "seq": failing.seq,
            "since": failing.since.to_string(),
            "attempts": failing.attempts,
            "nextAttempt": failing.next_attempt.to_string(),
            "error": &*failing.error,
        }))),
    }))
}
