//! `GET /sources`: the status of each source, its rejections and its conflicts.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::server::context::{Context, json_response};
use crate::{
    pod::{Entry, Origin, PodKey, Problem, Rejection, RejectionReason, SourceName},
    source::{ReflectorStatus, SourceStatus},
    storage::{Merged, PortConflict, SourceState},
};

/// The maximal number of problems of a source, and of details of a problem. More do not help:
/// 10,000 bad files are one mistake.
const MAX_PROBLEMS: usize = 1000;
const MAX_DETAILS: usize = 20;

/// Every configured source, in order of precedence.
pub(crate) async fn list(State(server): State<Arc<Context>>) -> Response {
    let merged = server.view.merged.borrow().clone();
    let items: Vec<Value> =
        server.view.sources.iter().map(|(name, status)| source(&merged, *name, &status.borrow())).collect();
    json_response(&json!({"kind": "SourceList", "apiVersion": "podmux/v1", "items": items}))
}

/// The state of a source: `waiting`, `restored`, `synced` or `failing`. A failure does not
/// hide `restored`: the field `failing` shows the failure as well.
pub(crate) fn state(merged: &Merged, name: SourceName, status: &SourceStatus) -> &'static str {
    match (progress(merged, name), &status.failing) {
        (SourceState::Waiting | SourceState::Synced, Some(_)) => "failing",
        (progress, _) => progress.as_str(),
    }
}

/// The progress of a source to its first sync.
pub(crate) fn progress(merged: &Merged, name: SourceName) -> SourceState {
    merged.state(name).unwrap_or(SourceState::Waiting)
}

/// How many pods of a source are in the merged view: all without a conflict with another source.
pub(crate) fn pods(merged: &Merged, name: SourceName) -> usize {
    let all = merged.listing(name).map_or(0, |listing| listing.len());
    let in_conflict = |rejection: &&Rejection| {
        rejection.source == name
            && matches!(rejection.reason, RejectionReason::Conflict { .. } | RejectionReason::UidInUse { .. })
    };
    all.saturating_sub(merged.rejections().filter(in_conflict).count())
}

/// A source with its state and its problems.
pub(super) fn source(merged: &Merged, name: SourceName, status: &SourceStatus) -> Value {
    let own = || merged.rejections().filter(|rejection| rejection.source == name);
    let problems: Vec<Value> = own().take(MAX_PROBLEMS).map(|rejection| problem(merged, rejection)).collect();
    let more = own().skip(MAX_PROBLEMS).count();
    let is_of_source =
        |conflict: &PortConflict<'_>| merged.get(conflict.pod).is_some_and(|entry| entry.source() == name);
    let conflicts = merged.host_ports().conflicts().filter(is_of_source);
    let warnings: Vec<Value> = conflicts.take(MAX_PROBLEMS).map(|conflict| warning(&conflict)).collect();
    let restored = status.restored.filter(|_| progress(merged, name) == SourceState::Restored);
    let failing = status.failing.as_ref().map(|failing| {
        json!({"since": text(failing.since.time), "attempts": failing.attempts, "error": &*failing.error})
    });
    present(json!({
        "name": name.as_str(),
        "state": state(merged, name, status),
        "pods": pods(merged, name),
        "target": status.target,
        "detail": status.detail,
        "problems": problems,
        "warnings": Some(warnings).filter(|warnings| !warnings.is_empty()),
        "kept": kept(status),
        "moreProblems": Some(more).filter(|more| *more > 0),
        "lastSuccess": status.last_success.map(text),
        "restored": restored.map(text),
        "scanning": status.scanning.map(|scan| json!({"done": scan.done, "total": scan.total})),
        "reflector": status.reflector.as_ref().map(reflector),
        "failing": failing,
    }))
}

/// A port of the node that another pod wants, too.
pub(super) fn warning(conflict: &PortConflict<'_>) -> Value {
    json!({"pod": conflict.pod.as_str(), "reason": "HostPortConflict", "message": conflict.message()})
}

/// An object without the fields that are null.
pub(super) fn present(mut object: Value) -> Value {
    if let Value::Object(fields) = &mut object {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

/// The manifests that are gone, and whose pods are kept for a while.
fn kept(status: &SourceStatus) -> Option<Vec<Value>> {
    let kept = status.kept.iter().map(|kept| {
        present(json!({"origin": kept.origin.as_str(), "pods": kept.pods, "until": kept.until.map(text)}))
    });
    Some(kept.collect::<Vec<_>>()).filter(|kept| !kept.is_empty())
}

fn text(time: Timestamp) -> String {
    time.to_string()
}

fn reflector(status: &ReflectorStatus) -> Value {
    present(json!({
        "phase": status.phase,
        "resourceVersion": status.resource_version.as_deref(),
        "lastEvent": status.last_event.map(text),
        "nextAttempt": status.next_attempt.map(text),
    }))
}

/// A rejection, for people.
pub(super) fn problem(merged: &Merged, rejection: &Rejection) -> Value {
    let details: Option<Vec<&Problem>> = match &rejection.reason {
        RejectionReason::Invalid(refusal) => Some(refusal.problems.iter().take(MAX_DETAILS).collect()),
        _ => None,
    };
    present(json!({
        "origin": rejection.origin.as_str(),
        "reason": rejection.reason.as_str(),
        "message": rejection.reason.to_string(),
        "pod": rejection.pod.as_ref().map(PodKey::as_str),
        "winner": owner(merged, rejection),
        "details": details,
    }))
}

/// The pod that owns the name or UID of a conflict: its source, key and origin.
fn owner(merged: &Merged, rejection: &Rejection) -> Option<Value> {
    let (source, pod, origin) = match (&rejection.reason, &rejection.pod) {
        (RejectionReason::Conflict { winner }, Some(pod)) => (*winner, pod, None),
        (RejectionReason::UidInUse { winner, holder }, _) => (*winner, holder, None),
        (RejectionReason::DuplicateName { winner }, Some(pod)) => (rejection.source, pod, Some(winner)),
        (RejectionReason::DuplicateUid { holder, winner }, _) => (rejection.source, holder, Some(winner)),
        _ => return None,
    };
    // The winner of another source is in the merged view.
    let origin = origin.or_else(|| merged.listed(pod).map(Entry::origin));
    Some(present(json!({
        "source": source.as_str(), "pod": pod.as_str(), "origin": origin.map(Origin::as_str),
    })))
}
