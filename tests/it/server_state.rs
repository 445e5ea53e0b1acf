//! The agent's state over HTTP: sources, health, metrics, version and discovery.

use std::{fs::File, sync::Arc, time::Duration};

use expect_test::{Expect, expect, expect_file};
use jiff::{SignedDuration, Timestamp};
use podmux::{
    host::{Clock, Moment},
    pod::{InvalidManifest, ListingBuilder, Origin, Prepared, Problem, RejectionReason, Stage},
    sink::{SinkFailing, SinkStatus},
    source::{ReflectorStatus, SourceFailing, SourceStatus, api::ReflectorMetrics},
};
use serde_json::{Value, json};

use crate::support::{
    script::pod,
    server::{Setup, TestServer, manifest, with_api},
};

async fn check(server: &TestServer, path: &str, expect: &Expect) {
    let reply = server.get(path).await;
    let body = match serde_json::from_slice::<Value>(&reply.body) {
        Ok(json) => format!("{json:#}\n"),
        Err(_) => reply.text().to_owned(),
    };
    expect.assert_eq(&format!("{} {}\n{body}", reply.code, reply.header("content-type").join(",")));
}

/// Half a minute ago, when the wall clock showed another time.
fn long_ago() -> Moment {
    let (instant, time) = (tokio::time::Instant::now(), Clock::default().now());
    Moment { instant: instant - Duration::from_secs(31), time: time + SignedDuration::from_hours(24) }
}

fn now() -> Moment {
    Moment::at(Clock::default().now())
}

#[tokio::test]
async fn a_healthy_agent_answers_ok() {
    let server = TestServer::start().await;
    for path in ["/livez", "/readyz", "/healthz"] {
        check(&server, path, &expect!["200 text/plain; charset=utf-8\nok"]).await;
    }
    check(
        &server,
        "/healthz?verbose",
        &expect![[r#"
        200 text/plain; charset=utf-8
        [+]merge-loop ok
        [+]source-file ok
        [+]source-http ok
        [+]sink-test ok
        [+]shutdown ok
        healthz check passed
    "#]],
    )
    .await;
}

#[tokio::test]
async fn an_agent_with_an_unsynced_source_is_not_ready() {
    let server = TestServer::with(Setup { file_synced: false, ..Setup::default() }).await;
    check(
        &server,
        "/readyz?verbose",
        &expect![[r#"
            503 text/plain; charset=utf-8
            [-]source-file failed: not synced yet
            [+]source-http ok
            [+]sink-test ok
            [+]shutdown ok
            readyz check failed
        "#]],
    )
    .await;
    let failing =
        SourceFailing { since: long_ago(), attempts: 3, error: "permission denied".into(), quotes: false };
    server.file_status.send_modify(|status| status.failing = Some(failing));
    check(
        &server,
        "/readyz?verbose",
        &expect![[r#"
            503 text/plain; charset=utf-8
            [-]source-file failed: not synced yet: permission denied
            [+]source-http ok
            [+]sink-test ok
            [+]shutdown ok
            readyz check failed
        "#]],
    )
    .await;
    check(
        &server,
        "/livez",
        &expect![[r#"
        200 text/plain; charset=utf-8
        ok"#]],
    )
    .await;
    // After its first sync a failing source does not matter.
    server.file(|_| ()).await;
    assert_eq!(server.get("/readyz").await.code, 200);
}

#[tokio::test]
async fn an_agent_with_a_stuck_sink_is_not_ready() {
    let server = TestServer::start().await;
    let set = |edit: &dyn Fn(&mut SinkStatus)| server.sink_status.send_modify(edit);
    set(&|sink| sink.busy_since = Some(now()));
    assert_eq!(server.get("/readyz").await.code, 200);
    set(&|sink| sink.busy_since = Some(long_ago()));
    check(&server, "/readyz", &expect!["503 text/plain; charset=utf-8\nfailed"]).await;
    let reply = server.get("/readyz?verbose").await;
    assert_eq!(reply.code, 503);
    assert!(reply.text().contains("[-]sink-test failed: processing one update since 2"), "{}", reply.text());
    set(&|sink| sink.busy_since = None);
    let failing = |since| SinkFailing {
        seq: Some(1),
        since,
        attempts: 5,
        next_attempt: Clock::default().now(),
        error: "disk full".into(),
    };
    set(&|sink| sink.failing = Some(failing(now())));
    assert_eq!(server.get("/readyz").await.code, 200);
    set(&|sink| sink.failing = Some(failing(long_ago())));
    let reply = server.get("/healthz?verbose").await;
    assert_eq!(reply.code, 503);
    assert!(reply.text().contains(": disk full\n"), "{}", reply.text());
    assert_eq!(server.get("/livez").await.code, 200);
}

#[tokio::test]
async fn a_sink_that_cannot_get_numbers_is_not_ready() {
    let server = TestServer::start().await;
    let set = |edit: &dyn Fn(&mut SinkStatus)| server.sink_status.send_modify(edit);
    // The disk of the state hangs.
    set(&|sink| (sink.lacks_number, sink.busy_since) = (true, Some(long_ago())));
    let reply = server.get("/readyz?verbose").await;
    assert_eq!(reply.code, 503);
    assert!(reply.text().contains("[-]sink-test failed: waiting for a number since 2"), "{}", reply.text());
    assert_eq!(server.get("/sinks").await.json()["items"][0]["state"], "waiting");
    assert!(metric(&server, "podmux_sink_busy_seconds{sink=\"test\"}").await.unwrap() > 30.0);
    // It is full.
    let (since, next_attempt) = (long_ago(), Clock::default().now());
    let failing = || SinkFailing { seq: None, since, attempts: 9, next_attempt, error: "disk full".into() };
    set(&|sink| (sink.busy_since, sink.failing) = (None, Some(failing())));
    let reply = server.get("/readyz?verbose").await;
    assert_eq!(reply.code, 503);
    assert!(reply.text().contains("[-]sink-test failed: failing since 2"), "{}", reply.text());
    assert_eq!(server.get("/sinks").await.json()["items"][0]["state"], "waiting");
    assert!(metric(&server, "podmux_sink_failing_seconds{sink=\"test\"}").await.unwrap() > 30.0);
    assert_eq!(metric(&server, "podmux_sink_failed_attempts{sink=\"test\"}").await, Some(9.0));
    assert_eq!(metric(&server, "podmux_ready").await, Some(0.0));
}

#[tokio::test]
async fn ages_are_right_although_the_clock_was_set() {
    let server = TestServer::start().await;
    let now = now();
    for hours in [-24, 24] {
        let (instant, time) =
            (now.instant - Duration::from_secs(31), now.time + SignedDuration::from_hours(hours));
        let since = Moment { instant, time };
        let (attempts, error): (u64, Arc<str>) = (5, "disk full".into());
        let failing = SourceFailing { since, attempts, error: error.clone(), quotes: false };
        server.file_status.send_modify(|status| status.failing = Some(failing));
        let failing = SinkFailing { seq: Some(1), since, attempts, next_attempt: time, error };
        server.sink_status.send_modify(|sink| (sink.busy_since, sink.failing) = (Some(since), Some(failing)));
        for name in [
            "source_failing_seconds{source=\"file\"}",
            "sink_busy_seconds{sink=\"test\"}",
            "sink_failing_seconds{sink=\"test\"}",
        ] {
            let age = metric(&server, &format!("podmux_{name}")).await.unwrap();
            assert!((31.0..3600.0).contains(&age), "{name}: {age}");
        }
        assert_eq!(server.get("/readyz").await.code, 503);
    }
}

#[tokio::test]
async fn sinks_show_their_state_and_how_many_pods_they_are_behind() {
    let server = TestServer::start().await;
    let sink = async || server.get("/sinks").await.json()["items"][0].clone();
    let set = |edit: &dyn Fn(&mut SinkStatus)| server.sink_status.send_modify(edit);
    assert_eq!(sink().await, json!({"name": "test", "state": "current", "podsBehind": 0}));
    for name in ["a", "b"] {
        server.file_pod(name, Prepared::from_json(manifest(name).as_bytes()).unwrap()).await;
    }
    assert_eq!(sink().await["podsBehind"], 2, "it has acknowledged nothing");
    assert_eq!(metric(&server, "podmux_sink_pods_behind{sink=\"test\"}").await, Some(2.0));
    let merged = server.history.snapshot().await.unwrap().merged;
    let (held, _) = podmux::storage::updates(
        &podmux::storage::Delivered::default(),
        &merged,
        podmux::mux::Notify::Incremental,
    );
    server.acknowledged.send_modify(|sinks| sinks[0] = held);
    set(&|sink| sink.acknowledged = Some(7));
    assert_eq!(sink().await, json!({"name": "test", "state": "current", "podsBehind": 0, "acknowledged": 7}));
    // What is no update makes no difference.
    let same = manifest("a").replace("\"name\":\"a\"", "\"name\":\"a\",\"resourceVersion\":\"5\"");
    server.file_pod("a", Prepared::from_json(same.as_bytes()).unwrap()).await;
    assert_eq!(sink().await["podsBehind"], 0);
    // One changes, one goes, one comes.
    let changed = manifest("a").replace("i:1", "i:2");
    server.file_pod("a", Prepared::from_json(changed.as_bytes()).unwrap()).await;
    server.file(|file| file.remove(&Origin::from("b"))).await;
    server.file_pod("c", Prepared::from_json(manifest("c").as_bytes()).unwrap()).await;
    let now = now();
    set(&|sink| sink.busy_since = Some(now));
    let seen = sink().await;
    assert_eq!((&seen["state"], &seen["podsBehind"]), (&"behind".into(), &3.into()));
    assert_eq!(seen["since"], now.time.to_string());
    set(&|sink| sink.busy_since = Some(long_ago()));
    assert_eq!(sink().await["state"], "stuck");
    let next = now.time + Duration::from_mins(1);
    let failing = || SinkFailing {
        seq: Some(8),
        since: long_ago(),
        attempts: 5,
        next_attempt: next,
        error: "full".into(),
    };
    set(&|sink| (sink.busy_since, sink.failing) = (None, Some(failing())));
    let seen = sink().await;
    assert_eq!(
        (&seen["state"], &seen["failing"]["nextAttempt"]),
        (&"failing".into(), &next.to_string().into())
    );
    assert_eq!((&seen["failing"]["error"], &seen["failing"]["seq"]), (&"full".into(), &8.into()));
}

#[tokio::test]
async fn an_agent_that_stops_is_not_ready_and_without_its_merge_loop_not_alive() {
    let server = TestServer::start().await;
    server.stopping.cancel();
    check(
        &server,
        "/readyz?verbose",
        &expect![[r#"
            503 text/plain; charset=utf-8
            [+]source-file ok
            [+]source-http ok
            [+]sink-test ok
            [-]shutdown failed: the agent is shutting down
            readyz check failed
        "#]],
    )
    .await;
    assert_eq!(server.get("/livez").await.code, 200);
    server.end_sources().await;
    check(
        &server,
        "/livez?verbose",
        &expect![[r#"
            503 text/plain; charset=utf-8
            [-]merge-loop failed: the merge loop has ended
            livez check failed
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_merge_loop_that_hangs_fails_after_a_timeout() {
    let server = TestServer::with(Setup { turns: false, ..Setup::default() }).await;
    let get = async |path: &str| server.ask_inside(&format!("GET {path}"), &[], "").await;
    assert_eq!(get("/livez").await.text(), "failed");
    let live = get("/livez?verbose").await;
    assert_eq!(live.code, 503);
    assert_eq!(live.text(), "[-]merge-loop failed: no progress for 5s\nlivez check failed\n");
    assert_eq!((get("/healthz").await.code, get("/readyz").await.code), (503, 200));
}

#[tokio::test]
async fn sources_show_rejections_and_conflicts() {
    let server = TestServer::start().await;
    server.ask("POST /pods", &[], [manifest("web"), manifest("mine")].join("\n---\n")).await;
    server.file_pod("/etc/podmux/1.yaml", pod("web")).await;
    server.file_pod("/etc/podmux/2.yaml", pod("web")).await;
    let problems = vec![
        Problem::error("Required value")
            .at(Some((3, 5)))
            .of("spec.containers[0].image")
            .because("FieldValueRequired"),
        Problem::warning("unknown field, ignored").at(Some((4, 5))).of("spec.foo"),
    ];
    let refusal = InvalidManifest { stage: Stage::Validate, problems };
    server.file_rejects("/etc/podmux/bad.yaml", RejectionReason::Invalid(Arc::new(refusal))).await;
    server
        .file_rejects("/etc/podmux/secret.yaml", RejectionReason::Unreadable("permission denied".into()))
        .await;
    server.file_status.send_modify(|status| {
        "/etc/podmux".clone_into(&mut status.target);
        "watching".clone_into(&mut status.detail);
        status.last_success = Some("2026-11-21T09:00:00Z".parse().unwrap());
    });
    let sources = server.get("/sources").await;
    expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sources.txt")]
        .assert_eq(&sources.golden());
    let failing = SourceFailing {
        since: Moment::at("2026-11-21T09:00:00Z".parse().unwrap()),
        attempts: 3,
        error: "gone".into(),
        quotes: false,
    };
    server.file_status.send_modify(|status| status.failing = Some(failing));
    let source = server.get("/sources").await.json()["items"][0].clone();
    assert_eq!(source["state"], "failing");
    expect![[r#"
        {
          "attempts": 3,
          "error": "gone",
          "since": "2026-11-21T09:00:00Z"
        }
    "#]]
    .assert_eq(&format!("{:#}\n", source["failing"]));
}

#[tokio::test]
async fn a_rejection_has_at_most_20_details() {
    let server = TestServer::start().await;
    let refusal = InvalidManifest { stage: Stage::Decode, problems: vec![Problem::error("bad"); 100] };
    server.file_rejects("bad.yaml", RejectionReason::Invalid(Arc::new(refusal))).await;
    let problem = server.get("/sources").await.json()["items"][0]["problems"][0].clone();
    assert_eq!(problem["details"].as_array().unwrap().len(), 20);
    assert_eq!(problem["message"], "bad (and 99 more errors)");
}

#[tokio::test]
async fn a_source_has_at_most_1000_problems_and_counts_the_others() {
    let server = TestServer::start().await;
    server
        .file(|file| {
            for n in 0..10_000 {
                file.reject(
                    &Origin::from(&*format!("{n:05}.yaml")),
                    RejectionReason::Unreadable("no".into()),
                );
            }
            for n in 0..1002 {
                let mut web: Value = serde_json::from_str(&manifest(&format!("web-{n}"))).unwrap();
                web["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
                let web = Prepared::from_json(web.to_string().as_bytes()).unwrap();
                file.put(&Origin::from(&*format!("web-{n}.yaml")), vec![web], Timestamp::UNIX_EPOCH);
            }
        })
        .await;
    let source = server.get("/sources").await.json()["items"][0].clone();
    let listed = ["problems", "warnings"].map(|field| source[field].as_array().unwrap().len());
    assert_eq!((listed, &source["moreProblems"]), ([1000, 1000], &json!(9000)), "warnings are not counted");
}

/// The beginnings of lines that differ from run to run.
const VARYING: [&str; 4] = [
    "podmux_http_request_duration_seconds_",
    "podmux_start",
    "podmux_config_last_reload_success_timestamp",
    "process_",
];

#[tokio::test]
async fn metrics_have_the_openmetrics_format() {
    let server = TestServer::start().await;
    server.ask("POST /pods", &[], manifest("web")).await;
    server.ask("POST /pods", &[], "nonsense").await;
    server.get("/api/v1/namespaces/a/pods/b").await;
    server.get("/api/v1/namespaces/a/pods/c").await;
    server.get("/nothing/here").await;
    server.ask("FROB /pods", &[], "").await;
    server.file_pod("web.yaml", pod("web")).await;
    server.file_rejects("bad.yaml", RejectionReason::Unreadable("no".into())).await;
    server.sink_status.send_modify(|status| status.acknowledged = Some(7));
    let reply = server.get("/metrics").await;
    assert_eq!(reply.header("content-type"), ["application/openmetrics-text; version=1.0.0; charset=utf-8"]);
    let mut lines: Vec<&str> = reply.text().lines().collect();
    assert_eq!(lines.pop(), Some("# EOF"));
    // The members of a family have no order.
    lines.retain(|line| !VARYING.iter().any(|varying| line.starts_with(varying)));
    lines.sort_unstable();
    expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/metrics.txt")]
        .assert_eq(&(lines.join("\n") + "\n"));
}

#[tokio::test]
async fn the_name_of_a_sink_may_hold_any_character() {
    let server = TestServer::start().await;
    let name = "jsonl=/tmp/\"x\\y\nz".to_owned();
    server.sink_status.send_modify(|status| (status.name, status.acknowledged) = (name, Some(7)));
    let reply = server.get("/metrics").await;
    let expected = r#"podmux_sink_acknowledged_seq{sink="jsonl=/tmp/\"x\\y\nz"} 7"#;
    assert!(reply.text().lines().any(|line| line == expected), "{}", reply.text());
}

/// The value of a metric, if it exists.
async fn metric(server: &TestServer, name: &str) -> Option<f64> {
    let reply = server.get("/metrics").await;
    let line = reply.text().lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map(|value| value.parse().unwrap())
}

#[tokio::test]
async fn the_process_has_its_metrics() {
    let server = TestServer::start().await;
    let is = async |name: &str| metric(&server, name).await.unwrap_or_else(|| panic!("no {name}"));
    let before = is("process_cpu_seconds_total").await;
    assert!(before > 0.0 && is("process_cpu_seconds_total").await >= before);
    let memory = is("process_resident_memory_bytes").await;
    assert!(memory > 1e6 && memory < 1e12, "{memory}");
    let (process, agent) = (is("process_start_time_seconds").await, is("podmux_start_time_seconds").await);
    assert!((process - agent).abs() < 1e-3, "{process}, {agent}");
    let (open, most) = (is("process_open_fds").await, is("process_max_fds").await);
    assert!(open > 3.0 && open < most, "{open} of {most}");
    // Other tests open and close files at the same time, but fewer.
    let held: Vec<_> = (0..100).map(|_| File::open("/dev/null").unwrap()).collect();
    let now = is("process_open_fds").await;
    assert!(now > 100.0, "{open}, then {now}");
    drop(held);
}

#[tokio::test]
async fn the_last_reload_has_metrics() {
    let server = TestServer::start().await;
    let successful = async || metric(&server, "podmux_config_last_reload_successful").await;
    let succeeded = async || metric(&server, "podmux_config_last_reload_success_timestamp_seconds").await;
    assert_eq!(
        (successful().await, succeeded().await),
        (Some(1.0), metric(&server, "podmux_start_time_seconds").await)
    );
    let reload = |successful, at| server.reload.send_modify(|last| last.note(successful, at));
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    reload(true, at(1000));
    reload(false, at(2000));
    assert_eq!((successful().await, succeeded().await), (Some(0.0), Some(1000.0)));
    reload(true, at(3000));
    assert_eq!((successful().await, succeeded().await), (Some(1.0), Some(3000.0)));
}

/// The status of an api source with restored pods of this age that cannot connect.
fn restored(old: Duration) -> SourceStatus {
    let failing = SourceFailing {
        since: long_ago(),
        attempts: 3,
        error: "cannot connect to 127.0.0.1:6443".into(),
        quotes: false,
    };
    SourceStatus {
        target: "https://127.0.0.1:6443".to_owned(),
        restored: Some(Clock::default().now() - old),
        failing: Some(failing),
        ..SourceStatus::default()
    }
}

#[tokio::test]
async fn an_agent_with_restored_pods_is_ready_and_shows_that_they_are_restored() {
    let server = TestServer::with(with_api()).await;
    let unsynced = server.get("/readyz?verbose").await;
    assert_eq!(unsynced.code, 503);
    assert!(unsynced.text().contains("[-]source-api failed: not synced yet\n"), "{}", unsynced.text());

    server.api_restored(|api| put(api, "web")).await;
    server.api_status.send_replace(restored(Duration::from_secs(3 * 3600 + 20)));
    check(&server, "/readyz", &expect!["200 text/plain; charset=utf-8\nok"]).await;
    let verbose = expect![[r#"
        200 text/plain; charset=utf-8
        [+]source-file ok
        [+]source-http ok
        [+]source-api ok: restored, 3h old, failing: cannot connect to 127.0.0.1:6443
        [+]sink-test ok
        [+]shutdown ok
        readyz check passed
    "#]];
    check(&server, "/readyz?verbose", &verbose).await;
    // A failure does not hide that they are restored.
    let api = async || server.get("/sources").await.json()["items"][2].clone();
    let of = server.api_status.borrow().restored.unwrap().to_string();
    let source = api().await;
    assert_eq!((&source["state"], &source["restored"]), (&"restored".into(), &of.into()));
    let restored_of =
        async || metric(&server, r#"podmux_source_restored_timestamp_seconds{source="api"}"#).await;
    assert!(restored_of().await.is_some_and(|of| of > 1.7e9));
    assert_eq!((&source["pods"], &source["failing"]["attempts"]), (&1.into(), &3.into()));

    // Without a known age.
    server.api_status.send_modify(|status| status.restored = None);
    let ready = server.get("/readyz?verbose").await.text().to_owned();
    assert!(
        ready.contains("[+]source-api ok: restored, failing: cannot connect to 127.0.0.1:6443\n"),
        "{ready}"
    );

    // After a sync with the same pods they are live, and the failure shows.
    server.api_status.send_replace(restored(Duration::from_mins(1)));
    server.api(|api| put(api, "web")).await;
    let source = api().await;
    assert_eq!((&source["state"], source.get("restored")), (&"failing".into(), None));
    assert_eq!(restored_of().await, None);
    let ready = server.get("/readyz?verbose").await.text().to_owned();
    assert!(ready.contains("[+]source-api ok: failing: cannot connect to 127.0.0.1:6443\n"), "{ready}");
}

#[tokio::test]
async fn a_reflector_shows_its_phase() {
    let server = TestServer::with(with_api()).await;
    let reflector = async || server.get("/sources").await.json()["items"][2]["reflector"].clone();
    assert_eq!(reflector().await, Value::Null);
    let set = |reflector: ReflectorStatus| {
        server.api_status.send_modify(|status| status.reflector = Some(reflector));
    };
    let status =
        ReflectorStatus { phase: "connecting", resource_version: None, last_event: None, next_attempt: None };
    set(status.clone());
    assert_eq!(reflector().await, json!({ "phase": "connecting" }));
    set(ReflectorStatus {
        phase: "waiting",
        resource_version: Some("12345".into()),
        last_event: Some("2026-11-21T09:00:00Z".parse().unwrap()),
        next_attempt: Some("2026-11-21T09:00:30.5Z".parse().unwrap()),
    });
    let waiting = json!({
        "phase": "waiting", "resourceVersion": "12345",
        "lastEvent": "2026-11-21T09:00:00Z", "nextAttempt": "2026-11-21T09:00:30.5Z",
    });
    assert_eq!(reflector().await, waiting);
}

#[tokio::test]
async fn the_reflectors_metrics_have_client_gos_names() {
    let counted = ReflectorMetrics::default();
    let server = TestServer::with(Setup { reflector: Some(counted.clone()), ..Setup::default() }).await;
    counted.lists.inc_by(2);
    counted.list_duration.observe(0.03);
    counted.items_per_list.observe(110.0);
    counted.watches.inc_by(7);
    counted.short_watches.inc();
    counted.watch_duration.observe(301.5);
    counted.items_per_watch.observe(6.0);
    counted.errors.get_or_create(&[("kind", "connect".to_owned())]).inc();
    let status = ReflectorStatus {
        phase: "watching",
        resource_version: Some("9223372036854775807".into()),
        last_event: Some("2026-11-21T09:00:00Z".parse().unwrap()),
        next_attempt: None,
    };
    server.api_status.send_modify(|shown| shown.reflector = Some(status.clone()));
    let scraped = async || {
        let reply = server.get("/metrics").await;
        assert_eq!(reply.code, 200, "{}", reply.text());
        let text = reply.text();
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("podmux_reflector_")).collect();
        lines.join("\n") + "\n"
    };
    expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/metrics-reflector.txt")]
        .assert_eq(&scraped().await);

    // A version is opaque: it may be no number, or a large one.
    for version in ["a7", "-1", "1.5", "", "18446744073709551615", "9".repeat(100).as_str()] {
        let status = ReflectorStatus { resource_version: Some(version.into()), ..status.clone() };
        server.api_status.send_modify(|shown| shown.reflector = Some(status));
        let scraped = scraped().await;
        assert!(!scraped.contains("last_resource_version") && scraped.contains("last_event"), "{version}");
    }
    server.api_status.send_modify(|status| status.reflector = None);
    assert!(!scraped().await.contains("_last_"));
}

#[tokio::test]
async fn without_a_reflector_there_are_no_reflector_metrics() {
    let server = TestServer::start().await;
    assert!(!server.get("/metrics").await.text().contains("reflector"));
}

#[tokio::test]
async fn a_file_owns_its_name_and_the_api_server_owns_its_uid() {
    let server = TestServer::with(with_api()).await;
    let with_uid = |name: &str, uid: &str| {
        let pod = json!({ "metadata": { "name": name, "uid": uid } });
        vec![Prepared::from_value(pod).unwrap()]
    };
    server
        .api(|api| {
            api.put(&Origin::from("default/web"), with_uid("web", "1"), Timestamp::UNIX_EPOCH);
            api.put(&Origin::from("default/db"), with_uid("db", "2"), Timestamp::UNIX_EPOCH);
        })
        .await;
    server
        .file(|file| {
            file.put(&Origin::from("/m/web.yaml"), with_uid("web", "9"), Timestamp::UNIX_EPOCH);
            // The output of `kubectl get pod db -o yaml`, saved as a manifest of the node.
            file.put(&Origin::from("/m/db.yaml"), with_uid("db-node1", "2"), Timestamp::UNIX_EPOCH);
        })
        .await;
    let sources = server.get("/sources").await.json();
    let shown: Vec<String> = [0, 2]
        .iter()
        .map(|index| {
            let source = &sources["items"][index];
            format!("{}: {} pods, {:#}\n", source["name"], source["pods"], source["problems"])
        })
        .collect();
    expect![[r#"
        "file": 1 pods, [
          {
            "message": "the pod default/db of source api has the same UID; remove metadata.uid",
            "origin": "/m/db.yaml",
            "pod": "default/db-node1",
            "reason": "Conflict",
            "winner": {
              "origin": "default/db",
              "pod": "default/db",
              "source": "api"
            }
          }
        ]
        "api": 1 pods, [
          {
            "message": "a pod of source file has the same name; rename one of them",
            "origin": "default/web",
            "pod": "default/web",
            "reason": "Conflict",
            "winner": {
              "origin": "/m/web.yaml",
              "pod": "default/web",
              "source": "file"
            }
          }
        ]
    "#]]
    .assert_eq(&shown.concat());
    assert_eq!(server.get("/pods").await.names(), ["default/db", "default/web"]);
}

fn put(listing: &mut ListingBuilder, name: &str) {
    listing.put(&Origin::from(&*format!("default/{name}")), vec![pod(name)], Timestamp::UNIX_EPOCH);
}

#[tokio::test]
async fn discovery_has_what_kubectl_needs() {
    let server = TestServer::start().await;
    check(
        &server,
        "/api",
        &expect![[r#"
        200 application/json
        {
          "kind": "APIVersions",
          "serverAddressByClientCIDRs": [],
          "versions": [
            "v1"
          ]
        }
    "#]],
    )
    .await;
    check(
        &server,
        "/apis",
        &expect![[r#"
            200 application/json
            {
              "apiVersion": "v1",
              "groups": [
                {
                  "name": "authentication.k8s.io",
                  "preferredVersion": {
                    "groupVersion": "authentication.k8s.io/v1",
                    "version": "v1"
                  },
                  "versions": [
                    {
                      "groupVersion": "authentication.k8s.io/v1",
                      "version": "v1"
                    }
                  ]
                },
                {
                  "name": "authorization.k8s.io",
                  "preferredVersion": {
                    "groupVersion": "authorization.k8s.io/v1",
                    "version": "v1"
                  },
                  "versions": [
                    {
                      "groupVersion": "authorization.k8s.io/v1",
                      "version": "v1"
                    }
                  ]
                }
              ],
              "kind": "APIGroupList"
            }
        "#]],
    )
    .await;
    let version = server.get("/version").await.json();
    assert_eq!(version["gitVersion"], concat!("v", env!("CARGO_PKG_VERSION")));
    let paths = server.get("/").await.json();
    for path in paths["paths"].as_array().unwrap().iter().filter_map(Value::as_str) {
        // The caller is not on a Unix socket here.
        let status = if path == "/credentials" { 403 } else { 200 };
        assert_eq!(server.open(&format!("HEAD {path}"), &[], "").await.status(), status, "{path}");
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "expected output is long")]
async fn the_resources_and_their_verbs_are_discovered() {
    let server = TestServer::start().await;
    check(
        &server,
        "/api/v1",
        &expect![[r#"
            200 application/json
            {
              "apiVersion": "v1",
              "groupVersion": "v1",
              "kind": "APIResourceList",
              "resources": [
                {
                  "kind": "Event",
                  "name": "events",
                  "namespaced": true,
                  "shortNames": [
                    "ev"
                  ],
                  "singularName": "event",
                  "verbs": [
                    "get",
                    "list",
                    "watch"
                  ]
                },
                {
                  "kind": "Namespace",
                  "name": "namespaces",
                  "namespaced": false,
                  "shortNames": [
                    "ns"
                  ],
                  "singularName": "namespace",
                  "verbs": [
                    "get",
                    "list",
                    "watch"
                  ]
                },
                {
                  "kind": "Node",
                  "name": "nodes",
                  "namespaced": false,
                  "shortNames": [
                    "no"
                  ],
                  "singularName": "node",
                  "verbs": [
                    "get",
                    "list",
                    "watch"
                  ]
                },
                {
                  "categories": [
                    "all"
                  ],
                  "kind": "Pod",
                  "name": "pods",
                  "namespaced": true,
                  "shortNames": [
                    "po"
                  ],
                  "singularName": "pod",
                  "verbs": [
                    "create",
                    "delete",
                    "deletecollection",
                    "get",
                    "list",
                    "patch",
                    "update",
                    "watch"
                  ]
                },
                {
                  "kind": "Pod",
                  "name": "pods/log",
                  "namespaced": true,
                  "singularName": "",
                  "verbs": [
                    "get"
                  ]
                },
                {
                  "kind": "Pod",
                  "name": "pods/status",
                  "namespaced": true,
                  "singularName": "",
                  "verbs": [
                    "get"
                  ]
                },
                {
                  "kind": "Service",
                  "name": "services",
                  "namespaced": true,
                  "shortNames": [
                    "svc"
                  ],
                  "singularName": "service",
                  "verbs": [
                    "get",
                    "list",
                    "watch"
                  ]
                }
              ]
            }
        "#]],
    )
    .await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "expected output is long")]
async fn a_pod_and_a_source_have_details() {
    let server = TestServer::start().await;
    server.ask("POST /pods", &[], manifest("web")).await;
    let origin = Origin::from("/etc/podmux/web.yaml");
    server
        .file(|file| {
            file.put(&origin, vec![pod("web"), pod("other")], jiff::Timestamp::UNIX_EPOCH);
            file.set_lines(&origin, &[3, 17]);
        })
        .await;
    server.file_rejects("/etc/podmux/bad.yaml", RejectionReason::Unreadable("no".into())).await;
    let details = async |path: &str| {
        let mut details = server.get(path).await.json();
        for update in details["updates"].as_array_mut().unwrap() {
            assert!(update["seq"].is_u64() && update["time"].is_string(), "{update}");
            update["seq"].take();
            update["time"].take();
        }
        format!("{details:#}\n")
    };
    expect![[r#"
        {
          "apiVersion": "podmux/v1",
          "kind": "PodDetails",
          "line": 3,
          "name": "web",
          "namespace": "default",
          "origin": "/etc/podmux/web.yaml",
          "problems": [
            {
              "message": "a pod of source file has the same name; rename one of them",
              "origin": "default/web",
              "pod": "default/web",
              "reason": "Conflict",
              "source": "http",
              "winner": {
                "origin": "/etc/podmux/web.yaml",
                "pod": "default/web",
                "source": "file"
              }
            }
          ],
          "source": "file",
          "target": "",
          "updates": [
            {
              "op": "ADD",
              "podCount": 2,
              "pods": [
                "default/other",
                "default/web"
              ],
              "seq": null,
              "source": "file",
              "time": null
            },
            {
              "op": "REMOVE",
              "podCount": 1,
              "pods": [
                "default/web"
              ],
              "seq": null,
              "source": "http",
              "time": null
            },
            {
              "op": "ADD",
              "podCount": 1,
              "pods": [
                "default/web"
              ],
              "seq": null,
              "source": "http",
              "time": null
            }
          ]
        }
    "#]]
    .assert_eq(&details("/pods/default/web").await);
    assert!(details("/pods/default/other").await.contains("\"line\": 17,"));
    // Whether the pod has changed or not, the newest place counts.
    server.file(|file| file.set_lines(&origin, &[3, 18])).await;
    assert!(details("/pods/default/other").await.contains("\"line\": 18,"));
    expect![[r#"
        {
          "apiVersion": "podmux/v1",
          "detail": "",
          "kind": "Source",
          "name": "http",
          "pods": 0,
          "problems": [
            {
              "message": "a pod of source file has the same name; rename one of them",
              "origin": "default/web",
              "pod": "default/web",
              "reason": "Conflict",
              "winner": {
                "origin": "/etc/podmux/web.yaml",
                "pod": "default/web",
                "source": "file"
              }
            }
          ],
          "state": "synced",
          "target": "posted pods, in memory only",
          "updates": [
            {
              "op": "REMOVE",
              "podCount": 1,
              "pods": [
                "default/web"
              ],
              "seq": null,
              "source": "http",
              "time": null
            },
            {
              "op": "ADD",
              "podCount": 1,
              "pods": [
                "default/web"
              ],
              "seq": null,
              "source": "http",
              "time": null
            },
            {
              "op": "SET",
              "podCount": 0,
              "pods": [],
              "seq": null,
              "source": "http",
              "time": null
            }
          ]
        }
    "#]]
    .assert_eq(&details("/sources/http").await);

    for (path, code) in [
        ("/pods/default/none", 404),
        ("/sources/url", 404),
        ("/pods/default/web?x=1", 400),
        ("/sources/file?x=1", 400),
    ] {
        assert_eq!(server.get(path).await.code, code, "{path}");
    }
    assert_eq!(server.ask("DELETE /pods/default/web", &[], "").await.code, 405);
}

#[tokio::test]
async fn details_have_at_most_20_updates_and_100_problems_of_a_pod() {
    let server = TestServer::start().await;
    for n in 0..30 {
        server.ask("POST /pods", &[], manifest("web").replace("i:1", &format!("i:{n}"))).await;
        server.get("/api/v1/pods").await;
    }
    server
        .file(|file| {
            for n in 0..150 {
                let one = Origin::from(&*format!("{n:03}.yaml"));
                file.put(&one, vec![pod("other")], jiff::Timestamp::UNIX_EPOCH);
            }
        })
        .await;
    let web = server.get("/pods/default/web").await.json();
    let seqs: Vec<u64> =
        web["updates"].as_array().unwrap().iter().map(|one| one["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs.len(), 20);
    assert!(seqs.is_sorted_by(|a, b| a > b), "{seqs:?}");
    let other = server.get("/pods/default/other").await.json();
    assert_eq!(other["problems"].as_array().unwrap().len(), 100);
    assert_eq!(other["moreProblems"], 49);
    assert_eq!(other["origin"], "000.yaml");
}
