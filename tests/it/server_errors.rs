//! The server's error responses, each with a golden file.

use std::fmt::Write as _;

use expect_test::expect_file;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use podmux::{pod::Origin, server::MAX_WATCHERS, source::http::Config};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{
    files::soon,
    script::pod,
    server::{Reply, Setup, TestServer, manifest},
    state::{Disk, EIO, ENOSPC, Fault, Operation},
};

/// Compares a response with the golden file of this name.
fn golden(name: &str, reply: &Reply) {
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    expect_file![path].assert_eq(&reply.golden());
}

const JSON: (&str, &str) = ("content-type", "application/json");
const YAML: (&str, &str) = ("content-type", "application/yaml");

#[tokio::test]
async fn a_malformed_or_unsupported_body_is_400_or_415() {
    let server = TestServer::start().await;
    let ask =
        async |headers: &[(&str, &str)], body: &str| server.ask("POST /pods", headers, body.to_owned()).await;
    golden("400-empty-body", &ask(&[], "").await);
    golden("400-json-cut-off", &ask(&[JSON], "{\"kind\": \"Pod\",\n  \"apiVersion").await);
    golden("400-yaml-as-json", &ask(&[JSON], "kind: Pod\n").await);
    golden("400-yaml-syntax", &ask(&[YAML], "kind: Pod\nmetadata:\n  name: [a\n").await);
    golden(
        "400-yaml-flattened-by-curl",
        &ask(&[("content-type", "application/x-www-form-urlencoded")], "kind: Pod metadata:  name: a").await,
    );
    golden("400-no-map", &ask(&[], "hello").await);
    let deep = "[".repeat(10_000);
    golden("400-too-deep", &ask(&[], &deep).await);
    golden("400-protobuf", &ask(&[("content-type", "application/vnd.kubernetes.protobuf")], "k8s").await);
    golden("415-media-type", &ask(&[("content-type", "application/cbor")], "").await);
    golden("415-gzip", &ask(&[JSON, ("content-encoding", "gzip")], "").await);
    for coding in ["Identity", ""] {
        assert_eq!(ask(&[JSON, ("content-encoding", coding)], "").await.code, 400, "{coding:?} is none");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_413() {
    let server = TestServer::start().await;
    let line = vec![b'#'; 1024 * 1024];
    let body = line.repeat(10);
    // A body of exactly the limit is read; it is not a manifest.
    assert_eq!(server.ask("POST /pods", &[], body.clone()).await.code, 400);
    let mut body = body;
    body.push(b'#');
    golden("413-announced", &server.ask("POST /pods", &[], body).await);
    // Without Content-Length the bytes are counted.
    let (mut stream, mut sent) = (tokio::net::TcpStream::connect(server.address).await.unwrap(), 0);
    stream.write_all(b"POST /pods HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let chunk = [format!("{:x}\r\n", line.len()).as_bytes(), &line, b"\r\n"].concat();
    // The server answers early, and may close while the client still sends.
    while sent < 11 && stream.write_all(&chunk).await.is_ok() {
        sent += 1;
    }
    let mut answer = [0; 32];
    let read = soon(stream.read(&mut answer)).await.unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 413 "), "{:?}", str::from_utf8(&answer[..read]));
}

#[tokio::test]
async fn an_incomplete_body_is_400_and_nothing_is_stored() {
    let server = TestServer::start().await;
    let whole = manifest("web");
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST /pods HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        whole.len() + 1
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(whole.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let reply = Reply { code: 400, headers: http::HeaderMap::new(), body: body.into() };
    golden("400-cut-off", &reply);
    assert!(server.posts.all().is_empty());
}

#[tokio::test]
async fn every_problem_of_every_item_is_reported_and_nothing_is_stored() {
    let server = TestServer::start().await;
    let list = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Pod, metadata: {name: good}, spec: {containers: [{name: c, image: i}]}}
- {apiVersion: v1, kind: Pod, metadata: {labels: {a: 5}}, spec: {containers: [{name: c, image: i}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: Not_A_Name}, spec: {containers: [{name: c}, {name: c, image: i}]}}
- {apiVersion: v1, kind: Pod, spec: {containers: [{name: c, image: i}]}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
- {apiVersion: v1, kind: Pod, metadata: {name: good}, spec: {containers: [{name: c, image: i}]}}
";
    golden("422-list", &server.ask("POST /pods", &[YAML], list).await);
    golden("422-list-put", &server.ask("PUT /pods", &[YAML], list).await);
    let one = manifest("web").replace("\"i:1\"", "5");
    golden("422-create", &server.ask("POST /api/v1/namespaces/default/pods", &[JSON], one.clone()).await);
    golden("422-replace", &server.ask("PUT /api/v1/namespaces/default/pods/web", &[JSON], one).await);
    let namespace = server.ask("POST /api/v1/namespaces/No_Such/pods", &[JSON], manifest("web")).await;
    golden("422-namespace", &namespace);
    assert!(server.posts.all().is_empty());
}

#[tokio::test]
async fn a_message_of_a_megabyte_is_cut() {
    let server = TestServer::start().await;
    let key = "k".repeat(1024 * 1024);
    let body = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"a\",\"labels\":{{\"{key}\":5}}}}}}"
    );
    let reply = server.ask("POST /pods", &[], body).await;
    assert_eq!(reply.code, 422);
    assert!(reply.body.len() < 20_000, "{}", reply.body.len());
}

#[tokio::test]
async fn unknown_and_duplicate_fields_are_warnings_or_errors() {
    let server = TestServer::start().await;
    let body = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  Foo: \"é\"
  containers:
  - {name: c, image: i, image: j, imagePullPolic: Always}
  priorityClassName: mine
";
    let strict = server.ask("POST /pods?fieldValidation=Strict", &[], body).await;
    golden("400-strict", &strict);
    assert!(server.posts.all().is_empty());
    golden("422-field-validation", &server.ask("POST /pods?fieldValidation=Loose", &[], body).await);
    let warned = server.ask("POST /pods", &[], body).await;
    let mut text = format!("{}\n", warned.code);
    for warning in warned.header("warning") {
        writeln!(text, "{warning}").unwrap();
    }
    expect_test::expect![[r#"
        201
        299 - "unknown field \"spec.Foo\""
        299 - "duplicate field \"spec.containers[0].image\""
        299 - "unknown field \"spec.containers[0].imagePullPolic\"; did you mean imagePullPolicy?"
        299 - "spec.priorityClassName: the class \"mine\" of a static pod is not looked up: set priority to its value too"
    "#]].assert_eq(&text);
    let ignored = server.ask("POST /pods?fieldValidation=Ignore", &[], body).await;
    let class = warned.header("warning")[3];
    assert_eq!((ignored.code, ignored.header("warning")), (200, vec![class]));
    // Of a thousand warnings, as many are sent as fit.
    let many = (0..1000).map(|n| format!(",\"unknown{n}\":1")).collect::<Vec<_>>().concat();
    let body = manifest("many").replace(
        "\"spec\":{",
        &format!("\"spec\":{{\"long{}\":1{many},", "g".repeat(5000)).replace(":{,", ":{"),
    );
    let reply = server.ask("POST /pods", &[], body).await;
    let warnings = reply.header("warning");
    let length: usize = warnings.iter().map(|warning| warning.len()).sum();
    assert_eq!(reply.code, 201);
    assert_eq!(warnings.len(), 64);
    assert!((1500..=4096).contains(&length), "{length}");
    assert!(warnings.iter().all(|warning| warning.len() < 300));
}

#[tokio::test]
async fn writes_to_another_sources_pod_are_403_and_nothing_is_stored() {
    let server = TestServer::start().await;
    server.file_pod("/etc/podmux/web.yaml", pod("web")).await;
    server.file_pod("/etc/podmux/db.yaml", pod("db")).await;
    let (path, json) = ("/api/v1/namespaces/default/pods", [JSON]);
    golden("403-create", &server.ask(&format!("POST {path}"), &json, manifest("web")).await);
    golden("403-replace", &server.ask(&format!("PUT {path}/web"), &json, manifest("web")).await);
    golden("403-delete", &server.ask(&format!("DELETE {path}/web"), &json, "").await);
    let three = ["web", "mine", "db"].map(manifest).join("\n---\n");
    golden("403-apply", &server.ask("POST /pods", &[], three.clone()).await);
    golden("403-replace-all", &server.ask("PUT /pods", &[], three).await);
    assert!(server.posts.all().is_empty());
    assert_eq!(server.get("/pods").await.names(), ["default/db", "default/web"]);
}

#[tokio::test]
async fn unknown_pods_and_paths_are_404_and_unsupported_methods_405() {
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default/pods/web";
    golden("404-get", &server.get(path).await);
    golden("404-replace", &server.ask(&format!("PUT {path}"), &[], manifest("web")).await);
    golden("404-delete", &server.ask(&format!("DELETE {path}"), &[], "").await);
    golden("404-path", &server.get("/containers").await);
    golden("405-patch", &server.ask("PATCH /api/v1/namespaces/default/pods", &[], "{}").await);
    golden("405-delete-all-namespaces", &server.ask("DELETE /api/v1/pods", &[], "").await);
    golden("405-post-all-namespaces", &server.ask("POST /api/v1/pods", &[], manifest("web")).await);
    golden("405-watch", &server.get("/pods?watch=true").await);
    golden("405-updates", &server.ask("POST /updates", &[], "").await);
    golden("400-path", &server.get("/api/v1/namespaces/a%2fb/pods").await);
    golden("400-path-utf8", &server.get("/api/v1/namespaces/%ff/pods").await);
}

#[tokio::test]
async fn contradictory_requests_are_400_and_conflicts_409() {
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default/pods";
    let create = async |body: String| server.ask(&format!("POST {path}"), &[], body).await;
    let replace = async |body: String| server.ask(&format!("PUT {path}/web"), &[], body).await;
    assert_eq!(create(manifest("web")).await.code, 201);
    golden("409-exists", &create(manifest("web")).await);
    golden("400-two-pods", &create(format!("{}\n---\n{}", manifest("a"), manifest("b"))).await);
    golden(
        "400-namespace",
        &create(manifest("a").replace("\"name\":\"a\"", "\"name\":\"a\",\"namespace\":\"other\"")).await,
    );
    golden(
        "400-resource-version",
        &create(manifest("a").replace("\"name\":\"a\"", "\"name\":\"a\",\"resourceVersion\":\"1\"")).await,
    );
    golden("400-name", &replace(manifest("other")).await);
    golden(
        "409-resource-version",
        &replace(manifest("web").replace("\"name\":\"web\"", "\"name\":\"web\",\"resourceVersion\":\"77\""))
            .await,
    );
    let delete = async |query: &str, body: &str| {
        server.ask(&format!("DELETE {path}/web{query}"), &[], body.to_owned()).await
    };
    golden("409-delete-precondition", &delete("", r#"{"preconditions":{"resourceVersion":"77"}}"#).await);
    // As at an API server an empty one is compared too, and that of the query counts if the body has none.
    for (query, body) in [
        ("", r#"{"preconditions":{"uid":""}}"#),
        ("", r#"{"preconditions":{"resourceVersion":""}}"#),
        ("?uid=x", ""),
        ("?resourceVersion=77", ""),
        ("?uid=x", "{}"),
    ] {
        assert_eq!(delete(query, body).await.code, 409, "{query} {body}");
    }
    golden("400-delete-options", &delete("", r#"{"gracePeriodSeconds":"soon"}"#).await);
    // serde would read arrays as the fields in their order.
    for body in ["[]", r#"["DeleteOptions", 0]"#, r#"{"preconditions":["no-uid"]}"#, "1", "\"a\""] {
        let reply = delete("", body).await;
        assert_eq!(
            (reply.code, &reply.json()["reason"]),
            (400, &"BadRequest".into()),
            "{body}: {}",
            reply.text()
        );
    }
    golden("400-delete-grace", &delete("?gracePeriodSeconds=soon", "").await);
    golden("422-dry-run", &delete("?dryRun=Some", "").await);
    golden("422-dry-run-body", &delete("", r#"{"dryRun":["Some"]}"#).await);
    assert_eq!(delete("", "").await.code, 200, "the pod is terminating now");
    golden("409-terminating", &create(manifest("web")).await);
    golden("409-terminating-replace", &replace(manifest("web")).await);
    assert_eq!(create(manifest("first")).await.code, 201);
    let stale = manifest("first").replace("\"metadata\":{", "\"metadata\":{\"resourceVersion\":\"77\",");
    let several = [manifest("web"), stale, manifest("fine")].join("\n---\n");
    golden("409-several", &server.ask("POST /pods", &[], several).await);
}

#[tokio::test]
async fn a_quota_that_is_used_up_is_403() {
    let server = TestServer::start().await;
    server.posts.retune(Config { max_pods: 1, max_bytes: 1 << 20 });
    assert_eq!(server.ask("POST /pods", &[], manifest("web")).await.code, 201);
    golden("403-quota", &server.ask("POST /api/v1/namespaces/default/pods", &[], manifest("b")).await);
}

#[tokio::test]
async fn a_list_that_exceeds_the_quota_in_any_case_is_rejected_at_its_first_pod_that_does() {
    let server = TestServer::start().await;
    server.posts.retune(Config { max_pods: 2, max_bytes: 1 << 20 });
    let list = |names: &[&str]| names.iter().map(|name| manifest(name)).collect::<Vec<_>>().join("\n---\n");
    let set =
        async |method: &str, names: &[&str]| server.ask(&format!("{method} /pods"), &[], list(names)).await;
    // The last pod is not decoded, so it does not matter that it is the first one again.
    golden("403-quota-list", &set("POST", &["a", "b", "c", "a"]).await);
    assert_eq!(server.get("/pods").await.names(), [""; 0]);
    assert_eq!(set("PUT", &["a", "b"]).await.code, 201);
    assert_eq!(set("PUT", &["a", "b", "c"]).await.code, 403);
    assert_eq!(server.get("/pods").await.names(), ["default/a", "default/b"]);
    // Pods that exist can be replaced above the quota, and no more than those.
    server.posts.retune(Config { max_pods: 1, max_bytes: 1 });
    assert_eq!(set("POST", &["a", "b"]).await.code, 200);
    assert_eq!(set("POST", &["a", "b", "c", "c"]).await.code, 403);
    // The size too is known before all pods are decoded.
    server.posts.retune(Config { max_pods: 10, max_bytes: 1 });
    let annotations = format!("\"metadata\":{{\"annotations\":{{\"a\":\"{}\"}},", "x".repeat(40_000));
    let large = manifest("c").replace("\"metadata\":{", &annotations);
    let body = [large.clone(), large].join("\n---\n");
    assert_eq!(server.ask("POST /pods", &[], body).await.code, 403);
}

#[tokio::test]
async fn finalizers_are_422() {
    let server = TestServer::start().await;
    let body = manifest("web").replace("\"metadata\":{", "\"metadata\":{\"finalizers\":[\"example.com/x\"],");
    golden("422-finalizers", &server.ask("POST /pods", &[], body.clone()).await);
    assert_eq!(server.ask("POST /api/v1/namespaces/default/pods", &[], body).await.code, 422);
}

#[tokio::test]
async fn a_list_without_items_deletes_no_posted_pod() {
    let server = TestServer::start().await;
    assert_eq!(server.ask("POST /pods", &[], manifest("web")).await.code, 201);
    let put = async |body: &str| server.ask("PUT /pods", &[], body.to_owned()).await;
    golden("422-no-items", &put(r#"{"kind":"PodList","apiVersion":"v1"}"#).await);
    for body in [
        r#"{"kind":"PodList","apiVersion":"v1","items":null}"#,
        "kind: List\napiVersion: v1\n",
        "kind: List\napiVersion: v1\n---\nkind: List\napiVersion: v1\nitems: []\n",
    ] {
        assert!(put(body).await.code >= 400, "{body}");
    }
    assert_eq!(server.get("/pods").await.names(), ["default/web"]);
    assert_eq!(put(r#"{"kind":"PodList","apiVersion":"v1","items":[]}"#).await.code, 200);
    let web = server.get("/api/v1/namespaces/default/pods/web").await;
    assert!(web.code == 404 || web.json()["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn invalid_list_options_are_400_410_or_504() {
    let server = TestServer::start().await;
    let get = async |query: &str| server.get(&format!("/pods?{query}")).await;
    golden("400-label-selector", &get("labelSelector=a+in+b").await);
    golden("400-label-name", &get("labelSelector=-a").await);
    golden("400-field-selector", &get("fieldSelector=status.phase").await);
    golden("400-field-unknown", &get("fieldSelector=spec.foo%3D1").await);
    golden("400-limit", &get("limit=many").await);
    golden("400-continue", &get("continue=abc").await);
    golden("400-list-version", &get("resourceVersion=abc").await);
    golden("504-list-version", &get("resourceVersion=100").await);
    // {"seq":100,"after":"a/b"}
    golden("410-continue", &get("continue=eyJzZXEiOjEwMCwiYWZ0ZXIiOiJhL2IifQ").await);
    golden("400-timeout", &get("timeout=invalid").await);
    golden("400-timeout-seconds", &get("timeoutSeconds=abc").await);
    // Durations as Go reads them.
    for timeout in ["", "0", "5s", "1h30m", "-1.5s", ".5s", "1.s", "%2B1s", "-0"] {
        assert_eq!(get(&format!("timeout={timeout}")).await.code, 200, "{timeout}");
    }
    for timeout in ["PT1S", "1m+1s", "1m,1s", "1+s", "5", "1d", "1hour", ".s", "-", "--1s", "2562048h"] {
        assert_eq!(get(&format!("timeout={timeout}")).await.code, 400, "{timeout}");
    }
}

#[tokio::test]
async fn nothing_that_changes_is_kept_by_caches() {
    let server = TestServer::start().await;
    let review = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    for request in [
        "GET /api/v1/pods",
        "GET /api/v1/nodes",
        "GET /api",
        "GET /livez",
        "GET /metrics",
        "GET /none",
        "PUT /api/v1/pods",
        "GET /api/v1/pods?timeout=x",
        review,
    ] {
        let answer = server.ask(request, &[], "{}").await;
        assert_eq!(answer.header("cache-control"), ["no-cache, private"], "{request}");
    }
}

#[tokio::test]
async fn invalid_requests_for_updates_are_400_410_or_429() {
    let server = TestServer::with(Setup::default()).await;
    golden("400-from", &server.get("/updates?from=abc").await);
    assert_eq!(server.get("/updates?from=-1").await.code, 400);
    golden("400-last-event-id", &server.ask("GET /updates", &[("last-event-id", "abc")], "").await);
    golden("410-not-held", &server.get("/updates?from=0").await);
    golden("410-not-yet", &server.get("/updates?from=1000").await);
    golden("410-other-run", &server.get("/updates?from=other-1").await);
    golden("400-updates-parameter", &server.get("/updates?form=1").await);
    let mut watchers = Vec::new();
    for _ in 0..MAX_WATCHERS {
        watchers.push(server.open("GET /updates", &[], "").await);
    }
    golden("429-watchers", &server.get("/updates").await);
    // A watcher that disconnects frees its place.
    assert!(watchers.pop().unwrap().into_body().frame().await.is_some());
    let reconnected = async {
        while server.open("GET /updates", &[], "").await.status() != 200 {
            tokio::task::yield_now().await;
        }
    };
    soon(reconnected).await;
}

#[tokio::test]
async fn a_stopping_agent_answers_503() {
    let server = TestServer::start().await;
    server.end_sources().await;
    golden("503-write", &server.ask("POST /pods", &[], manifest("web")).await);
    golden("503-list", &server.get("/pods").await);
    golden("503-updates", &server.get("/updates").await);
}

#[tokio::test]
async fn a_failing_disk_fails_writes_and_not_reads() {
    let disk = Disk::default();
    let server = TestServer::with(Setup { disk: Some(disk.clone()), ..Setup::default() }).await;
    assert_eq!(server.ask("POST /pods", &[], manifest("kept")).await.code, 201);
    let fail = |errno| {
        disk.platter().fault = Some(Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno });
    };
    fail(ENOSPC);
    golden("507-full", &server.ask("POST /pods", &[], manifest("web")).await);
    golden("507-delete", &server.ask("DELETE /api/v1/namespaces/default/pods/kept", &[], "").await);
    fail(EIO);
    golden("500-disk", &server.ask("PUT /pods", &[], manifest("web")).await);
    assert_eq!(server.get("/pods").await.names(), ["default/kept"]);
    let source = server.get("/sources").await.json()["items"][1].clone();
    assert_eq!((&source["state"], &source["failing"]["attempts"]), (&"failing".into(), &3.into()));
    disk.platter().fault = None;
    assert_eq!(server.ask("POST /pods", &[], manifest("web")).await.code, 201);
}

/// The deletion may be in effect after a restart. Until the disk has taken it back, no answer depends on that.
#[tokio::test]
async fn after_an_uncertain_write_nothing_is_acknowledged_before_the_disk_works() {
    let disk = Disk::default();
    let server = TestServer::with(Setup { disk: Some(disk.clone()), ..Setup::default() }).await;
    let kept = "/api/v1/namespaces/default/pods/kept";
    assert_eq!(server.ask("POST /pods", &[], manifest("kept")).await.code, 201);
    disk.platter().fault = Some(Fault { operation: Operation::Sync, from: 0, times: usize::MAX, errno: EIO });
    let deleted = server.ask(&format!("DELETE {kept}"), &[], "").await;
    assert!(deleted.text().contains("the write may be in effect after a restart"), "{}", deleted.text());
    for (request, works) in
        [(format!("PUT {kept}"), 200), ("POST /api/v1/namespaces/default/pods".to_owned(), 409)]
    {
        assert_eq!(server.ask(&request, &[], manifest("kept")).await.code, 500, "{request}");
        let fault = disk.platter().fault.take();
        assert_eq!(server.ask(&request, &[], manifest("kept")).await.code, works, "{request}");
        disk.platter().fault = fault;
        assert_eq!(server.ask(&format!("DELETE {kept}"), &[], "").await.code, 500, "{request}");
    }
    // Once it has, what changes nothing needs no disk.
    let create =
        async || server.ask("POST /api/v1/namespaces/default/pods", &[], manifest("kept")).await.code;
    let fault = disk.platter().fault.take();
    assert_eq!(create().await, 409);
    disk.platter().fault = fault;
    assert_eq!(create().await, 409);
}

#[tokio::test]
async fn a_status_has_at_most_200_causes() {
    let server = TestServer::start().await;
    let names: Vec<String> = (0..1000).map(|n| format!("p{n:03}")).collect();
    let pods = names.iter().map(|name| pod(name)).collect();
    server.file(|file| file.put(&Origin::from("all.yaml"), pods, Timestamp::UNIX_EPOCH)).await;
    let bodies: Vec<String> = names.iter().map(|name| manifest(name)).collect();
    let reply = server.ask("POST /pods", &[], bodies.join("\n---\n")).await;
    assert_eq!(reply.code, 403);
    assert_eq!(reply.json()["details"]["causes"].as_array().unwrap().len(), 200);
    assert_eq!(reply.json()["message"].as_str().unwrap().len(), 4096);
}

#[tokio::test(start_paused = true)]
async fn a_history_that_hangs_is_503_after_a_timeout() {
    let server = TestServer::with(Setup { history: false, ..Setup::default() }).await;
    let ask = async |line: &str, body: String| server.ask_inside(line, &[], body).await;
    golden("503-history", &ask("GET /pods", String::new()).await);
    assert_eq!(ask("GET /updates", String::new()).await.code, 503);
    // Requests that do not need the history work.
    let written = ask("POST /pods", manifest("web")).await;
    assert_eq!((written.code, &written.json()["metadata"]["resourceVersion"]), (201, &"".into()));
    assert_eq!(ask("GET /api/v1/namespaces/default/pods/web", String::new()).await.code, 200);
    let metrics = ask("GET /metrics", String::new()).await;
    assert_eq!((metrics.code, metrics.text().contains("podmux_updates_seq ")), (200, false));
}
