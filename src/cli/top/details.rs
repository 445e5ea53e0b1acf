//! An open pod of `podmux top` as labels and texts: its status, conditions, containers and events. Pure.

use jiff::Timestamp;
use serde_json::Value;

use super::model::shown;
use crate::{
    age::age,
    cli::output::{items, pairs, text, time},
    pod_columns::PodColumns,
};

/// How many events are shown, the last ones.
const MAX_EVENTS: usize = 50;
/// How many labels, conditions and containers are shown of each kind.
const MAX_ITEMS: usize = 100;

/// The labels and texts of a pod, as the API has it, and of its events.
pub fn details(pod: &Value, events: &[Value], now: Timestamp) -> Vec<(String, String)> {
    let (metadata, status) = (&pod["metadata"], &pod["status"]);
    let PodColumns { ready, status: state, restarts } = PodColumns::of(pod, now);
    let since = |value: &Value| time(value).map(|time| age(Some(time), now)).unwrap_or_default();
    let field = |value: &Value| text(value).to_owned();
    let mut lines = vec![
        ("Status", state),
        ("Ready", ready),
        ("Restarts", restarts),
        ("Reason", field(&status["reason"])),
        ("Message", field(&status["message"])),
        ("Age", since(&metadata["creationTimestamp"])),
        ("Deleted", since(&metadata["deletionTimestamp"])),
        ("Source", field(&metadata["annotations"][crate::pod::SOURCE])),
        ("UID", field(&metadata["uid"])),
        ("Node", field(&pod["spec"]["nodeName"])),
        ("IP", field(&status["podIP"])),
    ];
    lines.extend(pairs(&metadata["labels"]).take(MAX_ITEMS).map(|label| ("Label", label)));
    lines.extend(items(&status["conditions"]).iter().take(MAX_ITEMS).map(|condition| {
        let of = |name: &str| text(&condition[name]);
        let parts = [&*format!("{}={}", of("type"), of("status")), of("reason"), of("message")];
        ("Condition", parts.join(" ").trim_end().to_owned())
    }));
    for (label, spec, statuses) in [
        ("Init", "initContainers", "initContainerStatuses"),
        ("Container", "containers", "containerStatuses"),
    ] {
        let containers = items(&pod["spec"][spec]).iter().take(MAX_ITEMS);
        lines.extend(containers.map(|spec| (label, container(spec, items(&status[statuses])))));
    }
    let events = events.iter().skip(events.len().saturating_sub(MAX_EVENTS));
    lines.extend(events.map(|event| {
        let of = |name: &str| text(&event[name]);
        let count = event["count"].as_u64().filter(|count| *count > 1);
        let count = count.map(|count| format!(" ({count} times)")).unwrap_or_default();
        let ago = since(&event["lastTimestamp"]);
        ("Event", format!("{ago} ago {} {}: {}{count}", of("type"), of("reason"), of("message")))
    }));
    let lines = lines.into_iter().filter(|(_, text)| !text.is_empty());
    lines.map(|(label, text)| (label.to_owned(), shown(&text))).collect()
}

/// A container on one line: its image, its state, and why.
fn container(spec: &Value, statuses: &[Value]) -> String {
    let name = text(&spec["name"]);
    let mut line = format!("{name} {}", text(&spec["image"]));
    let Some(status) = statuses.iter().find(|status| text(&status["name"]) == name) else { return line };
    if let Some((state, why)) = status["state"].as_object().and_then(|state| state.iter().next()) {
        let parts = [state, text(&why["reason"]), text(&why["message"])];
        line = format!("{line}: {}", parts.join(" ").trim_end());
        if let Some(code) = why["exitCode"].as_i64() {
            line = format!("{line} exit code {code}");
        }
    }
    if status["ready"] == true {
        line.push_str(", ready");
    }
    match status["restartCount"].as_u64() {
        Some(restarts @ 1..) => format!("{line}, restarts {restarts}"),
        _ => line,
    }
}
