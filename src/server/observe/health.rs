//! `/livez`, `/readyz` and `/healthz`: whether the merge loop turns, and whether the agent can be relied on.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};
use jiff::Timestamp;
use tokio::time::timeout;

use super::sources;
use crate::server::{
    View,
    context::{Context, Params},
};
use crate::{age::age, clock, sink::SinkStatus, source::SourceStatus, storage::SourceState};

/// How long the merge loop may take to turn once. A merge of 100,000 pods takes
/// a tenth of this.
const TURN: Duration = Duration::from_secs(5);

/// One thing that was looked at, with what there is to know of it though all is
/// well, or with what is wrong.
type Check = (String, Result<Option<String>, String>);

/// `/livez`: the merge loop turns.
pub(in crate::server) async fn live(State(server): State<Arc<Context>>, asked: Params) -> Response {
    report("livez", &lives(&server.view).await, &asked)
}

/// `/readyz`: every configured source has been seen or restored, no sink is
/// stuck, and the agent is not stopping.
pub(in crate::server) async fn ready(State(server): State<Arc<Context>>, asked: Params) -> Response {
    report("readyz", &readiness(&server.view, clock::now()), &asked)
}

/// `/healthz`: both.
pub(in crate::server) async fn healthy(State(server): State<Arc<Context>>, asked: Params) -> Response {
    let mut checks = lives(&server.view).await;
    checks.extend(readiness(&server.view, clock::now()));
    report("healthz", &checks, &asked)
}

async fn lives(view: &View) -> Vec<Check> {
    let turns = match timeout(TURN, (view.turns)()).await {
        Ok(true) => Ok(None),
        Ok(false) => Err("it has ended".to_owned()),
        Err(_) => Err(format!("it has not turned for {TURN:?}")),
    };
    vec![("merge-loop".to_owned(), turns)]
}

/// What makes the agent ready, and what keeps it from it.
pub(in crate::server) fn readiness(view: &View, now: Timestamp) -> Vec<Check> {
    let merged = view.merged.borrow().clone();
    let sources = view.sources.iter().map(|(name, status)| {
        let status = status.borrow().clone();
        let outcome = match sources::progress(&merged, *name) {
            SourceState::Waiting => {
                let failing = status.failing.map(|failing| format!(": {}", failing.error));
                Err(format!("it has not been seen yet{}", failing.unwrap_or_default()))
            }
            SourceState::Restored => Ok(Some(restored(&status, now))),
            SourceState::Synced => Ok(None),
        };
        (format!("source-{name}"), outcome)
    });
    let sinks = view.sinks.iter().map(|status| {
        let status = status.borrow().clone();
        (format!("sink-{}", status.name), stuck(&status, now).map_or(Ok(None), Err))
    });
    let stopping =
        if view.stopping.is_cancelled() { Err("the agent is stopping".to_owned()) } else { Ok(None) };
    sources.chain(sinks).chain([("shutdown".to_owned(), stopping)]).collect()
}

/// What a source in use is that has only an earlier run's listing.
fn restored(status: &SourceStatus, now: Timestamp) -> String {
    let old = status.restored.map(|since| format!(", {} old", age(Some(since), now)));
    format!("restored{}", old.unwrap_or_default())
}

/// Why a sink counts as stuck, if it does.
fn stuck(status: &SinkStatus, now: Timestamp) -> Option<String> {
    if let Some(failing) = status.failing.as_ref().filter(|failing| SinkStatus::is_long(failing.since, now)) {
        return Some(format!("it fails since {}: {}", failing.since, failing.error));
    }
    status.stuck(now).map(|busy| format!("it is busy with one update since {busy}"))
}

/// The answer in the words of kube-apiserver (`apiserver/pkg/server/healthz`):
/// `ok`, or, if something is wrong or `?verbose` was asked for, a line for each check.
fn report(name: &str, checks: &[Check], asked: &Params) -> Response {
    let well = checks.iter().all(|(_, outcome)| outcome.is_ok());
    let mut text = String::new();
    for (check, outcome) in checks {
        // Writing to memory cannot fail.
        let _ = match outcome {
            Ok(None) => writeln!(text, "[+]{check} ok"),
            Ok(Some(note)) => writeln!(text, "[+]{check} ok: {note}"),
            Err(why) => writeln!(text, "[-]{check} failed: {why}"),
        };
    }
    if well && asked.options("verbose").next().is_none() {
        return plain(StatusCode::OK, "ok".to_owned());
    }
    let (code, verdict) =
        if well { (StatusCode::OK, "passed") } else { (StatusCode::SERVICE_UNAVAILABLE, "failed") };
    let _ = writeln!(text, "{name} check {verdict}");
    plain(code, text)
}

fn plain(code: StatusCode, text: String) -> Response {
    let headers: [(HeaderName, HeaderValue); 3] = [
        (CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache, private")),
    ];
    (code, headers, text).into_response()
}
