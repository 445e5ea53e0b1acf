//! `podmux describe source`: what it reads, how it is, its pods, problems and updates.

use serde_json::Value;

use super::{page::Page, reports};
use crate::{
    cli::{
        connection::{Connection, TABLE},
        failure::Failure,
        get::{next_attempt, pods_of},
        output::{items, number, text},
        status::Status,
        table::Row,
        terminal::{RED, YELLOW},
    },
    pod::SourceName,
};

/// How many pods are asked for.
const PODS: &str = "100";

pub(super) async fn describe(
    connection: &Connection,
    name: SourceName,
    page: &mut Page,
) -> Result<(), Failure> {
    let source = connection.get(&format!("/sources/{name}")).await.map_err(not_configured)?;
    let query = [("fieldSelector", &*pods_of(&[name])), ("limit", PODS)];
    let (pods, _) = connection.list("/api/v1/pods", &query, TABLE).await?;
    state(page, name, &source);
    let rows: Vec<Row> = items(&pods["rows"]).iter().map(pod).collect();
    let more = source["pods"].as_u64().unwrap_or_default().saturating_sub(rows.len() as u64);
    page.table("Pods", &["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"], &rows, more);
    reports::problems(page, &source);
    reports::updates(page, &source);
    Ok(())
}

/// What to do about a source that the agent does not have.
fn not_configured(failure: Failure) -> Failure {
    match failure {
        Failure::Server(status) if status.is_not_found() => {
            let message = format!("{}: podmux get sources lists those of this agent", status.message);
            Failure::Server(Status { message, ..status })
        }
        failure => failure,
    }
}

const fn kind(name: SourceName) -> &'static str {
    match name {
        SourceName::File => "manifests in a directory, or one manifest",
        SourceName::Http => "pods that clients posted",
        SourceName::Url => "manifests at a URL, polled",
        SourceName::Api => "pods that an API server has bound to this node",
    }
}

fn state(page: &mut Page, name: SourceName, source: &Value) {
    let field = |name: &str| text(&source[name]);
    let state = field("state");
    page.field("Name", field("name"));
    page.field("Kind", kind(name));
    page.field("Reads", field("target"));
    let style = match state {
        "failing" => RED,
        "synced" => "",
        _ => YELLOW,
    };
    page.styled("State", state, style);
    page.field("Detail", field("detail"));
    page.field("Restored from", &page.moment(&source["restored"]));
    page.field("Last success", &page.moment(&source["lastSuccess"]));
    let failing = &source["failing"];
    page.field("Failing since", &page.moment(&failing["since"]));
    page.field("Attempts", &number(&failing["attempts"]));
    page.styled("Last error", text(&failing["error"]), RED);
    let reflector = &source["reflector"];
    page.field("Phase", text(&reflector["phase"]));
    page.field("Version", text(&reflector["resourceVersion"]));
    page.field("Last event", &page.moment(&reflector["lastEvent"]));
    page.field("Next attempt", &next_attempt(&reflector["nextAttempt"], page.now));
}

/// The cells of a pod that are not for wide tables.
fn pod(row: &Value) -> Row {
    let shown = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned).into();
    let namespace = text(&row["object"]["metadata"]["namespace"]).into();
    std::iter::once(namespace).chain(items(&row["cells"]).iter().take(5).map(shown)).collect()
}
