//! DELETE of a collection: what is deleted, what stays, and who may do it.

use serde_json::json;

use crate::support::{
    script::pod,
    server::{Setup, TestServer, manifest},
    state::{Disk, ENOSPC, Fault, Operation},
};

const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON: (&str, &str) = ("content-type", "application/json");

/// A server with the posted pods a and b, both in the namespace `default`, and c in another one.
async fn server(setup: Setup) -> TestServer {
    let server = TestServer::with(setup).await;
    for (name, namespace) in [("a", "default"), ("b", "default"), ("c", "other")] {
        let path = format!("POST /api/v1/namespaces/{namespace}/pods");
        assert_eq!(server.ask(&path, &[], manifest(name)).await.code, 201);
    }
    server
}

async fn names(server: &TestServer) -> Vec<String> {
    server.get("/api/v1/pods").await.names()
}

fn in_default(name: &str) -> String {
    format!("default/{name}")
}

#[tokio::test]
async fn the_posted_pods_of_the_namespace_are_deleted_and_pods_of_other_sources_are_named() {
    let server = server(Setup::default()).await;
    server.file_pod("/manifests/static", pod("static")).await;
    server.file_pod("/manifests/web", pod("web")).await;
    let line = format!("DELETE {PODS}?gracePeriodSeconds=0");
    let tried = server.ask(&format!("{line}&dryRun=All"), &[], "").await;
    let reply = server.ask(&line, &[], "").await;
    for reply in [&tried, &reply] {
        assert_eq!((reply.code, reply.names()), (200, ["a", "b"].map(in_default).to_vec()));
        let warning = "299 - \"pods that were not posted stay, 2 in all; remove them at their source: static (file), web (file)\"";
        assert_eq!(reply.header("warning"), [warning]);
    }
    assert_eq!(names(&server).await, ["default/static", "default/web", "other/c"]);
    // Nothing is left that could be deleted.
    let again = server.ask(&line, &[], "").await;
    assert_eq!((again.code, again.names().len(), again.header("warning").len()), (200, 0, 1));
    let selected = server.ask(&format!("{line}&fieldSelector=metadata.name=none"), &[], "").await;
    assert_eq!((selected.code, selected.header("warning").len()), (200, 0));
}

#[tokio::test]
async fn a_warning_counts_the_pods_and_names_ten_of_them_at_most() {
    let begin = r#"299 - "pods that were not posted stay, 12 in all; remove them at their source: s"#;
    for (name, end) in [("s", "s19 (file), ...\""), (&*"s".repeat(50), "s\"")] {
        let server = server(Setup::default()).await;
        for number in 10..22 {
            server.file_pod(&format!("/manifests/{number}"), pod(&format!("{name}{number}"))).await;
        }
        let reply = server.ask(&format!("DELETE {PODS}"), &[], "").await;
        let warning = reply.header("warning")[0];
        assert!(warning.starts_with(begin) && warning.ends_with(end), "{warning}");
    }
}

#[tokio::test]
async fn a_posted_pod_behind_one_of_another_source_stays() {
    let server = server(Setup::default()).await;
    server.file_pod("/manifests/a", pod("a")).await;
    let reply = server.ask(&format!("DELETE {PODS}?gracePeriodSeconds=0"), &[], "").await;
    assert_eq!(reply.names(), ["default/b"]);
    assert!(reply.header("warning")[0].contains("stay, 1 in all; remove them at their source: a (file)\""));
    assert_eq!(server.posts.all().len(), 2);
}

#[tokio::test]
async fn a_precondition_that_fails_for_one_pod_keeps_all() {
    let server = server(Setup::default()).await;
    let uid = server.get(&format!("{PODS}/a")).await.json()["metadata"]["uid"].clone();
    let array = server.ask(&format!("DELETE {PODS}"), &[JSON], "[]").await;
    assert_eq!((array.code, names(&server).await.len()), (400, 3), "{}", array.text());
    let body = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}).to_string();
    let reply = server.ask(&format!("DELETE {PODS}"), &[JSON], body.clone()).await;
    assert_eq!((reply.code, &reply.json()["details"]["name"]), (409, &json!("b")), "{}", reply.text());
    assert_eq!(names(&server).await, ["default/a", "default/b", "other/c"]);
    let one = server.ask(&format!("DELETE {PODS}?fieldSelector=metadata.name=a"), &[JSON], body).await;
    assert_eq!((one.code, names(&server).await), (200, vec![in_default("b"), "other/c".to_owned()]));
}

#[tokio::test]
async fn a_collection_that_cannot_be_stored_is_not_deleted() {
    let disk = Disk::default();
    let server = server(Setup { disk: Some(disk.clone()), ..Setup::default() }).await;
    let fault = Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno: ENOSPC };
    disk.platter().fault = Some(fault);
    // One write to the disk fails, and with it all of the collection.
    let reply = server.ask(&format!("DELETE {PODS}?gracePeriodSeconds=0"), &[], "").await;
    assert_eq!(reply.code, 507, "{}", reply.text());
    assert_eq!(names(&server).await, ["default/a", "default/b", "other/c"]);
}

#[tokio::test]
async fn all_namespaces_at_once_are_not_a_collection() {
    let server = server(Setup::default()).await;
    assert_eq!(server.ask("DELETE /api/v1/pods", &[], "").await.code, 405);
    assert_eq!(names(&server).await, ["default/a", "default/b", "other/c"]);
}
