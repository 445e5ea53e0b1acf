//! `podmux describe pod`: where it comes from, its spec, its defaults, its status, problems, updates and events.

use serde_json::Value;

use super::{page::Page, reports, spec};
use crate::{
    cli::{
        connection::Connection,
        failure::Failure,
        output::{items, number, pairs, text},
        table::{Cell, Row},
        terminal::{RED, YELLOW},
    },
    client::escaped,
    manifest::defaulted,
    pod::{Object, SEEN},
    pod_columns::PodColumns,
};

/// How many events are shown: the newest.
const MAX_EVENTS: usize = 20;

pub(super) async fn describe(connection: &Connection, pod: &Value, page: &mut Page) -> Result<(), Failure> {
    let (namespace, name) = (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
    let mut details = connection.get(&format!("/pods/{}/{}", escaped(namespace), escaped(name))).await?;
    if details["source"] == "file" {
        let source = connection.get("/sources/file").await?;
        let is_its_manifest = |kept: &&Value| kept["origin"] == details["origin"];
        details["kept"] = items(&source["kept"]).iter().filter(is_its_manifest).cloned().collect();
    }
    let happened = connection.events_of(pod).await?;
    identity(page, pod, &details);
    status(page, pod);
    spec::containers(page, pod);
    spec::volumes(page, &pod["spec"]);
    conditions(page, &pod["status"]);
    defaults(page, pod.as_object());
    reports::problems(page, &details);
    reports::updates(page, &details);
    events(page, &happened);
    Ok(())
}

fn identity(page: &mut Page, pod: &Value, details: &Value) {
    let metadata = &pod["metadata"];
    let seen = page.moment(&metadata["annotations"][SEEN]);
    page.field("Name", text(&metadata["name"]));
    page.field("Namespace", text(&metadata["namespace"]));
    page.field("Source", text(&details["source"]));
    page.field("Origin", &origin(details));
    page.field(if details["source"] == "http" { "Posted" } else { "Published" }, &seen);
    page.field("UID", text(&metadata["uid"]));
    page.field("Version", text(&metadata["resourceVersion"]));
    page.list("Labels", &pairs(&metadata["labels"]).collect::<Vec<_>>());
    page.field("Node", text(&pod["spec"]["nodeName"]));
    page.field("Priority", &number(&pod["spec"]["priority"]));
    page.field("Restart policy", text(&pod["spec"]["restartPolicy"]));
}

/// Where the source found the pod: a file or URL with the line, or the one who has posted or bound it.
fn origin(details: &Value) -> String {
    let (origin, target) = (text(&details["origin"]), text(&details["target"]));
    match text(&details["source"]) {
        "http" => "posted over the API".to_owned(),
        "api" => format!("API server {target}"),
        _ => details["line"].as_u64().map_or_else(|| origin.to_owned(), |line| format!("{origin}:{line}")),
    }
}

fn status(page: &mut Page, pod: &Value) {
    let (metadata, status) = (&pod["metadata"], &pod["status"]);
    let columns = PodColumns::of(pod, page.now);
    let style = match &*columns.status {
        "Terminating" => YELLOW,
        _ if status["phase"] == "Failed" => RED,
        _ => "",
    };
    page.styled("Status", &columns.status, style);
    page.field("Message", text(&status["message"]));
    let deleted = page.moment(&metadata["deletionTimestamp"]);
    page.field("Deleted at", &deleted);
    let grace = metadata["deletionGracePeriodSeconds"].as_i64();
    page.field("Grace period", &grace.map(|seconds| format!("{seconds}s")).unwrap_or_default());
    page.field("Started", &page.moment(&status["startTime"]));
    page.field("IP", text(&status["podIP"]));
    page.field("Ready", &columns.ready);
}

fn conditions(page: &mut Page, status: &Value) {
    let condition = |condition: &Value| -> Row {
        ["type", "status", "reason", "message"].map(|field| text(&condition[field]).into()).into()
    };
    let rows: Vec<Row> = items(&status["conditions"]).iter().map(condition).collect();
    page.table("Conditions", &["TYPE", "STATUS", "REASON", "MESSAGE"], &rows, 0);
}

fn defaults(page: &mut Page, pod: Option<&Object>) {
    let is_word = |text: &&str| !text.is_empty();
    let shown =
        |value: Value| value.as_str().filter(is_word).map_or_else(|| value.to_string(), str::to_owned);
    let row = |(field, value): (String, Value)| -> Row { vec![field.into(), Cell::new(&shown(value))] };
    let rows: Vec<Row> = pod.map(defaulted).unwrap_or_default().into_iter().map(row).collect();
    page.table("Defaults", &["FIELD", "VALUE"], &rows, 0);
}

fn events(page: &mut Page, events: &[Value]) {
    let older = events.len().saturating_sub(MAX_EVENTS);
    let row = |event: &Value| -> Row {
        let kind = text(&event["type"]);
        let style = if kind == "Warning" { YELLOW } else { "" };
        let count = event["count"].as_u64().unwrap_or(1).to_string();
        let message = text(&event["message"]).into();
        let age = page.age(&event["lastTimestamp"]);
        vec![age, Cell::new(&count), Cell::new(kind).styled(style), text(&event["reason"]).into(), message]
    };
    let rows: Vec<Row> = events[older..].iter().map(row).collect();
    page.table("Events", &["AGE", "COUNT", "TYPE", "REASON", "MESSAGE"], &rows, older as u64);
}
