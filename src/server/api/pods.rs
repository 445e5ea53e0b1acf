//! Pods: podmux's paths for sets of pods, and Kubernetes' paths.

use std::{iter, sync::Arc};

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header::ALLOW};

use super::{
    form::Form,
    manifests::{self, DecodedBody},
    objects::{self, LIST_END, MANY, check_given, check_version, object_list, scope},
    page::PageRequest,
    resource::{Reading, Resource as _},
    warnings::warning_header,
    watch::{Frames, Start, watch},
};
use crate::server::{
    body::{CHUNK, chunked},
    context::{Context, Params, STATE_RETRY, json_text},
    slots::Watchers,
    status::ApiError,
};
use crate::{
    db::DbError,
    error_chain::chain,
    history::{SeenPod, Snapshot},
    pod::{Entry, Pod, PodKey, RejectionReason, SourceName},
    runtime::Observed,
    source::http::{Obstacle, ObstacleKind, Outcome, Submitted, Write, WriteError, Written},
    storage::{Merged, SourceState},
};

pub(super) type Answer = Result<Response, ApiError>;
pub(super) type Server = State<Arc<Context>>;

/// `GET /pods`: the merged pods as a `v1.PodList`, each as its source has it but for its observed status.
///
/// Its resourceVersion is the number in `/updates` at which it was read; a later page has that
/// of the first page.
pub(crate) async fn list_merged(State(server): Server, params: Params) -> Answer {
    if params.flag("watch") {
        let message = "/pods cannot be watched: watch /api/v1/pods";
        let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
        return Ok(([(ALLOW, "GET,HEAD")], error).into_response());
    }
    list_with(&server, &params, |_, _| None).await
}

/// `GET /api/v1/pods` and `GET /api/v1/namespaces/{namespace}/pods`: the same, or a watch. Each pod has the
/// number of its last event as its resourceVersion.
pub(crate) async fn list(
    State(server): Server,
    Extension(watchers): Extension<Watchers>,
    Extension(frames): Extension<Arc<Frames>>,
    params: Params,
) -> Answer {
    if params.flag("watch") {
        return watch_with(server, watchers, frames, &params).await;
    }
    list_with(&server, &params, version).await
}

/// The resourceVersion of a pod: the number of its last event, unless its text has it already. While an event has
/// no number yet, a posted pod has that of its last write, and another pod that of the view.
pub(super) fn version(snapshot: &Snapshot, entry: &Entry) -> Option<u64> {
    let last = snapshot.versions(entry.pod().key()).map(|(_, last)| last);
    last.or_else(|| (entry.source() != SourceName::Http).then_some(snapshot.seq))
}

/// The resourceVersion of a posted pod; none if the view has no pod, or another one, under its name.
pub(super) fn posted_version(snapshot: &Snapshot, pod: &Pod) -> Option<u64> {
    let entry = snapshot.merged.get(pod.key()).filter(|entry| entry.source() == SourceName::Http)?;
    let is_same = entry.pod().resource_version() == pod.resource_version();
    version(snapshot, entry).filter(|_| is_same)
}

async fn list_with(
    server: &Context,
    params: &Params,
    version: fn(&Snapshot, &Entry) -> Option<u64>,
) -> Answer {
    let form = Form::of::<SeenPod>(params, true)?;
    let page = PageRequest::new(params)?;
    let scope = scope::<SeenPod>(params)?;
    let snapshot = server.snapshot().await?;
    check_version(params, page.is_continued(), snapshot.seq)?;
    page.check(&*server.view.history)?;
    let is_long =
        form != Form::Object || !scope.selector.is_empty() || page.most().min(snapshot.merged.len()) > MANY;
    let warnings = unknown_sources(&snapshot.merged);
    let (reading, reads) = (server.reading(), server.reads.clone());
    let list = move || {
        let seen = snapshot.merged.values().map(|entry| snapshot.seen(entry));
        let page = page.cut(seen, &scope, snapshot.seq);
        object_list(reads, form, page, move |seen| {
            form.item(seen, Reading { version: version(&snapshot, &seen.entry), ..reading })
        })
    };
    let list = if is_long { server.read(list).await? } else { list() };
    Ok((warnings, list).into_response())
}

async fn watch_with(
    server: Arc<Context>,
    watchers: Watchers,
    frames: Arc<Frames>,
    params: &Params,
) -> Answer {
    let request = objects::watch_request::<SeenPod>(&server, watchers, frames, params)?;
    let snapshot = server.snapshot().await?;
    let mut start = Start { initial: Vec::new(), current: snapshot.seq, warnings: HeaderMap::new() };
    let history = server.view.history.clone();
    if !request.options.begins_with_all {
        return watch(server, &history, request, start);
    }
    start.warnings = unknown_sources(&snapshot.merged);
    let select = move || {
        let seen = snapshot.merged.values().map(|entry| snapshot.seen(entry));
        let initial = seen.filter(|seen| request.scope.has(seen));
        let initial = initial.map(|seen| (version(&snapshot, &seen.entry), seen));
        (initial.map(|(version, seen)| (seen, version)).collect(), request)
    };
    let (initial, request) = server.read(select).await?;
    watch(server, &history, request, Start { initial, ..start })
}

/// A warning that names the sources whose pods are not known yet.
fn unknown_sources(merged: &Merged) -> HeaderMap {
    let unknown = |source: &SourceName| merged.state(*source) == Some(SourceState::Waiting);
    let names: Vec<&str> =
        SourceName::ALL.iter().filter(|source| unknown(source)).map(|name| name.as_str()).collect();
    if names.is_empty() {
        return HeaderMap::new();
    }
    let what = format!(
        "pods of source {} are not known yet and are missing: see podmux get sources (GET /sources)",
        names.join(", ")
    );
    warning_header(&what)
}

/// A response with a pod that was written, and its observed status. If the write has left the version of the last
/// one before it, it has changed nothing, and the pod has the version that it is read with.
pub(super) async fn pod_response(
    server: &Context,
    form: Form,
    code: StatusCode,
    (pod, before): (&Arc<Pod>, Option<u64>),
) -> Response {
    let entry = Entry::posted(pod.clone());
    let (seen, version) = if before == pod.resource_version()
        && let Ok(snapshot) = server.snapshot().await
    {
        (snapshot.seen(&entry), posted_version(&snapshot, pod))
    } else {
        (server.seen(&entry), None)
    };
    objects::encoded(form, code, form.object(&seen, Reading { version, ..server.reading() }, true))
}

/// `GET /api/v1/namespaces/{namespace}/pods/{name}`: a merged pod of any source. A posted pod
/// that is in conflict with another source's is not shown.
pub(crate) async fn read(State(server): Server, params: Params) -> Answer {
    let wanted = params.number::<u64>("resourceVersion")?;
    let form = Form::of::<SeenPod>(&params, false)?;
    let key = params.key();
    if wanted > Some(0) {
        check_given(wanted, server.snapshot().await?.seq)?;
    }
    let entry = server.entry(&key)?;
    let (seen, version) = match server.snapshot().await {
        Ok(snapshot) => {
            let entry = snapshot.merged.get(&key).ok_or_else(|| ApiError::no_such_pod(key.name()))?;
            (snapshot.seen(entry), version(&snapshot, entry))
        }
        // It has a version, so that it is read also if the history does not answer.
        Err(_) if entry.source() == SourceName::Http => (server.seen(&entry), None),
        Err(error) => return Err(error),
    };
    let is_long = form != Form::Object && seen.entry.pod().text().len() > CHUNK;
    let reading = Reading { version, ..server.reading() };
    let response = move || objects::response(form, &seen, reading);
    Ok(if is_long { server.read(response).await? } else { response() })
}

/// `POST /pods`: creates or replaces each pod of the body. With `ignorePreconditions` the UID and the resourceVersion
/// of a pod are ignored.
pub(crate) async fn apply(server: Server, params: Params, body: Bytes) -> Answer {
    let dry = params.dry_run()?;
    let mut body = manifests::read(&server, &params, body).await?;
    if params.flag("ignorePreconditions") {
        body.pods.iter_mut().for_each(Submitted::ignore_preconditions);
    }
    write_set(&server, body, dry, Write::Apply).await
}

/// `PUT /pods`: replaces the set of all posted pods. Only an explicit `items: []` removes all.
pub(crate) async fn replace_all(server: Server, params: Params, body: Bytes) -> Answer {
    let dry = params.dry_run()?;
    let body = manifests::read(&server, &params, body).await?;
    if body.pods.is_empty() && !body.is_empty_list {
        let why = "Required value: a list without items would delete all posted pods; \
            send \"items\": [] if that is what you want";
        let message = format!("PodList is invalid: items: {why}");
        let error = ApiError::invalid(message).about("PodList", "");
        return Err(error.cause("FieldValueRequired", why, "items"));
    }
    write_set(&server, body, dry, Write::ReplaceAll).await
}

async fn write_set(
    server: &Context,
    body: DecodedBody,
    dry: bool,
    write: impl FnOnce(Vec<Submitted>) -> Write,
) -> Answer {
    let warnings = body.warnings.clone();
    let list = write_decoded(server, body, dry, write).await.map_err(|error| error.warned(&warnings))?;
    Ok((warnings, list).into_response())
}

async fn write_decoded(
    server: &Context,
    body: DecodedBody,
    dry: bool,
    write: impl FnOnce(Vec<Submitted>) -> Write,
) -> Answer {
    let DecodedBody { mut pods, exceeded, .. } = body;
    check_owner(server, pods.iter().map(Submitted::key))?;
    for pod in &mut pods {
        take_observed_version(server, &pod.key().clone(), pod.resource_version_mut()).await;
    }
    if let Some(exceeded) = exceeded {
        // If the posted pods are not known, or the agent stops, that is the reason.
        after_writes(server).await?;
        return Err(obstacle_error(&[exceeded]));
    }
    let written = server.view.posts.write(write(pods), dry).await.map_err(|error| write_error(&error))?;
    // The pods are written, even if the history does not answer.
    let seq = server.snapshot().await.map(|snapshot| snapshot.seq.to_string()).unwrap_or_default();
    let created = written.iter().any(|written| written.outcome == Outcome::Created);
    let code = if created { StatusCode::CREATED } else { StatusCode::OK };
    let (observed, reading, is_long) = (server.observed(), server.reading(), written.len() > MANY);
    let list = move || json_text(code, write_list(&seq, written, observed.as_ref(), reading)).into_response();
    Ok(if is_long { server.blocking(list).await? } else { list() })
}

/// The result for each pod: `{"kind":"PodWriteList","apiVersion":"podmux/v1",
/// "metadata":{"resourceVersion":"7"},"items":[{"result":"created","pod":{…}}]}`.
/// Lists of this resourceVersion and later ones show the written pods.
fn write_list(
    seq: &str,
    written: Vec<Written>,
    observed: Option<&Observed>,
    reading: Reading,
) -> impl IntoResponse + use<> {
    let head = format!(
        r#"{{"kind":"PodWriteList","apiVersion":"podmux/v1","metadata":{{"resourceVersion":"{seq}"}},"items":["#
    );
    let items = written.into_iter().map(|Written { outcome, pod }| {
        let seen = SeenPod::new(&Entry::posted(pod), observed);
        (outcome, seen.text(reading))
    });
    let items: Vec<_> = items.collect();
    let items = items.into_iter().enumerate().flat_map(|(index, (outcome, pieces))| {
        let comma = if index == 0 { "" } else { "," };
        let begin = format!(r#"{comma}{{"result":"{}","pod":"#, outcome.as_str());
        iter::once(begin.into()).chain(pieces).chain([Bytes::from_static(b"}")])
    });
    chunked(iter::once(Bytes::from(head)).chain(items).chain(iter::once(LIST_END)))
}

/// `POST /api/v1/namespaces/{namespace}/pods`: creates a pod.
pub(crate) async fn create(server: Server, params: Params, body: Bytes) -> Answer {
    write_body(&server, &params, body, Write::Create, StatusCode::CREATED).await
}

/// `PUT /api/v1/namespaces/{namespace}/pods/{name}`: replaces a pod.
pub(crate) async fn replace(server: Server, params: Params, body: Bytes) -> Answer {
    write_body(&server, &params, body, Write::Replace, StatusCode::OK).await
}

async fn write_body(
    server: &Context,
    params: &Params,
    body: Bytes,
    write: impl FnOnce(Submitted) -> Write,
    code: StatusCode,
) -> Answer {
    let form = Form::of::<SeenPod>(params, false)?;
    let dry = params.dry_run()?;
    manifests::field_manager(params)?;
    let DecodedBody { pods, has_list, warnings, .. } = manifests::read(server, params, body).await?;
    let written = async {
        let mut pod = one(pods, has_list, params)?;
        let key = pod.key().clone();
        check_owner(server, iter::once(&key))?;
        take_observed_version(server, &key, pod.resource_version_mut()).await;
        write_one(server, write(pod), &key, dry).await
    };
    let (pod, before) = written.await.map_err(|error| error.warned(&warnings))?;
    Ok((warnings, pod_response(server, form, code, (&pod, before)).await).into_response())
}

/// The single pod of a body on Kubernetes' paths. Its namespace must be that of the path; so
/// must its name, if the path has one. A new pod has no version yet.
fn one(pods: Vec<Submitted>, has_list: bool, params: &Params) -> Result<Submitted, ApiError> {
    let (Ok([pod]), false) = (<[Submitted; 1]>::try_from(pods), has_list) else {
        let message = "the body must be a single Pod: send lists and several documents to POST /pods";
        return Err(ApiError::bad_request(message));
    };
    for (part, own) in [("namespace", pod.key().namespace()), ("name", pod.key().name())] {
        if let Some(wanted) = params.part(part).filter(|wanted| *wanted != own) {
            return Err(ApiError::bad_request(format!(
                "the {part} of the object ({own}) does not match the {part} on the URL ({wanted})"
            )));
        }
    }
    if params.part("name").is_none() && pod.resource_version().is_some_and(|version| version != "0") {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    Ok(pod)
}

/// Writes one pod. Returns it, and the version of its last write before.
pub(super) async fn write_one(
    server: &Context,
    write: Write,
    key: &PodKey,
    dry: bool,
) -> Result<(Arc<Pod>, Option<u64>), ApiError> {
    let before = server.view.posts.get(key).and_then(|pod| pod.resource_version());
    let written = server.view.posts.write(write, dry).await.map_err(|error| write_error(&error))?;
    let written = written.into_iter().next().ok_or_else(|| ApiError::no_such_pod(key.name()))?;
    Ok((written.pod, before))
}

/// Replaces the resourceVersion that a client has read by that of the pod's last write, unless the pod was written
/// since: what is observed of a pod changes its version too, and conflicts with no write.
pub(super) async fn take_observed_version(server: &Context, key: &PodKey, given: &mut Option<String>) {
    let is_number = given.as_ref().is_some_and(|given| given.parse::<u64>().is_ok());
    if is_number && let Ok(snapshot) = server.snapshot().await {
        take_version_of(&snapshot, key, given);
    }
}

/// The same with a snapshot that was taken after the client sent its request.
pub(super) fn take_version_of(snapshot: &Snapshot, key: &PodKey, given: &mut Option<String>) {
    let Some(Ok(read)) = given.as_ref().map(|given| given.parse::<u64>()) else { return };
    let posted = snapshot.merged.get(key).filter(|entry| entry.source() == SourceName::Http);
    if let Some(written) = posted.and_then(|entry| entry.pod().resource_version())
        && snapshot.versions(key).is_some_and(|(first, last)| (first..=last).contains(&read))
    {
        *given = Some(written.to_string());
    }
}

/// Waits until the writes that were made before are merged.
pub(super) async fn after_writes(server: &Context) -> Result<(), ApiError> {
    server.view.posts.after_writes().await.map_err(|error| match error {
        WriteError::Slow => {
            let message = format!("{error}; nothing was changed");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
        }
        error => write_error(&error),
    })
}

/// Rejects names that belong to a pod of another source, and posted pods whose UID does: a write would have no effect.
pub(super) fn check_owner<'k>(
    server: &Context,
    keys: impl Iterator<Item = &'k PodKey>,
) -> Result<(), ApiError> {
    let merged = server.view.merged.borrow().clone();
    let held = keys.filter_map(|key| Some((key, held_by(&merged, key)?)));
    let held: Vec<(&PodKey, (&str, String))> = held.collect();
    if held.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> =
        held.iter().map(|(key, (_, why))| format!("pods {:?} is forbidden: {why}", key.name())).collect();
    let mut error = ApiError::new(StatusCode::FORBIDDEN, "Forbidden", texts.join("; "));
    if let [(key, _)] = &held[..] {
        error = error.about("pods", key.name());
    }
    for (key, (field, why)) in &held {
        error = error.cause("HeldByAnotherSource", format!("{key}: {why}"), field);
    }
    Err(error)
}

/// Which field of a pod another source holds, and what to do; none if no other source does.
fn held_by(merged: &Merged, key: &PodKey) -> Option<(&'static str, String)> {
    let why = match merged.listed(key).map(|entry| (entry.source(), entry.origin())) {
        Some((SourceName::Http, _)) => return None,
        Some((SourceName::Api, _)) => "it is held by source api: change it at the API server".to_owned(),
        Some((source, origin)) => format!("it is held by source {source} (from {origin}): change it there"),
        None => {
            let lost = &merged.conflict(SourceName::Http, key)?.reason;
            let RejectionReason::UidInUse { winner, holder } = lost else { return None };
            let origin = merged.listed(holder)?.origin();
            let holder = format!("the pod {holder} of source {winner} (from {origin})");
            return Some(("metadata.uid", format!("its UID is held by {holder}: remove metadata.uid there")));
        }
    };
    Some(("metadata.name", why))
}

/// The `Status` of a failed write.
pub(super) fn write_error(error: &WriteError) -> ApiError {
    match error {
        WriteError::Rejected(obstacles) => obstacle_error(obstacles),
        WriteError::Storage(failed) => {
            let effect = match failed {
                DbError::Uncertain(_) => "the write may be in effect after a restart",
                _ => "nothing was changed",
            };
            let (code, reason, hint) = if failed.is_full() {
                let hint = "free disk space for the state directory";
                (StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage", hint)
            } else {
                let hint = "check the disk of the state directory";
                (StatusCode::INTERNAL_SERVER_ERROR, "InternalError", hint)
            };
            ApiError::new(code, reason, format!("{}; {effect}: {hint}", chain(error)))
        }
        WriteError::Stopping => ApiError::stopping(),
        WriteError::Unknown(_) => {
            let message = format!("{error}; nothing was changed");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
                .retry_after(STATE_RETRY)
        }
        WriteError::Uncertain | WriteError::Slow => {
            let message = format!("{error}; the write may be in effect: read the pods before you repeat it");
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
        }
    }
}

fn obstacle_error(obstacles: &[Obstacle]) -> ApiError {
    let code = |obstacle: &Obstacle| match obstacle.what {
        ObstacleKind::AlreadyExists | ObstacleKind::NotGoneYet => (StatusCode::CONFLICT, "AlreadyExists"),
        ObstacleKind::NotFound => (StatusCode::NOT_FOUND, "NotFound"),
        ObstacleKind::Quota(_) => (StatusCode::FORBIDDEN, "Forbidden"),
        ObstacleKind::Terminating | ObstacleKind::Precondition(_) => (StatusCode::CONFLICT, "Conflict"),
    };
    let texts: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
    let (status, reason) = match obstacles {
        [first, others @ ..] if others.iter().all(|other| code(other) == code(first)) => code(first),
        _ => (StatusCode::CONFLICT, "Conflict"),
    };
    let mut error = ApiError::new(status, reason, texts.join("; "));
    if let [one] = obstacles {
        return error.about("pods", one.key.name());
    }
    for obstacle in obstacles {
        let message = format!("{}: {}", obstacle.key, obstacle.what);
        error = error.cause(code(obstacle).1, message, "metadata.name");
    }
    error
}
