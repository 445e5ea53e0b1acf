//! `GET /sources`: the status of each source, its rejections and its conflicts.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde_json::{Value, json};

use crate::server::context::{Context, json_response};
use crate::{
    pod::{Listing, PodKey, Problem, Rejection, RejectionReason, Severity, SourceName},
    source::{ReflectorStatus, SourceStatus},
    storage::{Merged, SourceState},
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
    let all = merged.listing(name).map_or(0, Listing::len);
    let in_conflict = |rejection: &&Rejection| {
        rejection.source == name
            && matches!(rejection.reason, RejectionReason::Conflict { .. } | RejectionReason::UidInUse { .. })
    };
    all.saturating_sub(merged.rejections().filter(in_conflict).count())
}

fn source(merged: &Merged, name: SourceName, status: &SourceStatus) -> Value {
    let own = || merged.rejections().filter(|rejection| rejection.source == name);
    let problems: Vec<Value> = own().take(MAX_PROBLEMS).map(|rejection| problem(merged, rejection)).collect();
    let mut source = json!({
        "name": name.as_str(),
        "state": state(merged, name, status),
        "pods": pods(merged, name),
        "target": status.target,
        "detail": status.detail,
        "problems": problems,
    });
    put(&mut source, "lastSuccess", status.last_success.map(|time| time.to_string()));
    let restored = status.restored.filter(|_| progress(merged, name) == SourceState::Restored);
    put(&mut source, "restored", restored.map(|time| time.to_string()));
    put(&mut source, "reflector", status.reflector.as_ref().map(reflector));
    let failing = status.failing.as_ref().map(|failing| {
        json!({"since": failing.since.to_string(), "attempts": failing.attempts, "error": &*failing.error})
    });
    put(&mut source, "failing", failing);
    let more = own().skip(MAX_PROBLEMS).count();
    put(&mut source, "moreProblems", Some(more).filter(|more| *more > 0));
    source
}

/// Sets a field of an object if there is a value.
fn put(object: &mut Value, field: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        object[field] = value.into();
    }
}

fn reflector(status: &ReflectorStatus) -> Value {
    let mut reflector = json!({"phase": status.phase});
    put(&mut reflector, "resourceVersion", status.resource_version.as_deref());
    put(&mut reflector, "lastEvent", status.last_event.map(|time| time.to_string()));
    put(&mut reflector, "nextAttempt", status.next_attempt.map(|time| time.to_string()));
    reflector
}

fn problem(merged: &Merged, rejection: &Rejection) -> Value {
    let mut problem = json!({
        "origin": rejection.origin.as_str(),
        "reason": rejection.reason.as_str(),
        "message": rejection.reason.to_string(),
    });
    put(&mut problem, "pod", rejection.pod.as_ref().map(PodKey::as_str));
    put(&mut problem, "winner", owner(merged, rejection));
    if let RejectionReason::Invalid(refusal) = &rejection.reason {
        problem["details"] = refusal.problems.iter().take(MAX_DETAILS).map(detail).collect();
    }
    problem
}

/// The pod that owns the name or UID of a conflict: its source, key and origin.
fn owner(merged: &Merged, rejection: &Rejection) -> Option<Value> {
    let other_source = |source: SourceName, pod: &PodKey| {
        let mut owner = json!({"source": source.as_str(), "pod": pod.as_str()});
        put(&mut owner, "origin", merged.get(pod).map(|entry| entry.origin().as_str()));
        owner
    };
    let same_source = |pod: &PodKey, origin: &str| json!({"source": rejection.source.as_str(), "pod": pod.as_str(), "origin": origin});
    match (&rejection.reason, &rejection.pod) {
        (RejectionReason::Conflict { winner }, Some(pod)) => Some(other_source(*winner, pod)),
        (RejectionReason::UidInUse { winner, holder }, _) => Some(other_source(*winner, holder)),
        (RejectionReason::DuplicateName { winner }, Some(pod)) => Some(same_source(pod, winner.as_str())),
        (RejectionReason::DuplicateUid { holder, winner }, _) => Some(same_source(holder, winner.as_str())),
        _ => None,
    }
}

fn detail(problem: &Problem) -> Value {
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let mut detail = json!({"severity": severity, "detail": problem.detail});
    put(&mut detail, "line", problem.position.map(|(line, _)| line));
    put(&mut detail, "column", problem.position.map(|(_, column)| column));
    put(&mut detail, "field", problem.field.as_deref());
    put(&mut detail, "reason", problem.reason);
    detail
}
