//! Protobuf over HTTP: bodies and responses on the paths of pods.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use podmux::manifest::protobuf::{self, MAGIC, MEDIA_TYPE, WatchEvent};
use serde_json::{Value, json};

use crate::support::{
    files::soon,
    server::{Reply, TestServer, manifest},
};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SENDS: (&str, &str) = ("content-type", MEDIA_TYPE);
const ACCEPTS: (&str, &str) = ("accept", "application/vnd.kubernetes.protobuf,application/json");

fn body(name: &str) -> Vec<u8> {
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    });
    protobuf::encode(&pod).unwrap()
}

/// The object of a response in protobuf.
fn object(reply: &Reply) -> Value {
    assert_eq!(reply.header("content-type"), [MEDIA_TYPE]);
    protobuf::decode(&reply.body, "").unwrap()
}

#[tokio::test]
async fn a_pod_is_created_read_replaced_listed_and_deleted_in_protobuf() {
    let server = TestServer::start().await;
    let both = [SENDS, ACCEPTS];
    let created = server.ask(&format!("POST {PODS}"), &both, body("a")).await;
    assert_eq!(created.code, 201);
    let json = server.get(&format!("{PODS}/a")).await.json();
    for reply in [created, server.ask(&format!("GET {PODS}/a"), &[ACCEPTS], "").await] {
        assert_eq!(object(&reply), json);
    }
    let replaced = server.ask(&format!("PUT {PODS}/a"), &both, protobuf::encode(&json).unwrap()).await;
    assert_eq!((replaced.code, &object(&replaced)["metadata"]["uid"]), (200, &json["metadata"]["uid"]));
    server.ask("POST /pods", &[SENDS], body("b")).await;
    let list = server.ask(&format!("GET {PODS}?limit=1"), &[ACCEPTS], "").await;
    let of_json = server.get(&format!("{PODS}?limit=1")).await.json();
    assert_eq!(object(&list)["metadata"], of_json["metadata"]);
    // The items of a list have no kind in protobuf.
    let mut item = of_json["items"][0].clone();
    item.as_object_mut().unwrap().retain(|field, _| !matches!(field.as_str(), "kind" | "apiVersion"));
    assert_eq!(object(&list)["items"], json!([item]));
    let options = json!({
        "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
        "preconditions": {"uid": json["metadata"]["uid"]},
    });
    let deleted = server.ask(&format!("DELETE {PODS}/a"), &both, protobuf::encode(&options).unwrap()).await;
    assert_eq!((deleted.code, &object(&deleted)["metadata"]["name"]), (200, &json!("a")));
    let missing = server.ask(&format!("GET {PODS}/a"), &[ACCEPTS], "").await;
    let status = object(&missing);
    assert_eq!(
        (missing.code, &status["reason"], &status["details"]["name"]),
        (404, &json!("NotFound"), &json!("a"))
    );
    assert_eq!(status, server.get(&format!("{PODS}/a")).await.json());
}

/// A client that reads nothing of its answer has no copy of its own.
#[tokio::test]
async fn answers_with_a_large_pod_share_its_bytes() {
    let server = TestServer::start().await;
    let mut pod: Value = serde_json::from_str(&manifest("a")).unwrap();
    pod["metadata"]["annotations"] = json!({"long": "x".repeat(200_000)});
    assert_eq!(server.ask("POST /pods", &[], pod.to_string()).await.code, 201);
    let json = server.get(&format!("{PODS}/a")).await.json();
    assert_eq!(object(&server.ask(&format!("GET {PODS}/a"), &[ACCEPTS], "").await), json);
    for path in [format!("{PODS}/a"), PODS.to_owned()] {
        let mut largest = Vec::new();
        for _ in 0..2 {
            let mut body = server.open_inside(&format!("GET {path}"), &[ACCEPTS], "").await.into_body();
            let mut chunks = Vec::new();
            while let Some(frame) = soon(body.frame()).await {
                chunks.push(frame.unwrap().into_data().unwrap());
            }
            largest.push(chunks.into_iter().max_by_key(Bytes::len).unwrap());
        }
        assert!(largest[0].len() > 200_000, "{path}");
        assert_eq!(largest[0].as_ptr(), largest[1].as_ptr(), "{path}");
    }
}

#[tokio::test]
async fn a_watch_in_protobuf_has_frames() {
    let server = TestServer::start().await;
    server.ask("POST /pods", &[SENDS], body("f")).await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    let reply = server.ask(&format!("GET {PODS}?{query}"), &[ACCEPTS], "").await;
    assert_eq!(reply.header("content-type"), ["application/vnd.kubernetes.protobuf;stream=watch"]);
    let mut rest = &*reply.body;
    let mut events = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (frame, after) = after.split_at(u32::from_be_bytes(*length).try_into().unwrap());
        let event = WatchEvent::read(frame).unwrap();
        events.push((event.kind, protobuf::decode(event.object, "").unwrap()));
        rest = after;
    }
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| &**kind).collect();
    // The last one is that of the end.
    assert_eq!(kinds, ["ADDED", "BOOKMARK", "BOOKMARK"]);
    assert_eq!(events[0].1["metadata"]["name"], "f");
    assert_eq!(events[1].1["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    // A version of another run.
    let reply =
        server.ask(&format!("GET {PODS}?watch=1&resourceVersion=99999999999999999"), &[ACCEPTS], "").await;
    let event = WatchEvent::read(&reply.body[4..]).unwrap();
    let status = protobuf::decode(event.object, "").unwrap();
    assert_eq!((&*event.kind, &status["kind"], &status["code"]), ("ERROR", &json!("Status"), &json!(504)));
}

#[tokio::test]
async fn a_bad_body_in_protobuf_is_400_or_422_without_a_position_and_changes_nothing() {
    let server = TestServer::start().await;
    let ask = async |body: Vec<u8>| {
        let reply = server.ask(&format!("POST {PODS}"), &[SENDS], body).await;
        (reply.code, reply.json()["message"].as_str().unwrap().to_owned())
    };
    let valid = body("a");
    for (bad, why) in [
        (b"".to_vec(), "must begin with"),
        (b"{}".to_vec(), "must begin with"),
        (valid[..valid.len() / 2].to_vec(), "ends inside a field"),
        ([MAGIC, b"\x12\x02\x0a\x7f"].concat(), "ends inside a field"),
        ([MAGIC, b"\x12\x02\x08\x01"].concat(), "another wire type is expected"),
        (protobuf::encode(&json!({"kind": "DeleteOptions", "apiVersion": "v1"})).unwrap(), "DeleteOptions"),
    ] {
        let (code, message) = ask(bad).await;
        assert!(matches!(code, 400 | 422) && message.contains(why), "{code} {message}");
    }
    let invalid = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "UPPER", "image": "i"}]}});
    let (code, message) = ask(protobuf::encode(&invalid).unwrap()).await;
    assert_eq!(code, 422);
    assert!(message.starts_with("Pod \"a\" is invalid: spec.containers[0].name: Invalid value"), "{message}");
    let of_json = server
        .ask(&format!("POST {PODS}"), &[("content-type", "application/json")], invalid.to_string())
        .await;
    assert_eq!(of_json.json()["message"], message, "the same in JSON, without a line");
    assert!(server.get(PODS).await.names().is_empty());
    // A megabyte of empty fields and of groups is read at once.
    for repeated in [&b"\x0a\0"[..], b"\x12\0", b"\xfb\x07"] {
        let message = repeated.repeat(1 << 19);
        let length = [
            u8::try_from(message.len() & 0x7f).unwrap() | 0x80,
            u8::try_from(message.len() >> 7 & 0x7f).unwrap() | 0x80,
            u8::try_from(message.len() >> 14).unwrap(),
        ];
        let (code, _) = ask([MAGIC, b"\x12", &length, &message].concat()).await;
        assert!(matches!(code, 400 | 422), "{code}");
    }
}

#[tokio::test]
async fn a_pod_without_kind_and_version_is_a_pod_on_the_paths_of_pods() {
    let server = TestServer::start().await;
    let untyped = |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (index, more) in [json!({}), json!({"kind": ""}), json!({"kind": "Pod"}), json!({"apiVersion": "v1"})]
        .iter()
        .enumerate()
    {
        let mut pod = untyped(&format!("p{index}"));
        pod.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server
            .ask(&format!("POST {PODS}"), &[("content-type", "application/json")], pod.to_string())
            .await;
        assert_eq!((reply.code, &reply.json()["kind"]), (201, &json!("Pod")), "{more}");
    }
    for more in [json!({"kind": "Service"}), json!({"apiVersion": "v2"})] {
        let mut pod = untyped("other");
        pod.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.ask(&format!("POST {PODS}"), &[], pod.to_string()).await;
        assert!(matches!(reply.code, 400 | 422), "{more}: {}", reply.text());
    }
    // Lists of any objects are sent to /pods: a kind is needed there.
    assert_eq!(server.ask("POST /pods", &[], untyped("x").to_string()).await.code, 422);
}

#[tokio::test]
async fn what_has_no_protobuf_is_json_if_the_client_accepts_it_and_406_otherwise() {
    let server = TestServer::start().await;
    for path in ["/api/v1/nodes", "/api/v1/namespaces/default/events", "/version", "/api/v1"] {
        let reply = server.ask(&format!("GET {path}"), &[ACCEPTS], "").await;
        assert_eq!((reply.code, reply.header("content-type")), (200, vec!["application/json"]), "{path}");
        let reply = server.ask(&format!("GET {path}"), &[("accept", MEDIA_TYPE)], "").await;
        assert_eq!((reply.code, &object(&reply)["reason"]), (406, &json!("NotAcceptable")), "{path}");
    }
    let pods = server.ask(&format!("GET {PODS}"), &[("accept", MEDIA_TYPE)], "").await;
    assert_eq!(object(&pods)["kind"], "PodList");
}
