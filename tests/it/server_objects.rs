//! Nodes, namespaces and services, the reviews of a caller, and paths with slashes.

use std::time::Duration;

use jiff::Timestamp;
use podmux::{
    host::Moment,
    sink::{SinkFailing, SinkStatus},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    reader::Reader,
    server::{Setup, TestServer, manifest},
    state::Dice,
};

const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");
const PARTIAL: (&str, &str) =
    ("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json");
const REVIEWS: &str = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const PROTOBUF: (&str, &str) = ("content-type", "application/vnd.kubernetes.protobuf");

fn failing() -> SinkStatus {
    let failing = SinkFailing {
        seq: None,
        since: Moment { instant: Instant::now() - Duration::from_mins(1), time: Timestamp::UNIX_EPOCH },
        attempts: 1,
        next_attempt: Timestamp::UNIX_EPOCH,
        error: "gone".into(),
    };
    SinkStatus { name: "jsonl".to_owned(), failing: Some(failing), ..SinkStatus::default() }
}

#[tokio::test]
async fn the_node_is_ready_as_the_agent_is() {
    let server = TestServer::start().await;
    let node = server.get("/api/v1/nodes/node1").await.json();
    let condition = &node["status"]["conditions"][0];
    assert_eq!([&condition["type"], &condition["status"]], ["Ready", "True"]);
    // Nothing is known to have failed since the start. There are no heartbeats.
    assert_eq!(condition["lastTransitionTime"], node["metadata"]["creationTimestamp"]);
    assert_eq!(condition["lastHeartbeatTime"], Value::Null);
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], concat!("podmux/", env!("CARGO_PKG_VERSION")));
    assert_eq!(node["status"]["addresses"], json!([{"type": "Hostname", "address": "node1"}]));
    assert_eq!(node, server.get("/api/v1/nodes").await.json()["items"][0], "nothing has changed");
    server.sink_status.send_replace(failing());
    let later = server.get("/api/v1/nodes/node1").await.json();
    let condition = &later["status"]["conditions"][0];
    assert_eq!([&condition["status"], &condition["reason"]], ["False", "AgentNotReady"]);
    assert_eq!(condition["message"], "sink-jsonl: failing since 1970-01-01T00:00:00Z: gone");
    assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:00Z", "not the time of the read");
    assert_eq!(later, server.get("/api/v1/nodes/node1").await.json(), "nothing has changed");
    let version =
        |node: &Value| node["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(version(&node) < version(&later));
    let table = server.ask("GET /api/v1/nodes?includeObject=None", &[TABLE], "").await.json();
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..3], ["node1", "NotReady", "<none>"]);
    assert_eq!(table["rows"][0]["object"], Value::Null);
    let partial = server.ask("GET /api/v1/nodes", &[PARTIAL], "").await.json();
    assert_eq!(partial["kind"], "PartialObjectMetadataList");
    assert_eq!(partial["items"][0]["metadata"]["labels"]["kubernetes.io/hostname"], "node1");
    for (selector, count) in [
        ("fieldSelector=metadata.name%3Dnode1", 1),
        ("fieldSelector=metadata.name!%3Dnode1", 0),
        ("fieldSelector=spec.unschedulable%3Dfalse", 1),
        ("fieldSelector=spec.unschedulable%3Dtrue", 0),
        ("labelSelector=kubernetes.io/os%3Dlinux", 1),
        ("labelSelector=none", 0),
    ] {
        let list = server.get(&format!("/api/v1/nodes?{selector}")).await.json();
        assert_eq!(list["items"].as_array().unwrap().len(), count, "{selector}");
    }
    for (request, code) in [
        ("GET /api/v1/nodes/other", 404),
        ("GET /api/v1/nodes?fieldSelector=spec.nodeName%3Da", 400),
        ("GET /api/v1/nodes?resourceVersion=x", 400),
        ("GET /api/v1/nodes?resourceVersion=0", 200),
        ("GET /api/v1/nodes?limit=1", 200),
        ("GET /api/v1/nodes?resourceVersion=999999999999999999", 504),
        ("GET /api/v1/namespaces?resourceVersion=999999999999999999", 504),
        ("GET /api/v1/services?resourceVersion=999999999999999999", 504),
        ("GET /api/v1/nodes?resourceVersion=1&resourceVersionMatch=Maybe", 422),
        ("GET /api/v1/nodes?resourceVersionMatch=Exact", 422),
        ("GET /api/v1/nodes/node1?resourceVersion=999999999999999999", 504),
        ("GET /api/v1/nodes?limit=x", 400),
        ("GET /api/v1/nodes?limit=", 400),
        ("GET /api/v1/nodes?watch=1&limit=x", 400),
        ("GET /api/v1/nodes?continue=x", 400),
        ("PUT /api/v1/nodes/node1", 405),
        ("POST /api/v1/namespaces", 405),
    ] {
        assert_eq!(server.ask(request, &[], "{}").await.code, code, "{request}");
    }
}

#[tokio::test]
async fn a_watch_of_nodes_begins_with_the_node_and_follows_it() {
    let server = TestServer::start().await;
    let list = server.get("/api/v1/nodes").await.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut all = Reader::open(&server, &format!("/api/v1/nodes?watch=1&{initial}")).await;
    let mut later = Reader::open(&server, &format!("/api/v1/nodes?watch=1&resourceVersion={version}")).await;
    let mut old = Reader::open(&server, "/api/v1/nodes?watch=1&resourceVersion=1").await;
    let ready = "/status/conditions/0/status";
    assert_eq!(all.brief_with(ready).await, "ADDED node1 True");
    let mark = all.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(mark["object"]["metadata"]["resourceVersion"], *version);
    // There is no journal, so a client of another version has to list again.
    let expired = old.next().await.unwrap();
    assert_eq!([&expired["type"], &expired["object"]["code"]], [&json!("ERROR"), &json!(410)]);
    server.sink_status.send_replace(failing());
    for watch in [&mut all, &mut later] {
        assert_eq!(watch.brief_with(ready).await, "MODIFIED node1 False");
    }
    server.stopping.cancel();
    assert_eq!(later.next().await, None, "the agent stops");
}

#[tokio::test]
async fn namespaces_are_those_of_pods_and_each_can_be_read() {
    let server = TestServer::start().await;
    let mut watch = Reader::open(&server, "/api/v1/namespaces?watch=1&timeoutSeconds=60").await;
    assert_eq!(watch.brief_with("/status/phase").await, "ADDED default Active");
    let pods = "/api/v1/namespaces/media/pods";
    let mut pod: Value = serde_json::from_str(&manifest("web")).unwrap();
    pod["metadata"]["namespace"] = "media".into();
    assert_eq!(server.ask(&format!("POST {pods}"), &[], pod.to_string()).await.code, 201);
    let list = server.get("/api/v1/namespaces").await.json();
    let names = [0, 1].map(|index| list["items"][index]["metadata"]["name"].clone());
    assert_eq!(names, ["default", "media"]);
    assert_eq!(watch.brief_with("/status/phase").await, "ADDED media Active");
    let selected = "/api/v1/namespaces?watch=1&timeoutSeconds=60&fieldSelector=metadata.name=media";
    let mut selected = Reader::open(&server, selected).await;
    assert_eq!(selected.brief_with("/status/phase").await, "ADDED media Active");
    server.ask(&format!("DELETE {pods}/web?gracePeriodSeconds=0"), &[], "").await;
    assert_eq!(watch.brief_with("/status/phase").await, "DELETED media Active");
    assert_eq!(selected.brief_with("/status/phase").await, "DELETED media Active");
    // A client that has not received this would keep the namespace for ever.
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut late =
        Reader::open(&server, &format!("/api/v1/namespaces?watch=1&resourceVersion={version}")).await;
    assert_eq!(late.next().await.unwrap()["object"]["reason"], "Expired");
    let later = format!("/api/v1/namespaces?watch=1&resourceVersion={}", u64::MAX);
    assert_eq!(Reader::open(&server, &later).await.next().await.unwrap()["object"]["code"], 504);
    let unused = server.get("/api/v1/namespaces/unused").await.json();
    assert_eq!([&unused["kind"], &unused["metadata"]["name"]], ["Namespace", "unused"]);
    let bad = server.get("/api/v1/namespaces/Bad_Name").await.json();
    assert_eq!([&bad["details"]["kind"], &bad["details"]["name"]], ["namespaces", "Bad_Name"]);
    // kubectl cluster-info lists the services.
    let services = server.get("/api/v1/namespaces/kube-system/services").await.json();
    assert_eq!([&services["kind"], &services["items"]], [&json!("ServiceList"), &json!([])]);
    assert_eq!(server.get("/api/v1/namespaces/default/services/none").await.code, 404);
}

#[tokio::test]
async fn a_slash_at_the_end_of_a_path_is_ignored_and_an_empty_part_is_404() {
    let server = TestServer::start().await;
    server.ask("POST /pods", &[], manifest("web")).await;
    let pods = "/api/v1/namespaces/default/pods";
    for path in
        ["/api", "/apis", "/api/v1", "/version", pods, "/api/v1/namespaces/default/pods/web", "/readyz"]
    {
        let [plain, slash] = [path.to_owned(), format!("{path}/")];
        assert_eq!(server.get(&slash).await.body, server.get(&plain).await.body, "{path}");
    }
    assert_eq!(server.get(&format!("{pods}/?labelSelector=none")).await.names().len(), 0);
    for path in ["/api/v1/namespaces//pods", "/api/v1/namespaces//pods/web", "/api/v1//pods", "//api"] {
        let answer = server.get(path).await;
        assert_eq!((answer.code, &answer.json()["details"]), (404, &json!({})), "{path}");
    }
}

#[tokio::test]
async fn a_review_is_json_yaml_or_protobuf_and_a_bad_one_is_400_or_422() {
    let server = TestServer::start().await;
    let review = |kind: &str, spec: Value| json!({"kind": kind, "spec": spec}).to_string();
    let access = "SelfSubjectAccessReview";
    let asked = json!({"resourceAttributes": {"verb": "list", "resource": "pods"}});
    let answer = server.ask(REVIEWS, &[], review(access, asked.clone())).await;
    assert_eq!((answer.code, &answer.json()["status"]["allowed"]), (201, &json!(true)));
    let yaml = "spec: {nonResourceAttributes: {path: /metrics, verb: get}}";
    let answer = server.ask(REVIEWS, &[("content-type", "application/yaml")], yaml).await;
    assert_eq!(answer.json()["status"]["allowed"], true);
    let yaml = yaml.replace("get", "head");
    let answer = server.ask(REVIEWS, &[("content-type", "application/yaml")], yaml).await;
    assert_eq!(answer.json()["status"]["allowed"], true, "HEAD is allowed where GET is");
    // What kubectl 1.36 sends for `auth can-i get pods --subresource=log`.
    let mut spec = Vec::new();
    for (number, text) in [(1, "default"), (2, "get"), (4, "*"), (5, "pods"), (6, "log")] {
        spec.extend(field(number, text.as_bytes()));
    }
    let protobuf = envelope(access, &field(2, &field(1, &spec)));
    let answer = server.ask(REVIEWS, &[PROTOBUF], protobuf.clone()).await;
    assert_eq!(answer.json()["status"]["allowed"], true, "{}", answer.text());
    assert_eq!(answer.json()["spec"]["resourceAttributes"]["subresource"], "log");
    // It has no table.
    let table = [("accept", TABLE.1.split(',').next().unwrap())];
    assert_eq!(server.ask(REVIEWS, &table, review(access, asked.clone())).await.code, 406);
    assert_eq!(server.ask(REVIEWS, &[TABLE], review(access, asked.clone())).await.json()["kind"], access);
    let both = json!({"resourceAttributes": {}, "nonResourceAttributes": {}});
    for (body, headers, code) in [
        (review(access, json!({})).into_bytes(), vec![], 422),
        (review(access, both).into_bytes(), vec![], 422),
        (review("Pod", asked).into_bytes(), vec![], 400),
        (b"{".to_vec(), vec![], 400),
        (b"[]".to_vec(), vec![], 400),
        (envelope("Pod", &[]), vec![PROTOBUF], 400),
        (b"k8s\0".to_vec(), vec![PROTOBUF], 400),
        (envelope(access, &[]), vec![PROTOBUF], 422),
        (envelope(access, b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), vec![PROTOBUF], 400),
        (envelope(access, &[0xff; 30]), vec![PROTOBUF], 400),
    ] {
        let answer = server.ask(REVIEWS, &headers, body.clone()).await;
        assert_eq!(answer.code, code, "{}: {}", String::from_utf8_lossy(&body), answer.text());
    }
    let rules = REVIEWS.replace("access", "rules");
    assert_eq!(server.ask(&rules, &[], "{}").await.code, 400, "without a namespace");
    let spec = field(2, &field(1, b"default"));
    let answer = server.ask(&rules, &[PROTOBUF], envelope("SelfSubjectRulesReview", &spec)).await;
    assert_eq!((answer.code, &answer.json()["status"]["incomplete"]), (201, &json!(false)));
    // Damaged and cut ones have an answer.
    let mut dice = Dice(1);
    for _ in 0..300 {
        let mut damaged = protobuf.clone();
        let at = dice.roll(damaged.len());
        if dice.roll(2) == 0 {
            damaged.truncate(at);
        } else {
            damaged[at] ^= 1 << dice.roll(8);
        }
        let code = server.ask_inside(REVIEWS, &[PROTOBUF], damaged).await.code;
        assert!([201, 400, 422].contains(&code), "{code}");
    }
}

/// A field of a protobuf message.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).unwrap();
    assert!(length < 0x80);
    [&[number << 3 | 2, length], value].concat()
}

/// An object in protobuf.
fn envelope(kind: &str, object: &[u8]) -> Vec<u8> {
    [b"k8s\0", &*field(1, &field(2, kind.as_bytes())), &field(2, object)].concat()
}

#[tokio::test]
async fn a_page_whose_beginning_is_no_longer_held_is_410_with_a_token_for_the_rest() {
    let bounds = podmux::history::Bounds { updates: 4, ..Default::default() };
    let server = TestServer::with(Setup { bounds, ..Setup::default() }).await;
    let pods = "/api/v1/namespaces/default/pods";
    for name in ["a", "b", "c"] {
        server.ask("POST /pods", &[], manifest(name)).await;
    }
    let first = server.get(&format!("{pods}?limit=1")).await.json();
    let token = first["metadata"]["continue"].as_str().unwrap();
    assert_eq!(server.get(&format!("{pods}?continue={token}")).await.names(), ["default/b", "default/c"]);
    for _ in 0..10 {
        server.ask("POST /pods", &[], manifest("d")).await;
        server.ask(&format!("DELETE {pods}/d?gracePeriodSeconds=0"), &[], "").await;
    }
    let expired = server.get(&format!("{pods}?continue={token}")).await;
    assert_eq!((expired.code, &expired.json()["reason"]), (410, &json!("Expired")));
    let rest = expired.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    assert_eq!(server.get(&format!("{pods}?continue={rest}")).await.names(), ["default/b", "default/c"]);
}
