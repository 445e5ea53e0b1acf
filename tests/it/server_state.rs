//! What the server shows of the agent: sources, health, metrics, version, and what kubectl asks first.

use std::{fs::File, sync::Arc, time::Duration};

use expect_test::{Expect, expect, expect_file};
use jiff::Timestamp;
use podmux::{
    clock,
    pod::{ListingBuilder, Origin, Prepared, Problem, Refusal, RejectionReason, Stage},
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

fn long_ago() -> jiff::Timestamp {
    clock::now() - Duration::from_secs(31)
}

#[tokio::test]
async fn an_agent_that_is_well_says_ok() {
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
async fn a_source_that_was_not_seen_keeps_it_from_being_ready() {
    let server = TestServer::with(Setup { file_seen: false, ..Setup::default() }).await;
    check(
        &server,
        "/readyz",
        &expect![[r#"
        503 text/plain; charset=utf-8
        [-]source-file failed: it has not been seen yet
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
        "/readyz",
        &expect![[r#"
        503 text/plain; charset=utf-8
        [-]source-file failed: it has not been seen yet: permission denied
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
    // Failing is no reason once it has been seen.
    server.file(|_| ()).await;
    assert_eq!(server.get("/readyz").await.code, 200);
}

#[tokio::test]
async fn a_sink_that_is_stuck_keeps_it_from_being_ready() {
    let server = TestServer::start().await;
    let set = |edit: &dyn Fn(&mut SinkStatus)| server.sink_status.send_modify(edit);
    set(&|sink| sink.busy_since = Some(clock::now()));
    assert_eq!(server.get("/readyz").await.code, 200);
    set(&|sink| sink.busy_since = Some(long_ago()));
    let reply = server.get("/readyz").await;
    assert_eq!(reply.code, 503);
    assert!(
        reply.text().contains("[-]sink-test failed: it is busy with one update since 2"),
        "{}",
        reply.text()
    );
    set(&|sink| sink.busy_since = None);
    let failing = |since| SinkFailing {
        seq: 1,
        since,
        attempts: 5,
        next_attempt: clock::now(),
        error: "disk full".into(),
    };
    set(&|sink| sink.failing = Some(failing(clock::now())));
    assert_eq!(server.get("/readyz").await.code, 200);
    set(&|sink| sink.failing = Some(failing(long_ago())));
    let reply = server.get("/healthz").await;
    assert_eq!(reply.code, 503);
    assert!(reply.text().contains(": disk full\n"), "{}", reply.text());
    assert_eq!(server.get("/livez").await.code, 200);
}

#[tokio::test]
async fn an_agent_that_stops_is_not_ready_and_one_whose_loop_has_ended_not_alive() {
    let server = TestServer::start().await;
    server.stopping.cancel();
    check(
        &server,
        "/readyz",
        &expect![[r#"
        503 text/plain; charset=utf-8
        [+]source-file ok
        [+]source-http ok
        [+]sink-test ok
        [-]shutdown failed: the agent is stopping
        readyz check failed
    "#]],
    )
    .await;
    assert_eq!(server.get("/livez").await.code, 200);
    server.end_sources().await;
    check(
        &server,
        "/livez",
        &expect![[r#"
        503 text/plain; charset=utf-8
        [-]merge-loop failed: it has ended
        livez check failed
    "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_does_not_turn_is_not_waited_for() {
    let server = TestServer::with(Setup { turns: false, ..Setup::default() }).await;
    let get = async |path: &str| server.ask_inside(&format!("GET {path}"), &[], "").await;
    let live = get("/livez").await;
    assert_eq!(live.code, 503);
    assert_eq!(live.text(), "[-]merge-loop failed: it has not turned for 5s\nlivez check failed\n");
    assert_eq!((get("/healthz").await.code, get("/readyz").await.code), (503, 200));
}

#[tokio::test]
async fn sources_show_what_they_could_not_take_and_who_lost_to_whom() {
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
    let refusal = Refusal { stage: Stage::Validate, problems };
    server.file_refuses("/etc/podmux/bad.yaml", RejectionReason::Refused(Arc::new(refusal))).await;
    server
        .file_refuses("/etc/podmux/secret.yaml", RejectionReason::Unreadable("permission denied".into()))
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
        since: "2026-11-21T09:00:00Z".parse().unwrap(),
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
async fn a_manifest_of_a_hundred_problems_shows_twenty() {
    let server = TestServer::start().await;
    let refusal = Refusal { stage: Stage::Decode, problems: vec![Problem::error("bad"); 100] };
    server.file_refuses("bad.yaml", RejectionReason::Refused(Arc::new(refusal))).await;
    let problem = server.get("/sources").await.json()["items"][0]["problems"][0].clone();
    assert_eq!(problem["details"].as_array().unwrap().len(), 20);
    assert_eq!(problem["message"], "bad (and 99 more errors)");
}

#[tokio::test]
async fn ten_thousand_bad_files_are_a_thousand_problems_and_a_number() {
    let server = TestServer::start().await;
    server
        .file(|file| {
            for n in 0..10_000 {
                file.refuse(
                    &Origin::from(&*format!("{n:05}.yaml")),
                    RejectionReason::Unreadable("no".into()),
                );
            }
        })
        .await;
    let source = server.get("/sources").await.json()["items"][0].clone();
    assert_eq!(source["problems"].as_array().unwrap().len(), 1000);
    assert_eq!(source["moreProblems"], 9000);
}

/// What begins so is not the same in any two runs.
const FLEETING: [&str; 4] = [
    "podmux_http_request_duration_seconds_",
    "podmux_start",
    "podmux_config_last_reload_success_timestamp",
    "process_",
];

#[tokio::test]
async fn metrics_are_open_metrics() {
    let server = TestServer::start().await;
    server.ask("POST /pods", &[], manifest("web")).await;
    server.ask("POST /pods", &[], "nonsense").await;
    server.get("/api/v1/namespaces/a/pods/b").await;
    server.get("/api/v1/namespaces/a/pods/c").await;
    server.get("/nothing/here").await;
    server.ask("FROB /pods", &[], "").await;
    server.file_pod("web.yaml", pod("web")).await;
    server.file_refuses("bad.yaml", RejectionReason::Unreadable("no".into())).await;
    server.sink_status.send_modify(|status| status.acknowledged = Some(7));
    let reply = server.get("/metrics").await;
    assert_eq!(reply.header("content-type"), ["application/openmetrics-text; version=1.0.0; charset=utf-8"]);
    let mut lines: Vec<&str> = reply.text().lines().collect();
    assert_eq!(lines.pop(), Some("# EOF"));
    // A family's members stand in no order.
    lines.retain(|line| !FLEETING.iter().any(|fleeting| line.starts_with(fleeting)));
    lines.sort_unstable();
    expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/metrics.txt")]
        .assert_eq(&(lines.join("\n") + "\n"));
}

/// A metric's value, if it is there.
async fn metric(server: &TestServer, name: &str) -> Option<f64> {
    let reply = server.get("/metrics").await;
    let line = reply.text().lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map(|value| value.parse().unwrap())
}

#[tokio::test]
async fn the_process_shows_what_it_costs() {
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
    // Other tests open and close files meanwhile, but not so many.
    let held: Vec<_> = (0..100).map(|_| File::open("/dev/null").unwrap()).collect();
    let now = is("process_open_fds").await;
    assert!(now > 100.0, "{open}, then {now}");
    drop(held);
}

#[tokio::test]
async fn the_last_reload_is_shown() {
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

/// An api source whose pods are of `old`, and which waits to ask again.
fn restored(old: Duration) -> SourceStatus {
    let failing = SourceFailing {
        since: long_ago(),
        attempts: 3,
        error: "nobody listens at 127.0.0.1:6443".into(),
        quotes: false,
    };
    SourceStatus {
        target: "https://127.0.0.1:6443".to_owned(),
        restored: Some(clock::now() - old),
        failing: Some(failing),
        ..SourceStatus::default()
    }
}

#[tokio::test]
async fn pods_of_an_earlier_run_are_enough_to_be_ready_and_not_taken_for_live_ones() {
    let server = TestServer::with(with_api()).await;
    let unseen = server.get("/readyz").await;
    assert_eq!(unseen.code, 503);
    assert!(unseen.text().contains("[-]source-api failed: it has not been seen yet\n"), "{}", unseen.text());

    server.api_restored(|api| put(api, "web")).await;
    server.api_status.send_replace(restored(Duration::from_secs(3 * 3600 + 20)));
    check(&server, "/readyz", &expect!["200 text/plain; charset=utf-8\nok"]).await;
    let verbose = expect![[r#"
        200 text/plain; charset=utf-8
        [+]source-file ok
        [+]source-http ok
        [+]source-api ok: restored, 3h old
        [+]sink-test ok
        [+]shutdown ok
        readyz check passed
    "#]];
    check(&server, "/readyz?verbose", &verbose).await;
    // Nor does its failing hide it.
    let api = async || server.get("/sources").await.json()["items"][2].clone();
    let of = server.api_status.borrow().restored.unwrap().to_string();
    let source = api().await;
    assert_eq!((&source["state"], &source["restored"]), (&"restored".into(), &of.into()));
    let restored_of =
        async || metric(&server, r#"podmux_source_restored_timestamp_seconds{source="api"}"#).await;
    assert!(restored_of().await.is_some_and(|of| of > 1.7e9));
    assert_eq!((&source["pods"], &source["failing"]["attempts"]), (&1.into(), &3.into()));

    // One that does not know of when they are.
    server.api_status.send_modify(|status| status.restored = None);
    assert!(server.get("/readyz?verbose").await.text().contains("[+]source-api ok: restored\n"));

    // The live ones are what they were: they are not restored ones any more, and failing is failing.
    server.api_status.send_replace(restored(Duration::from_mins(1)));
    server.api(|api| put(api, "web")).await;
    let source = api().await;
    assert_eq!((&source["state"], source.get("restored")), (&"failing".into(), None));
    assert_eq!(restored_of().await, None);
    assert!(server.get("/readyz?verbose").await.text().contains("[+]source-api ok\n"));
}

#[tokio::test]
async fn a_reflector_says_where_it_is() {
    let server = TestServer::with(with_api()).await;
    let reflector = async || server.get("/sources").await.json()["items"][2]["reflector"].clone();
    assert_eq!(reflector().await, Value::Null);
    let tell = |reflector: ReflectorStatus| {
        server.api_status.send_modify(|status| status.reflector = Some(reflector))
    };
    let status =
        ReflectorStatus { phase: "connecting", resource_version: None, last_event: None, next_attempt: None };
    tell(status.clone());
    assert_eq!(reflector().await, json!({ "phase": "connecting" }));
    tell(ReflectorStatus {
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
async fn what_the_reflector_counts_has_client_gos_names() {
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
    let told = ReflectorStatus {
        phase: "watching",
        resource_version: Some("9223372036854775807".into()),
        last_event: Some("2026-11-21T09:00:00Z".parse().unwrap()),
        next_attempt: None,
    };
    server.api_status.send_modify(|status| status.reflector = Some(told.clone()));
    let scraped = async || {
        let reply = server.get("/metrics").await;
        assert_eq!(reply.code, 200, "{}", reply.text());
        let text = reply.text();
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("podmux_reflector_")).collect();
        lines.join("\n") + "\n"
    };
    expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/metrics-reflector.txt")]
        .assert_eq(&scraped().await);

    // A version is opaque: nothing says that it is a number, or how large.
    for version in ["a7", "-1", "1.5", "", "18446744073709551615", "9".repeat(100).as_str()] {
        let told = ReflectorStatus { resource_version: Some(version.into()), ..told.clone() };
        server.api_status.send_modify(|status| status.reflector = Some(told));
        let scraped = scraped().await;
        assert!(!scraped.contains("last_resource_version") && scraped.contains("last_event"), "{version}");
    }
    server.api_status.send_modify(|status| status.reflector = None);
    assert!(!scraped().await.contains("_last_"));
}

#[tokio::test]
async fn a_reflector_that_is_not_there_counts_nothing() {
    let server = TestServer::start().await;
    assert!(!server.get("/metrics").await.text().contains("reflector"));
}

#[tokio::test]
async fn a_file_has_the_name_and_the_api_server_has_the_uid() {
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
            // What `kubectl get pod db -o yaml` gave, saved under the node's manifests.
            file.put(&Origin::from("/m/db.yaml"), with_uid("db-node1", "2"), Timestamp::UNIX_EPOCH);
        })
        .await;
    let sources = server.get("/sources").await.json();
    let told: Vec<String> = [0, 2]
        .iter()
        .map(|index| {
            let source = &sources["items"][index];
            format!("{}: {} pods, {:#}\n", source["name"], source["pods"], source["problems"])
        })
        .collect();
    expect![[r#"
        "file": 1 pods, [
          {
            "message": "the UID is in use by default/db of source api; remove metadata.uid",
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
            "message": "the name is held by a pod of source file; rename one of them",
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
    .assert_eq(&told.concat());
    assert_eq!(server.get("/pods").await.names(), ["default/db", "default/web"]);
}

fn put(listing: &mut ListingBuilder, name: &str) {
    listing.put(&Origin::from(&*format!("default/{name}")), vec![pod(name)], Timestamp::UNIX_EPOCH);
}

#[tokio::test]
async fn kubectl_is_told_what_it_asks_first() {
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
          "groups": [],
          "kind": "APIGroupList"
        }
    "#]],
    )
    .await;
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
                "get",
                "list",
                "update"
              ]
            }
          ]
        }
    "#]],
    )
    .await;
    let version = server.get("/version").await.json();
    assert_eq!(version["gitVersion"], concat!("v", env!("CARGO_PKG_VERSION")));
    let paths = server.get("/").await.json();
    for path in paths["paths"].as_array().unwrap() {
        let path = path.as_str().unwrap();
        assert_eq!(server.open(&format!("HEAD {path}"), &[], "").await.status(), 200, "{path}");
    }
}
