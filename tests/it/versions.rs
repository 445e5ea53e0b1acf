//! `metadata.resourceVersion` on Kubernetes' paths: the number of a pod's last change.

use podmux::pod::{ListingBuilder, Op, Origin, Pod, PodKey, Prepared, SourceName};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::server::{Setup, TestServer, manifest, with_api};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn version(pod: &Value) -> u64 {
    pod["metadata"]["resourceVersion"].as_str().unwrap_or_else(|| panic!("{pod}")).parse().unwrap()
}

/// `name@version` of each pod of each list on Kubernetes' paths, which agree with each other and
/// with the pods alone.
async fn versions(server: &TestServer) -> Vec<(String, u64)> {
    let lists = [
        server.get("/api/v1/pods").await.json(),
        server.get(PODS).await.json(),
        server.get(&format!("{PODS}?limit=1000")).await.json(),
        server.get(&format!("{PODS}?fieldSelector=metadata.namespace%3Ddefault")).await.json(),
    ];
    for list in &lists {
        assert_eq!(list["items"], lists[0]["items"]);
    }
    let mut versions = Vec::new();
    for pod in lists[0]["items"].as_array().unwrap() {
        assert!(version(&lists[0]) >= version(pod), "{pod}");
        let name = pod["metadata"]["name"].as_str().unwrap();
        assert_eq!(server.get(&format!("{PODS}/{name}")).await.json(), *pod);
        versions.push((name.to_owned(), version(pod)));
    }
    versions
}

/// Prepared as the API server has it.
fn of_the_api(name: &str, version: &str, phase: &str) -> Prepared {
    let metadata =
        json!({"name": name, "uid": name, "resourceVersion": version, "labels": {"resourceVersion": "7"}});
    Prepared::from_value(json!({"metadata": metadata, "spec": {}, "status": {"phase": phase}})).unwrap()
}

fn put(listing: &mut ListingBuilder, pod: Prepared) {
    let origin = Origin::from(pod.key().as_str());
    listing.put(&origin, vec![pod], jiff::Timestamp::UNIX_EPOCH);
}

#[tokio::test]
async fn every_pod_bears_the_number_of_its_last_change() {
    let server = TestServer::with(with_api()).await;
    server.file_pod("f.yaml", Prepared::from_json(manifest("f").as_bytes()).unwrap()).await;
    server.api(|api| put(api, of_the_api("k", "999999", "Pending"))).await;
    assert_eq!(server.ask(&format!("POST {PODS}"), &[], manifest("p")).await.code, 201);
    let first = versions(&server).await;
    assert_eq!(first.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["f", "k", "p"]);

    // The stream has the same numbers.
    let mut stream = server.history.watch(2).unwrap();
    while let Some(update) = stream.next().await {
        for pod in update.update.pods.iter() {
            let (_, version) = first.iter().find(|(name, _)| name == pod.key().name()).unwrap();
            assert_eq!(*version, update.seq, "{update:?}");
        }
        if update.update.pods.iter().any(|pod| pod.key().name() == "p") {
            break;
        }
    }

    // A change of one changes the version of no other; a change that is no update changes none.
    server.api(|api| put(api, of_the_api("k", "1000000", "Running"))).await;
    let second = versions(&server).await;
    assert!(second[1].1 > first[1].1, "{second:?}");
    assert_eq!((&second[0], &second[2]), (&first[0], &first[2]));
    server.api(|api| put(api, of_the_api("k", "1000001", "Running"))).await;
    assert_eq!(versions(&server).await, second);
    server.file(|file| file.remove(&Origin::from("f.yaml"))).await;
    assert_eq!(versions(&server).await, second[1..]);
    server.file_pod("f.yaml", Prepared::from_json(manifest("f").as_bytes()).unwrap()).await;
    let third = versions(&server).await;
    assert!(third[0].1 > second[2].1, "it is another one: {third:?}");

    // podmux's own paths show what the source has.
    let own = server.get("/pods").await.json();
    let metadata = |index: usize| own["items"][index]["metadata"]["resourceVersion"].clone();
    assert_eq!((metadata(0), metadata(1)), (Value::Null, "1000001".into()));
    assert_eq!(metadata(2), third[2].1.to_string());
}

#[tokio::test]
async fn a_restored_pod_keeps_its_version_when_its_source_syncs() {
    let server = TestServer::with(with_api()).await;
    let both = |api: &mut ListingBuilder| ["a", "b"].map(|name| put(api, of_the_api(name, "5", "Pending")));
    server.api_restored(both).await;
    let restored = versions(&server).await;
    server.api(|api| api.remove(&Origin::from("default/b"))).await;
    let synced = versions(&server).await;
    assert_eq!(synced, restored[..1]);
    // The version of the pod that the SET has removed is forgotten.
    let snapshot = server.history.snapshot().await.unwrap();
    assert_eq!(snapshot.versions(&PodKey::new("default", "a")).map(|versions| versions.1), Some(synced[0].1));
    assert_eq!(snapshot.versions(&PodKey::new("default", "b")), None);
    assert!(snapshot.seq > restored[1].1);
    server.api(|api| put(api, of_the_api("b", "6", "Pending"))).await;
    assert!(versions(&server).await[1].1 > synced[0].1);
}

#[tokio::test]
async fn writes_keep_their_preconditions() {
    let server = TestServer::start().await;
    server.file_pod("f.yaml", Prepared::from_json(manifest("f").as_bytes()).unwrap()).await;
    let created = server.ask(&format!("POST {PODS}"), &[], manifest("p")).await.json();
    let with_version = |version: u64, generated: &str| {
        let mut pod: Value = serde_json::from_str(&manifest("p")).unwrap();
        pod["metadata"]["resourceVersion"] = version.to_string().into();
        pod["metadata"]["generateName"] = generated.into();
        pod.to_string()
    };
    let write = async |version: u64, generated: &str| {
        server.ask(&format!("PUT {PODS}/p"), &[], with_version(version, generated)).await
    };
    // No update tells this change, but it has a number, which the list reaches.
    let changed = write(version(&created), "p-").await;
    assert_eq!(changed.code, 200);
    assert!(version(&changed.json()) > version(&created));
    assert_eq!(versions(&server).await[1].1, version(&changed.json()));
    assert_eq!(write(version(&created), "q-").await.code, 409);
    // From the list on the stream continues.
    let list = version(&server.get(PODS).await.json());
    let mut stream = server.history.watch(list + 1).unwrap();
    let deleted = format!("DELETE {PODS}/p?gracePeriodSeconds=0");
    assert_eq!(server.ask(&deleted, &[], "").await.code, 200);
    assert_eq!(stream.next().await.unwrap().update.op, Op::Remove);
    // A pod of a file is the file's, whatever its version.
    let file = versions(&server).await[0].1;
    let body = json!({"preconditions": {"resourceVersion": file.to_string()}}).to_string();
    assert_eq!(server.ask(&format!("DELETE {PODS}/f"), &[], body).await.code, 403);
}

#[tokio::test]
async fn a_posted_pod_is_read_without_the_history() {
    let server = TestServer::with(Setup { history: false, ..Setup::default() }).await;
    assert_eq!(server.ask(&format!("POST {PODS}"), &[], manifest("p")).await.code, 201);
    assert_eq!(server.get(&format!("{PODS}/p")).await.code, 200);
}

fn frozen(pod: &Value) -> Pod {
    Prepared::from_value(pod.clone()).unwrap().published_by(SourceName::File, jiff::Timestamp::UNIX_EPOCH)
}

/// Any JSON, with names and texts that look like the field.
fn tree() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("resourceVersion".to_owned()),
        Just("metadata".to_owned()),
        Just("\"resourceVersion\":\"7\"".to_owned()),
        Just("\\".to_owned()),
        "[a-z{}\\[\\],:\"\\\\é]{0,8}",
    ];
    let leaf = prop_oneof![
        word.clone().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        Just(json!(true))
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(word.clone(), inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn the_version_is_written_into_the_text_as_into_the_object(
        metadata in prop::collection::btree_map("[a-zA-Z\"\\\\]{1,3}|resourceVersion|zz", tree(), 0..5),
        others in prop::collection::btree_map("[a-z]{1,3}|spec|status|resourceVersion", tree(), 0..4),
        number: u64,
    ) {
        let mut pod = json!(others);
        pod["metadata"] = json!(metadata);
        for (field, value) in [("name", "p"), ("namespace", "n")] {
            pod["metadata"][field] = value.into();
        }
        for field in ["annotations", "labels"] {
            pod["metadata"][field] = json!({"resourceVersion": "1", "x": "\\\"}"});
        }
        let pod = frozen(&pod);
        let mut expected: Value = serde_json::from_slice(pod.text()).unwrap();
        let own = expected["metadata"]["resourceVersion"].as_str().and_then(|own| own.parse().ok());
        prop_assert_eq!(pod.resource_version(), own);
        let (place, field) = pod.metadata_edit("resourceVersion", &format!("\"{number}\""));
        let text = [&pod.text()[..place.start], field.as_bytes(), &pod.text()[place.end..]].concat();
        expected["metadata"]["resourceVersion"] = number.to_string().into();
        // Also the order of the fields is canonical.
        prop_assert_eq!(String::from_utf8(text).unwrap(), expected.to_string());
    }
}
