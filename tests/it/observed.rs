//! What is observed of a pod, as a kubelet writes it.
#![allow(clippy::too_many_lines, reason = "expected output is long")]

use std::{fmt::Write as _, sync::Arc};

use expect_test::{Expect, expect};
use jiff::Timestamp;
use podmux::{
    pod::{Entry, ListingBuilder, Origin, Prepared, SourceName},
    runtime::{Activity, ActualPod, Failing, ObservedPod, PodProgress, Wait, observe, runtime_hash},
};
use serde_json::{Value, json};

fn at(minute: u8) -> Timestamp {
    format!("2026-11-21T09:{minute:02}:00.9Z").parse().unwrap()
}

fn entry_of(pod: Value) -> Entry {
    let mut builder = ListingBuilder::new(SourceName::Api);
    builder.put(&Origin::from("test"), vec![Prepared::from_value(pod).unwrap()], at(0));
    builder.listing().values().next().unwrap().clone()
}

/// A pod with an init container, one that stays, and a container.
fn three() -> Value {
    json!({
        "metadata": {"name": "web", "uid": "1"},
        "spec": {
            "initContainers": [
                {"name": "migrate", "image": "m:1"},
                {"name": "proxy", "image": "p:1", "restartPolicy": "Always"},
            ],
            "containers": [{"name": "app", "image": "a:1"}],
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    })
}

fn plain() -> Value {
    let mut pod = three();
    pod["spec"]["initContainers"].take();
    pod
}

fn actual(entry: &Entry, started: Option<Timestamp>) -> ActualPod {
    ActualPod {
        key: entry.pod().key().clone(),
        uid: entry.pod().uid().clone(),
        hash: runtime_hash(entry.pod()).into(),
        source: entry.source(),
        is_ours: true,
        is_complete: true,
        started,
        status: None,
    }
}

fn given(entry: &Entry, status: Value) -> ActualPod {
    ActualPod { status: Some(Arc::new(status)), ..actual(entry, Some(at(1))) }
}

fn progress(activity: Activity, reason: Option<&'static str>) -> PodProgress {
    let failing = reason.map(|reason| Failing {
        since: podmux::host::Moment::at(at(2)),
        attempts: 3,
        next_attempt: at(3),
        reason,
        error: "no such image".into(),
    });
    PodProgress { uid: "1".into(), activity, since: at(2), failing }
}

/// The status of a pod that is observed for the first time.
fn status(entry: &Entry, actual: Option<&ActualPod>, progress: Option<&PodProgress>) -> Value {
    let observed = observe(entry, actual, progress, None, at(5)).unwrap();
    assert_eq!(&observed.uid, entry.pod().uid());
    // With itself as what was observed last nothing changes, whatever the time is.
    assert_eq!(observe(entry, actual, progress, Some(&observed), at(50)), Some(observed.clone()));
    (*observed.status).clone()
}

/// The status in short: phase, reason and message; each container; each condition with the minute of its time.
fn short(status: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let minute = |time: &Value| {
        let time: Timestamp = text(time).parse().unwrap();
        assert_eq!(time.subsec_nanosecond(), 0);
        time.to_string()[14..16].to_owned()
    };
    let line = |parts: &[String]| format!("{}\n", parts.join(" ").trim_end());
    let mut out = line(&["phase", "reason", "message"].map(|field| text(&status[field])));
    writeln!(out, "started {}", minute(&status["startTime"])).unwrap();
    for list in ["initContainerStatuses", "containerStatuses"] {
        for container in status[list].as_array().into_iter().flatten() {
            let is = |field: &str| if container[field] == true { format!("{field} ") } else { String::new() };
            let name = text(&container["name"]);
            writeln!(out, "- {name} {}{}{}", is("ready"), is("started"), container["state"]).unwrap();
        }
    }
    for condition in status["conditions"].as_array().unwrap() {
        let since = minute(&condition["lastTransitionTime"]);
        let fields = ["type", "status", "reason", "message"].map(|field| text(&condition[field]));
        write!(out, "{since} {}", line(&fields)).unwrap();
    }
    out
}

fn check(entry: &Entry, actual: Option<&ActualPod>, progress: Option<&PodProgress>, expect: &Expect) {
    expect.assert_eq(&short(&status(entry, actual, progress)));
}

#[test]
fn a_pod_that_no_worker_has_taken_up_is_not_observed() {
    assert_eq!(observe(&entry_of(three()), None, None, None, at(5)), None);
    let other = ObservedPod { uid: "0".into(), status: Arc::new(json!({"phase": "Running"})) };
    assert_eq!(observe(&entry_of(three()), None, None, Some(&other), at(5)), None, "it is another pod");
}

#[test]
fn a_complete_pod_counts_as_running_and_ready_since_its_start() {
    let entry = entry_of(three());
    check(
        &entry,
        Some(&actual(&entry, Some(at(1)))),
        None,
        &expect![[r#"
        Running
        started 01
        - migrate ready {"terminated":{"exitCode":0,"reason":"Completed"}}
        - proxy ready started {"running":{"startedAt":"2026-11-21T09:01:00Z"}}
        - app ready started {"running":{"startedAt":"2026-11-21T09:01:00Z"}}
        01 PodReadyToStartContainers True
        01 Initialized True
        01 Ready True
        01 ContainersReady True
        01 PodScheduled True
    "#]],
    );
    let entry = entry_of(plain());
    let whole = status(&entry, Some(&actual(&entry, None)), None);
    expect![[r#"
        {
          "conditions": [
            {
              "lastTransitionTime": "2026-11-21T09:05:00Z",
              "status": "True",
              "type": "PodReadyToStartContainers"
            },
            {
              "lastTransitionTime": "2026-11-21T09:05:00Z",
              "status": "True",
              "type": "Initialized"
            },
            {
              "lastTransitionTime": "2026-11-21T09:05:00Z",
              "status": "True",
              "type": "Ready"
            },
            {
              "lastTransitionTime": "2026-11-21T09:05:00Z",
              "status": "True",
              "type": "ContainersReady"
            },
            {
              "lastTransitionTime": "2026-11-21T09:05:00Z",
              "status": "True",
              "type": "PodScheduled"
            }
          ],
          "containerStatuses": [
            {
              "image": "a:1",
              "imageID": "",
              "name": "app",
              "ready": true,
              "restartCount": 0,
              "started": true,
              "state": {
                "running": {}
              }
            }
          ],
          "phase": "Running",
          "qosClass": "BestEffort",
          "startTime": "2026-11-21T09:05:00Z"
        }
    "#]]
    .assert_eq(&format!("{whole:#}\n"));
}

#[test]
fn a_pod_that_is_started_waits() {
    let syncing = progress(Activity::Syncing, None);
    check(
        &entry_of(plain()),
        None,
        Some(&syncing),
        &expect![[r#"
        Pending
        started 05
        - app {"waiting":{"reason":"ContainerCreating"}}
        05 PodReadyToStartContainers False
        05 Initialized True
        05 Ready False ContainersNotReady containers with unready status: [app]
        05 ContainersReady False ContainersNotReady containers with unready status: [app]
        05 PodScheduled True
    "#]],
    );
    check(
        &entry_of(three()),
        None,
        Some(&syncing),
        &expect![[r#"
        Pending
        started 05
        - migrate {"waiting":{"reason":"PodInitializing"}}
        - proxy {"waiting":{"reason":"PodInitializing"}}
        - app {"waiting":{"reason":"PodInitializing"}}
        05 PodReadyToStartContainers False
        05 Initialized False ContainersNotInitialized containers with incomplete status: [migrate proxy]
        05 Ready False ContainersNotReady containers with unready status: [proxy app]
        05 ContainersReady False ContainersNotReady containers with unready status: [proxy app]
        05 PodScheduled True
    "#]],
    );
}

#[test]
fn containers_are_in_the_order_of_their_names_and_init_containers_in_that_of_the_spec() {
    let mut pod = three();
    pod["spec"]["initContainers"][1]["name"] = "dig".into();
    pod["spec"]["containers"] = json!([{"name": "web", "image": "a:1"}, {"name": "app", "image": "a:1"}]);
    let status = status(&entry_of(pod), None, Some(&progress(Activity::Syncing, None)));
    let names = |list: &str| [0, 1].map(|index| status[list][index]["name"].clone());
    assert_eq!(names("initContainerStatuses"), ["migrate", "dig"]);
    assert_eq!(names("containerStatuses"), ["app", "web"]);
}

#[test]
fn a_failure_is_the_reason_why_the_containers_wait() {
    let failing = progress(Activity::BackingOff, Some("ErrImagePull"));
    let entry = entry_of(plain());
    check(
        &entry,
        None,
        Some(&failing),
        &expect![[r#"
        Pending
        started 05
        - app {"waiting":{"message":"no such image","reason":"ErrImagePull"}}
        05 PodReadyToStartContainers False
        05 Initialized True
        05 Ready False ContainersNotReady containers with unready status: [app]
        05 ContainersReady False ContainersNotReady containers with unready status: [app]
        05 PodScheduled True
    "#]],
    );
    let partial = ActualPod { is_complete: false, ..actual(&entry, Some(at(1))) };
    check(
        &entry,
        Some(&partial),
        Some(&failing),
        &expect![[r#"
        Pending
        started 01
        - app {"waiting":{"message":"no such image","reason":"ErrImagePull"}}
        05 PodReadyToStartContainers False
        01 Initialized True
        05 Ready False ContainersNotReady containers with unready status: [app]
        05 ContainersReady False ContainersNotReady containers with unready status: [app]
        01 PodScheduled True
    "#]],
    );
    // What runs is not as wanted: it goes on running.
    check(
        &entry,
        Some(&actual(&entry, Some(at(1)))),
        Some(&failing),
        &expect![[r#"
        Running ErrImagePull no such image
        started 01
        - app ready started {"running":{"startedAt":"2026-11-21T09:01:00Z"}}
        01 PodReadyToStartContainers True
        01 Initialized True
        01 Ready True
        01 ContainersReady True
        01 PodScheduled True
    "#]],
    );
}

#[test]
fn a_pod_that_may_not_be_started_yet_says_for_what_it_waits() {
    let entry = entry_of(three());
    let waits = |wait| progress(Activity::Waiting(wait), None);
    check(
        &entry,
        None,
        Some(&waits(Wait::Source(SourceName::File))),
        &expect![[r#"
        Pending WaitingForSource source file has not synced, and a pod of it runs under this name
        started 05
        05 PodReadyToStartContainers False
        05 Initialized False UnknownContainerStatuses
        05 Ready False UnknownContainerStatuses
        05 ContainersReady False UnknownContainerStatuses
        05 PodScheduled True
    "#]],
    );
    check(
        &entry_of(plain()),
        None,
        Some(&waits(Wait::OtherInstance)),
        &expect![[r#"
        Pending WaitingForOtherInstance another agent runs a pod of this name
        started 05
        05 PodReadyToStartContainers False
        05 Initialized True
        05 Ready False UnknownContainerStatuses
        05 ContainersReady False UnknownContainerStatuses
        05 PodScheduled True
    "#]],
    );
    let previous = PodProgress { uid: "0".into(), ..progress(Activity::BackingOff, Some("FailedKillPod")) };
    check(
        &entry_of(plain()),
        None,
        Some(&previous),
        &expect![[r#"
        Pending WaitingForPreviousPod the previous pod of this name (UID 0) is not gone yet: no such image
        started 05
        05 PodReadyToStartContainers False
        05 Initialized True
        05 Ready False UnknownContainerStatuses
        05 ContainersReady False UnknownContainerStatuses
        05 PodScheduled True
    "#]],
    );
}

#[test]
fn the_status_of_the_runtime_counts_and_is_completed() {
    let entry = entry_of(three());
    let running = json!({"running": {"startedAt": "2026-11-21T09:01:30Z"}});
    let statuses = |app: Value, is_ready: bool| {
        json!({
            "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}],
            "initContainerStatuses": [
                {"name": "migrate", "ready": true, "state": {"terminated": {"exitCode": 0}}},
                {"name": "proxy", "ready": true, "started": true, "state": running.clone()},
            ],
            "containerStatuses": [{"name": "app", "ready": is_ready, "state": app}],
        })
    };
    let crashing = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let crashing = given(&entry, statuses(crashing, false));
    check(
        &entry,
        Some(&crashing),
        None,
        &expect![[r#"
        Running
        started 01
        - migrate ready {"terminated":{"exitCode":0}}
        - proxy ready started {"running":{"startedAt":"2026-11-21T09:01:30Z"}}
        - app {"waiting":{"reason":"CrashLoopBackOff"}}
        01 PodReadyToStartContainers True
        01 Initialized True
        05 Ready False ContainersNotReady containers with unready status: [app]
        05 ContainersReady False ContainersNotReady containers with unready status: [app]
        01 PodScheduled True
    "#]],
    );
    assert_eq!(status(&entry, Some(&crashing), None)["podIP"], "10.0.0.7");

    let mut whole = statuses(running.clone(), true);
    whole["phase"] = "Running".into();
    whole["reason"] = "Because".into();
    whole["startTime"] = "2026-11-21T08:59:00Z".into();
    whole["conditions"] = json!([{"type": "Ready", "status": "False", "reason": "Probing"}]);
    let failing = progress(Activity::BackingOff, Some("ErrImagePull"));
    check(
        &entry,
        Some(&given(&entry, whole)),
        Some(&failing),
        &expect![[r#"
        Running Because
        started 59
        - migrate ready {"terminated":{"exitCode":0}}
        - proxy ready started {"running":{"startedAt":"2026-11-21T09:01:30Z"}}
        - app ready {"running":{"startedAt":"2026-11-21T09:01:30Z"}}
        05 Ready False Probing
        59 PodReadyToStartContainers True
        59 Initialized True
        59 ContainersReady True
        59 PodScheduled True
    "#]],
    );

    let failed = json!({"phase": "Failed", "containerStatuses": [{"name": "app", "state": {"terminated": {"exitCode": 1}}}]});
    check(
        &entry,
        Some(&given(&entry, failed)),
        None,
        &expect![[r#"
        Failed
        started 01
        - app {"terminated":{"exitCode":1}}
        05 PodReadyToStartContainers False
        01 Initialized True
        05 Ready False PodFailed
        05 ContainersReady False PodFailed
        01 PodScheduled True
    "#]],
    );
    let succeeded = json!({
        "phase": "Succeeded", "containerStatuses": [{"name": "app", "state": {"terminated": {"exitCode": 0}}}],
    });
    check(
        &entry_of(plain()),
        Some(&given(&entry, succeeded)),
        None,
        &expect![[r#"
        Succeeded
        started 01
        - app {"terminated":{"exitCode":0}}
        05 PodReadyToStartContainers False
        01 Initialized True PodCompleted
        05 Ready False PodCompleted
        05 ContainersReady False PodCompleted
        01 PodScheduled True
    "#]],
    );
    check(
        &entry,
        Some(&given(&entry, json!({}))),
        None,
        &expect![[r#"
        Running
        started 01
        01 PodReadyToStartContainers True
        05 Initialized False UnknownContainerStatuses
        05 Ready False UnknownContainerStatuses
        05 ContainersReady False UnknownContainerStatuses
        01 PodScheduled True
    "#]],
    );
}

#[test]
fn conditions_of_others_stay_and_gates_decide_on_readiness() {
    let with = |conditions: Value| {
        let mut pod = plain();
        pod["spec"]["readinessGates"] = json!([{"conditionType": "x/a"}, {"conditionType": "x/b"}]);
        pod["status"]["conditions"] = conditions;
        let entry = entry_of(pod);
        short(&status(&entry, Some(&actual(&entry, Some(at(1)))), None))
    };
    let gate = |name: &str, status: &str| json!({"type": name, "status": status, "lastTransitionTime": "2026-11-21T09:04:00Z"});
    let own = gate("PodScheduled", "False");
    expect![[r#"
        Running
        started 01
        - app ready started {"running":{"startedAt":"2026-11-21T09:01:00Z"}}
        04 x/a False
        01 PodReadyToStartContainers True
        01 Initialized True
        05 Ready False ReadinessGatesNotReady the status of pod readiness gate "x/a" is not "True", but False, corresponding condition of pod readiness gate "x/b" does not exist.
        01 ContainersReady True
        01 PodScheduled True
    "#]].assert_eq(&with(json!([gate("x/a", "False"), own])));
    let open = with(json!([gate("x/a", "True"), gate("x/b", "True")]));
    assert!(open.contains("\n01 Ready True\n"), "{open}");
}

#[test]
fn a_condition_keeps_its_time_until_its_status_changes() {
    let entry = entry_of(plain());
    let (syncing, failing) =
        (progress(Activity::Syncing, None), progress(Activity::BackingOff, Some("ErrImagePull")));
    let runs = actual(&entry, Some(at(12)));
    let (mut before, mut out) = (None, String::new());
    for (minute, actual, progress) in [
        (10, None, Some(&syncing)),
        (11, None, Some(&failing)),
        (12, Some(&runs), None),
        (13, Some(&runs), Some(&syncing)),
        (14, None, Some(&failing)),
    ] {
        let observed = observe(&entry, actual, progress, before.as_ref(), at(minute)).unwrap();
        let conditions = observed.status["conditions"].as_array().unwrap();
        write!(out, "{minute}: started {}", &observed.status["startTime"].as_str().unwrap()[14..16]).unwrap();
        for name in ["PodScheduled", "ContainersReady"] {
            let condition = conditions.iter().find(|condition| condition["type"] == name).unwrap();
            let since = &condition["lastTransitionTime"].as_str().unwrap()[14..16];
            write!(out, ", {name} {} since {since}", condition["status"].as_str().unwrap()).unwrap();
        }
        out.push('\n');
        before = Some(observed);
    }
    expect![[r#"
        10: started 10, PodScheduled True since 10, ContainersReady False since 10
        11: started 10, PodScheduled True since 10, ContainersReady False since 10
        12: started 10, PodScheduled True since 10, ContainersReady True since 12
        13: started 10, PodScheduled True since 10, ContainersReady True since 12
        14: started 10, PodScheduled True since 10, ContainersReady False since 14
    "#]]
    .assert_eq(&out);
}

#[test]
fn a_pod_that_is_being_deleted_keeps_its_phase_to_its_end() {
    let mut pod = plain();
    pod["metadata"]["deletionTimestamp"] = "2026-11-21T09:10:00Z".into();
    let entry = entry_of(pod);
    let runs = actual(&entry, Some(at(1)));
    let killing = progress(Activity::Killing, None);
    let before = observe(&entry, Some(&runs), Some(&killing), None, at(10)).unwrap();
    assert_eq!(before.status["conditions"][2]["status"], "True", "it still runs: {before:?}");
    let after = observe(&entry, None, None, Some(&before), at(11)).unwrap();
    expect![[r#"
        Running
        started 01
        - app {"terminated":{"exitCode":137,"reason":"ContainerStatusUnknown"}}
        11 PodReadyToStartContainers False
        01 Initialized True
        11 Ready False ContainersNotReady containers with unready status: [app]
        11 ContainersReady False ContainersNotReady containers with unready status: [app]
        01 PodScheduled True
    "#]]
    .assert_eq(&short(&after.status));
    // It is just being started.
    let starts = progress(Activity::Syncing, None);
    check(
        &entry,
        None,
        Some(&starts),
        &expect![[r#"
        Pending
        started 05
        - app {"waiting":{"reason":"ContainerCreating"}}
        05 PodReadyToStartContainers False
        05 Initialized True
        05 Ready False ContainersNotReady containers with unready status: [app]
        05 ContainersReady False ContainersNotReady containers with unready status: [app]
        05 PodScheduled True
    "#]],
    );
    // It never ran.
    let never = progress(Activity::BackingOff, None);
    check(
        &entry,
        None,
        Some(&never),
        &expect![[r#"
        Failed
        started 05
        05 PodReadyToStartContainers False
        05 Initialized True
        05 Ready False UnknownContainerStatuses
        05 ContainersReady False UnknownContainerStatuses
        05 PodScheduled True
    "#]],
    );
}

#[test]
fn what_a_stopped_pod_has_shown_last_stays_with_the_ends_of_its_containers() {
    let mut pod = three();
    pod["metadata"]["deletionTimestamp"] = "2026-11-21T09:10:00Z".into();
    pod["status"]["qosClass"].take();
    let entry = entry_of(pod);
    let ended = |code: u8| json!({"terminated": {"exitCode": code, "message": "bye"}});
    let last = |app: Value| {
        let of = |name: &str, state: Value| json!({"name": name, "ready": name == "migrate", "restartCount": 3, "state": state});
        let unsupported = json!({"type": "podmux.dev/Unsupported", "status": "True"});
        let status = json!({
            "phase": "Running", "podIP": "10.0.0.7", "conditions": [unsupported],
            "initContainerStatuses": [of("migrate", ended(0)), of("proxy", ended(0))],
            "containerStatuses": [of("app", app)],
        });
        let before = observe(&entry, Some(&given(&entry, status)), None, None, at(10)).unwrap();
        let after = observe(&entry, None, None, Some(&before), at(11)).unwrap();
        assert_eq!(observe(&entry, None, None, Some(&after), at(12)), Some(after.clone()));
        assert_eq!(
            (&after.status["podIP"], &after.status["qosClass"]),
            (&json!("10.0.0.7"), &json!("BestEffort"))
        );
        assert_eq!(after.status["containerStatuses"][0]["restartCount"], 3);
        short(&after.status)
    };
    expect![[r#"
        Succeeded
        started 01
        - migrate ready {"terminated":{"exitCode":0,"message":"bye"}}
        - proxy {"terminated":{"exitCode":0,"message":"bye"}}
        - app {"terminated":{"exitCode":0,"message":"bye"}}
        01 podmux.dev/Unsupported True
        11 PodReadyToStartContainers False
        01 Initialized True PodCompleted
        10 Ready False PodCompleted
        10 ContainersReady False PodCompleted
        01 PodScheduled True
    "#]]
    .assert_eq(&last(ended(0)));
    let failed = last(ended(3));
    assert!(failed.starts_with("Failed\n") && failed.contains("Ready False PodFailed"), "{failed}");
    let never = last(json!({"waiting": {"reason": "ErrImagePull"}}));
    assert!(never.starts_with("Failed\n") && never.contains("- app {\"waiting\""), "{never}");
    // podman could not be asked for its end.
    let unknown = last(json!({"running": {}}));
    let end = r#"- app {"terminated":{"exitCode":137,"reason":"ContainerStatusUnknown"}}"#;
    assert!(unknown.starts_with("Running\n") && unknown.contains(end), "{unknown}");
}

#[test]
fn a_pod_that_has_ended_for_its_api_server_keeps_its_own_status() {
    let with = |status: Value| {
        let mut pod = plain();
        pod["status"] = status;
        entry_of(pod)
    };
    let completed = with(json!({"phase": "Succeeded"}));
    let runs = actual(&completed, Some(at(1)));
    let killing = progress(Activity::Killing, None);
    for (actual, progress) in [(None, None), (Some(&runs), None), (Some(&runs), Some(&killing))] {
        let observed = observe(&completed, actual, progress, None, at(5)).unwrap();
        let why = "its API server says that it has ended, so it is not run here";
        assert_eq!(*observed.status, json!({"message": why}));
    }
    let own = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."});
    assert_eq!(observe(&with(own), Some(&runs), None, None, at(5)), None, "it says more");
}

#[test]
fn a_pod_that_is_replaced_shows_the_old_generation_and_no_end_and_keeps_its_start() {
    let with = |generation: u8| {
        let mut pod = plain();
        pod["metadata"]["generation"] = generation.into();
        pod["spec"]["containers"][0]["image"] = format!("a:{generation}").into();
        entry_of(pod)
    };
    let (old, new) = (with(1), with(2));
    let runs = |of: &Entry, phase: &str, started: u8| {
        let status = json!({"phase": phase, "startTime": at(started).to_string(), "containerStatuses": [
            {"name": "app", "ready": phase == "Running", "state": {}},
        ]});
        given(of, status)
    };
    let killing = progress(Activity::Killing, None);
    let partial = ActualPod { is_complete: false, ..actual(&new, Some(at(3))) };
    let (mut before, mut out) = (None, String::new());
    for (what, entry, actual, progress) in [
        ("first", &old, Some(runs(&old, "Running", 1)), None),
        ("changed", &new, Some(runs(&old, "Running", 1)), None),
        ("stopping", &new, Some(runs(&old, "Succeeded", 1)), Some(&killing)),
        ("stopped", &new, None, Some(&killing)),
        ("starting", &new, Some(partial), None),
        ("second", &new, Some(runs(&new, "Running", 3)), None),
        ("third", &new, Some(runs(&new, "Succeeded", 3)), None),
    ] {
        let observed = observe(entry, actual.as_ref(), progress, before.as_ref(), at(9)).unwrap();
        let status = &observed.status;
        let ready = &status["conditions"][2];
        let shown = [
            &status["phase"],
            &status["observedGeneration"],
            &ready["status"],
            &ready["observedGeneration"],
            &status["startTime"],
        ];
        writeln!(out, "{what}: {}", shown.map(Value::to_string).join(" ")).unwrap();
        before = Some(observed);
    }
    expect![[r#"
        first: "Running" 1 "True" 1 "2026-11-21T09:01:00.9Z"
        changed: "Running" 1 "True" 1 "2026-11-21T09:01:00.9Z"
        stopping: "Running" 1 "False" 1 "2026-11-21T09:01:00.9Z"
        stopped: "Pending" 2 "False" 2 "2026-11-21T09:01:00.9Z"
        starting: "Pending" 2 "False" 2 "2026-11-21T09:01:00.9Z"
        second: "Running" 2 "True" 2 "2026-11-21T09:01:00.9Z"
        third: "Succeeded" 2 "False" 2 "2026-11-21T09:01:00.9Z"
    "#]]
    .assert_eq(&out);
}

#[test]
fn what_runs_already_is_not_observed_before_it_is_taken_up() {
    let entry = entry_of(plain());
    let partial = ActualPod { is_complete: false, ..actual(&entry, Some(at(1))) };
    let (syncing, failing) =
        (progress(Activity::Syncing, None), progress(Activity::BackingOff, Some("ErrImagePull")));
    assert_eq!(observe(&entry, Some(&partial), Some(&syncing), None, at(5)), None);
    assert!(observe(&entry, Some(&partial), Some(&failing), None, at(5)).is_some(), "it says why");
    let adopted = given(&entry, json!({"phase": "Succeeded"}));
    let observed = observe(&entry, Some(&adopted), None, None, at(5)).unwrap();
    assert_eq!(observed.status["conditions"][1]["lastTransitionTime"], observed.status["startTime"]);
}
