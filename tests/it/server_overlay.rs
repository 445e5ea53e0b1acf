//! Every read of pods shows the observed status, which nothing else does, and a version of the agent's.

use std::sync::Arc;

use podmux::{
    pod::{Origin, PodKey, Prepared},
    runtime::{Observed, ObservedPod},
    source::api::ReflectorMetrics,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::{
    server::{Reply, Setup, TestServer, manifest, with_api},
    state::idle,
};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A server with a runtime that observes nothing yet, and an api source.
async fn with_runtime() -> (TestServer, watch::Sender<Observed>) {
    let observed = watch::Sender::new(Observed::default());
    let setup = Setup {
        observed: Some(observed.subscribe()),
        reflector: Some(ReflectorMetrics::default()),
        ..Setup::default()
    };
    (TestServer::with(setup).await, observed)
}

fn running(uid: &str) -> ObservedPod {
    let status = json!({"phase": "Running", "podIP": "10.0.0.7", "startTime": "2026-11-21T09:00:00Z"});
    ObservedPod { uid: uid.into(), status: Arc::new(status) }
}

fn observe(observed: &watch::Sender<Observed>, name: &str, uid: &str) {
    observed.send_modify(|all| drop(all.insert(PodKey::new("default", name), running(uid))));
}

fn of_the_api(name: &str, status: Value) -> Prepared {
    let metadata = json!({"name": name, "uid": format!("{name}-uid"), "resourceVersion": "7"});
    let mut pod = json!({"metadata": metadata, "spec": {"nodeName": "node1"}});
    if !status.is_null() {
        pod["status"] = status;
    }
    Prepared::from_value(pod).unwrap()
}

async fn api_pod(server: &TestServer, name: &str, status: Value) {
    let pod = of_the_api(name, status);
    server.api(|api| api.put(&Origin::from(name), vec![pod], jiff::Timestamp::UNIX_EPOCH)).await;
}

/// `name: status` of each pod of a list.
fn statuses(reply: &Reply) -> Vec<String> {
    let list = reply.json();
    let items = list["items"].as_array().unwrap_or_else(|| panic!("{list}"));
    items
        .iter()
        .map(|pod| format!("{}: {}", pod["metadata"]["name"].as_str().unwrap(), pod["status"]))
        .collect()
}

const RUNNING: &str =
    r#"{"phase":"Running","podIP":"10.0.0.7","qosClass":"Burstable","startTime":"2026-11-21T09:00:00Z"}"#;

#[tokio::test]
async fn every_list_and_every_read_of_a_pod_shows_what_is_observed() {
    let (server, observed) = with_runtime().await;
    api_pod(&server, "a", json!({"phase": "Pending", "qosClass": "Burstable"})).await;
    api_pod(&server, "b", json!({"phase": "Pending"})).await;
    api_pod(&server, "c", Value::Null).await;
    let lists = [
        "/pods".to_owned(),
        "/api/v1/pods".to_owned(),
        PODS.to_owned(),
        format!("{PODS}?limit=10"),
        format!("{PODS}?labelSelector=%21x"),
    ];
    let before: Vec<Value> = vec![server.get(&lists[0]).await.json(), server.get(&lists[1]).await.json()];
    observe(&observed, "a", "a-uid");
    observe(&observed, "b", "another-uid");
    observe(&observed, "c", "c-uid");
    let expected = [
        format!("a: {RUNNING}"),
        r#"b: {"phase":"Pending"}"#.to_owned(),
        format!("c: {}", RUNNING.replace(r#""qosClass":"Burstable","#, "")),
    ];
    for list in &lists {
        assert_eq!(statuses(&server.get(list).await), expected, "{list}");
    }
    for (name, expected) in [("a", &expected[0]), ("b", &expected[1]), ("c", &expected[2])] {
        let pod = server.get(&format!("{PODS}/{name}")).await.json();
        assert_eq!(format!("{name}: {}", pod["status"]), *expected);
    }
    // All but the status and the version stays. What is observed is a change for readers of Kubernetes' paths.
    for (list, mut before) in lists.iter().zip(before) {
        let mut after = server.get(list).await.json();
        after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        for (index, pod) in after["items"].as_array_mut().unwrap().iter_mut().enumerate() {
            let [new, old] =
                [&mut *pod, &mut before["items"][index]].map(|pod| pod["metadata"]["resourceVersion"].take());
            assert_eq!(new != old, list != "/pods" && index != 1, "{list}: {old} {new}");
            match before["items"][index].get("status") {
                Some(status) => pod["status"] = status.clone(),
                None => drop(pod.as_object_mut().unwrap().remove("status")),
            }
        }
        assert_eq!(after, before);
    }
}

#[tokio::test]
async fn pages_have_the_observed_status_too() {
    let (server, observed) = with_runtime().await;
    for name in ["a", "b"] {
        api_pod(&server, name, json!({"phase": "Pending", "qosClass": "Burstable"})).await;
        observe(&observed, name, &format!("{name}-uid"));
    }
    let first = server.get(&format!("{PODS}?limit=1")).await;
    assert_eq!(statuses(&first), [format!("a: {RUNNING}")]);
    let token = first.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    let second = server.get(&format!("{PODS}?limit=1&continue={token}")).await;
    assert_eq!(statuses(&second), [format!("b: {RUNNING}")]);
}

#[tokio::test]
async fn field_selectors_see_what_is_observed() {
    let (server, observed) = with_runtime().await;
    api_pod(&server, "a", json!({"phase": "Pending", "podIP": "10.0.0.1", "nominatedNodeName": "n"})).await;
    api_pod(&server, "b", json!({"phase": "Pending"})).await;
    observe(&observed, "a", "a-uid");
    observe(&observed, "b", "another-uid");
    for (selector, expected) in [
        ("status.phase%3DRunning", &["default/a"][..]),
        ("status.phase%3DPending", &["default/b"]),
        ("status.phase%21%3DRunning", &["default/b"]),
        ("status.podIP%3D10.0.0.7", &["default/a"]),
        ("status.podIP%3D10.0.0.1", &[]),
        ("status.nominatedNodeName%3Dn", &["default/a"]),
        ("metadata.name%3Da,status.phase%3DRunning", &["default/a"]),
    ] {
        for path in ["/pods", PODS] {
            assert_eq!(
                server.get(&format!("{path}?fieldSelector={selector}")).await.names(),
                expected,
                "{selector}"
            );
        }
    }
}

#[tokio::test]
async fn the_answers_of_writes_show_what_is_observed() {
    let (server, observed) = with_runtime().await;
    let ask = async |line: &str, body: String| {
        let reply = server.ask(line, &[], body).await;
        assert!(matches!(reply.code, 200 | 201), "{}", reply.text());
        reply.json()
    };
    let created = ask(&format!("POST {PODS}"), manifest("p")).await;
    assert_eq!(created["status"], json!({"phase": "Pending"}), "it is not observed yet");
    let uid = created["metadata"]["uid"].as_str().unwrap().to_owned();
    observe(&observed, "p", &uid);
    let phase = |pod: &Value| pod["status"]["phase"].clone();
    assert_eq!(phase(&ask(&format!("PUT {PODS}/p"), manifest("p").replace("i:1", "i:2")).await), "Running");
    assert_eq!(phase(&ask("POST /pods", manifest("p")).await["items"][0]["pod"]), "Running");
    assert_eq!(phase(&ask("PUT /pods", manifest("p")).await["items"][0]["pod"]), "Running");

    // What is read can be written back: the stored pod has its own status.
    let read = server.get(&format!("{PODS}/p")).await.json();
    assert_eq!(phase(&read), "Running");
    let unchanged = ask("POST /pods", read.to_string()).await;
    assert_eq!(unchanged["items"][0]["result"], "unchanged");
    let posted = server.posts.get(&PodKey::new("default", "p")).unwrap();
    assert!(str::from_utf8(posted.text()).unwrap().ends_with(r#""status":{"phase":"Pending"}}"#));

    let deleted = ask(&format!("DELETE {PODS}/p"), String::new()).await;
    assert_eq!(phase(&deleted), "Running");
    assert!(deleted["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn updates_have_the_status_of_the_source() {
    let (server, observed) = with_runtime().await;
    observe(&observed, "a", "a-uid");
    api_pod(&server, "a", json!({"phase": "Pending"})).await;
    let mut stream = server.history.watch(2).unwrap();
    let update = loop {
        let update = stream.next().await.unwrap();
        if !update.update.pods.is_empty() {
            break update;
        }
    };
    let line: String = update.line().map(|part| String::from_utf8_lossy(&part).into_owned()).collect();
    assert!(line.contains(r#""status":{"phase":"Pending"}"#), "{line}");
    assert_eq!(server.get("/pods").await.json()["items"][0]["status"]["phase"], "Running");
}

const WANTED: &str = r#"{"message":"the agent delivers this pod to its sinks; it runs no pods itself","phase":"Pending","reason":"Wanted"}"#;

#[tokio::test]
async fn without_a_runtime_a_pod_of_which_nothing_is_known_is_wanted() {
    let server = TestServer::with(with_api()).await;
    let own = [
        ("none", Value::Null),
        ("pending", json!({"phase": "Pending"})),
        ("qos", json!({"phase": "Pending", "qosClass": "Burstable"})),
        ("running", json!({"phase": "Running"})),
        (
            "scheduled",
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}),
        ),
        ("told", json!({"phase": "Pending", "reason": "Evicted"})),
    ];
    for (name, status) in &own {
        api_pod(&server, name, status.clone()).await;
    }
    let created = server.ask(&format!("POST {PODS}"), &[], manifest("z")).await.json();
    let qos = WANTED.replace(r#","reason""#, r#","qosClass":"Burstable","reason""#);
    let expected: Vec<String> = own
        .iter()
        .map(|(name, own)| match *name {
            "pending" => format!("pending: {WANTED}"),
            "qos" => format!("qos: {qos}"),
            name => format!("{name}: {own}"),
        })
        .chain([format!("z: {WANTED}")])
        .collect();
    for list in ["/pods", "/api/v1/pods", PODS, &format!("{PODS}?limit=10")] {
        assert_eq!(statuses(&server.get(list).await), expected, "{list}");
    }
    assert_eq!(created["status"].to_string(), WANTED);
    for name in ["pending", "z"] {
        assert_eq!(server.get(&format!("{PODS}/{name}")).await.json()["status"].to_string(), WANTED);
    }
    let list = server.get("/pods?fieldSelector=status.phase%3DPending").await;
    assert!(list.names().contains(&"default/z".to_owned()), "the phase stays");
    // It is being deleted, and wanted no more.
    let deleted = server.ask(&format!("DELETE {PODS}/z"), &[], "").await.json();
    assert_eq!(deleted["status"], json!({"phase": "Pending"}));
}

#[tokio::test]
async fn a_pod_that_comes_while_no_number_can_be_had_has_the_version_of_the_list() {
    let server = TestServer::with(with_api()).await;
    let (_dir, db, _idle_writer, stored) = idle();
    server.sequence.attach(db, &stored, 0);
    api_pod(&server, "a", Value::Null).await;
    let list = server.get(PODS).await.json();
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&list["items"][0]), version(&list));
    assert_eq!(version(&server.get(&format!("{PODS}/a")).await.json()), version(&list));
    assert_ne!(version(&list), "7", "that of its API server");
}
