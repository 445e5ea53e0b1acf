//! `watch=1` on lists: the changes of the selected objects as a stream of JSON.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    iter,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
    vec,
};

use axum::{
    Extension,
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use tokio::{
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use super::{
    form::Form,
    protobuf,
    resource::{Reading, Resource},
    select::Scope,
};
use crate::{
    history::{Changes, HeldChange, Journal},
    pod::SourceName,
    server::{
        body::{Chunks, Endless},
        context::{Context, Params},
        slots::{Slot, Watchers},
        stats::Open,
        status::ApiError,
    },
    storage::{Merged, SourceState},
};

/// How long a watch lasts at least without `timeoutSeconds`, and at most twice as long: kube-apiserver's
/// `--min-request-timeout`.
const MIN_TIMEOUT: Duration = Duration::from_mins(30);
/// The longest `timeoutSeconds`, so that the end of a watch is a valid time.
const MAX_TIMEOUT: Duration = Duration::from_hours(365 * 24);
/// The time between two bookmarks, as at a kube-apiserver.
pub(super) const BOOKMARK_INTERVAL: Duration = Duration::from_mins(1);
/// How long a client that has to list again waits for the sources of an agent that has just started.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);
/// How many terms of a selector a watch checks before other tasks run.
const CHECKED_AT_ONCE: usize = 4_096;
/// The size of the encoded events that are kept for other watchers, in bytes.
const MAX_FRAMES: usize = 4 << 20;

/// Where a watch starts.
pub(crate) struct Start<O> {
    /// The objects that it begins with, and the resourceVersion of each unless it has it.
    pub(crate) initial: Vec<(O, Option<u64>)>,
    /// The resourceVersion of a list of now.
    pub(crate) current: u64,
    /// What is wrong with these objects.
    pub(crate) warnings: HeaderMap,
}

/// Who watches what: the slots of watchers, the shared frames, the form and the selected objects.
pub(crate) struct WatchRequest {
    pub(crate) watchers: Watchers,
    pub(crate) frames: Arc<Frames>,
    pub(crate) form: Form,
    pub(crate) options: WatchOptions,
    pub(crate) scope: Scope,
}

/// The options of a watch.
pub(crate) struct WatchOptions {
    /// The `resourceVersion` of the client, if it has one.
    pub(super) version: Option<u64>,
    /// Whether the watch begins with all objects.
    pub(crate) begins_with_all: bool,
    /// Whether a bookmark follows these.
    pub(super) marks_end: bool,
    pub(super) has_bookmarks: bool,
    pub(super) timeout: Duration,
}

impl WatchOptions {
    /// Reads the options of a watch (`apimachinery/pkg/apis/meta/internalversion/validation`).
    ///
    /// # Errors
    /// 400 if one cannot be parsed, 422 if they contradict each other.
    pub(crate) fn new(params: &Params, fraction: f64) -> Result<Self, ApiError> {
        let version = params.number::<u64>("resourceVersion")?.filter(|version| *version > 0);
        params.number::<i64>("limit")?;
        let sends_all = params.options("sendInitialEvents").next().map(|_| params.flag("sendInitialEvents"));
        let rule = params.option("resourceVersionMatch");
        let mut causes = Vec::new();
        let mut forbid = |why: &str| causes.push(("FieldValueForbidden", format!("Forbidden: {why}")));
        if sends_all.is_some() && rule != "NotOlderThan" {
            forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
        }
        if !rule.is_empty() && sends_all.is_none() {
            forbid("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
        }
        if !params.option("continue").is_empty() {
            forbid("resourceVersionMatch is forbidden when continue is provided");
        }
        if !matches!(rule, "" | "NotOlderThan") {
            let why = format!("Unsupported value: {rule:?}: supported values: \"NotOlderThan\"");
            causes.push(("FieldValueNotSupported", why));
        }
        if !causes.is_empty() {
            let texts: Vec<String> =
                causes.iter().map(|(_, why)| format!("resourceVersionMatch: {why}")).collect();
            let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {}", texts.join(", "));
            let error = ApiError::invalid(message).about(params.options_kind(), "").in_group("meta.k8s.io");
            let add = |error: ApiError, (reason, why)| error.cause(reason, why, "resourceVersionMatch");
            return Err(causes.into_iter().fold(error, add));
        }
        let timeout = params.number::<i64>("timeoutSeconds")?.filter(|seconds| *seconds != 0);
        // A watch with a negative one ends at once.
        let given = |seconds: i64| Duration::from_secs(seconds.max(0).unsigned_abs()).min(MAX_TIMEOUT);
        Ok(Self {
            version,
            begins_with_all: sends_all.unwrap_or(version.is_none()),
            marks_end: sends_all == Some(true),
            has_bookmarks: params.flag("allowWatchBookmarks"),
            timeout: timeout.map_or_else(|| MIN_TIMEOUT.mul_f64(1.0 + fraction), given),
        })
    }
}

/// The encoded events of the newest numbers: each is encoded once for all watchers of its form.
#[derive(Default)]
pub(crate) struct Frames(Mutex<HeldFrames>);

#[derive(Default)]
struct HeldFrames {
    /// By number, type of the event and form.
    frames: BTreeMap<(u64, &'static str, Form), Vec<Bytes>>,
    /// Their size in bytes.
    size: usize,
}

impl Frames {
    fn get(
        &self,
        number: u64,
        kind: &'static str,
        form: Form,
        encode: impl FnOnce() -> Vec<Bytes>,
    ) -> Vec<Bytes> {
        let length = |frame: &[Bytes]| frame.iter().map(Bytes::len).sum::<usize>();
        // A panic under the lock leaves a frame out.
        let held = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(frame) = held().frames.get(&(number, kind, form)) {
            return frame.clone();
        }
        // Two watchers may encode the same event; none waits for the other.
        let mut frame = encode();
        frame.shrink_to_fit();
        let HeldFrames { frames, size } = &mut *held();
        let before = frames.insert((number, kind, form), frame.clone());
        *size = *size + length(&frame) - before.map_or(0, |before| length(&before));
        while *size > MAX_FRAMES
            && let Some((_, oldest)) = frames.pop_first()
        {
            *size -= length(&oldest);
        }
        frame
    }
}

/// A watch, which is read as fast as its client reads.
struct Watch<O> {
    server: Arc<Context>,
    frames: Arc<Frames>,
    form: Form,
    scope: Scope,
    initial: vec::IntoIter<(O, Option<u64>)>,
    /// The resourceVersion of the bookmark after the initial events, if there is one.
    initial_end: Option<u64>,
    journal: Journal<O>,
    changes: Changes<O>,
    has_bookmarks: bool,
    next_bookmark: Instant,
    end: Instant,
    /// Whether the client has the columns of its tables.
    has_columns: bool,
    has_ended: bool,
    /// How many terms were checked since other tasks could run.
    checked: usize,
    _open: (Slot, Open),
}

/// Answers with a watch from a snapshot on: with its objects in the scope first, or with the changes after the
/// client's resourceVersion.
///
/// # Errors
/// 429 if too many clients watch.
pub(crate) fn watch<O: Resource>(
    server: Arc<Context>,
    journal: &Journal<O>,
    request: WatchRequest,
    Start { initial, current, warnings }: Start<O>,
) -> Result<Response, ApiError> {
    let WatchRequest { watchers, frames, form, options, scope } = request;
    let open = (watchers.slot()?, server.view.connections.watching());
    let after = options.version.filter(|_| !options.begins_with_all).unwrap_or(current);
    let is_held = options.version.is_none_or(|version| version <= current);
    let body = match journal.changes(after) {
        _ if !is_held => {
            Body::from(error_frame(form, &too_large(options.version.unwrap_or_default(), current)))
        }
        Err(_) => {
            let frame = error_frame(form, &expired(after, current));
            Body::from_stream(stream::once(async move {
                let _held_by_the_stream = open;
                until_sources_are_known(&server).await;
                Ok::<_, Infallible>(frame)
            }))
        }
        Ok(changes) => {
            let now = Instant::now();
            let watch = Watch {
                server,
                frames,
                form,
                scope,
                initial: initial.into_iter(),
                initial_end: (options.marks_end && options.has_bookmarks).then_some(current),
                journal: journal.clone(),
                changes,
                has_bookmarks: options.has_bookmarks,
                next_bookmark: now + BOOKMARK_INTERVAL,
                end: now + options.timeout,
                has_columns: false,
                has_ended: false,
                checked: 0,
                _open: open,
            };
            let frames = stream::unfold(watch, async |mut watch| {
                let frame = watch.next().await?;
                Some((stream::iter(frame.into_iter().map(Ok::<_, Infallible>)), watch))
            });
            Body::from_stream(frames.flatten())
        }
    };
    Ok((warnings, [(CONTENT_TYPE, form.content_type(true))], Extension(Endless), body).into_response())
}

impl<O: Resource> Watch<O> {
    /// The chunks of the next frame; `None` at the end. Cancel-safe.
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        if let Some((object, version)) = self.initial.next() {
            let is_first = self.is_first_table();
            return Some(self.frame("ADDED", &object, version, is_first));
        }
        // A watch is open for long: what it has sent takes no memory.
        self.initial = vec::IntoIter::default();
        if let Some(version) = self.initial_end.take() {
            return Some(self.bookmark(version, true));
        }
        while !self.has_ended {
            let due = if self.has_bookmarks { self.end.min(self.next_bookmark) } else { self.end };
            // Many changes that are not selected must not delay the end.
            let next =
                if due <= Instant::now() { None } else { timeout_at(due, self.changes.next()).await.ok() };
            match next {
                Some(Ok(Some(change))) => {
                    if let Some(frame) = self.event(&change) {
                        return Some(frame);
                    }
                    self.checked += 1 + self.scope.selector.terms();
                    if self.checked >= CHECKED_AT_ONCE {
                        self.checked = 0;
                        yield_now().await;
                    }
                }
                Some(Ok(None)) => return None,
                Some(Err(_)) => {
                    self.has_ended = true;
                    let position = self.changes.position();
                    return Some(vec![error_frame(self.form, &expired(position, self.journal.last()))]);
                }
                None => {
                    self.has_ended = self.end <= Instant::now();
                    self.next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
                    if self.has_bookmarks {
                        return Some(self.bookmark(self.changes.position(), false));
                    }
                }
            }
        }
        None
    }

    /// The frame of a change, if the object is or was selected. An object that comes to be selected is ADDED, one
    /// that no longer is, DELETED.
    fn event(&mut self, change: &HeldChange<O>) -> Option<Vec<Bytes>> {
        let selected = |object: &'_ Option<O>| object.as_ref().is_some_and(|object| self.scope.has(object));
        let (was, is) = (selected(&change.old), selected(&change.new));
        let kind = match (was, is) {
            (false, false) => return None,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        let object = if is { change.new.as_ref() } else { change.old.as_ref() }?;
        if matches!(self.form, Form::Table(_)) {
            // It has ages, and a watcher of tables shows them to a person.
            let is_first = self.is_first_table();
            return Some(self.frame(kind, object, Some(change.number), is_first));
        }
        let encode = || self.frame(kind, object, Some(change.number), false);
        Some(self.frames.get(change.number, kind, self.form, encode))
    }

    /// Whether the next frame is the first one with a table, which has columns.
    fn is_first_table(&mut self) -> bool {
        matches!(self.form, Form::Table(_)) && !std::mem::replace(&mut self.has_columns, true)
    }

    fn frame(&self, kind: &'static str, object: &O, version: Option<u64>, has_columns: bool) -> Vec<Bytes> {
        let reading = Reading { version, ..self.server.reading() };
        form_frame(self.form, kind, self.form.object(object, reading, has_columns))
    }

    fn bookmark(&self, version: u64, ends_initial_events: bool) -> Vec<Bytes> {
        form_frame(self.form, "BOOKMARK", vec![self.form.bookmark::<O>(version, ends_initial_events)])
    }
}

/// Waits until the pods of all sources are known, for a time. The client lists next, and takes a pod that is
/// missing for deleted: so an agent that has just started lets it wait.
async fn until_sources_are_known(server: &Context) {
    let is_known = |merged: &Merged| {
        SourceName::ALL.into_iter().all(|source| merged.state(source) != Some(SourceState::Waiting))
    };
    let mut merged = server.view.merged.clone();
    // If a source stays unknown, the list has a warning.
    let _ = timeout(SYNC_TIMEOUT, merged.wait_for(is_known)).await;
}

/// A frame of the stream, a line of JSON, in chunks that share the text of a large object.
pub(super) fn frame(kind: &str, object: Vec<Bytes>) -> Vec<Bytes> {
    let head = Bytes::from(format!(r#"{{"type":"{kind}","object":"#));
    Chunks::new(iter::once(head).chain(object).chain([Bytes::from_static(b"}\n")])).collect()
}

/// A frame in a form, in chunks.
fn form_frame(form: Form, kind: &'static str, object: Vec<Bytes>) -> Vec<Bytes> {
    if form == Form::Protobuf { vec![protobuf::frame(kind, &object)] } else { frame(kind, object) }
}

pub(super) fn error_frame(form: Form, error: &ApiError) -> Bytes {
    let status = if form == Form::Protobuf { protobuf::status(error) } else { error.to_json().into() };
    form_frame(form, "ERROR", vec![status]).concat().into()
}

/// The error of a client whose next events are not held: it has to list again.
pub(super) fn expired(version: u64, current: u64) -> ApiError {
    let message = format!("too old resource version: {version} ({current})");
    ApiError::new(StatusCode::GONE, "Expired", message)
}

/// The error of a client that has a number which was not given out yet: another run's.
pub(crate) fn too_large(version: u64, current: u64) -> ApiError {
    let message = format!("Too large resource version: {version}, current: {current}");
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
        .cause("ResourceVersionTooLarge", "Too large resource version", "")
        .retry_after(1)
}
