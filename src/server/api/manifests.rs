//! From a request's body to prepared pods: what is refused and what is warned of.

use std::{fmt::Write as _, sync::Arc};

use axum::body::Body;
use http::{HeaderMap, HeaderValue, StatusCode, header::WARNING};
use uuid::Uuid;

use crate::server::{
    body::{Format, Input, SMALL_BODY},
    context::{Context, Params, blocking},
    status::ApiError,
};
use crate::{
    manifest::{self, Generate, Manifest, Preparation, yaml},
    pod::{InvalidManifest, PodKey, Prepared, Problem, Severity, SourceName, Stage},
};

/// How long one warning may be, in characters, and all of an answer together, in
/// bytes: those of kube-apiserver (`apiserver/pkg/endpoints/filters/warning.go`).
const MAX_WARNING: usize = 256;
const MAX_WARNINGS: usize = 4096;

/// How the decoder's warnings begin that `Strict` makes errors.
const UNKNOWN_FIELD: &str = crate::manifest::UNKNOWN_FIELD;
const DUPLICATE_KEY: &str = crate::manifest::DUPLICATE_KEY;

/// What to do about fields that nobody knows and keys that stand twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldValidation {
    Strict,
    Warn,
    Ignore,
}

impl FieldValidation {
    fn of(asked: &Params) -> Result<Self, ApiError> {
        match asked.option("fieldValidation") {
            "" | "Warn" => Ok(Self::Warn),
            "Strict" => Ok(Self::Strict),
            "Ignore" => Ok(Self::Ignore),
            other => Err(ApiError::no_such_value(
                asked.options_kind(),
                "fieldValidation",
                other,
                &["Ignore", "Warn", "Strict"],
            )),
        }
    }
}

/// The pods of a body, and the warnings that its answer bears.
pub(in crate::server) struct Given {
    pub(in crate::server) pods: Vec<Prepared>,
    pub(in crate::server) has_list: bool,
    pub(in crate::server) warnings: HeaderMap,
}

/// Reads a request's body as a manifest: all of it is good, or nothing is taken.
///
/// # Errors
/// 400 if it cannot be read at all, or is not what `fieldValidation=Strict`
/// wants; 422 with every problem if it can be read and its pods cannot be; 413
/// and 415 as [`Input::read`] says.
pub(in crate::server) async fn read(
    server: &Context,
    asked: &Params,
    headers: &HeaderMap,
    body: Body,
) -> Result<Given, ApiError> {
    let validation = FieldValidation::of(asked)?;
    let input = Input::read(headers, body, &server.large_bodies).await?;
    let preparation = Preparation {
        source: SourceName::Http,
        node: server.view.node.clone(),
        generate: Some(names(server)),
        // On podmux's own paths the query may say what Kubernetes' paths say themselves.
        namespace: asked
            .part("namespace")
            .or(Some(asked.option("namespace")).filter(|namespace| !namespace.is_empty()))
            .map(str::to_owned),
    };
    let format = input.format;
    let text = input.text.clone();
    let decode = move || decode(&text, format, &preparation);
    let decoded = if input.text.len() > SMALL_BODY { blocking(decode).await? } else { decode() };
    let Manifest { pods, has_list, warnings } =
        decoded.map_err(|refusal| refused(&refusal, format, name_in(&input.text).as_deref()))?;
    if validation == FieldValidation::Strict {
        strict(&warnings)?;
    }
    let warnings =
        if validation == FieldValidation::Ignore { HeaderMap::new() } else { headers_of(&warnings) };
    Ok(Given { pods, has_list, warnings })
}

/// How names are generated: such that no pod has them, of whatever source, nor
/// a posted one that is shadowed or being deleted. Two requests that are read at
/// once may yet be given the same name; then the second one is told so.
fn names(server: &Context) -> Generate {
    let (merged, posted) = (server.view.merged.borrow().clone(), server.view.posts.all());
    let is_taken = move |key: &PodKey| merged.get(key).is_some() || posted.contains_key(key);
    Generate { letters: suffix, is_taken: Arc::new(is_taken) }
}

fn decode(text: &[u8], format: Format, preparation: &Preparation) -> Result<Manifest, InvalidManifest> {
    if format == Format::Json
        && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(text)
    {
        let place = Some((whole(error.line()), whole(error.column())));
        let detail = format!("not JSON: {}", without_place(&error));
        return Err(InvalidManifest {
            stage: Stage::Decode,
            problems: vec![Problem::error(detail).at(place)],
        });
    }
    manifest::read(text, preparation)
}

fn whole(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The error without the ` at line 3 column 5` at its end.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split_once(" at line ").map_or(&*text, |(what, _)| what).to_owned()
}

/// A refused body as a `Status`.
///
/// As at the API the code is 400 if there is nothing in the body that could be
/// looked at, and 422 with the fields in `details.causes` if there is. A value of
/// the wrong type is 422 here and 400 there: its field is known, so it is told.
fn refused(refusal: &InvalidManifest, format: Format, name: Option<&str>) -> ApiError {
    let errors: Vec<&Problem> =
        refusal.problems.iter().filter(|problem| problem.severity == Severity::Error).collect();
    if errors.iter().all(|error| error.field.is_none()) {
        let hint = match format {
            Format::Form => " (if this was curl -d: it takes newlines away, --data-binary does not)",
            _ => "",
        };
        return ApiError::bad_request(format!("the body cannot be read: {}{hint}", joined(&errors)));
    }
    let what = name.map_or_else(|| "the body".to_owned(), |name| format!("Pod {name:?}"));
    let message = format!("{what} is invalid: {}", joined(&errors));
    let mut status = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
        .about("Pod", name.unwrap_or_default());
    for error in errors {
        let place = error.position.map(|(line, column)| format!(" (line {line}, column {column})"));
        let message = format!("{}{}", error.detail, place.unwrap_or_default());
        let field = error.field.as_deref().unwrap_or_default();
        status = status.cause(error.reason.unwrap_or("FieldValueInvalid"), message, field);
    }
    status
}

/// The name of the pod that a refused body is about, if it is about one. A
/// large body is not read again for that.
fn name_in(text: &[u8]) -> Option<String> {
    let text = str::from_utf8(text).ok().filter(|text| text.len() <= SMALL_BODY)?;
    let body = yaml::to_json(text).ok()?;
    let metadata = body.get("metadata")?;
    let name = metadata.get("name").or_else(|| metadata.get("generateName"))?;
    name.as_str().map(str::to_owned)
}

/// All of them in one text, in brackets if they are several, as the API does.
fn joined(problems: &[&Problem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    match &texts[..] {
        [one] => one.clone(),
        _ => format!("[{}]", texts.join(", ")),
    }
}

/// A warning in the API's words, if it is one of those that `Strict` refuses.
fn strict_text(warning: &Problem) -> Option<String> {
    let field = warning.field.as_deref()?;
    let rest = warning.detail.strip_prefix(UNKNOWN_FIELD);
    let unknown = rest.map(|rest| format!("unknown field {field:?}{rest}"));
    unknown
        .or_else(|| warning.detail.starts_with(DUPLICATE_KEY).then(|| format!("duplicate field {field:?}")))
}

fn strict(warnings: &[Problem]) -> Result<(), ApiError> {
    let texts: Vec<String> = warnings.iter().filter_map(strict_text).collect();
    if texts.is_empty() {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("strict decoding error: {}", texts.join(", "))))
}

/// The warnings as headers: `299 - "unknown field \"spec.foo\""`. As many as fit.
fn headers_of(warnings: &[Problem]) -> HeaderMap {
    let (mut headers, mut room) = (HeaderMap::new(), MAX_WARNINGS);
    for warning in warnings {
        let text = strict_text(warning).unwrap_or_else(|| {
            Problem { severity: Severity::Error, position: None, ..warning.clone() }.to_string()
        });
        let value = quoted(&text);
        let Some(rest) = room.checked_sub(value.len()) else { break };
        room = rest;
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.append(WARNING, value);
        }
    }
    headers
}

/// A warning's header: the code of a lasting one, no agent, and a quoted text of
/// visible ASCII.
fn quoted(text: &str) -> String {
    let mut value = "299 - \"".to_owned();
    for c in text.chars().take(MAX_WARNING) {
        match c {
            '"' | '\\' => value.extend(['\\', c]),
            ' '..='~' => value.push(c),
            // Writing to memory cannot fail.
            _ => drop(write!(value, "\\\\u{{{:x}}}", u32::from(c))),
        }
    }
    value.push('"');
    value
}

/// Five random letters for the end of a generated name, from those that the API
/// uses: no vowels, so that they spell nothing, and nothing that looks like
/// something else (`apimachinery/pkg/util/rand`).
fn suffix() -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut number = Uuid::new_v4().as_u128();
    // The lowest bits of a random UUID are all random.
    let mut letter = || {
        let letter = LETTERS[usize::try_from(number % 27).unwrap_or(0)];
        number /= 27;
        char::from(letter)
    };
    (0..5).map(|_| letter()).collect()
}
