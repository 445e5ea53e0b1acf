//! PATCH of a posted pod: the pod is read, patched, checked like a PUT, and written unless another write came between.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    iter,
    sync::Arc,
};

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, timeout_at},
};

use super::{
    form::Form,
    manifests::{self, Checked, field_manager},
    pods::{after_writes, check_owner, pod_response, posted_version, take_observed_version, write_error},
    resource::{Reading, Resource as _},
};
use crate::server::{
    context::{Context, Params},
    status::ApiError,
};
use crate::{
    history::SeenPod,
    manifest::patch::{LAST_APPLIED, LastApplied, MAX_PATCH, Patch, PatchError, PatchType, noted},
    pod::{Entry, Object, Pod, PodKey},
    source::http::{
        Applied, MAX_MANAGERS, ObstacleKind, Outcome, PATIENCE, Submitted, Write, WriteError, Written,
    },
    validation::MAX_ANNOTATIONS,
};

/// How often a patch is tried, each time on the newest pod, before it is a conflict.
const ATTEMPTS: usize = 5;
/// The field manager of `kubectl apply --server-side`.
const KUBECTL: &str = "kubectl";
/// Why a patch of an older pod is a conflict.
const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// One patch of a pod at a time, so that patches do not conflict with each other. Pods with the same number share a
/// turn.
#[derive(Debug, Default)]
pub(crate) struct Turns([Mutex<()>; 32]);

impl Turns {
    async fn of(&self, key: &PodKey) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let number = usize::try_from(hasher.finish() % self.0.len() as u64).unwrap_or_default();
        self.0[number].lock().await
    }
}

/// What the query of a PATCH asks for.
struct Options {
    /// Of the response.
    form: Form,
    dry_run: bool,
    /// Of an apply patch.
    manager: String,
}

/// `PATCH /api/v1/namespaces/{namespace}/pods/{name}`: patches a posted pod, or creates it by an apply patch.
pub(crate) async fn patch(
    State(server): State<Arc<Context>>,
    Extension(turns): Extension<Arc<Turns>>,
    params: Params,
    body: Bytes,
) -> Result<Response, ApiError> {
    let kind = patch_type(&params.headers)?;
    let options = Options::new(&params, kind)?;
    manifests::field_validation(&params)?;
    if body.len() > MAX_PATCH {
        return Err(too_large(format!("Request entity too large: limit is {MAX_PATCH}")));
    }
    let key = params.key();
    check_owner(&server, iter::once(&key))?;
    find(&server, &key, kind).await?;
    let length = body.len();
    let patch = server.decode(length, move || Patch::parse(kind, &body)).await?.map_err(patch_error)?;
    let patch = Arc::new(patch);
    // With the wait for its turn it takes as long as any write.
    let deadline = Instant::now() + PATIENCE;
    // A dry run waits for other dry runs, and real patches do not wait for it. Each patch before has an earlier deadline.
    let _turn = if options.dry_run { None } else { Some(turns.of(&key).await) };
    for _ in 0..ATTEMPTS {
        let attempted = timeout_at(deadline, attempt(&server, &params, &options, &patch, length)).await;
        match attempted.unwrap_or_else(|_| Err(write_error(&WriteError::Slow))) {
            Ok(None) => {}
            Ok(Some(response)) => return Ok(response),
            Err(error) => {
                // It may be because of a write that is not merged yet: who reads after the answer sees that write.
                let _ = timeout_at(deadline, after_writes(&server)).await;
                return Err(error);
            }
        }
    }
    Err(conflict(&key, MODIFIED))
}

/// Tries a patch. None if another write came between.
async fn attempt(
    server: &Arc<Context>,
    params: &Params,
    options: &Options,
    patch: &Arc<Patch>,
    length: usize,
) -> Result<Option<Response>, ApiError> {
    let key = params.key();
    let base = find(server, &key, patch.kind()).await?;
    let base = Base::new(server, base).await?;
    if patch.config().is_some() && base.applied.is_full_for(&options.manager) {
        let why = format!("Too many: {MAX_MANAGERS} field managers have applied the pod; use one of them");
        return Err(params.invalid_option("fieldManager", "FieldValueTooMany", &why));
    }
    let last =
        LastApplied { own: base.applied_by(&options.manager), others: base.applied.others(&options.manager) };
    let (decoding, work) = (manifests::Decoding::new(server, params, None)?, patch.clone());
    let (wanted, base_text) = (key.clone(), base.text.clone());
    let is_kubectl = patch.kind() == PatchType::Apply && options.manager == KUBECTL;
    let patched = move || Patched::new(&work, &base_text, &last, &wanted, &decoding, is_kubectl);
    let patched = server.decode(length + base.text.len(), patched).await??;
    let warnings = patched.warnings.clone();
    let written = write_patched(server, options, patch, (&base, &key), patched).await;
    Ok(written.map_err(|error| error.warned(&warnings))?.map(|pod| (warnings, pod).into_response()))
}

/// Writes the pod that a patch made of another one. None if another write came between.
async fn write_patched(
    server: &Context,
    options: &Options,
    patch: &Patch,
    (base, key): (&Base, &PodKey),
    patched: Patched,
) -> Result<Option<Response>, ApiError> {
    let Patched { mut pod, version, uid, .. } = patched;
    let is_conditional = version.is_some();
    if let Err(error) = base.check(server, key, version, uid).await {
        return if base.is_current(server, key) { Err(error) } else { Ok(None) };
    }
    if patch.kind() == PatchType::Apply {
        pod = pod.applied_by(&options.manager, patch.config());
    }
    *pod.resource_version_mut() = base.written();
    let write = if base.pod.is_some() { Write::Replace(pod) } else { Write::Create(pod) };
    let written = match server.view.posts.write(write, options.dry_run).await {
        Err(WriteError::Rejected(obstacles))
            if !is_conditional && obstacles.iter().all(|obstacle| is_race(&obstacle.what)) =>
        {
            return Ok(None);
        }
        written => written.map_err(|error| write_error(&error))?,
    };
    let Some(Written { outcome, pod }) = written.into_iter().next() else { return Ok(None) };
    let before = base.pod.as_ref().and_then(|pod| pod.resource_version());
    let code = if outcome == Outcome::Created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Some(pod_response(server, options.form, code, (&pod, before)).await.into_response()))
}

/// Whether a write fails only because another one came between.
fn is_race(what: &ObstacleKind) -> bool {
    matches!(what, ObstacleKind::Precondition(_) | ObstacleKind::NotFound | ObstacleKind::AlreadyExists)
}

/// The posted pod. Only an apply patch needs none.
async fn find(
    server: &Context,
    key: &PodKey,
    kind: PatchType,
) -> Result<Option<(Arc<Pod>, Applied)>, ApiError> {
    let found = server.view.posts.get_applied(key);
    if found.is_none() && kind != PatchType::Apply {
        // If the posted pods are not known, or the agent stops, that is the reason.
        after_writes(server).await?;
        return Err(ApiError::no_such_pod(key.name()));
    }
    Ok(found)
}

/// The pod that is patched, as a client reads it.
struct Base {
    pod: Option<Arc<Pod>>,
    applied: Applied,
    /// Its JSON; empty if it does not exist.
    text: Arc<[u8]>,
}

impl Base {
    async fn new(server: &Context, found: Option<(Arc<Pod>, Applied)>) -> Result<Self, ApiError> {
        let Some((pod, applied)) = found else {
            return Ok(Self { pod: None, applied: Applied::default(), text: Arc::from(*b"{}") });
        };
        // The view may be of another write than the posted pods, whose version is no version of this pod.
        let snapshot = server.snapshot().await?;
        let version = posted_version(&snapshot, &pod);
        let pieces = server.seen(&Entry::posted(pod.clone())).text(Reading { version, ..server.reading() });
        Ok(Self { text: pieces.concat().into(), pod: Some(pod), applied })
    }

    /// What a field manager applied last. kubectl may have applied on its own side too, which it notes in an
    /// annotation.
    fn applied_by(&self, manager: &str) -> Vec<Object> {
        let mut applied = vec![self.applied.of(manager)];
        if manager == KUBECTL {
            let pod: Object = serde_json::from_slice(&self.text).unwrap_or_default();
            applied.extend(noted(&pod));
        }
        applied
    }

    /// The resourceVersion of its last write.
    fn written(&self) -> Option<String> {
        self.pod.as_ref()?.resource_version().map(|version| version.to_string())
    }

    /// Whether the pod is still the posted one.
    fn is_current(&self, server: &Context, key: &PodKey) -> bool {
        let posted = server.view.posts.get(key);
        posted.as_ref().map(Arc::as_ptr) == self.pod.as_ref().map(Arc::as_ptr)
    }

    /// Checks the resourceVersion and the UID that the patched pod has, if they are not those of this pod.
    async fn check(
        &self,
        server: &Context,
        key: &PodKey,
        mut version: Option<String>,
        uid: Option<String>,
    ) -> Result<(), ApiError> {
        take_observed_version(server, key, &mut version).await;
        // As at an API server, a new pod may have a version.
        if self.pod.is_some() && version.is_some() && version != self.written() {
            return Err(conflict(key, MODIFIED));
        }
        let Some(uid) = uid else { return Ok(()) };
        if self.pod.is_none() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(conflict(key, &why));
        }
        let why = format!("Invalid value: {uid:?}: field is immutable");
        let message = format!("Pod {:?} is invalid: metadata.uid: {why}", key.name());
        let error = ApiError::invalid(message).about("Pod", key.name());
        Err(error.cause("FieldValueInvalid", why, "metadata.uid"))
    }
}

/// A pod after the patch.
struct Patched {
    pod: Submitted,
    /// The resourceVersion that the patch has set.
    version: Option<String>,
    /// The UID that the patch has set.
    uid: Option<String>,
    warnings: HeaderMap,
}

impl Patched {
    fn new(
        patch: &Patch,
        base: &[u8],
        last: &LastApplied,
        key: &PodKey,
        decoding: &manifests::Decoding,
        is_kubectl: bool,
    ) -> Result<Self, ApiError> {
        let base: Object = serde_json::from_slice(base).map_err(|_| ApiError::internal())?;
        let of = |pod: &Object, field: &str| {
            Some(in_metadata(pod, field)).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let (base_version, base_uid) = (of(&base, "resourceVersion"), of(&base, "uid"));
        let mut patched = patch.apply_to(base, last).map_err(patch_error)?;
        if is_kubectl {
            note_applied(&mut patched, patch);
        }
        check_name(&patched, key, patch.kind())?;
        let version = of(&patched, "resourceVersion").filter(|version| version != "0");
        let uid = of(&patched, "uid").filter(|uid| Some(uid) != base_uid.as_ref());
        for (field, value) in [("apiVersion", "v1".into()), ("kind", "Pod".into()), ("metadata", json!({}))] {
            if patched.get(field).is_none_or(Value::is_null) {
                patched.insert(field.to_owned(), value);
            }
        }
        if let Some(Value::Object(metadata)) = patched.get_mut("metadata") {
            // What is no text is left, and rejected with the pod.
            if metadata.get("resourceVersion").is_some_and(Value::is_string) {
                metadata.remove("resourceVersion");
            }
            metadata.entry("name").or_insert_with(|| key.name().into());
        }
        let Checked { pod, exceeded, warnings } = decoding.patched(patch, patched, key)?;
        if let Some(exceeded) = exceeded {
            return Err(write_error(&WriteError::Rejected(vec![exceeded])).warned(&warnings));
        }
        let version = version.filter(|version| Some(version) != base_version.as_ref());
        Ok(Self { pod, version, uid, warnings })
    }
}

/// Notes in the annotation of client-side `kubectl apply`, if there is one, what kubectl applies now, as an API server
/// does (`lastAppliedUpdater`): the next client-side apply removes what it no longer has. Without room for it the
/// annotation goes.
fn note_applied(pod: &mut Object, patch: &Patch) {
    fn annotations(pod: &mut Object) -> Option<&mut Object> {
        pod.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()
    }
    let Some(kept) = annotations(pod) else { return };
    if kept.get(LAST_APPLIED).is_none_or(|note| note == "") {
        return;
    }
    let mut config = patch.config().cloned().unwrap_or_default();
    annotations(&mut config).and_then(|given| given.remove(LAST_APPLIED));
    kept.insert(LAST_APPLIED.to_owned(), format!("{}\n", Value::from(config)).into());
    let length = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    if kept.iter().map(length).sum::<usize>() > MAX_ANNOTATIONS {
        kept.remove(LAST_APPLIED);
    }
}

/// A text in the metadata; empty if it is missing.
fn in_metadata<'p>(pod: &'p Object, field: &str) -> &'p str {
    pod.get("metadata").and_then(|metadata| metadata.get(field)?.as_str()).unwrap_or_default()
}

/// Checks that the pod still has its name and namespace.
fn check_name(pod: &Object, key: &PodKey, kind: PatchType) -> Result<(), ApiError> {
    let (name, namespace) = (in_metadata(pod, "name"), in_metadata(pod, "namespace"));
    if !namespace.is_empty() && namespace != key.namespace() {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(ApiError::bad_request(message));
    }
    if name.is_empty() && kind != PatchType::Apply {
        let message = format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            key.name()
        );
        return Err(ApiError::bad_request(message));
    }
    if !name.is_empty() && name != key.name() {
        let message =
            format!("the name of the object ({name}) does not match the name on the URL ({})", key.name());
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

fn conflict(key: &PodKey, why: &str) -> ApiError {
    let message = format!("Operation cannot be fulfilled on pods {:?}: {why}", key.name());
    ApiError::new(StatusCode::CONFLICT, "Conflict", message).about("pods", key.name())
}

fn too_large(message: String) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
}

fn patch_error(error: PatchError) -> ApiError {
    match error {
        PatchError::Malformed(message) => ApiError::bad_request(message),
        PatchError::Inapplicable(message) => ApiError::invalid(message),
        PatchError::TooLarge(message) => too_large(message),
    }
}

/// The type of the patch, from `Content-Type` without its parameters.
fn patch_type(headers: &HeaderMap) -> Result<PatchType, ApiError> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let given = given.split(';').next().unwrap_or_default().trim();
    let known = PatchType::ALL.into_iter().find(|kind| kind.media_type() == given);
    known.ok_or_else(|| {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            PatchType::ALL.map(PatchType::media_type).join(", ")
        );
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    })
}

impl Options {
    /// Reads the query as `ValidatePatchOptions` does (`apimachinery/pkg/apis/meta/v1/validation`).
    fn new(params: &Params, kind: PatchType) -> Result<Self, ApiError> {
        let manager = field_manager(params)?;
        let is_apply = kind == PatchType::Apply;
        if !is_apply && params.options("force").next().is_some() {
            let why = "Forbidden: may not be specified for non-apply patch";
            return Err(params.invalid_option("force", "FieldValueForbidden", why));
        }
        if is_apply && manager.is_empty() {
            let why = "Required value: is required for apply patch";
            return Err(params.invalid_option("fieldManager", "FieldValueRequired", why));
        }
        let form = Form::of::<SeenPod>(params, false)?;
        Ok(Self { form, dry_run: params.dry_run()?, manager: manager.to_owned() })
    }
}
