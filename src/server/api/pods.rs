//! Pods: podmux's own paths for whole sets, and Kubernetes' paths.

use std::{fmt::Write as _, iter, sync::Arc};

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;

use super::{
    manifests::{self, Given},
    page::{Page, PageRequest},
    select::Selector,
};
use crate::server::{
    body::{Format, Input, Pieces, items},
    context::{Context, Params, blocking, json_text},
    status::ApiError,
};
use crate::{
    db::DbError,
    error_chain::chain,
    pod::{Pod, PodKey, Prepared, SourceName},
    source::http::{Obstacle, ObstacleKind, Outcome, Preconditions, Write, WriteError, Written},
};

type Handled = Result<Response, ApiError>;
type Shared = State<Arc<Context>>;

/// `GET /pods`, `GET /api/v1/pods` and `GET /api/v1/namespaces/{namespace}/pods`:
/// what all sources want, as a `v1.PodList`.
///
/// Its resourceVersion is the number of `/updates` at which it is true (of a
/// later page: at which the first one was).
pub(in crate::server) async fn list(State(server): Shared, asked: Params) -> Handled {
    if asked.flag("watch") {
        let message = "watch is not served here: GET /updates is the stream of changes, \
            and /updates?from=N goes on after the list of resourceVersion N-1";
        return Err(
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).allow("GET,HEAD")
        );
    }
    let page = PageRequest::new(asked.option("limit"), asked.option("continue"))?;
    let selector = Selector::new(asked.option("labelSelector"), asked.option("fieldSelector"))?;
    let snapshot = server.snapshot().await?;
    at_version(&asked, page.goes_on(), snapshot.seq)?;
    let namespace = asked.part("namespace").map(str::to_owned);
    let selects = !selector.is_empty();
    let cut = move || {
        let there = |key: &PodKey| namespace.as_ref().is_none_or(|namespace| key.namespace() == namespace);
        let entries = snapshot.merged.iter().filter(|(key, _)| there(key));
        page.cut(entries, &selector, snapshot.seq)
    };
    // To look into 100,000 pods takes a second.
    Ok(pod_list(if selects { blocking(cut).await?? } else { cut()? }))
}

/// Whether a list of this number of the update stream is what was asked for
/// (`apimachinery/pkg/apis/meta/internalversion/validation`).
fn at_version(asked: &Params, goes_on: bool, seq: u64) -> Result<(), ApiError> {
    let wanted = asked.number::<u64>("resourceVersion")?;
    if goes_on && wanted.is_some_and(|wanted| wanted > 0) {
        return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
    }
    let rule = asked.option("resourceVersionMatch");
    if !matches!(rule, "" | "Exact" | "NotOlderThan") {
        return Err(ApiError::no_such_value(
            asked.options_kind(),
            "resourceVersionMatch",
            rule,
            &["Exact", "NotOlderThan"],
        ));
    }
    let Some(wanted) = wanted else {
        if rule.is_empty() {
            return Ok(());
        }
        let why = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", why)
            .about(asked.options_kind(), "")
            .cause("FieldValueForbidden", why, "resourceVersionMatch"));
    };
    if wanted > seq {
        let message = format!("Too large resource version: {wanted}, current: {seq}");
        return Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
            .cause("ResourceVersionTooLarge", "Too large resource version", "")
            .retry_after(1));
    }
    if rule == "Exact" && wanted < seq {
        let message = format!("the list of resource version {wanted} is not held, that of {seq} is");
        return Err(ApiError::new(StatusCode::GONE, "Expired", message));
    }
    Ok(())
}

fn pod_list(page: Page) -> Response {
    let mut head =
        format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{}""#, page.seq);
    // Writing to memory cannot fail; the token is base64 and needs no quoting.
    if let Some(next) = &page.next {
        let _ = write!(head, r#","continue":"{next}""#);
    }
    if let Some(remaining) = page.remaining {
        let _ = write!(head, r#","remainingItemCount":{remaining}"#);
    }
    head.push_str(r#"},"items":["#);
    let tail = "]}\n";
    let commas = page.pods.len().saturating_sub(1);
    let pods: usize = page.pods.iter().map(|pod| pod.text().len()).sum();
    let length = head.len() + commas + pods + tail.len();
    let pieces = iter::once(Bytes::from(head))
        .chain(items(page.pods.into_iter()))
        .chain(iter::once(Bytes::from_static(tail.as_bytes())));
    json_text(StatusCode::OK, Pieces::body(pieces, length)).into_response()
}

/// A pod as it is: its own text.
fn pod_answer(code: StatusCode, pod: &Pod, warnings: HeaderMap) -> Response {
    let text = Bytes::from_owner(pod.text().clone());
    let length = text.len() + 1;
    let body = Pieces::body([text, Bytes::from_static(b"\n")].into_iter(), length);
    (warnings, json_text(code, body)).into_response()
}

/// `GET /api/v1/namespaces/{namespace}/pods/{name}`: a pod, whosesoever it is. A
/// posted one that another source shadows is not what is wanted, and not shown.
pub(in crate::server) async fn read(State(server): Shared, asked: Params) -> Handled {
    // There is one version of a pod, the newest, and it is as new as was asked for.
    asked.number::<u64>("resourceVersion")?;
    let key = key(&asked);
    let pod = server.view.merged.borrow().get(&key).map(|entry| entry.pod().clone());
    let pod = pod.ok_or_else(|| ApiError::no_such_pod(key.name()))?;
    Ok(pod_answer(StatusCode::OK, &pod, HeaderMap::new()))
}

fn key(asked: &Params) -> PodKey {
    PodKey::new(asked.part("namespace").unwrap_or_default(), asked.part("name").unwrap_or_default())
}

/// `POST /pods`: each pod of the body is created or replaced.
pub(in crate::server) async fn apply(
    server: Shared,
    asked: Params,
    headers: HeaderMap,
    body: Body,
) -> Handled {
    write_set(&server, &asked, &headers, body, Write::Apply).await
}

/// `PUT /pods`: the pods of the body are all posted pods from now on.
pub(in crate::server) async fn replace_all(
    server: Shared,
    asked: Params,
    headers: HeaderMap,
    body: Body,
) -> Handled {
    write_set(&server, &asked, &headers, body, Write::ReplaceAll).await
}

async fn write_set(
    server: &Context,
    asked: &Params,
    headers: &HeaderMap,
    body: Body,
    write: impl FnOnce(Vec<Prepared>) -> Write,
) -> Handled {
    let dry = asked.dry_run()?;
    let Given { pods, warnings, .. } = manifests::read(server, asked, headers, body).await?;
    free(server, pods.iter().map(Prepared::key))?;
    let written = server.view.posts.write(write(pods), dry).await.map_err(|error| unwritten(&error))?;
    // It is written, whether or not the history can say where.
    let seq = server.snapshot().await.map(|snapshot| snapshot.seq.to_string()).unwrap_or_default();
    let created = written.iter().any(|written| written.outcome == Outcome::Created);
    let code = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((warnings, json_text(code, write_list(&seq, written))).into_response())
}

/// What became of each pod: `{"kind":"PodWriteList","apiVersion":"podmux/v1",
/// "metadata":{"resourceVersion":"7"},"items":[{"result":"created","pod":{…}}]}`.
/// The resourceVersion is a number of `/updates`: a list of that number, or a
/// later one, shows what was written.
fn write_list(seq: &str, written: Vec<Written>) -> Body {
    let head = format!(
        r#"{{"kind":"PodWriteList","apiVersion":"podmux/v1","metadata":{{"resourceVersion":"{seq}"}},"items":["#
    );
    let items: Vec<[Bytes; 3]> = written
        .into_iter()
        .enumerate()
        .map(|(index, Written { outcome, pod })| {
            let comma = if index == 0 { "" } else { "," };
            let begin = format!(r#"{comma}{{"result":"{}","pod":"#, outcome.as_str());
            [begin.into(), Bytes::from_owner(pod.text().clone()), Bytes::from_static(b"}")]
        })
        .collect();
    let tail = "]}\n";
    let length = head.len() + items.iter().flatten().map(Bytes::len).sum::<usize>() + tail.len();
    let pieces = iter::once(Bytes::from(head))
        .chain(items.into_iter().flatten())
        .chain(iter::once(Bytes::from_static(tail.as_bytes())));
    Pieces::body(pieces, length)
}

/// `POST /api/v1/namespaces/{namespace}/pods`: a pod is created.
pub(in crate::server) async fn create(
    server: Shared,
    asked: Params,
    headers: HeaderMap,
    body: Body,
) -> Handled {
    let dry = asked.dry_run()?;
    let Given { pods, has_list, warnings } = manifests::read(&server, &asked, &headers, body).await?;
    let pod = one(pods, has_list, &asked)?;
    let metadata = pod.object().get("metadata");
    if metadata.and_then(|metadata| metadata.get("resourceVersion")).is_some() {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let pod = write_one(&server, Write::Create, pod, dry).await?;
    Ok(pod_answer(StatusCode::CREATED, &pod, warnings))
}

/// `PUT /api/v1/namespaces/{namespace}/pods/{name}`: a pod is replaced.
pub(in crate::server) async fn replace(
    server: Shared,
    asked: Params,
    headers: HeaderMap,
    body: Body,
) -> Handled {
    let dry = asked.dry_run()?;
    let Given { pods, has_list, warnings } = manifests::read(&server, &asked, &headers, body).await?;
    let pod = one(pods, has_list, &asked)?;
    let name = asked.part("name").unwrap_or_default();
    if pod.key().name() != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({name})",
            pod.key().name()
        )));
    }
    let pod = write_one(&server, Write::Replace, pod, dry).await?;
    Ok(pod_answer(StatusCode::OK, &pod, warnings))
}

/// The one pod that Kubernetes' paths take at a time, in the namespace of the path.
fn one(pods: Vec<Prepared>, has_list: bool, asked: &Params) -> Result<Prepared, ApiError> {
    let (Ok([pod]), false) = (<[Prepared; 1]>::try_from(pods), has_list) else {
        let message = "the body is not one Pod; POST /pods takes lists and several documents";
        return Err(ApiError::bad_request(message));
    };
    let namespace = asked.part("namespace").unwrap_or_default();
    if pod.key().namespace() != namespace {
        return Err(ApiError::bad_request(format!(
            "the namespace of the object ({}) does not match the namespace on the URL ({namespace})",
            pod.key().namespace()
        )));
    }
    Ok(pod)
}

async fn write_one(
    server: &Context,
    write: impl FnOnce(Prepared) -> Write,
    pod: Prepared,
    dry: bool,
) -> Result<Arc<Pod>, ApiError> {
    let key = pod.key().clone();
    free(server, iter::once(&key))?;
    let written = server.view.posts.write(write(pod), dry).await.map_err(|error| unwritten(&error))?;
    let written = written.into_iter().next().ok_or_else(|| ApiError::no_such_pod(key.name()))?;
    Ok(written.pod)
}

/// Refuses names that a pod of another source has.
fn free<'k>(server: &Context, keys: impl Iterator<Item = &'k PodKey>) -> Result<(), ApiError> {
    let merged = server.view.merged.borrow().clone();
    let held: Vec<(&PodKey, String)> = keys
        .filter_map(|key| {
            let entry = merged.get(key).filter(|entry| entry.source() != SourceName::Http)?;
            let why = match (entry.source(), entry.origin()) {
                (SourceName::Api, _) => "it is held by source api: change it at the API server".to_owned(),
                (source, origin) => format!("it is held by source {source} (from {origin}): change it there"),
            };
            Some((key, why))
        })
        .collect();
    if held.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> =
        held.iter().map(|(key, why)| format!("pods {:?} is forbidden: {why}", key.name())).collect();
    let mut error = ApiError::new(StatusCode::FORBIDDEN, "Forbidden", texts.join("; "));
    if let [(key, _)] = &held[..] {
        error = error.about("pods", key.name());
    }
    for (key, why) in &held {
        error = error.cause("HeldByAnotherSource", format!("{key}: {why}"), "metadata.name");
    }
    Err(error)
}

/// `DELETE /api/v1/namespaces/{namespace}/pods/{name}`: a posted pod is deleted,
/// shadowed by another source's or not. The answer is the pod.
pub(in crate::server) async fn delete(
    State(server): Shared,
    asked: Params,
    headers: HeaderMap,
    body: Body,
) -> Handled {
    let key = key(&asked);
    let input = Input::read(&headers, body, &server.large_bodies).await?;
    let options = DeleteOptions::read(&input.text, input.format)?;
    options.check_policy(&asked)?;
    let dry = asked.dry_run()? | asked.reads_dry_run(options.dry_run.iter().map(String::as_str))?;
    if asked.options("gracePeriodSeconds").next() == Some("") {
        return Err(ApiError::bad_request("invalid gracePeriodSeconds \"\": a number is expected"));
    }
    let grace = options.grace_period_seconds.or(asked.number("gracePeriodSeconds")?);
    if server.view.posts.get(&key).is_none() {
        free(&server, iter::once(&key))?;
        return Err(ApiError::no_such_pod(key.name()));
    }
    let DeletePreconditions { uid, resource_version } = options.preconditions.unwrap_or_default();
    let write =
        Write::Delete { key: key.clone(), grace, preconditions: Preconditions { uid, resource_version } };
    let written = server.view.posts.write(write, dry).await.map_err(|error| unwritten(&error))?;
    let written = written.into_iter().next().ok_or_else(|| ApiError::no_such_pod(key.name()))?;
    Ok(pod_answer(StatusCode::OK, &written.pod, HeaderMap::new()))
}

/// What the body of a DELETE may say.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeleteOptions {
    kind: Option<String>,
    grace_period_seconds: Option<i64>,
    preconditions: Option<DeletePreconditions>,
    dry_run: Vec<String>,
    /// About objects that the pod owns; a node has none. Nothing follows from it.
    propagation_policy: Option<String>,
}

/// What `propagationPolicy` may say.
const POLICIES: [&str; 3] = ["Background", "Foreground", "Orphan"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeletePreconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl DeleteOptions {
    fn read(text: &[u8], format: Format) -> Result<Self, ApiError> {
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let bad = |error: String| ApiError::bad_request(format!("the body is not DeleteOptions: {error}"));
        let options: Self = if format == Format::Json {
            serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?
        } else {
            let text = str::from_utf8(text).map_err(|error| bad(error.to_string()))?;
            let value = crate::manifest::yaml::to_json(text).map_err(|problem| bad(problem.to_string()))?;
            serde_json::from_value(value).map_err(|error| bad(error.to_string()))?
        };
        match options.kind.as_deref() {
            // Whoever sends a pod meant another verb.
            Some(kind) if kind != "DeleteOptions" => Err(bad(format!("its kind is {kind:?}"))),
            _ => Ok(options),
        }
    }

    fn check_policy(&self, asked: &Params) -> Result<(), ApiError> {
        let policy = self.propagation_policy.as_deref().unwrap_or(asked.option("propagationPolicy"));
        if policy.is_empty() || POLICIES.contains(&policy) {
            return Ok(());
        }
        Err(ApiError::no_such_value(asked.options_kind(), "propagationPolicy", policy, &POLICIES))
    }
}

/// Why a write was not taken, as a `Status`.
fn unwritten(error: &WriteError) -> ApiError {
    match error {
        WriteError::Rejected(obstacles) => refused(obstacles),
        WriteError::Storage(DbError::Full(_)) => ApiError::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "InsufficientStorage",
            format!("{}: make room in the state directory; nothing was changed", chain(error)),
        ),
        WriteError::Storage(DbError::Ended) | WriteError::Stopping => ApiError::stopping(),
        WriteError::Storage(_) => {
            let message = format!("{}: nothing was changed", chain(error));
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
        }
    }
}

fn refused(obstacles: &[Obstacle]) -> ApiError {
    let code = |obstacle: &Obstacle| match obstacle.what {
        ObstacleKind::AlreadyExists | ObstacleKind::NotGoneYet => (StatusCode::CONFLICT, "AlreadyExists"),
        ObstacleKind::NotFound => (StatusCode::NOT_FOUND, "NotFound"),
        ObstacleKind::Terminating | ObstacleKind::UidInUse(_) | ObstacleKind::Precondition(_) => {
            (StatusCode::CONFLICT, "Conflict")
        }
    };
    let texts: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
    let (status, reason) = match obstacles {
        [one] => code(one),
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
