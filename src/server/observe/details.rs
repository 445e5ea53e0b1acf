//! `GET /pods/{namespace}/{name}` and `GET /sources/{name}`: one pod or source with its problems and its newest updates.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde_json::{Value, json};

use super::sources::{present, problem, source, warning};
use crate::server::{
    context::{Context, Params, json_response},
    status::ApiError,
};
use crate::{
    history::HistoryReader,
    pod::{Entry, PodUpdate, Rejection, RejectionReason, UpdateSource},
    storage::Merged,
};

/// The maximal number of updates, of pods that an update names, and of problems of a pod.
const MAX_UPDATES: usize = 20;
const MAX_NAMES: usize = 3;
const MAX_PROBLEMS: usize = 100;

/// Where a merged pod comes from, what is wrong with it or stands against it, and its newest updates. What the pod
/// is stands on Kubernetes' paths.
pub(crate) async fn pod(State(server): State<Arc<Context>>, params: Params) -> Result<Response, ApiError> {
    params.allow(&[])?;
    let key = params.key();
    let (entry, merged) = (server.entry(&key)?, server.view.merged.borrow().clone());
    let status = server.view.sources.iter().find(|(name, _)| *name == entry.source());
    let target = status.map(|(_, status)| status.borrow().target.clone());
    let history = server.view.history.clone();
    // There may be many rejections and updates.
    let details = server.read(move || of_pod(&merged, &entry, target.as_deref(), &history)).await?;
    Ok(json_response(&details))
}

fn of_pod(merged: &Merged, entry: &Entry, target: Option<&str>, history: &HistoryReader) -> Value {
    let key = entry.pod().key();
    let entry = merged.listed(key).unwrap_or(entry);
    let listing = merged.listing(entry.source());
    let mut concerning = merged.rejections().filter(|rejection| concerns(rejection, entry));
    let shown = |rejection: &Rejection| {
        let mut shown = problem(merged, rejection);
        shown["source"] = rejection.source.as_str().into();
        shown
    };
    let problems: Vec<Value> = concerning.by_ref().take(MAX_PROBLEMS).map(shown).collect();
    let more = concerning.count();
    let ports = entry.pod().host_ports().iter();
    let conflicts = ports.filter_map(|port| merged.host_ports().conflict(port, key));
    let warnings: Vec<Value> = conflicts.take(MAX_PROBLEMS).map(|conflict| warning(&conflict)).collect();
    let updates = updates(history, |update| update.pods.iter().any(|pod| pod.key() == key));
    present(json!({
        "kind": "PodDetails",
        "apiVersion": "podmux/v1",
        "namespace": key.namespace(),
        "name": key.name(),
        "source": entry.source().as_str(),
        "target": target,
        "origin": entry.origin().as_str(),
        "line": listing.and_then(|listing| listing.line(entry)),
        "problems": problems,
        "warnings": Some(warnings).filter(|warnings| !warnings.is_empty()),
        "moreProblems": Some(more).filter(|more| *more > 0),
        "updates": updates,
    }))
}

/// Whether a rejection is of the pod's manifest, of another pod of its name, or of one whose UID it has.
fn concerns(rejection: &Rejection, entry: &Entry) -> bool {
    let key = Some(entry.pod().key());
    let holder = match &rejection.reason {
        RejectionReason::UidInUse { holder, .. } | RejectionReason::DuplicateUid { holder, .. } => {
            Some(holder)
        }
        _ => None,
    };
    let is_of_manifest = || {
        rejection.pod.is_none() && rejection.source == entry.source() && rejection.origin == *entry.origin()
    };
    rejection.pod.as_ref() == key || holder == key || is_of_manifest()
}

/// A configured source, as in the list of all, with its newest updates.
pub(crate) async fn of_source(
    State(server): State<Arc<Context>>,
    params: Params,
) -> Result<Response, ApiError> {
    params.allow(&[])?;
    let wanted = params.part("name").unwrap_or_default();
    let configured = server.view.sources.iter().find(|(name, _)| name.as_str() == wanted);
    let (name, status) = configured.cloned().ok_or_else(|| ApiError::not_found("sources", wanted))?;
    let (merged, status) = (server.view.merged.borrow().clone(), status.borrow().clone());
    let history = server.view.history.clone();
    let details = server.read(move || {
        let mut details = source(&merged, name, &status);
        details["kind"] = "Source".into();
        details["apiVersion"] = "podmux/v1".into();
        details["updates"] = updates(&history, |update| update.source == UpdateSource::One(name)).into();
        details
    });
    Ok(json_response(&details.await?))
}

/// The newest updates that the history holds and that are wanted, the newest first.
fn updates(history: &HistoryReader, is_wanted: impl Fn(&PodUpdate) -> bool) -> Vec<Value> {
    let held = history.held().into_iter().filter(|held| is_wanted(&held.update)).take(MAX_UPDATES);
    held.map(|held| {
        let pods = &held.update.pods;
        json!({
            "seq": held.seq,
            "time": format!("{:.6}", held.time),
            "op": held.update.op.as_str(),
            "source": held.update.source.as_str(),
            "pods": pods.iter().take(MAX_NAMES).map(|pod| pod.key().as_str()).collect::<Vec<_>>(),
            "podCount": pods.len(),
        })
    })
    .collect()
}
