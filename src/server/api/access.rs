//! Reviews: who a caller is, and what it may do (`kubectl auth whoami` and `auth can-i`).

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    discovery::{PATHS, documents},
    form::{Form, JSON, not_acceptable},
};
use crate::{
    manifest::protobuf,
    pod_columns::{items, text},
    server::{
        body::BodyFormat,
        context::{Context, Params, json_text},
        status::ApiError,
        transport::auth::Caller,
    },
};

type Answer = Result<Response, ApiError>;
type Who = Option<Extension<Caller>>;

const GROUP: &str = "authorization.k8s.io";

/// The verbs that change nothing. The read token permits these, and reviews.
const READS: [&str; 3] = ["get", "list", "watch"];

/// What a caller may do with one resource.
struct Rule {
    group: String,
    /// With its subresource: `pods/log`.
    resource: String,
    verbs: Vec<String>,
}

/// `POST …/selfsubjectreviews`: who the caller is.
pub(crate) async fn whoami(
    State(server): State<Arc<Context>>,
    who: Who,
    params: Params,
    body: Bytes,
) -> Answer {
    read(&params, &body, "SelfSubjectReview")?;
    let (name, group) = match caller(who) {
        Caller::Unix { uid } => (format!("podmux:uid:{uid}"), "system:authenticated"),
        Caller::Token => ("podmux:token".to_owned(), "system:authenticated"),
        Caller::ReadToken => ("podmux:read-token".to_owned(), "system:authenticated"),
        Caller::Certificate => ("podmux:certificate".to_owned(), "system:authenticated"),
        Caller::Anonymous => ("system:anonymous".to_owned(), "system:unauthenticated"),
    };
    let now = format!("{:.0}", server.view.host.clock.now());
    Ok(created(&json!({
        "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"creationTimestamp": now},
        "status": {"userInfo": {"username": name, "groups": [group]}},
    })))
}

/// `POST …/selfsubjectaccessreviews`: whether the caller may do something. What is not served is denied.
pub(crate) async fn can_i(who: Who, params: Params, body: Bytes) -> Answer {
    let spec = read(&params, &body, "SelfSubjectAccessReview")?["spec"].take();
    let allowed = match (&spec["resourceAttributes"], &spec["nonResourceAttributes"]) {
        (Value::Object(_), Value::Null) => may(caller(who), &spec["resourceAttributes"]),
        (Value::Null, Value::Object(_)) => may_path(caller(who), &spec["nonResourceAttributes"]),
        _ => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            let message =
                format!("SelfSubjectAccessReview.{GROUP} \"\" is invalid: spec.resourceAttributes: {why}");
            let error = ApiError::invalid(message).in_group(GROUP);
            return Err(error.cause("FieldValueInvalid", why, "spec.resourceAttributes"));
        }
    };
    let status = match allowed {
        Ok(()) => json!({"allowed": true}),
        Err(why) => json!({"allowed": false, "reason": why}),
    };
    Ok(created(&json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
        "spec": spec, "status": status,
    })))
}

/// `POST …/selfsubjectrulesreviews`: everything that the caller may do, in each namespace.
pub(crate) async fn rules(who: Who, params: Params, body: Bytes) -> Answer {
    let spec = read(&params, &body, "SelfSubjectRulesReview")?["spec"].take();
    if spec["namespace"].as_str().unwrap_or_default().is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let caller = caller(who);
    let of_resources = resource_rules(caller).into_iter().map(
        |Rule { group, resource, verbs }| json!({"verbs": verbs, "apiGroups": [group], "resources": [resource]}),
    );
    let of_paths = path_rules(caller).into_iter();
    let of_paths = of_paths.map(|(paths, verbs)| json!({"verbs": verbs, "nonResourceURLs": paths}));
    Ok(created(&json!({
        "kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": {},
        "status": {
            "resourceRules": of_resources.collect::<Vec<_>>(),
            "nonResourceRules": of_paths.collect::<Vec<_>>(),
            "incomplete": false,
        },
    })))
}

/// A router without the transport has no callers: they may do what anonymous ones may.
fn caller(who: Who) -> Caller {
    who.map_or(Caller::Anonymous, |Extension(caller)| caller)
}

fn created(review: &Value) -> Response {
    json_text(StatusCode::CREATED, format!("{review}\n")).into_response()
}

fn read(params: &Params, body: &[u8], kind: &str) -> Result<Value, ApiError> {
    // A review has no table.
    let accepted =
        Form::best(&params.headers, |range| range.form(false, false).filter(|form| *form == Form::Object));
    accepted.ok_or_else(|| not_acceptable(&[JSON]))?;
    let review = match BodyFormat::of(&params.headers)? {
        BodyFormat::Protobuf => {
            let bad = |problem| ApiError::bad_request(format!("invalid {kind}: {problem}"));
            let (kind, spec) = protobuf::review(body).map_err(bad)?;
            json!({"kind": kind, "spec": spec})
        }
        format => format.parse(body, kind)?,
    };
    match review["kind"].as_str() {
        None => Ok(review),
        Some(given) if given == kind => Ok(review),
        Some(other) => Err(ApiError::bad_request(format!("{other} cannot be handled as a {kind}"))),
    }
}

/// What a caller may do: all that discovery lists, but a read token only reads and asks for reviews.
fn resource_rules(caller: Caller) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (_, list) in documents() {
        let group = text(&list["groupVersion"]).rsplit_once('/').map_or("", |(group, _)| group);
        for resource in items(&list["resources"]) {
            let verbs = items(&resource["verbs"]).iter().map(|verb| text(verb).to_owned());
            // The resources of other groups are the reviews.
            let may = |verb: &String| {
                caller != Caller::ReadToken || !group.is_empty() || READS.contains(&verb.as_str())
            };
            let verbs = verbs.filter(may).collect();
            rules.push(Rule { group: group.to_owned(), resource: text(&resource["name"]).to_owned(), verbs });
        }
    }
    rules
}

/// Paths that are no resources, and the verbs that a caller may use there.
fn path_rules(caller: Caller) -> Vec<(Vec<&'static str>, Vec<&'static str>)> {
    let is_permitted = |path: &&str| {
        // Those below are resources.
        !path.starts_with("/api/") && (*path != "/credentials" || matches!(caller, Caller::Unix { .. }))
    };
    let reads = PATHS.into_iter().filter(is_permitted).chain([
        "/",
        "/pods/*",
        "/sources/*",
        "/api/*",
        "/apis/*",
        "/openapi/*",
    ]);
    let writes = (vec!["/pods"], vec!["post", "put"]);
    let writes = Some(writes).filter(|_| caller != Caller::ReadToken);
    Some((reads.collect(), vec!["get"])).into_iter().chain(writes).collect()
}

/// Whether a caller may do this with a resource, or why not.
fn may(caller: Caller, wanted: &Value) -> Result<(), String> {
    let text = |field: &str| wanted[field].as_str().unwrap_or_default();
    let (group, verb) = (text("group"), text("verb"));
    let resource = match text("subresource") {
        "" => text("resource").to_owned(),
        subresource => format!("{}/{subresource}", text("resource")),
    };
    let is_version = matches!(text("version"), "" | "*" | "v1");
    let rule = resource_rules(caller)
        .into_iter()
        .find(|rule| is_version && rule.group == group && rule.resource == resource);
    let verbs = rule.map(|rule| rule.verbs).unwrap_or_default();
    if verbs.iter().any(|known| known == verb) {
        return Ok(());
    }
    Err(if verbs.is_empty() {
        format!("the agent has no {resource}")
    } else {
        format!("the caller may {} {resource}", verbs.join(", "))
    })
}

/// Whether a caller may send requests with this method to a path, or why not.
fn may_path(caller: Caller, wanted: &Value) -> Result<(), String> {
    let text = |field: &str| wanted[field].as_str().unwrap_or_default();
    // HEAD is allowed where GET is.
    let (path, verb) = (text("path"), if text("verb") == "head" { "get" } else { text("verb") });
    let is_meant = |rule: &str| rule.strip_suffix('*').map_or(rule == path, |root| path.starts_with(root));
    let rules = path_rules(caller);
    let found =
        rules.iter().any(|(paths, verbs)| paths.iter().any(|rule| is_meant(rule)) && verbs.contains(&verb));
    found.then_some(()).ok_or_else(|| format!("the caller may not {verb} {path}"))
}
