//! DELETE of pods: of one by its name, and of a collection.

use std::{fmt::Display, iter};

use axum::{extract::State, response::IntoResponse as _};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;

use super::{
    form::Form,
    objects::{check_version, object_list, scope},
    page::{Page, PageRequest},
    pods::{
        Answer, Server, check_owner, pod_response, take_observed_version, take_version_of, version,
        write_error, write_one,
    },
    resource::Reading,
    warnings::warning_header,
};
use crate::server::{
    body::BodyFormat,
    context::{Context, Params},
    status::ApiError,
};
use crate::{
    history::SeenPod,
    pod::SourceName,
    source::http::{Preconditions, Selected, Write},
};

/// How many pods a warning names at most.
const NAMED: usize = 10;

/// `DELETE /api/v1/namespaces/{namespace}/pods/{name}`: deletes a posted pod,
/// also one in conflict with another source's. The response is the pod.
pub(crate) async fn delete(State(server): Server, params: Params, body: Bytes) -> Answer {
    let form = Form::of::<SeenPod>(&params, false)?;
    let key = params.key();
    let Deletion { grace, mut preconditions, dry } = Deletion::read(&server, &params, body).await?;
    // A pod that is not known may be stored: the write says so.
    if server.view.posts.get(&key).is_none() {
        check_owner(&server, iter::once(&key))?;
    }
    take_observed_version(&server, &key, &mut preconditions.resource_version).await;
    let write = Write::Delete { key: key.clone(), grace, preconditions };
    let (pod, before) = write_one(&server, write, &key, dry).await?;
    Ok(pod_response(&server, form, StatusCode::OK, (&pod, before)).await)
}

/// `DELETE /api/v1/namespaces/{namespace}/pods`: deletes the posted pods that a list with the same parameters shows,
/// all of them or none. The response is this list, as it was before. Pods of other sources stay, and a warning names
/// them.
pub(crate) async fn delete_collection(State(server): Server, params: Params, body: Bytes) -> Answer {
    let form = Form::of::<SeenPod>(&params, true)?;
    let page = PageRequest::new(&params)?;
    let scope = scope::<SeenPod>(&params)?;
    let Deletion { grace, preconditions, dry } = Deletion::read(&server, &params, body).await?;
    let snapshot = server.snapshot().await?;
    check_version(&params, page.is_continued(), snapshot.seq)?;
    page.check(&*server.view.history)?;
    let (reading, reads) = (server.reading(), server.reads.clone());
    let select = move || {
        let seen = snapshot.merged.values().map(|entry| snapshot.seen(entry));
        let page = page.cut(seen, &scope, snapshot.seq);
        let is_posted = |seen: &SeenPod| seen.entry.source() == SourceName::Http;
        let (posted, others): (Vec<_>, Vec<_>) = page.objects.into_iter().partition(is_posted);
        let select = |seen: &SeenPod| {
            let (pod, mut preconditions) = (seen.entry.pod(), preconditions.clone());
            take_version_of(&snapshot, pod.key(), &mut preconditions.resource_version);
            Selected { key: pod.key().clone(), uid: pod.uid().clone(), preconditions }
        };
        let selected: Vec<Selected> = posted.iter().map(select).collect();
        let list = object_list(reads, form, Page { objects: posted, ..page }, move |seen| {
            form.item(seen, Reading { version: version(&snapshot, &seen.entry), ..reading })
        });
        (selected, list, kept(&others))
    };
    let (pods, list, warnings) = server.read(select).await?;
    let write = Write::DeleteSelected { pods, grace };
    server.view.posts.write(write, dry).await.map_err(|error| write_error(&error))?;
    Ok((warnings, list).into_response())
}

/// A warning that names selected pods of other sources.
fn kept(others: &[SeenPod]) -> HeaderMap {
    if others.is_empty() {
        return HeaderMap::new();
    }
    let name = |seen: &SeenPod| format!("{} ({})", seen.entry.pod().key().name(), seen.entry.source());
    let names: Vec<String> = others.iter().take(NAMED).map(name).collect();
    let more = if others.len() > NAMED { ", ..." } else { "" };
    // What is too long is cut off at the end.
    warning_header(&format!(
        "pods that were not posted stay, {} in all; remove them at their source: {}{more}",
        others.len(),
        names.join(", ")
    ))
}

/// How pods are deleted: the body and the query of a DELETE.
struct Deletion {
    /// The grace period in seconds; the pod's own if absent.
    grace: Option<i64>,
    preconditions: Preconditions,
    dry: bool,
}

impl Deletion {
    async fn read(server: &Context, params: &Params, body: Bytes) -> Result<Self, ApiError> {
        let format = BodyFormat::of(&params.headers)?;
        let options = server.decode(body.len(), move || DeleteOptions::read(&body, format)).await??;
        options.check_policy(params)?;
        let dry =
            params.dry_run()? | params.parse_dry_run(options.dry_run.iter().flatten().map(String::as_str))?;
        let grace = options.grace_period_seconds.or(params.number("gracePeriodSeconds")?);
        let given = |name: &str| Some(params.option(name)).filter(|text| !text.is_empty()).map(str::to_owned);
        let of_query = || Preconditions {
            uid: given("uid"),
            // That of a collection is the version of the list.
            resource_version: params.part("name").and_then(|_| given("resourceVersion")),
        };
        Ok(Self { grace, preconditions: options.preconditions.unwrap_or_else(of_query), dry })
    }
}

/// The body of a DELETE.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeleteOptions {
    kind: Option<String>,
    grace_period_seconds: Option<i64>,
    preconditions: Option<Preconditions>,
    dry_run: Option<Vec<String>>,
    /// About dependent objects, which do not exist here: checked and ignored.
    propagation_policy: Option<String>,
    /// The same, deprecated.
    orphan_dependents: Option<bool>,
}

/// The values of `propagationPolicy`.
const POLICIES: [&str; 3] = ["Background", "Foreground", "Orphan"];

impl DeleteOptions {
    fn read(text: &[u8], format: BodyFormat) -> Result<Self, ApiError> {
        if matches!(text.trim_ascii(), b"" | b"null") {
            return Ok(Self::default());
        }
        let bad = |error: &dyn Display| ApiError::bad_request(format!("invalid DeleteOptions: {error}"));
        let options = format.parse(text, "DeleteOptions")?;
        // serde would read an array as the fields in their order.
        if options["preconditions"].is_array() {
            return Err(bad(&"preconditions must be an object"));
        }
        let options: Self = serde_json::from_value(options).map_err(|error| bad(&error))?;
        match options.kind.as_deref() {
            // A client that sends a pod means another verb.
            Some(kind) if !matches!(kind, "" | "DeleteOptions") => {
                Err(bad(&format_args!("kind is {kind:?}: must be DeleteOptions or absent")))
            }
            _ => Ok(options),
        }
    }

    fn check_policy(&self, params: &Params) -> Result<(), ApiError> {
        let mut of_query = params.options("propagationPolicy");
        let Some(policy) = self.propagation_policy.as_deref().or_else(|| of_query.next()) else {
            return Ok(());
        };
        if self.orphan_dependents.is_some() || params.options("orphanDependents").next().is_some() {
            let why = format!(
                "Invalid value: {policy:?}: orphanDependents and deletionPropagation cannot be both set"
            );
            return Err(params.invalid_option("propagationPolicy", "FieldValueInvalid", &why));
        }
        if POLICIES.contains(&policy) {
            return Ok(());
        }
        Err(params.no_such_value("propagationPolicy", policy, &POLICIES))
    }
}
