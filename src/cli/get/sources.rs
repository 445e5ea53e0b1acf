//! `podmux get sources`: prints the state of each source and its problems.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::listed::{Listed, name, next_attempt, since};
use crate::{
    age::{age, duration},
    cli::{
        output::{items, text, time},
        table::{Cell, Row},
        terminal::{RED, YELLOW},
    },
    grouped::counted,
    source::ScanProgress,
};

/// How sources are shown.
pub(super) const SOURCES: Listed = Listed {
    plural: "sources",
    singular: "source",
    columns: &["NAME", "STATE", "PODS", "PROBLEMS", "LAST-SUCCESS", "TARGET"],
    wide: &["PHASE", "RESOURCE-VERSION", "LAST-EVENT", "NEXT-ATTEMPT", "DETAIL"],
    row,
    problem_columns: &["SOURCE", "POD", "REASON", "WINNER", "ORIGIN", "MESSAGE"],
    problem_rows,
};

fn row(source: &Value, is_wide: bool, now: Timestamp) -> Row {
    let problems = items(&source["problems"]).len() as u64 + more_problems(source);
    let count = Cell::new(&problems.to_string()).styled(if problems > 0 { YELLOW } else { "" });
    let last = Cell::new(&since(&source["lastSuccess"], now));
    let pods = Cell::new(&source["pods"].as_u64().unwrap_or_default().to_string());
    let mut row =
        vec![name(source).into(), state(source, now), pods, count, last, text(&source["target"]).into()];
    if is_wide {
        row.extend(reflector(&source["reflector"], now));
        row.push(text(&source["detail"]).into());
    }
    row
}

/// The state of a source, the age of a restored listing, whether the source also fails, and its progress.
pub(in crate::cli) fn state_text(source: &Value, now: Timestamp) -> String {
    let state = text(&source["state"]);
    let old = time(&source["restored"]).map(|since| format!("{} old", age(Some(since), now)));
    let fails = (source["failing"].is_object() && state != "failing").then(|| "failing".to_owned());
    let parts = [Some(state.to_owned()), old, fails, scanning(source)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn state(source: &Value, now: Timestamp) -> Cell {
    Cell::new(&state_text(source, now)).styled(match text(&source["state"]) {
        "failing" => RED,
        _ if source["failing"].is_object() => RED,
        "waiting" | "restored" => YELLOW,
        _ => "",
    })
}

/// How far a long first scan is.
fn scanning(source: &Value) -> Option<String> {
    let count = |field: &str| usize::try_from(source["scanning"][field].as_u64()?).ok();
    Some(ScanProgress { done: count("done")?, total: count("total")? }.to_string())
}

/// The state of a source's reflector: its phase, its position, the time of the server's last
/// event, and the time of the next attempt.
fn reflector(reflector: &Value, now: Timestamp) -> [Cell; 4] {
    [
        text(&reflector["phase"]).into(),
        text(&reflector["resourceVersion"]).into(),
        Cell::new(&since(&reflector["lastEvent"], now)),
        Cell::new(&next_attempt(&reflector["nextAttempt"], now)),
    ]
}

/// The failure of a source, then the problems of its manifests and pods.
fn problem_rows(source: &Value, wide: bool, now: Timestamp) -> Vec<Row> {
    let row = |pod: &str, reason: Cell, winner: &str, origin: &str, message: &str| {
        vec![name(source).into(), pod.into(), reason, winner.into(), origin.into(), message.into()]
    };
    let mut rows = Vec::new();
    let failing = &source["failing"];
    if failing.is_object() {
        let attempts = counted(failing["attempts"].as_u64().unwrap_or_default(), "attempt");
        let failing_for = age(time(&failing["since"]), now);
        let message = format!("{} (failing for {failing_for}, {attempts})", text(&failing["error"]));
        rows.push(row("", Cell::new("Failing").styled(RED), "", text(&source["target"]), &message));
    }
    for problem in items(&source["problems"]) {
        let text = |field: &str| text(&problem[field]);
        let messages = match items(&problem["details"]) {
            details @ [_, _, ..] if wide => details.iter().map(detail).collect(),
            _ => vec![text("message").to_owned()],
        };
        let winner = winner(&problem["winner"], text("pod"));
        rows.extend(messages.iter().map(|message| {
            let reason = Cell::new(text("reason")).styled(YELLOW);
            row(text("pod"), reason, &winner, text("origin"), message)
        }));
    }
    for warning in items(&source["warnings"]) {
        let text = |field: &str| text(&warning[field]);
        rows.push(row(text("pod"), Cell::new(text("reason")).styled(YELLOW), "", "", text("message")));
    }
    for kept in items(&source["kept"]) {
        let reason = Cell::new("Missing").styled(YELLOW);
        rows.push(row("", reason, "", text(&kept["origin"]), &kept_for(kept, now)));
    }
    if more_problems(source) > 0 {
        let message = format!("and {}, not listed", counted(more_problems(source), "more problem"));
        rows.push(row("", "".into(), "", "", &message));
    }
    rows
}

/// How long the pods of a manifest that is gone are kept.
pub(in crate::cli) fn kept_for(kept: &Value, now: Timestamp) -> String {
    match time(&kept["until"]) {
        Some(until) => format!(
            "the file is gone: its pods are removed in {}, unless it returns",
            duration(until.duration_since(now).max(SignedDuration::ZERO))
        ),
        None => "the file cannot be looked at: its pods are kept until it can".to_owned(),
    }
}

/// The owner of a name or UID: its source, its pod unless that has the same name, and its origin.
pub(in crate::cli) fn winner(winner: &Value, loser: &str) -> String {
    let text = |field: &str| text(&winner[field]);
    let pod = if text("pod") == loser { "" } else { text("pod") };
    // The origin of a posted or bound pod is its own key.
    let is_own = text("origin").is_empty() || text("origin") == text("pod");
    let origin = if is_own { String::new() } else { format!("({})", text("origin")) };
    [text("source"), pod, &origin].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// One problem of a manifest, in the format of `podmux validate`.
pub(in crate::cli) fn detail(detail: &Value) -> String {
    let place = detail["line"].as_u64().zip(detail["column"].as_u64());
    let place = place.map(|(line, column)| format!("{line}:{column}"));
    let text = |field: &str| detail[field].as_str().map(str::to_owned);
    let severity = text("severity").filter(|severity| severity == "warning");
    let parts = [place, severity, text("field"), text("detail")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// The number of problems that the response does not list.
pub(in crate::cli) fn more_problems(source: &Value) -> u64 {
    source["moreProblems"].as_u64().unwrap_or_default()
}
