//! `/livez`, `/readyz` and `/healthz`: whether the merge loop runs, and whether the agent is ready.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{
    StatusCode,
    header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};
use jiff::Timestamp;
use tokio::time::timeout;

use super::sources;
use crate::server::{
    context::{Context, Params},
    view::View,
};
use crate::{age::age, sink::SinkStatus, source::SourceStatus, storage::SourceState};

/// How long the merge loop may take to run once. A merge of 100,000 pods takes a tenth of this.
const MERGE_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of a check and its result: a note, or the reason of the failure and since when it lasts.
type Check = (String, Result<Option<String>, (String, Timestamp)>);

/// `/livez`: the merge loop runs.
pub(crate) async fn live(State(server): State<Arc<Context>>, params: Params) -> Response {
    report("livez", &liveness(&server.view).await, &params)
}

/// `/readyz`: every configured source is synced or restored, no sink is stuck, and the agent
/// is not shutting down.
pub(crate) async fn ready(State(server): State<Arc<Context>>, params: Params) -> Response {
    report("readyz", &readiness(&server.view, server.view.host.clock.now()), &params)
}

/// `/healthz`: both.
pub(crate) async fn healthy(State(server): State<Arc<Context>>, params: Params) -> Response {
    let mut checks = liveness(&server.view).await;
    checks.extend(readiness(&server.view, server.view.host.clock.now()));
    report("healthz", &checks, &params)
}

async fn liveness(view: &View) -> Vec<Check> {
    let turns = match timeout(MERGE_TIMEOUT, (view.turns)()).await {
        Ok(true) => Ok(None),
        Ok(false) => Err("the merge loop has ended".to_owned()),
        Err(_) => Err(format!("no progress for {MERGE_TIMEOUT:?}")),
    };
    vec![("merge-loop".to_owned(), turns.map_err(|why| (why, view.host.clock.now())))]
}

/// The checks of `/readyz`.
pub(crate) fn readiness(view: &View, now: Timestamp) -> Vec<Check> {
    let merged = view.merged.borrow().clone();
    let sources = view.sources.iter().map(|(name, status)| {
        let status = status.borrow().clone();
        let outcome = match sources::progress(&merged, *name) {
            SourceState::Waiting => {
                let failing = status.failing.map(|failing| format!(": {}", failing.error));
                Err((format!("not synced yet{}", failing.unwrap_or_default()), view.started))
            }
            SourceState::Restored => Ok(Some(restored(&status, now))),
            SourceState::Synced => Ok(failing(&status)),
        };
        (format!("source-{name}"), outcome)
    });
    let sinks = view.sinks.iter().map(|status| status.borrow().clone());
    let runtime = view.runtime.iter().map(|runtime| runtime.as_sink(&runtime.status.borrow()));
    let sinks = sinks
        .chain(runtime)
        .map(|status| (format!("sink-{}", status.name), stuck(&status).map_or(Ok(None), Err)));
    let stopping = if view.stopping.is_cancelled() {
        Err(("the agent is shutting down".to_owned(), now))
    } else {
        Ok(None)
    };
    sources.chain(sinks).chain([("shutdown".to_owned(), stopping)]).collect()
}

fn restored(status: &SourceStatus, now: Timestamp) -> String {
    let old = status.restored.map(|since| format!(", {} old", age(Some(since), now)));
    let failing = failing(status).map(|failing| format!(", {failing}"));
    format!("restored{}{}", old.unwrap_or_default(), failing.unwrap_or_default())
}

/// How a source fails whose pods are known. An error that may quote a manifest is left out.
fn failing(status: &SourceStatus) -> Option<String> {
    let failing = status.failing.as_ref()?;
    Some(if failing.quotes { "failing".to_owned() } else { format!("failing: {}", failing.error) })
}

/// Why a sink counts as stuck, and since when, if it does.
fn stuck(status: &SinkStatus) -> Option<(String, Timestamp)> {
    if let Some(failing) = status.failing.as_ref().filter(|failing| SinkStatus::is_long(failing.since)) {
        let since = failing.since.time;
        return Some((format!("failing since {since}: {}", failing.error), since));
    }
    status.stuck().map(|busy| (format!("{} since {}", status.occupation(), busy.time), busy.time))
}

/// The response: one word, or with `?verbose` a line for each check in kube-apiserver's format
/// (`apiserver/pkg/server/healthz`). Callers without credentials read the word, so it has no reason.
fn report(name: &str, checks: &[Check], params: &Params) -> Response {
    let passed = checks.iter().all(|(_, outcome)| outcome.is_ok());
    let (code, word) =
        if passed { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, "failed") };
    let mut text = word.to_owned();
    if params.options("verbose").next().is_some() {
        text.clear();
        for (check, outcome) in checks {
            // Writing to memory cannot fail.
            let _ = match outcome {
                Ok(None) => writeln!(text, "[+]{check} ok"),
                Ok(Some(note)) => writeln!(text, "[+]{check} ok: {note}"),
                Err((why, _)) => writeln!(text, "[-]{check} failed: {why}"),
            };
        }
        let _ = writeln!(text, "{name} check {}", if passed { "passed" } else { "failed" });
    }
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (code, headers, text).into_response()
}
