//! What the handlers of all resources share: pages of lists, single objects and watches.

use std::{iter, sync::Arc};

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, header::CONTENT_TYPE};

use super::{
    form::Form,
    page::Page,
    protobuf,
    resource::{Reading, Resource},
    select::{Scope, Selector},
    watch::{Frames, WatchOptions, WatchRequest, too_large},
};
use crate::server::{
    body::{chunked, made_by_chunk},
    context::{Context, Params, json_text},
    reads::Reads,
    slots::Watchers,
    status::ApiError,
};

/// The end of a list: of its items and of the list itself.
pub(super) const LIST_END: Bytes = Bytes::from_static(b"]}\n");
pub(super) const NEWLINE: Bytes = Bytes::from_static(b"\n");

/// More objects than this are many. Their list is made off the runtime, because selectors and versions read the text of
/// each, and while it is sent.
pub(super) const MANY: usize = 500;

/// The objects that a request selects.
pub(super) fn scope<O: Resource>(params: &Params) -> Result<Scope, ApiError> {
    let (labels, fields) = (params.option("labelSelector"), params.option("fieldSelector"));
    let selector = Selector::with_fields(O::FIELDS, labels, fields)?;
    Ok(Scope { namespace: params.part("namespace").map(str::to_owned), selector })
}

/// The watch that a request asks for.
pub(super) fn watch_request<O: Resource>(
    server: &Context,
    watchers: Watchers,
    frames: Arc<Frames>,
    params: &Params,
) -> Result<WatchRequest, ApiError> {
    Ok(WatchRequest {
        watchers,
        frames,
        form: Form::of::<O>(params, false)?,
        options: WatchOptions::new(params, server.view.host.random.fraction())?,
        scope: scope::<O>(params)?,
    })
}

/// A response with an object.
pub(super) fn response<O: Resource>(form: Form, object: &O, reading: Reading) -> Response {
    encoded(form, StatusCode::OK, form.object(object, reading, true))
}

/// A response with an object that is encoded already. JSON gets a newline.
pub(super) fn encoded(form: Form, code: StatusCode, pieces: Vec<Bytes>) -> Response {
    let newline = (form != Form::Protobuf).then_some(NEWLINE);
    let body = chunked(pieces.into_iter().chain(newline));
    (code, [(CONTENT_TYPE, form.content_type(false))], body).into_response()
}

/// Checks the requested resource version against the current number of the update stream
/// (`apimachinery/pkg/apis/meta/internalversion/validation`).
pub(super) fn check_version(params: &Params, is_continued: bool, seq: u64) -> Result<(), ApiError> {
    let wanted = params.number::<u64>("resourceVersion")?;
    params.number::<i64>("timeoutSeconds")?;
    let rule = params.option("resourceVersionMatch");
    if !matches!(rule, "" | "Exact" | "NotOlderThan") {
        return Err(params.no_such_value("resourceVersionMatch", rule, &["Exact", "NotOlderThan"]));
    }
    let why = match wanted {
        _ if rule.is_empty() => None,
        None => Some("resourceVersionMatch is forbidden unless resourceVersion is provided"),
        _ if is_continued => Some("resourceVersionMatch is forbidden when continue is provided"),
        Some(0) if rule == "Exact" => {
            Some("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
        }
        Some(_) => None,
    };
    if let Some(why) = why {
        return Err(forbidden(params, "resourceVersionMatch", why));
    }
    if params.options("sendInitialEvents").next().is_some() {
        return Err(forbidden(params, "sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    let Some(wanted) = wanted else { return Ok(()) };
    if is_continued && wanted > 0 {
        return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
    }
    check_given(Some(wanted), seq)?;
    // As at an API server, the first page of a version is of that version.
    let is_page =
        rule.is_empty() && wanted > 0 && params.number::<i64>("limit")?.is_some_and(|limit| limit > 0);
    if (rule == "Exact" || is_page) && wanted < seq {
        let message = format!(
            "the list of resource version {wanted} is not available any more: the current one is {seq}"
        );
        return Err(ApiError::new(StatusCode::GONE, "Expired", message));
    }
    Ok(())
}

/// Checks that a version was given out already.
pub(super) fn check_given(wanted: Option<u64>, seq: u64) -> Result<(), ApiError> {
    wanted.filter(|wanted| *wanted > seq).map_or(Ok(()), |wanted| Err(too_large(wanted, seq)))
}

/// 422: an option is not allowed with the others.
fn forbidden(params: &Params, option: &str, why: &str) -> ApiError {
    params.invalid_option(option, "FieldValueForbidden", &format!("Forbidden: {why}"))
}

/// A page of a list. A long one, and what is not the shared text of objects, is made when it is sent: a client that reads
/// slowly holds nothing of its own.
pub(super) fn object_list<O: Resource>(
    reads: Reads,
    form: Form,
    page: Page<O>,
    item: impl Fn(&O) -> Vec<Bytes> + Send + 'static,
) -> Response {
    let Page { objects, seq, next, remaining } = page;
    // The token is base64 and needs no quoting.
    let next = next.as_ref().map(|next| format!(r#","continue":"{next}""#)).unwrap_or_default();
    let remaining = remaining.map(|count| format!(r#","remainingItemCount":{count}"#)).unwrap_or_default();
    let metadata = format!(r#"{{"resourceVersion":"{seq}"{next}{remaining}}}"#);
    if form == Form::Protobuf {
        return protobuf::list(reads, &metadata, objects.iter().map(item));
    }
    let is_long = objects.len() > MANY;
    let head = Bytes::from(form.list_head(&metadata, O::KIND, O::COLUMNS));
    let items = objects.into_iter().enumerate().flat_map(move |(index, object)| {
        let comma = (index > 0).then_some(Bytes::from_static(b","));
        comma.into_iter().chain(item(&object))
    });
    let pieces = iter::once(head).chain(items).chain([LIST_END]);
    if is_long || form != Form::Object {
        return json_text(StatusCode::OK, made_by_chunk(reads, pieces)).into_response();
    }
    let pieces: Vec<Bytes> = pieces.collect();
    json_text(StatusCode::OK, chunked(pieces.into_iter())).into_response()
}
