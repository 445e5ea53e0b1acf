//! `GET /api/v1/namespaces/{namespace}/pods/{name}/log`: the output of a container, with the parameters and the
//! errors of an API server and its kubelet.

use std::{io, num::IntErrorKind, sync::Arc};

use axum::{
    Extension,
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use jiff::{SignedDuration, Timestamp, civil::date, fmt::temporal::Pieces};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    error_chain::chain,
    pod::Pod,
    runtime::{LogRequest, Logging, NO_LOGS, RuntimeError},
    server::{
        body::Endless,
        context::{Context, Params},
        slots::Watchers,
        status::ApiError,
    },
};

/// Sends the output of a container, as it is.
pub(crate) async fn read(
    State(server): State<Arc<Context>>,
    Extension(watchers): Extension<Watchers>,
    params: Params,
) -> Result<Response, ApiError> {
    let options = Options::read(&params, server.view.host.clock.now())?;
    let key = params.key();
    let entry = server.entry(&key)?;
    let (pod, name) = (entry.pod(), key.name());
    let container = container(pod, name, params.option("container")).map_err(ApiError::bad_request)?;
    let runtime = server.view.runtime.as_ref().ok_or_else(|| {
        let message = "the agent runs no pods, so it has no logs: start it with --sink podman";
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    })?;
    let seen = server.seen(&entry);
    let id = container_id(seen.status.as_deref(), &container, name, options.previous);
    let request = LogRequest {
        key: key.clone(),
        uid: pod.uid().clone(),
        container_id: id.map_err(ApiError::bad_request)?.into(),
        follow: options.follow,
        tail: options.tail,
        since: options.since,
        timestamps: options.timestamps,
    };
    let slot = if options.follow { Some(watchers.slot()?) } else { None };
    let (output, chunks) = mpsc::channel(1);
    let mut log = Log {
        run: Some((runtime.logs)(request, output)),
        chunks,
        failed: None,
        left: options.limit,
        stop: server.view.stopping.clone(),
        is_followed: options.follow,
    };
    // The errors of the beginning have codes of their own.
    let first = log.next().await.transpose().map_err(|error| cannot_read(&error, &container, name))?;
    let chunks = stream::unfold((first, log, slot), async |(first, mut log, slot)| {
        let next = match first {
            Some(first) => Ok(first),
            None => log.next().await?.map_err(|error| {
                debug!(error = chain(&error), "log cut off");
                io::Error::other(error)
            }),
        };
        Some((next, (None, log, slot)))
    });
    let headers = [(CONTENT_TYPE, HeaderValue::from_static("text/plain"))];
    let endless = options.follow.then_some(Extension(Endless));
    Ok((headers, endless, Body::from_stream(chunks)).into_response())
}

fn cannot_read(error: &RuntimeError, container: &str, pod: &str) -> ApiError {
    let message = format!("cannot read the log of container {container:?} in pod {pod:?}: {}", chain(error));
    let (code, reason) = match error.reason {
        NO_LOGS => (StatusCode::NOT_IMPLEMENTED, "NotImplemented"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
    };
    ApiError::new(code, reason, message)
}

/// The options of a request: `PodLogOptions` of the API without the container.
struct Options {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail: Option<u64>,
    since: Option<Timestamp>,
    /// The largest number of bytes that are sent.
    limit: u64,
}

impl Options {
    fn read(params: &Params, now: Timestamp) -> Result<Self, ApiError> {
        let (limit, tail) = (number(params, "limitBytes")?, number(params, "tailLines")?);
        let seconds = number(params, "sinceSeconds")?;
        let since = match params.option("sinceTime") {
            "" => None,
            text => Some(time(text).ok_or_else(|| {
                let layout = "2006-01-02T15:04:05Z07:00";
                ApiError::bad_request(format!("parsing time {text:?} as {layout:?}: cannot parse it"))
            })?),
        };
        let mut problems = Vec::new();
        let invalid =
            |value: i64, why| ("FieldValueInvalid", format!("Invalid value: {value}: must be {why} 0"));
        let forbidden = |why: &str| ("FieldValueForbidden", format!("Forbidden: {why}"));
        problems.extend(
            tail.filter(|tail| *tail < 0)
                .map(|tail| ("tailLines", invalid(tail, "greater than or equal to"))),
        );
        problems.extend(
            limit.filter(|limit| *limit < 1).map(|limit| ("limitBytes", invalid(limit, "greater than"))),
        );
        if seconds.is_some() && since.is_some() {
            // The API server's name of this field.
            problems.push(("[]", forbidden("at most one of `sinceTime` or `sinceSeconds` may be specified")));
        }
        let bad = seconds.filter(|seconds| *seconds < 1 && since.is_none());
        problems.extend(bad.map(|seconds| ("sinceSeconds", invalid(seconds, "greater than"))));
        if params.options("stream").next().is_some() {
            problems.push(("stream", forbidden("may not be specified")));
        }
        if !problems.is_empty() {
            return Err(refused(params.part("name").unwrap_or_default(), problems));
        }
        let ago =
            |seconds| now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::UNIX_EPOCH);
        Ok(Self {
            follow: params.flag("follow"),
            previous: params.flag("previous"),
            timestamps: params.flag("timestamps"),
            tail: tail.and_then(|tail| u64::try_from(tail).ok()),
            since: since.or(seconds.map(ago)),
            limit: limit.and_then(|limit| u64::try_from(limit).ok()).unwrap_or(u64::MAX),
        })
    }
}

/// A time of the query. The last hours of the year 9999, which no `Timestamp` has, count as the last one that it has.
fn time(text: &str) -> Option<Timestamp> {
    let is_late = |pieces: &Pieces<'_>| pieces.date() > date(9999, 12, 29) && pieces.offset().is_some();
    let latest = || Pieces::parse(text).ok().filter(is_late).map(|_| Timestamp::MAX);
    text.parse().ok().or_else(latest)
}

/// A number of the query. An error is worded as by Go's `strconv.ParseInt`.
fn number(params: &Params, name: &str) -> Result<Option<i64>, ApiError> {
    let Some(text) = params.options(name).next() else { return Ok(None) };
    text.parse().map(Some).map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
    })
}

/// 422: the options are invalid.
fn refused(pod: &str, problems: Vec<(&str, (&'static str, String))>) -> ApiError {
    let texts: Vec<String> = problems.iter().map(|(field, (_, why))| format!("{field}: {why}")).collect();
    let texts = if texts.len() == 1 { texts.concat() } else { format!("[{}]", texts.join(", ")) };
    let message = format!("PodLogOptions {pod:?} is invalid: {texts}");
    let error = ApiError::invalid(message).about("PodLogOptions", pod);
    problems.into_iter().fold(error, |error, (field, (reason, why))| error.cause(reason, why, field))
}

/// The container that is meant, of those that a pod has. (`validateContainer` in
/// `pkg/registry/core/pod/strategy.go`.)
fn container(pod: &Pod, pod_name: &str, wanted: &str) -> Result<String, String> {
    let pod: Value = serde_json::from_slice(pod.text()).unwrap_or_default();
    let names = |list: &str| -> Vec<String> {
        let all = pod["spec"][list].as_array().into_iter().flatten();
        all.map(|container| container["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let all = ["initContainers", "containers", "ephemeralContainers"].map(names);
    match (wanted, &*all[1]) {
        ("", [only]) => Ok(only.clone()),
        ("", _) => {
            let all = all.concat().join(" ");
            Err(format!("a container name must be specified for pod {pod_name}, choose one of: [{all}]"))
        }
        _ if all.iter().flatten().any(|name| name == wanted) => Ok(wanted.to_owned()),
        _ => Err(format!("container {wanted} is not valid for pod {pod_name}")),
    }
}

/// The `containerID` of a container's output; empty if the runtime has no ids.
/// (`validateContainerLogStatus` in `pkg/kubelet/kubelet_pods.go`.)
fn container_id(
    status: Option<&Value>,
    container: &str,
    pod: &str,
    previous: bool,
) -> Result<String, String> {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let lists = lists.iter().filter_map(|list| status?.get(*list)?.as_array());
    let found = lists.flatten().find(|status| status["name"] == *container);
    let found = found.ok_or_else(|| format!("container {container:?} in pod {pod:?} is not available"))?;
    let id = |value: &Value| value["containerID"].as_str().unwrap_or_default().to_owned();
    let (state, last) = (&found["state"], &found["lastState"]["terminated"]);
    if state["running"].is_object() && !previous {
        return Ok(id(found));
    }
    let ended = [&state["terminated"], last].into_iter().skip(usize::from(previous));
    let ended: Vec<&Value> = ended.filter(|ended| ended.is_object()).collect();
    if let Some(id) = ended.iter().copied().map(id).find(|id| !id.is_empty()) {
        return Ok(id);
    }
    if previous {
        return Err(format!("previous terminated container {container:?} in pod {pod:?} not found"));
    }
    let why = match state["waiting"]["reason"].as_str() {
        _ if !ended.is_empty() => "is terminated".to_owned(),
        None => "is waiting to start - no logs yet".to_owned(),
        Some("ErrImagePull") => "is waiting to start: image can't be pulled".to_owned(),
        Some("ImagePullBackOff") => "is waiting to start: trying and failing to pull image".to_owned(),
        Some(reason) => format!("is waiting to start: {reason}"),
    };
    Err(format!("container {container:?} in pod {pod:?} {why}"))
}

/// The output of a container while it is read. Nothing is read ahead: a chunk is taken when the one before it was
/// sent to the client.
struct Log {
    run: Option<Logging>,
    chunks: mpsc::Receiver<Vec<u8>>,
    failed: Option<RuntimeError>,
    /// How many bytes may follow.
    left: u64,
    stop: CancellationToken,
    is_followed: bool,
}

impl Log {
    /// The next chunk; the first one may be empty.
    async fn next(&mut self) -> Option<Result<Vec<u8>, RuntimeError>> {
        let mut chunk = loop {
            if self.left == 0 {
                return None;
            }
            let Some(run) = &mut self.run else {
                match self.chunks.recv().await {
                    Some(chunk) => break chunk,
                    None => return self.failed.take().map(Err),
                }
            };
            tokio::select! {
                biased;
                Some(chunk) = self.chunks.recv() => break chunk,
                ended = run => (self.run, self.failed) = (None, ended.err()),
                // It would go on for as long as the container runs.
                () = self.stop.cancelled(), if self.is_followed => return None,
            }
        };
        chunk.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= chunk.len() as u64;
        Some(Ok(chunk))
    }
}
