//! Watches of pods: events, where they begin and resume, selectors, tables, and clients that are too slow.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::mpsc,
    task::{Context, Waker},
    thread,
};

use http_body_util::BodyExt as _;
use jiff::Timestamp;
use podmux::{
    history::Bounds,
    pod::{ListingBuilder, Origin, PodKey, Prepared},
    runtime::{Observed, ObservedPod},
    server::MAX_WATCHERS,
};
use serde_json::{Value, json};
use tokio::sync::watch::Sender;

use crate::support::{
    files::soon,
    reader::{Reader, brief},
    script::pod,
    server::{Setup, TestServer, manifest, with_api, with_idle_runtime},
    state::{Dice, Disk},
};

const PODS: &str = "/api/v1/namespaces/default/pods";
const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");

async fn open(server: &TestServer, query: &str) -> Reader {
    open_with(server, query, &[]).await
}

async fn open_with(server: &TestServer, query: &str, headers: &[(&str, &str)]) -> Reader {
    Reader::open_with(server, &format!("{PODS}?watch=1&{query}"), headers).await
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn labelled(name: &str, label: &str) -> String {
    let mut pod: Value = serde_json::from_str(&manifest(name)).unwrap();
    pod["metadata"]["labels"] = json!({"app": label});
    pod.to_string()
}

async fn post(server: &TestServer, pods: &[String]) {
    assert_eq!(server.ask("POST /pods", &[], pods.join("\n---\n")).await.code / 100, 2);
}

async fn delete(server: &TestServer, name: &str) {
    let path = format!("DELETE {PODS}/{name}?gracePeriodSeconds=0");
    assert_eq!(server.ask(&path, &[], "").await.code, 200);
}

async fn list(server: &TestServer) -> Value {
    server.get(PODS).await.json()
}

/// A server with a runtime, and what it observes.
async fn with_runtime(setup: Setup) -> (TestServer, Sender<Observed>) {
    let observed = Sender::new(Observed::default());
    (TestServer::with(Setup { observed: Some(observed.subscribe()), ..setup }).await, observed)
}

/// Observes a phase of a pod that is listed.
async fn observe(server: &TestServer, observed: &Sender<Observed>, name: &str, phase: &str) {
    let read = server.get(&format!("{PODS}/{name}")).await.json();
    let (uid, status) = (read["metadata"]["uid"].as_str().unwrap().into(), json!({"phase": phase}).into());
    let key = PodKey::new("default", name);
    observed.send_modify(|all| drop(all.insert(key, ObservedPod { uid, status })));
}

fn of_the_api(name: &str, phase: &str) -> Prepared {
    let metadata = json!({"name": name, "uid": name, "labels": {"app": phase}});
    Prepared::from_value(json!({"metadata": metadata, "spec": {}, "status": {"phase": phase}})).unwrap()
}

fn put(listing: &mut ListingBuilder, pod: Prepared) {
    let origin = Origin::from(pod.key().as_str());
    listing.put(&origin, vec![pod], Timestamp::UNIX_EPOCH);
}

#[tokio::test]
async fn changes_that_a_long_selector_leaves_out_do_not_keep_others_from_running() {
    let server = TestServer::with(with_api()).await;
    let terms: Vec<String> = (0..100).map(|number| format!("k{number}!=v")).collect();
    let mut long = open(&server, &format!("labelSelector=app=x,{}", terms.join(","))).await;
    let mut all = open(&server, "labelSelector=app=x").await;
    let of_no_interest = (0..2_000).map(|number| of_the_api(&format!("n{number}"), "y"));
    let pods = of_no_interest.chain([of_the_api("z", "x")]);
    server.api(|api| pods.for_each(|pod| put(api, pod))).await;
    assert_eq!(all.brief().await, "ADDED z", "although it began later");
    let mut event = pin!(long.brief());
    let pauses = event.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
    assert!(pauses, "before it has come to the event");
    assert_eq!(event.await, "ADDED z");
}

#[tokio::test]
async fn every_change_of_what_is_read_is_an_event_with_the_version_that_is_read() {
    let (server, observed) = with_runtime(with_api()).await;
    post(&server, &[manifest("a"), manifest("b")]).await;
    let mut watch = open(&server, &format!("resourceVersion={}", version(&list(&server).await))).await;
    let mut last = 0;
    let mut next = async |expected: &str| {
        let event = watch.next().await.unwrap();
        assert_eq!(brief(&event), expected);
        assert!(version(&event["object"]) > last, "{event}");
        last = version(&event["object"]);
        event["object"].clone()
    };
    let read = async |name: &str| server.get(&format!("{PODS}/{name}")).await.json();

    server.api(|api| put(api, of_the_api("k", "Pending"))).await;
    assert_eq!(next("ADDED k").await, read("k").await);
    server.api(|api| put(api, of_the_api("k", "Running"))).await;
    assert_eq!(next("MODIFIED k").await, read("k").await);
    post(&server, &[labelled("a", "x")]).await;
    assert_eq!(next("MODIFIED a").await, read("a").await);
    observe(&server, &observed, "a", "Running").await;
    let running = next("MODIFIED a").await;
    assert_eq!((&running["status"]["phase"], &running), (&json!("Running"), &read("a").await));
    server.ask(&format!("DELETE {PODS}/b"), &[], "").await;
    let terminating = next("MODIFIED b").await;
    assert!(terminating["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(terminating, read("b").await);
    delete(&server, "a").await;
    let mut deleted = next("DELETED a").await;
    deleted["metadata"]["resourceVersion"] = running["metadata"]["resourceVersion"].clone();
    assert_eq!(deleted, running, "its last state, with a new version");
    server.api(|api| api.remove(&Origin::from("default/k"))).await;
    next("DELETED k").await;
    // Another pod takes the name.
    server.file_pod("f.yaml", Prepared::from_json(manifest("f").as_bytes()).unwrap()).await;
    let file = next("ADDED f").await;
    assert_eq!(file, read("f").await);
    assert_eq!(file["metadata"]["creationTimestamp"], "1970-01-01T00:00:00Z", "when it was first published");
    server.file(|file| file.remove(&Origin::from("f.yaml"))).await;
    next("DELETED f").await;
    post(&server, &[manifest("f")]).await;
    assert_eq!(next("ADDED f").await, read("f").await);
    assert_eq!(version(&list(&server).await), last);
}

#[tokio::test]
async fn updates_skip_what_is_observed() {
    let (server, observed) = with_runtime(Setup::default()).await;
    post(&server, &[manifest("a")]).await;
    let from = version(&list(&server).await);
    observe(&server, &observed, "a", "Running").await;
    let after = version(&list(&server).await);
    assert!(after > from);
    post(&server, &[manifest("b")]).await;
    let mut updates = server.history.watch(from + 1).unwrap();
    let update = soon(updates.next()).await.unwrap();
    assert!(update.seq > after);
    assert_eq!(update.update.pods[0].key().name(), "b");
}

#[tokio::test]
async fn a_write_conflicts_with_no_observation() {
    let (server, observed) = with_runtime(Setup::default()).await;
    let path = format!("{PODS}/a");
    post(&server, &[manifest("a")]).await;
    let written = version(&server.get(&path).await.json());
    observe(&server, &observed, "a", "Running").await;
    let read = version(&server.get(&path).await.json());
    assert!(read > written);
    let at = |version: u64, label: &str| {
        labelled("a", label)
            .replace("\"metadata\":{", &format!("\"metadata\":{{\"resourceVersion\":\"{version}\","))
    };
    let put = async |body| server.ask(&format!("PUT {path}"), &[], body).await.code;
    assert_eq!(put(at(written, "x")).await, 200, "the status alone has changed since");
    assert_eq!(put(at(read, "y")).await, 409, "it was written since");
    let read = version(&server.get(&path).await.json());
    observe(&server, &observed, "a", "Failed").await;
    assert_eq!(put(at(version(&server.get(&path).await.json()), "y")).await, 200);
    let body = |version: u64| json!({"preconditions": {"resourceVersion": version.to_string()}}).to_string();
    let delete =
        async |body| server.ask(&format!("DELETE {path}?gracePeriodSeconds=0"), &[], body).await.code;
    assert_eq!(delete(body(read)).await, 409);
    observe(&server, &observed, "a", "Running").await;
    assert_eq!(delete(body(version(&server.get(&path).await.json()))).await, 200);
}

#[tokio::test]
async fn a_write_that_changes_nothing_is_answered_with_the_version_that_is_read() {
    let (server, observed) = with_runtime(Setup::default()).await;
    let path = format!("{PODS}/a");
    post(&server, &[manifest("a")]).await;
    let written = version(&server.get(&path).await.json());
    observe(&server, &observed, "a", "Running").await;
    let read = server.get(&path).await.json();
    assert!(version(&read) > written);
    let merge = [("content-type", "application/merge-patch+json")];
    for (request, headers, body) in [
        (format!("PUT {path}"), &[][..], manifest("a")),
        (format!("PUT {path}?dryRun=All"), &[], labelled("a", "x")),
        (format!("PATCH {path}"), &merge, "{}".to_owned()),
        (format!("DELETE {path}?dryRun=All"), &[], String::new()),
    ] {
        let answer = server.ask(&request, headers, body).await.json();
        assert_eq!(version(&answer), version(&read), "{request}");
        assert_eq!(answer["status"], read["status"], "{request}");
    }
    let deleting = server.ask(&format!("DELETE {path}"), &[], "").await.json();
    assert!(version(&deleting) > version(&read));
    observe(&server, &observed, "a", "Failed").await;
    let again = server.ask(&format!("DELETE {path}"), &[], "").await.json();
    assert_eq!(again, server.get(&path).await.json());
}

#[tokio::test]
async fn a_version_from_before_a_write_conflicts_also_if_its_number_is_higher() {
    let disk = Disk::default();
    let (server, observed) = with_runtime(Setup { disk: Some(disk.clone()), ..Setup::default() }).await;
    let path = format!("{PODS}/a");
    post(&server, &[manifest("a")]).await;
    let (held, wait_until_held) = mpsc::channel();
    let (release, wait_for_release) = mpsc::channel::<()>();
    let slow = thread::spawn(move || {
        let _platter = disk.platter();
        held.send(()).unwrap();
        wait_for_release.recv().unwrap_err();
    });
    wait_until_held.recv().unwrap();
    let (mut last, mut phases) = (version(&server.get(&path).await.json()), ["Running", "Failed"]);
    let path_of_put = format!("PUT {path}");
    let write = server.ask(&path_of_put, &[], labelled("a", "x"));
    let read = async {
        // The write has its number when an observation skips one.
        loop {
            observe(&server, &observed, "a", phases[0]).await;
            phases.reverse();
            let read = version(&server.get(&path).await.json());
            if read > std::mem::replace(&mut last, read) + 1 {
                drop(release);
                return read;
            }
        }
    };
    let (written, read) = tokio::join!(write, read);
    slow.join().unwrap();
    assert!(written.code == 200 && version(&written.json()) < read);
    let put = async |version: u64| {
        let label = format!("\"metadata\":{{\"resourceVersion\":\"{version}\",");
        let body = labelled("a", "y").replace("\"metadata\":{", &label);
        server.ask(&format!("PUT {path}"), &[], body).await.code
    };
    assert_eq!(put(read).await, 409, "the pod was written since");
    assert_eq!(put(version(&server.get(&path).await.json())).await, 200);
}

#[tokio::test]
async fn a_watch_resumes_after_each_event_of_one_update() {
    let server = TestServer::start().await;
    let begin = version(&list(&server).await);
    let pods: Vec<Prepared> =
        ["a", "b", "c"].map(|name| Prepared::from_json(manifest(name).as_bytes()).unwrap()).into();
    server.file(|file| file.put(&Origin::from("f.yaml"), pods, Timestamp::UNIX_EPOCH)).await;
    post(&server, &[manifest("d"), manifest("e")]).await;
    let mut all = open(&server, &format!("resourceVersion={begin}")).await;
    let mut events = Vec::new();
    for _ in 0..5 {
        events.push(all.next().await.unwrap());
    }
    assert_eq!(
        events.iter().map(brief).collect::<Vec<_>>(),
        ["ADDED a", "ADDED b", "ADDED c", "ADDED d", "ADDED e"]
    );
    for (index, event) in events.iter().enumerate().take(4) {
        let from = format!("resourceVersion={}", version(&event["object"]));
        assert_eq!(open(&server, &from).await.next().await.as_ref(), events.get(index + 1));
    }
}

#[tokio::test]
async fn a_watch_begins_with_all_pods_or_with_none() {
    let server = TestServer::start().await;
    post(&server, &[manifest("a"), labelled("b", "x")]).await;
    for (query, expected) in [
        ("", &["ADDED a", "ADDED b"][..]),
        ("resourceVersion=0", &["ADDED a", "ADDED b"]),
        ("resourceVersion=0&labelSelector=app", &["ADDED b"]),
        ("fieldSelector=metadata.name=a", &["ADDED a"]),
        (
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=1",
            &["ADDED a", "ADDED b"],
        ),
        ("sendInitialEvents=false&resourceVersionMatch=NotOlderThan", &[]),
    ] {
        let mut watch = open(&server, query).await;
        for expected in expected {
            assert_eq!(watch.brief().await, *expected, "{query}");
        }
        let name = if query.ends_with("name=a") { "a" } else { "b" };
        post(&server, &[labelled(name, &format!("{}", query.len()))]).await;
        assert_eq!(watch.brief().await, format!("MODIFIED {name}"), "{query}");
        if name == "a" {
            post(&server, &[manifest("a")]).await;
        }
    }
    // The end of the initial events is marked, with the version of a list.
    let marked = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = open(&server, marked).await;
    assert_eq!(watch.briefs().await, ["ADDED a", "ADDED b"]);
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    assert_eq!(version(&bookmark["object"]), version(&list(&server).await));
}

#[tokio::test]
async fn pods_enter_and_leave_a_selection() {
    let (server, observed) = with_runtime(Setup::default()).await;
    let mut labels = open(&server, "labelSelector=app=x").await;
    let mut fields = open(&server, "fieldSelector=status.phase=Running,metadata.name!=b").await;
    post(&server, &[manifest("a"), labelled("b", "x")]).await;
    assert_eq!(labels.brief().await, "ADDED b");
    post(&server, &[labelled("a", "x")]).await;
    assert_eq!(labels.brief().await, "ADDED a");
    observe(&server, &observed, "a", "Running").await;
    observe(&server, &observed, "b", "Running").await;
    assert_eq!(
        (labels.briefs().await, fields.brief().await),
        (["MODIFIED a", "MODIFIED b"].map(str::to_owned), "ADDED a".to_owned())
    );
    post(&server, &[labelled("a", "y")]).await;
    let left = labels.next().await.unwrap();
    assert_eq!(
        (brief(&left), &left["object"]["metadata"]["labels"]),
        ("DELETED a".to_owned(), &json!({"app": "x"}))
    );
    assert_eq!(fields.brief().await, "MODIFIED a");
    assert_eq!(
        left["object"]["metadata"]["resourceVersion"],
        server.get(&format!("{PODS}/a")).await.json()["metadata"]["resourceVersion"]
    );
    observe(&server, &observed, "a", "Failed").await;
    let left = fields.next().await.unwrap();
    assert_eq!(
        (brief(&left), &left["object"]["status"]["phase"]),
        ("DELETED a".to_owned(), &json!("Running"))
    );
    delete(&server, "a").await;
    delete(&server, "b").await;
    assert_eq!(labels.brief().await, "DELETED b");
}

#[tokio::test]
async fn a_version_that_is_not_held_is_an_error_event() {
    let bounds = Bounds { updates: 2, ..Bounds::default() };
    let server = TestServer::with(Setup { bounds, ..Setup::default() }).await;
    let begin = version(&list(&server).await);
    for name in ["a", "b", "c"] {
        post(&server, &[manifest(name)]).await;
    }
    let now = version(&list(&server).await);
    let mut old = open(&server, &format!("resourceVersion={begin}")).await;
    let error = old.next().await.unwrap();
    assert_eq!(error["type"], "ERROR");
    let expected = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410,
        "message": format!("too old resource version: {begin} ({now})"),
    });
    assert_eq!((&error["object"], old.next().await), (&expected, None));
    for query in ["", "&sendInitialEvents=1&resourceVersionMatch=NotOlderThan"] {
        let mut future = open(&server, &format!("resourceVersion={}{query}", now + 1)).await;
        let error = future.next().await.unwrap();
        assert_eq!(
            (brief(&error), &error["object"]["details"]["causes"][0]["reason"]),
            ("ERROR 504".to_owned(), &json!("ResourceVersionTooLarge"))
        );
        assert_eq!(future.next().await, None);
    }
}

#[tokio::test]
async fn the_longest_time_of_a_watch_is_a_valid_one() {
    let server = TestServer::start().await;
    for path in ["pods", "events", "nodes", "namespaces"] {
        let path = format!("/api/v1/{path}?watch=1&resourceVersion=0&timeoutSeconds={}", i64::MAX);
        drop(Reader::open(&server, &path).await);
    }
}

/// The number of its deletion is in no event, and a watch from there on was an error.
#[tokio::test]
async fn a_watch_begins_after_the_deletion_of_a_pod_that_another_sources_pod_hides() {
    let server = TestServer::start().await;
    post(&server, &[manifest("a")]).await;
    server.file_pod("/manifests/a", pod("a")).await;
    let deleted = server.ask(&format!("DELETE {PODS}/a"), &[], "").await;
    assert_eq!(deleted.code, 200, "{}", deleted.text());
    let mut watch = open(&server, &format!("resourceVersion={}", version(&deleted.json()))).await;
    post(&server, &[manifest("b")]).await;
    let added = watch.next().await.unwrap();
    assert_eq!(brief(&added), "ADDED b");
    assert!(version(&added["object"]) > version(&deleted.json()));
}

#[tokio::test]
async fn a_client_that_is_too_slow_has_to_list_again_and_delays_no_other() {
    let bounds = Bounds { updates: 8, ..Bounds::default() };
    let server = TestServer::with(Setup { bounds, ..Setup::default() }).await;
    let (mut slow, mut quick) = (open(&server, "").await, open(&server, "").await);
    // 100 × 200 kB: more than the buffers of a connection, and more updates than the history.
    for n in 0..100 {
        let mut pod = Prepared::from_json(manifest("a").as_bytes()).unwrap();
        pod.set_annotation("long", Some(&format!("{n}{}", "x".repeat(200_000))));
        server.file_pod("a.yaml", pod).await;
        assert_eq!(quick.brief().await, if n == 0 { "ADDED a" } else { "MODIFIED a" });
    }
    let mut last = String::new();
    let mut count = 0;
    while let Some(event) = slow.next().await {
        (last, count) = (brief(&event), count + 1);
    }
    assert!(count < 100 && last == "ERROR 410", "{count} {last}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_has_bookmarks_and_ends_in_time() {
    let server = TestServer::start().await;
    let open = async |query: &str| {
        let line = format!("GET {PODS}?watch=1&{query}");
        Reader::of(server.open_inside(&line, &[], "").await.into_body())
    };
    let begin = tokio::time::Instant::now();
    let mut quiet = open("timeoutSeconds=150").await;
    let mut marked = open("timeoutSeconds=150&allowWatchBookmarks=1&labelSelector=none").await;
    post_inside(&server, "a").await;
    assert_eq!(quiet.brief().await, "ADDED a");
    for seconds in [60, 120, 150] {
        let bookmark = marked.next().await.unwrap();
        assert_eq!(bookmark["type"], "BOOKMARK");
        assert_eq!(begin.elapsed().as_secs(), seconds);
        // It is after events that are not selected.
        let last = soon(server.history.snapshot()).await.unwrap().seq;
        assert_eq!(version(&bookmark["object"]), last);
    }
    assert_eq!((marked.next().await, quiet.next().await), (None, None));
    // A negative timeout is over already.
    let begin = tokio::time::Instant::now();
    assert_eq!(open("timeoutSeconds=-1&labelSelector=none").await.next().await, None);
    assert_eq!(begin.elapsed().as_secs(), 0);
    // Without a timeout it ends too: after 30 to 60 minutes.
    let begin = tokio::time::Instant::now();
    let mut endless = open("labelSelector=none").await;
    assert_eq!(
        tokio::time::timeout(std::time::Duration::from_hours(2), endless.body.frame())
            .await
            .unwrap()
            .map(|_| ()),
        None
    );
    assert!((30..=60).contains(&(begin.elapsed().as_secs() / 60)));
}

async fn post_inside(server: &TestServer, name: &str) {
    assert_eq!(server.ask_inside("POST /pods", &[], manifest(name)).await.code, 201);
}

#[tokio::test]
async fn an_unknown_source_is_named_and_its_pods_are_not_deleted() {
    let server = TestServer::with(with_api()).await;
    let answer = server.open(&format!("GET {PODS}?watch=1"), &[], "").await;
    let warning = answer.headers()["warning"].to_str().unwrap().to_owned();
    assert!(warning.contains("pods of source api are not known yet"), "{warning}");
    let mut watch = Reader::of(answer.into_body());
    server.api_restored(|api| put(api, of_the_api("k", "Running"))).await;
    assert_eq!(watch.brief().await, "ADDED k");
    server.api_restored(|api| api.remove(&Origin::from("default/k"))).await;
    post(&server, &[manifest("a")]).await;
    assert_eq!(watch.brief().await, "ADDED a", "a restored source removes nothing");
    server.api(|_| ()).await;
    assert_eq!(watch.brief().await, "DELETED k");
    let answer = server.open(&format!("GET {PODS}?watch=1"), &[], "").await;
    assert_eq!(answer.headers().get("warning"), None);
}

#[tokio::test]
async fn a_client_of_an_earlier_run_lists_again_when_all_sources_are_known() {
    let bounds = Bounds { updates: 1, ..Bounds::default() };
    let server = TestServer::with(Setup { file_synced: false, bounds, ..Setup::default() }).await;
    let mut watch = open(&server, "resourceVersion=1").await;
    let event = tokio::spawn(async move { brief(&watch.next().await.unwrap()) });
    for name in ["a", "b"] {
        post(&server, &[manifest(name)]).await;
    }
    assert!(!event.is_finished(), "its next list would lack the pods of the file source");
    server.file(|_| ()).await;
    assert_eq!(soon(event).await.unwrap(), "ERROR 410");
}

#[tokio::test]
async fn watches_share_the_slots_of_updates() {
    let server = TestServer::start().await;
    let mut open = Vec::new();
    for index in 0..MAX_WATCHERS {
        let line = if index % 2 == 0 { "GET /updates".to_owned() } else { format!("GET {PODS}?watch=1") };
        open.push(server.open(&line, &[], "").await);
    }
    assert_eq!(server.get(&format!("{PODS}?watch=1")).await.code, 429);
    assert_eq!(server.get("/updates").await.code, 429);
    open.swap_remove(1);
    soon(async {
        while server.open(&format!("GET {PODS}?watch=1"), &[], "").await.status() == 429 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn all_watchers_of_a_form_get_the_same_bytes_of_an_event() {
    let server = TestServer::start().await;
    let mut bodies = Vec::new();
    for accept in [("accept", "application/json"), TABLE] {
        for _ in 0..2 {
            let line = format!("GET {PODS}?watch=1");
            bodies.push(server.open_inside(&line, &[accept], "").await.into_body());
        }
    }
    for name in ["a", "b"] {
        post(&server, &[manifest(name)]).await;
        let mut frames = Vec::new();
        for body in &mut bodies {
            frames.push(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap());
        }
        assert_eq!(frames[0].as_ptr(), frames[1].as_ptr());
        // A table has ages, which are those of the moment.
        assert_ne!(frames[2].as_ptr(), frames[3].as_ptr());
    }
}

/// Clients that read nothing have no copy of their own.
#[tokio::test]
async fn the_events_of_a_large_pod_share_its_bytes() {
    let server = TestServer::start().await;
    let mut pod: Value = serde_json::from_str(&manifest("a")).unwrap();
    pod["metadata"]["annotations"] = json!({"long": "x".repeat(200_000)});
    post(&server, &[pod.to_string()]).await;
    for accept in ["application/json", "application/vnd.kubernetes.protobuf", TABLE.1] {
        let mut large = Vec::new();
        for _ in 0..2 {
            let line = format!("GET {PODS}?watch=1");
            let mut body = server.open_inside(&line, &[("accept", accept)], "").await.into_body();
            large.push(loop {
                let chunk = soon(body.frame()).await.unwrap().unwrap().into_data().unwrap();
                if chunk.len() > 200_000 {
                    break chunk;
                }
            });
        }
        assert_eq!(large[0].as_ptr(), large[1].as_ptr(), "{accept}");
    }
}

#[tokio::test]
async fn lists_reads_and_events_can_be_tables() {
    let (server, observed) = with_runtime(Setup::default()).await;
    post(&server, &[labelled("a", "x")]).await;
    observe(&server, &observed, "a", "Failed").await;
    let get = async |path: &str| server.ask(&format!("GET {path}"), &[TABLE], "").await.json();
    let table = get(PODS).await;
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    let columns: Vec<(&str, u64)> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| (column["name"].as_str().unwrap(), column["priority"].as_u64().unwrap()))
        .collect();
    let expected = [
        ("Name", 0),
        ("Ready", 0),
        ("Status", 0),
        ("Restarts", 0),
        ("Age", 0),
        ("IP", 1),
        ("Node", 1),
        ("Source", 1),
    ];
    assert_eq!(columns, expected);
    let row = &table["rows"][0];
    let cells = |row: &Value| {
        row["cells"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cell| cell.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let mut shown = cells(row);
    assert!(shown.remove(4).ends_with('s'), "the age");
    assert_eq!(shown, ["a", "0/1", "Failed", "0", "<none>", "node1", "http"]);
    assert_eq!(row["conditions"][0]["reason"], "Failed");
    let pod = server.get(&format!("{PODS}/a")).await.json();
    let partial =
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": pod["metadata"]});
    assert_eq!(row["object"], partial);
    assert_eq!(get(&format!("{PODS}?includeObject=None")).await["rows"][0]["object"], Value::Null);
    assert_eq!(get(&format!("{PODS}?includeObject=Object")).await["rows"][0]["object"], pod);
    let one = get(&format!("{PODS}/a")).await;
    assert_eq!((&one["rows"][0]["object"], version(&one)), (&partial, version(&pod)));

    let mut watch = open_with(
        &server,
        "allowWatchBookmarks=1&sendInitialEvents=1&resourceVersionMatch=NotOlderThan",
        &[TABLE],
    )
    .await;
    let first = watch.next().await.unwrap();
    assert_eq!(
        (&first["object"]["columnDefinitions"], version(&first["object"])),
        (&table["columnDefinitions"], version(&pod))
    );
    let end = watch.next().await.unwrap();
    assert_eq!((&end["type"], &end["object"]["kind"]), (&json!("BOOKMARK"), &json!("Table")));
    assert_eq!(
        end["object"]["rows"][0]["object"]["metadata"]["annotations"],
        json!({"k8s.io/initial-events-end": "true"})
    );
    delete(&server, "a").await;
    let deleted = watch.next().await.unwrap();
    assert_eq!(
        (&deleted["type"], &deleted["object"]["columnDefinitions"]),
        (&json!("DELETED"), &Value::Null)
    );
    assert_eq!(cells(&deleted["object"]["rows"][0])[0], "a");
}

#[tokio::test]
async fn answers_of_writes_can_be_tables() {
    let server = TestServer::start().await;
    post(&server, &[labelled("a", "x")]).await;
    let get = format!("GET {PODS}/a");
    let delete = format!("DELETE {PODS}/a?dryRun=All&gracePeriodSeconds=0");
    for request in [&get, &delete] {
        let table = server.ask(request, &[TABLE], "").await.json();
        let row = &table["rows"][0];
        assert_eq!((&table["kind"], &row["cells"][7]), (&json!("Table"), &json!("http")), "{table}");
        assert_eq!(version(&table), version(&row["object"]));
    }
}

#[tokio::test]
async fn a_list_of_a_python_client_is_no_watch() {
    let server = TestServer::start().await;
    for no in ["0", "false", "False", "FALSE"] {
        assert_eq!(server.get(&format!("{PODS}?watch={no}")).await.json()["kind"], "PodList");
    }
}

#[tokio::test]
async fn the_best_form_is_chosen() {
    let server = TestServer::start().await;
    post(&server, &[manifest("a")]).await;
    let (table, metadata) = (
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    );
    let list = metadata.replace("Metadata;", "MetadataList;");
    for (accept, of_pod, of_list) in [
        (String::new(), "Pod", "PodList"),
        ("*/*".to_owned(), "Pod", "PodList"),
        ("text/html, */*;q=0.1".to_owned(), "Pod", "PodList"),
        ("application/json,application/vnd.kubernetes.protobuf".to_owned(), "Pod", "PodList"),
        (
            "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json".to_owned(),
            "Pod",
            "PodList",
        ),
        (table.to_owned(), "Table", "Table"),
        (format!("application/json;q=0.1,{table};q=0.5"), "Table", "Table"),
        (format!("application/json,{table}"), "Pod", "PodList"),
        (format!("{table};q=0,application/json;q=0.1"), "Pod", "PodList"),
        ("application/json;as=Table;v=v2;g=meta.k8s.io,application/json".to_owned(), "Pod", "PodList"),
        (metadata.to_owned(), "PartialObjectMetadata", "Status"),
        (list.clone(), "Status", "PartialObjectMetadataList"),
        ("application/yaml".to_owned(), "Status", "Status"),
        ("application/json;q=0".to_owned(), "Status", "Status"),
        ("application/json;as=Table;v=v1".to_owned(), "Status", "Status"),
    ] {
        for (path, expected) in [(format!("{PODS}/a"), of_pod), (PODS.to_owned(), of_list)] {
            let reply = server.ask(&format!("GET {path}"), &[("accept", &*accept)], "").await;
            assert_eq!(
                (&reply.json()["kind"], reply.code),
                (&json!(expected), if expected == "Status" { 406 } else { 200 }),
                "{accept} {path}"
            );
        }
    }
    let reply = server.ask(&format!("GET {PODS}?includeObject=x"), &[TABLE], "").await;
    assert_eq!(reply.code, 400);
}

/// A watch that may resume, and the pods that it gives.
struct Follower {
    query: String,
    held: BTreeMap<String, Value>,
    reader: Reader,
    version: u64,
}

impl Follower {
    async fn start(server: &TestServer, query: String) -> Self {
        let listed = server.get(&format!("{PODS}?{query}")).await.json();
        let held = listed["items"].as_array().unwrap().iter().map(|pod| (name(pod), pod.clone())).collect();
        let version = version(&listed);
        let reader = open(server, &format!("{query}&resourceVersion={version}")).await;
        Self { query, held, reader, version }
    }

    /// Reads the next event, perhaps after the watch was resumed. A client that is too slow lists again.
    async fn read(&mut self, dice: &mut Dice, server: &TestServer) {
        if dice.roll(4) == 0 {
            let query = format!("{}&resourceVersion={}", self.query, self.version);
            self.reader = open(server, &query).await;
        }
        let event = self.reader.next().await.unwrap();
        if event["type"] == "ERROR" {
            assert_eq!(event["object"]["code"], 410);
            *self = Self::start(server, self.query.clone()).await;
            return;
        }
        let (object, before) = (&event["object"], self.held.get(&name(&event["object"])));
        assert!(version(object) > self.version, "{event} after {}", self.version);
        self.version = version(object);
        let kind = event["type"].as_str().unwrap();
        assert_eq!(kind == "ADDED", before.is_none(), "{event}");
        match kind {
            "DELETED" => drop(self.held.remove(&name(object))),
            _ => drop(self.held.insert(name(object), object.clone())),
        }
    }
}

fn name(pod: &Value) -> String {
    pod["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Random writes and observations, and followers that select and resume.
async fn follow(dice: &mut Dice) {
    // Some histories hold less than the clients miss.
    let bounds = Bounds { updates: [10, 4096][dice.roll(2)], ..Bounds::default() };
    let (server, observed) = with_runtime(Setup { bounds, ..with_idle_runtime() }).await;
    let selectors = [
        "",
        "labelSelector=app=l1",
        "fieldSelector=status.phase=Running",
        "labelSelector=app!=l0&fieldSelector=metadata.name!=p1",
    ];
    let mut followers = Vec::new();
    for round in 0..40 {
        if round % 8 == 0 {
            let query = selectors[dice.roll(selectors.len())].to_owned();
            followers.push(Follower::start(&server, query).await);
        }
        let name = format!("p{}", dice.roll(6));
        match dice.roll(4) {
            0 => drop(server.ask(&format!("DELETE {PODS}/{name}?gracePeriodSeconds=0"), &[], "").await),
            1 if server.get(&format!("{PODS}/{name}")).await.code == 200 => {
                observe(&server, &observed, &name, ["Running", "Failed"][dice.roll(2)]).await;
            }
            _ => {
                let pods: Vec<_> = (0..=dice.roll(2)).map(|_| format!("p{}", dice.roll(6))).collect();
                let pods: std::collections::BTreeSet<_> = pods.into_iter().chain([name]).collect();
                let pods: Vec<String> =
                    pods.iter().map(|name| labelled(name, &format!("l{}", dice.roll(3)))).collect();
                post(&server, &pods).await;
            }
        }
    }
    for follower in &mut followers {
        let listed = server.get(&format!("{PODS}?{}", follower.query)).await.json();
        let listed = listed["items"].as_array().unwrap().iter().map(|pod| (name(pod), pod.clone()));
        let expected: BTreeMap<_, _> = listed.collect();
        while follower.held != expected {
            follower.read(dice, &server).await;
        }
    }
}

#[tokio::test]
async fn the_events_lead_from_any_list_to_the_next() {
    // With five clients each.
    for seed in 0..200 {
        follow(&mut Dice(seed)).await;
    }
}
