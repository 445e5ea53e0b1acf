//! Decodes a request's body to prepared pods, with errors and warnings.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::warnings::{strict_text, warning_headers};
use crate::server::{
    body::{BodyFormat, SMALL_BODY},
    context::{Context, Params},
    status::ApiError,
};
use crate::{
    host::Random,
    manifest::{
        self, Generate, Manifest, Preparation, Syntax, UNKNOWN_FIELD,
        patch::{Patch, PatchType},
        protobuf, yaml,
    },
    pod::{InvalidManifest, Object, PodKey, Prepared, Problem, SecurityLevel, Severity, SourceName, Stage},
    source::http::{Obstacle, ObstacleKind, Room, SMALL_POD, Submitted},
};

/// The longest name of a field manager, in bytes (`FieldManagerMaxLength`).
const MAX_MANAGER: usize = 128;

/// The field manager of a write; empty if absent (`apimachinery/pkg/apis/meta/v1/validation`).
pub(super) fn field_manager(params: &Params) -> Result<&str, ApiError> {
    let manager = params.option("fieldManager");
    let (reason, why) = if manager.len() > MAX_MANAGER {
        ("FieldValueTooLong", format!("Too long: may not be more than {MAX_MANAGER} bytes"))
    } else if manager.chars().any(char::is_control) {
        let why = format!("Invalid value: {manager:?}: should only contain printable characters");
        ("FieldValueInvalid", why)
    } else {
        return Ok(manager);
    };
    Err(params.invalid_option("fieldManager", reason, &why))
}

/// What to do about unknown fields and duplicate keys: `Strict`, `Ignore` or, by default, `Warn`.
pub(super) fn field_validation(params: &Params) -> Result<&str, ApiError> {
    match params.option("fieldValidation") {
        known @ ("" | "Warn" | "Strict" | "Ignore") => Ok(known),
        other => Err(params.no_such_value("fieldValidation", other, &["Ignore", "Warn", "Strict"])),
    }
}

/// The pods of a body, and the warning headers of the response.
pub(crate) struct DecodedBody {
    pub(crate) pods: Vec<Submitted>,
    pub(crate) has_list: bool,
    /// Why the body certainly exceeds the quota. The pods after this one were not decoded.
    pub(crate) exceeded: Option<Obstacle>,
    /// Whether a body without pods has an empty `items`.
    pub(crate) is_empty_list: bool,
    pub(crate) warnings: HeaderMap,
}

/// Decodes a request's body as a manifest. One invalid pod rejects the whole body.
///
/// # Errors
/// 400 if it cannot be decoded or violates `fieldValidation=Strict`; 422 with every problem if
/// its pods are invalid; 403 if a valid pod exceeds the level of the source; 415 as for
/// [`BodyFormat::of`].
pub(crate) async fn read(server: &Context, params: &Params, body: Bytes) -> Result<DecodedBody, ApiError> {
    let decoding = Decoding::new(server, params, Some(names(server)))?;
    let validation = decoding.validation.clone();
    let format = BodyFormat::of(&params.headers)?;
    let text = body.clone();
    // Kubernetes' own paths, which take a single pod.
    let is_pod = params.part("namespace").is_some();
    let decode = move || {
        let decoded = decoding.decode(&text, format, is_pod);
        decoded.map_err(|refusal| (refusal, name_in(&text, format)))
    };
    let decoded = server.decode(body.len(), decode).await?;
    // As in the API, where the path says that the body is a pod.
    let check_fields = |problems: &[Problem]| match strict(problems) {
        Err(error) if is_pod => Err(error.prefixed("Pod in version \"v1\" cannot be handled as a Pod: ")),
        checked => checked,
    };
    let (manifest, Kept { pods, has_finalizers, exceeded }) = match decoded {
        Ok(decoded) => decoded,
        Err((refusal, name)) => {
            // A misspelt field comes before the error that the right one is missing.
            if validation == "Strict" && refusal.stage != Stage::Decode {
                check_fields(&refusal.problems)?;
            }
            let warnings = warnings_of(&refusal, &validation);
            let error = rejection(refusal, format, is_pod, name.as_deref());
            return Err(error.warned(&warnings));
        }
    };
    let Manifest { has_list, warnings, .. } = manifest;
    if validation == "Strict" {
        check_fields(&warnings)?;
    }
    let warnings = warning_headers(&warnings, &validation);
    if let Some(key) = has_finalizers {
        return Err(finalizers(&key).warned(&warnings));
    }
    // A large body is not parsed again.
    let is_empty_list = pods.is_empty()
        && body.len() <= SMALL_BODY
        && value_of(&body, format).is_some_and(|list| list["items"].is_array());
    Ok(DecodedBody { pods, has_list, exceeded, is_empty_list, warnings })
}

/// How pods are decoded.
pub(super) struct Decoding {
    preparation: Preparation,
    level: SecurityLevel,
    room: Room,
    validation: String,
}

/// A pod that a patch has made, and the warning headers of the response.
pub(super) struct Checked {
    pub(super) pod: Submitted,
    /// Why it certainly exceeds the quota.
    pub(super) exceeded: Option<Obstacle>,
    pub(super) warnings: HeaderMap,
}

impl Decoding {
    pub(super) fn new(
        server: &Context,
        params: &Params,
        generate: Option<Generate>,
    ) -> Result<Self, ApiError> {
        // podmux's paths have the namespace in the query instead.
        let of_query = Some(params.option("namespace")).filter(|namespace| !namespace.is_empty());
        let namespace = params.part("namespace").or(of_query).map(str::to_owned);
        let node = server.view.node.clone();
        Ok(Self {
            preparation: Preparation { source: SourceName::Http, node, generate, namespace },
            level: *server.view.pod_security.borrow(),
            room: server.view.posts.room(),
            validation: field_validation(params)?.to_owned(),
        })
    }

    fn decode(
        &self,
        text: &[u8],
        format: BodyFormat,
        is_pod: bool,
    ) -> Result<(Manifest, Kept), InvalidManifest> {
        let (mut kept, mut room) = (Kept::default(), self.room);
        let mut keep = |pod: Prepared| {
            let finalizers = pod.metadata("finalizers").and_then(serde_json::Value::as_array);
            if kept.has_finalizers.is_none() && finalizers.is_some_and(|finalizers| !finalizers.is_empty()) {
                kept.has_finalizers = Some(pod.key().clone());
            }
            // YAML may repeat much by aliases, and the defaults of many tiny pods are larger than the body.
            let is_small = format == BodyFormat::Json && text.len() <= SMALL_POD && kept.pods.is_empty();
            let pod = if is_small { Submitted::small(pod) } else { Submitted::from(pod) };
            let exceeded = room.take(pod.size()).err();
            kept.exceeded =
                exceeded.map(|error| Obstacle { key: pod.key().clone(), what: ObstacleKind::Quota(error) });
            kept.pods.push(pod);
            kept.exceeded.is_none()
        };
        let syntax = match format {
            BodyFormat::Json => Syntax::Json,
            BodyFormat::Protobuf => Syntax::Protobuf,
            BodyFormat::Yaml | BodyFormat::Form => Syntax::Yaml,
        };
        let manifest = manifest::admit_each(text, syntax, is_pod, &self.preparation, self.level, &mut keep)?;
        Ok((manifest, kept))
    }

    /// Decodes and checks a patched pod as [`read`] does a body.
    pub(super) fn patched(&self, patch: &Patch, pod: Object, key: &PodKey) -> Result<Checked, ApiError> {
        let text = serde_json::to_vec(&pod).map_err(|_| ApiError::internal())?;
        // It is many times as large as its text.
        drop(pod);
        let (manifest, kept) = self.decode(&text, BodyFormat::Json, true).map_err(|refusal| {
            let warnings = warnings_of(&refusal, &self.validation);
            rejection(refusal, BodyFormat::Json, true, Some(key.name())).warned(&warnings)
        })?;
        let mut warnings: Vec<Problem> = patch.problems().iter().cloned().chain(manifest.warnings).collect();
        for warning in &mut warnings {
            warning.position = None;
        }
        let is_apply = patch.kind() == PatchType::Apply;
        let is_unknown = |warning: &&Problem| warning.detail.starts_with(UNKNOWN_FIELD);
        if let Some(unknown) = warnings.iter().find(is_unknown).filter(|_| is_apply) {
            let field = unknown.field.as_deref().unwrap_or_default();
            return Err(ApiError::bad_request(format!(
                "failed to create typed patch object ({key}; /v1, Kind=Pod): .{field}: field not declared in schema"
            )));
        }
        if self.validation == "Strict" {
            strict(&warnings).map_err(|error| if is_apply { error } else { strict_patch(&error) })?;
        }
        let warnings = warning_headers(&warnings, &self.validation);
        if manifest.has_list {
            let error = ApiError::bad_request("the patched pod is a list: a patch cannot change its kind");
            return Err(error.warned(&warnings));
        }
        if let Some(key) = kept.has_finalizers {
            return Err(finalizers(&key).warned(&warnings));
        }
        let pod = kept.pods.into_iter().next().ok_or_else(ApiError::internal)?;
        Ok(Checked { pod, exceeded: kept.exceeded, warnings })
    }
}

/// The error of unknown and duplicate fields with `Strict`.
fn strict_patch(error: &ApiError) -> ApiError {
    let why = format!("Invalid value: {}", error.message());
    let message = format!("patch is invalid: patch: {why}");
    ApiError::invalid(message).cause("FieldValueInvalid", why, "patch")
}

/// Rejects a pod with finalizers: nothing on the node would ever remove them.
fn finalizers(key: &PodKey) -> ApiError {
    let name = key.name();
    let why = "Forbidden: no controller of podmux removes finalizers, so the pod could never be deleted; \
        remove the field";
    let message = format!("Pod {name:?} is invalid: metadata.finalizers: {why}");
    ApiError::invalid(message).about("Pod", name).cause("FieldValueForbidden", why, "metadata.finalizers")
}

/// Generates names that no merged and no posted pod has. Two concurrent requests can still
/// generate the same name; then the second one is answered with a conflict.
fn names(server: &Context) -> Generate {
    let (merged, posted) = (server.view.merged.borrow().clone(), server.view.posts.all());
    let is_taken = move |key: &PodKey| merged.get(key).is_some() || posted.contains_key(key);
    let random = server.view.host.random.clone();
    Generate { letters: Arc::new(move || suffix(&random)), is_taken: Arc::new(is_taken) }
}

/// What is kept of a body's pods while they are decoded one after the other.
#[derive(Default)]
struct Kept {
    pods: Vec<Submitted>,
    /// The first pod with finalizers.
    has_finalizers: Option<PodKey>,
    exceeded: Option<Obstacle>,
}

/// The `Status` of a rejected body.
///
/// As in the API, the code is 400 if the body cannot be decoded, 422 with the fields in
/// `details.causes` if it is invalid, and 403 if a pod exceeds the level of the source. A value of the
/// wrong type is 422 here and 400 there: its field is known, so the response names it.
///
/// On Kubernetes' own paths there is no position in JSON: a client wrote it, not its user.
fn rejection(mut refusal: InvalidManifest, format: BodyFormat, is_pod: bool, name: Option<&str>) -> ApiError {
    if is_pod && format == BodyFormat::Json {
        let fields = refusal.problems.iter_mut().filter(|problem| problem.field.is_some());
        fields.for_each(|problem| problem.position = None);
    }
    let errors: Vec<&Problem> =
        refusal.problems.iter().filter(|problem| problem.severity == Severity::Error).collect();
    if refusal.stage == Stage::Security {
        let (pods, violations) = match (name, &errors[..]) {
            (Some(name), [violation]) => (format!("pods {name:?}"), violation.detail.clone()),
            _ => ("pods".to_owned(), joined(&errors)),
        };
        let message = format!("{pods} is forbidden: {violations}");
        let status = ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message)
            .about("pods", name.unwrap_or_default());
        // An API server has no causes.
        return if is_pod { status } else { with_causes(status, &errors, "FieldValueForbidden") };
    }
    if errors.iter().all(|error| error.field.is_none()) {
        let hint = match format {
            BodyFormat::Form => " (curl -d removes newlines: use curl --data-binary)",
            _ => "",
        };
        return ApiError::bad_request(format!("the body cannot be decoded: {}{hint}", joined(&errors)));
    }
    let what = name.map_or_else(|| "the body".to_owned(), |name| format!("Pod {name:?}"));
    let message = format!("{what} is invalid: {}", joined(&errors));
    let status = ApiError::invalid(message).about("Pod", name.unwrap_or_default());
    with_causes(status, &errors, "FieldValueInvalid")
}

/// An error with a cause for each problem, with this reason unless the problem has one.
fn with_causes(status: ApiError, problems: &[&Problem], reason: &str) -> ApiError {
    problems.iter().fold(status, |status, problem| {
        let position = problem.position.map(|(line, column)| format!(" (line {line}, column {column})"));
        let message = format!("{}{}", problem.detail, position.unwrap_or_default());
        status.cause(problem.reason.unwrap_or(reason), message, problem.field.as_deref().unwrap_or_default())
    })
}

/// The warnings about a rejected body. As at a kube-apiserver, one that cannot be decoded has none.
fn warnings_of(refusal: &InvalidManifest, validation: &str) -> HeaderMap {
    match refusal.stage {
        Stage::Decode => HeaderMap::new(),
        _ => warning_headers(&refusal.problems, validation),
    }
}

/// The name of the single pod of a rejected body.
fn name_in(text: &[u8], format: BodyFormat) -> Option<String> {
    let body = value_of(text, format)?;
    let metadata = body.get("metadata")?;
    let name = metadata.get("name").or_else(|| metadata.get("generateName"))?;
    name.as_str().map(str::to_owned)
}

/// The value of a body.
fn value_of(text: &[u8], format: BodyFormat) -> Option<Value> {
    if format == BodyFormat::Protobuf {
        return protobuf::decode(text, "Pod").ok();
    }
    yaml::to_json(str::from_utf8(text).ok()?).ok()
}

/// The problems in one text; several are in brackets, as in the API.
fn joined(problems: &[&Problem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    match &texts[..] {
        [one] => one.clone(),
        _ => format!("[{}]", texts.join(", ")),
    }
}

fn strict(warnings: &[Problem]) -> Result<(), ApiError> {
    let texts: Vec<String> = warnings.iter().filter_map(strict_text).collect();
    if texts.is_empty() {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("strict decoding error: {}", texts.join(", "))))
}

/// Five random letters for the end of a generated name, from the API's alphabet: without vowels,
/// so that they form no words, and without similar characters (`apimachinery/pkg/util/rand`).
fn suffix(random: &Random) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut bytes = [0; 8];
    random.fill(&mut bytes);
    let number = u64::from_le_bytes(bytes);
    let letters = (0..5).map(|place| number / 27_u64.pow(place) % 27);
    letters.map(|letter| char::from(LETTERS[usize::try_from(letter).unwrap_or(0)])).collect()
}
