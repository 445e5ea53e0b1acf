//! READY, STATUS and RESTARTS as kubectl shows them.

use jiff::{SignedDuration, Timestamp};
use podmux::pod_columns::PodColumns;
use serde_json::{Value, json};

const NOW: &str = "2026-11-21T09:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// A container's status from its marks: a name, `+` ready, `!` started, `*RESTARTS`, `@SECONDS` since
/// the last end; then `running`, `waiting[:REASON]` or `terminated:EXITCODE[:REASON|#SIGNAL]`, or no state.
fn container(text: &str) -> Value {
    let mut words = text.split_whitespace();
    let mut status = json!({"name": "", "ready": false, "restartCount": 0, "state": {}, "lastState": {}});
    for word in words.by_ref() {
        let state = word.split_once(':').unwrap_or((word, ""));
        match (word.chars().next().unwrap(), state) {
            ('+', _) => status["ready"] = true.into(),
            ('!', _) => status["started"] = true.into(),
            ('*', _) => status["restartCount"] = word[1..].parse::<i64>().unwrap().into(),
            ('@', _) => {
                let ended = now() - SignedDuration::from_secs(word[1..].parse().unwrap());
                status["lastState"] = json!({"terminated": {"exitCode": 1, "finishedAt": ended.to_string()}});
            }
            (_, ("running", _)) => status["state"] = json!({"running": {"startedAt": NOW}}),
            (_, ("waiting", "")) => status["state"] = json!({"waiting": {}}),
            (_, ("waiting", reason)) => status["state"] = json!({"waiting": {"reason": reason}}),
            (_, ("terminated", how)) => {
                let (code, reason) = how.split_once(':').unwrap_or((how, ""));
                let (code, signal) = code.split_once('#').unwrap_or((code, "0"));
                let number = |text: &str| text.parse::<i64>().unwrap();
                let mut ended = json!({"exitCode": number(code), "signal": number(signal)});
                if !reason.is_empty() {
                    ended["reason"] = reason.into();
                }
                status["state"] = json!({ "terminated": ended });
            }
            (_, (name, _)) => status["name"] = name.into(),
        }
    }
    status
}

/// A pod from its phase (and `PHASE/REASON`), its init containers, the number of its containers, and the
/// statuses of both, separated by commas.
fn pod(phase: &str, init: &[&str], containers: usize, init_statuses: &str, statuses: &str) -> Value {
    let (phase, reason) = phase.split_once('/').unwrap_or((phase, ""));
    let list = |text: &str| -> Value {
        text.split(',').filter(|text| !text.is_empty()).map(container).collect::<Vec<_>>().into()
    };
    let init = init.iter().map(|name| {
        let policy = name.strip_suffix('~').map(|_| "Always");
        json!({"name": name.trim_end_matches('~'), "restartPolicy": policy})
    });
    json!({
        "metadata": {},
        "spec": {"initContainers": init.collect::<Vec<_>>(), "containers": vec![json!({}); containers]},
        "status": {
            "phase": phase, "reason": reason,
            "initContainerStatuses": list(init_statuses), "containerStatuses": list(statuses),
        },
    })
}

fn shown(pod: &Value) -> [String; 3] {
    let PodColumns { ready, status, restarts } = PodColumns::of(pod, now());
    [ready, status, restarts]
}

fn with_condition(mut pod: Value, name: &str, status: &str, reason: &str) -> Value {
    pod["status"]["conditions"] = json!([{"type": name, "status": status, "reason": reason}]);
    pod
}

fn deleted(mut pod: Value) -> Value {
    pod["metadata"]["deletionTimestamp"] = NOW.into();
    pod
}

/// `TestPrintPod`
#[test]
fn the_columns_are_those_of_kubectl() {
    let phase = "podPhase";
    let day = 24 * 3600;
    let (five, ten, twenty) = (5 * day, 10 * day, 20 * day);
    for (pod, expected) in [
        (pod(phase, &[], 2, "", "+ *3 running,*3"), ["1/2", "podPhase", "6"]),
        (pod(phase, &[], 2, "", "+ *3 running,*3 waiting:WaitingReason"), ["1/2", "WaitingReason", "6"]),
        (pod(phase, &[], 2, "", "*3 waiting:First,*3 terminated:0:Second"), ["0/2", "First", "6"]),
        (pod(phase, &[], 2, "", "+ *3 running,+ *3"), ["1/2", "podPhase", "6"]),
        (pod("podPhase/podReason", &[], 2, "", "+ *3 running,+ *3"), ["1/2", "podReason", "6"]),
        (pod("Running", &[], 2, "", "+ *3 terminated:0:Completed,+ *3 running"), ["1/2", "NotReady", "6"]),
        (
            with_condition(
                pod("Running", &[], 2, "", "+ *3 terminated:0:Completed,+ *3 running"),
                "Ready",
                "True",
                "",
            ),
            ["1/2", "Running", "6"],
        ),
        (pod(phase, &["i"], 1, "*3 @10 running", "waiting"), ["0/1", "Init:0/1", "3 (10s ago)"]),
        (pod(phase, &["i", "j"], 1, "*3 @10 running,waiting", "waiting"), ["0/1", "Init:0/2", "3 (10s ago)"]),
        (
            pod(phase, &["i", "j"], 1, "terminated:0,*3 @10 running", "waiting"),
            ["0/1", "Init:1/2", "3 (10s ago)"],
        ),
        (
            pod(phase, &["i", "j"], 1, "*2 @120 terminated:0,*3 @10 running", "waiting"),
            ["0/1", "Init:1/2", "5 (10s ago)"],
        ),
        (
            pod("Running", &["i"], 1, "*2 @120 terminated:0", "*4 @20 running"),
            ["0/1", "Running", "4 (20s ago)"],
        ),
        (pod("Running", &[], 1, "", &format!("+ *3 @{five} running")), ["1/1", "Running", "3 (5d ago)"]),
        (
            pod("Running", &[], 2, "", &format!("+ running,+ *3 @{ten} running")),
            ["2/2", "Running", "3 (10d ago)"],
        ),
        (
            pod("Running", &[], 2, "", &format!("+ *6 @{five} running,+ *3 @{twenty} running")),
            ["2/2", "Running", "9 (5d ago)"],
        ),
        (
            with_condition(pod(phase, &[], 2, "", ""), "PodScheduled", "False", "SchedulingGated"),
            ["0/2", "SchedulingGated", "0"],
        ),
        (pod("Succeeded", &[], 1, "", "terminated:0:Completed"), ["0/1", "Completed", "0"]),
        (pod("Failed", &[], 1, "", "terminated:1:Error"), ["0/1", "Error", "0"]),
        (deleted(pod("Succeeded", &[], 1, "", "terminated:0:Completed")), ["0/1", "Completed", "0"]),
        (deleted(pod("Running", &[], 1, "", "running")), ["0/1", "Terminating", "0"]),
        (deleted(pod("Pending", &[], 1, "", "")), ["0/1", "Terminating", "0"]),
        (pod("Failed", &[], 2, "", "terminated:1:podCrash,+ running"), ["1/2", "podCrash", "0"]),
        (pod("Failed", &[], 2, "", "+ running,terminated:1:podCrash"), ["1/2", "podCrash", "0"]),
        (
            pod("Failed", &[], 3, "", "+ running,+ terminated:1:podCrash,+ terminated:0"),
            ["1/3", "podCrash", "0"],
        ),
        (pod("Failed", &[], 3, "", "running,terminated:1:podCrash,terminated:0"), ["0/3", "podCrash", "0"]),
    ] {
        assert_eq!(shown(&pod), expected, "{pod}");
    }
}

/// `TestPrintPodWithRestartableInitContainer`
#[test]
fn init_containers_that_stay_count_as_containers() {
    let both = &["i~", "j~"];
    let initialized = |pod, status| with_condition(pod, "Initialized", status, "");
    for (pod, expected) in [
        (
            initialized(pod("Pending", both, 1, "i *3 @10 running,j waiting", "waiting"), "False"),
            ["0/3", "Init:0/2", "3 (10s ago)"],
        ),
        (
            initialized(pod("Pending", both, 1, "i ! *3 @10 running,j running", "waiting"), "False"),
            ["0/3", "Init:1/2", "3 (10s ago)"],
        ),
        (
            initialized(
                pod("Running", both, 1, "i ! *3 @10 running,j ! running", "+ *4 @20 running"),
                "True",
            ),
            ["1/3", "Running", "7 (10s ago)"],
        ),
        (
            initialized(
                pod(
                    "Succeeded",
                    both,
                    1,
                    "i *3 @10 terminated:137:Error,j terminated:137:Error",
                    "*4 @20 terminated:0:Completed",
                ),
                "True",
            ),
            ["0/3", "Completed", "7 (10s ago)"],
        ),
        (pod("Running", &["i", "s~"], 1, "other,i,s", "other,c"), ["0/2", "Init:0/2", "0"]),
    ] {
        assert_eq!(shown(&pod), expected, "{pod}");
    }
}

#[test]
fn what_a_container_ended_with_or_waits_for_is_shown() {
    for (pod, expected) in [
        (pod("Pending/Wanted", &[], 1, "", ""), ["0/1", "Wanted", "0"]),
        (pod("", &[], 0, "", ""), ["0/0", "", "0"]),
        (
            pod("Running", &[], 1, "", "*7 @300 waiting:CrashLoopBackOff"),
            ["0/1", "CrashLoopBackOff", "7 (5m ago)"],
        ),
        (pod("Running", &[], 1, "", "terminated:3"), ["0/1", "ExitCode:3", "0"]),
        (pod("Running", &[], 1, "", "terminated:137#9"), ["0/1", "Signal:9", "0"]),
        (pod("Pending", &["i"], 1, "terminated:3", "waiting"), ["0/1", "Init:ExitCode:3", "0"]),
        (pod("Pending", &["i"], 1, "terminated:137#9", "waiting"), ["0/1", "Init:Signal:9", "0"]),
        (pod("Pending", &["i"], 1, "terminated:1:Error", "waiting"), ["0/1", "Init:Error", "0"]),
        (pod("Pending", &["i"], 1, "waiting:ErrImagePull", "waiting"), ["0/1", "Init:ErrImagePull", "0"]),
        (pod("Pending", &["i"], 1, "waiting:PodInitializing", "waiting"), ["0/1", "Init:0/1", "0"]),
        (deleted(pod("Running/NodeLost", &[], 1, "", "+ running")), ["1/1", "Unknown", "0"]),
        (pod("Running", &[], 2, "", "terminated:0:Completed,terminated:1:Error"), ["0/2", "Error", "0"]),
        (
            pod("Running", &[], 2, "", "terminated:0:Completed,terminated:0:Completed"),
            ["0/2", "Completed", "0"],
        ),
    ] {
        assert_eq!(shown(&pod), expected, "{pod}");
    }
}
