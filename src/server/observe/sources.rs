//! `GET /sources`: how each source is doing, what it could not take, and who lost to whom.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde_json::{Value, json};

use crate::server::context::{Context, answer};
use crate::{
    pod::{Listing, PodKey, Problem, Rejection, RejectionReason, Severity, SourceName},
    source::{ReflectorStatus, SourceStatus},
    storage::{Merged, SourceState},
};

/// How many problems of a source are told, and how many lines of each: enough to
/// see what is wrong; 10,000 bad files are one mistake.
const MAX_PROBLEMS: usize = 1000;
const MAX_DETAILS: usize = 20;

/// Every configured source, in order of precedence.
pub(in crate::server) async fn list(State(server): State<Arc<Context>>) -> Response {
    let merged = server.view.merged.borrow().clone();
    let items: Vec<Value> =
        server.view.sources.iter().map(|(name, status)| source(&merged, *name, &status.borrow())).collect();
    answer(&json!({"kind": "SourceList", "apiVersion": "podmux/v1", "items": items}))
}

/// The word for how a source is doing: how far it has come, or `failing` if it is.
/// That its pods are an earlier run's is the one thing that no failure hides:
/// `failing` beside it says the rest.
pub(in crate::server) fn state(merged: &Merged, name: SourceName, status: &SourceStatus) -> &'static str {
    match (progress(merged, name), &status.failing) {
        (SourceState::Waiting | SourceState::Synced, Some(_)) => "failing",
        (progress, _) => progress.as_str(),
    }
}

/// How far a source has come.
pub(in crate::server) fn progress(merged: &Merged, name: SourceName) -> SourceState {
    merged.state(name).unwrap_or(SourceState::Waiting)
}

/// How many pods of a source are wanted: all that it has, but for those that another source's keep out.
pub(in crate::server) fn pods(merged: &Merged, name: SourceName) -> usize {
    let all = merged.listing(name).map_or(0, Listing::len);
    let lost = |rejection: &&Rejection| {
        rejection.source == name
            && matches!(rejection.reason, RejectionReason::Conflict { .. } | RejectionReason::UidInUse { .. })
    };
    all.saturating_sub(merged.rejections().filter(lost).count())
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
    if let Some(time) = status.last_success {
        source["lastSuccess"] = time.to_string().into();
    }
    if let (Some(time), SourceState::Restored) = (status.restored, progress(merged, name)) {
        source["restored"] = time.to_string().into();
    }
    if let Some(reflector) = &status.reflector {
        source["reflector"] = self::reflector(reflector);
    }
    if let Some(failing) = &status.failing {
        source["failing"] = json!({
            "since": failing.since.to_string(), "attempts": failing.attempts, "error": &*failing.error,
        });
    }
    let more = own().skip(MAX_PROBLEMS).count();
    if more > 0 {
        source["moreProblems"] = more.into();
    }
    source
}

/// What a reflector does. What there is none of is absent.
fn reflector(status: &ReflectorStatus) -> Value {
    let mut reflector = json!({"phase": status.phase});
    if let Some(version) = &status.resource_version {
        reflector["resourceVersion"] = version.as_ref().into();
    }
    if let Some(time) = status.last_event {
        reflector["lastEvent"] = time.to_string().into();
    }
    if let Some(time) = status.next_attempt {
        reflector["nextAttempt"] = time.to_string().into();
    }
    reflector
}

fn problem(merged: &Merged, rejection: &Rejection) -> Value {
    let mut problem = json!({
        "origin": rejection.origin.as_str(),
        "reason": rejection.reason.as_str(),
        "message": rejection.reason.to_string(),
    });
    if let Some(pod) = &rejection.pod {
        problem["pod"] = pod.as_str().into();
    }
    if let Some(winner) = winner(merged, rejection) {
        problem["winner"] = winner;
    }
    if let RejectionReason::Refused(refusal) = &rejection.reason {
        problem["details"] = refusal.problems.iter().take(MAX_DETAILS).map(detail).collect();
    }
    problem
}

/// The pod that has what another one wanted: its source, its key, and where it was found.
fn winner(merged: &Merged, rejection: &Rejection) -> Option<Value> {
    let elsewhere = |source: SourceName, pod: &PodKey| {
        let mut winner = json!({"source": source.as_str(), "pod": pod.as_str()});
        if let Some(entry) = merged.get(pod) {
            winner["origin"] = entry.origin().as_str().into();
        }
        winner
    };
    let here = |pod: &PodKey, origin: &str| json!({"source": rejection.source.as_str(), "pod": pod.as_str(), "origin": origin});
    match (&rejection.reason, &rejection.pod) {
        (RejectionReason::Conflict { winner }, Some(pod)) => Some(elsewhere(*winner, pod)),
        (RejectionReason::UidInUse { winner, holder }, _) => Some(elsewhere(*winner, holder)),
        (RejectionReason::DuplicateName { winner }, Some(pod)) => Some(here(pod, winner.as_str())),
        (RejectionReason::DuplicateUid { holder, winner }, _) => Some(here(holder, winner.as_str())),
        _ => None,
    }
}

fn detail(problem: &Problem) -> Value {
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let mut detail = json!({"severity": severity, "detail": problem.detail});
    if let Some((line, column)) = problem.position {
        detail["line"] = line.into();
        detail["column"] = column.into();
    }
    if let Some(field) = &problem.field {
        detail["field"] = field.as_str().into();
    }
    if let Some(reason) = problem.reason {
        detail["reason"] = reason.into();
    }
    detail
}
