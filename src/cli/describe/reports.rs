//! What the agent reports of pods and sources alike: problems and updates.

use serde_json::Value;

use super::page::Page;
use crate::cli::{
    get::{detail, kept_for, more_problems, winner},
    output::{items, text},
    table::{Cell, Row},
    terminal::YELLOW,
};

/// The problems of a pod or a source: rejected manifests with line and column, conflicts, ports that two pods want, and
/// manifests that are gone.
pub(super) fn problems(page: &mut Page, object: &Value) {
    let row = |reason: &str, origin: &Value, message: &str| -> Row {
        vec![Cell::new(reason).styled(YELLOW), text(origin).into(), "".into(), message.into()]
    };
    let warning = |warning: &Value| row(text(&warning["reason"]), &warning["pod"], text(&warning["message"]));
    let kept = |kept: &Value| row("Missing", &kept["origin"], &kept_for(kept, page.now));
    let rejections = items(&object["problems"]).iter().flat_map(problem);
    let warnings = items(&object["warnings"]).iter().map(warning);
    let rows: Vec<Row> = rejections.chain(warnings).chain(items(&object["kept"]).iter().map(kept)).collect();
    page.table("Problems", &["REASON", "ORIGIN", "WINNER", "MESSAGE"], &rows, more_problems(object));
}

/// The rows of a problem: one for each detail, if it has some.
fn problem(problem: &Value) -> Vec<Row> {
    let field = |name: &str| text(&problem[name]);
    let pod = Some(field("pod")).filter(|pod| !pod.is_empty() && *pod != field("origin"));
    let source = Some(field("source")).filter(|source| !source.is_empty());
    let origin: Vec<&str> = source.into_iter().chain([field("origin")]).chain(pod).collect();
    let origin = origin.join(" ");
    let row = |origin: &str, message: &str| {
        let reason = Cell::new(field("reason")).styled(YELLOW);
        vec![reason, origin.into(), winner(&problem["winner"], field("pod")).into(), message.into()]
    };
    let details = items(&problem["details"]);
    if details.is_empty() {
        return vec![row(&origin, field("message"))];
    }
    details.iter().map(|one| placed(&origin, one)).map(|(origin, message)| row(&origin, &message)).collect()
}

/// The origin with line and column, and the message, of a detail.
fn placed(origin: &str, one: &Value) -> (String, String) {
    let message = detail(one);
    match one["line"].as_u64().zip(one["column"].as_u64()) {
        Some((line, column)) => {
            let place = format!("{line}:{column}");
            let message = message.strip_prefix(&*format!("{place}: ")).unwrap_or(&message).to_owned();
            (format!("{origin}:{place}"), message)
        }
        None => (origin.to_owned(), message),
    }
}

/// The newest updates, the oldest of them first.
pub(super) fn updates(page: &mut Page, object: &Value) {
    let rows: Vec<Row> = items(&object["updates"]).iter().rev().map(|update| row(page, update)).collect();
    page.table("Updates", &["SEQ", "AGE", "OP", "SOURCE", "PODS"], &rows, 0);
}

fn row(page: &Page, update: &Value) -> Row {
    let mut pods: Vec<String> = items(&update["pods"]).iter().map(|key| text(key).to_owned()).collect();
    let more = update["podCount"].as_u64().unwrap_or_default().saturating_sub(pods.len() as u64);
    pods.extend((more > 0).then(|| format!("and {more} more")));
    vec![
        Cell::new(&update["seq"].to_string()),
        page.age(&update["time"]),
        text(&update["op"]).into(),
        text(&update["source"]).into(),
        Cell::new(&pods.join(",")),
    ]
}
