//! Pods over HTTP: writes, and reads after them.

use std::{collections::BTreeSet, fmt::Write as _};

use expect_test::{Expect, expect};
use jiff::Timestamp;
use podmux::{
    pod::{Origin, SourceName},
    server::{LARGE_BODIES, SMALL_BODY},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{
    files::soon,
    script::pod,
    server::{Reply, TestServer, manifest, with_api, with_idle_runtime},
};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// `CODE result namespace/name@version, …` of the response to a write of a set.
fn results(reply: &Reply) -> String {
    let list = reply.json();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodWriteList"), &json!("podmux/v1")));
    let items = list["items"].as_array().unwrap().iter();
    let item = |item: &Value| format!(" {} {}", item["result"].as_str().unwrap(), brief(&item["pod"]));
    format!("{}{}", reply.code, items.map(item).collect::<String>())
}

/// `namespace/name@version`, with the grace period of a terminating pod.
fn brief(pod: &Value) -> String {
    let metadata = &pod["metadata"];
    assert_eq!((&pod["kind"], &pod["apiVersion"]), (&json!("Pod"), &json!("v1")));
    let text = |field: &str| metadata[field].as_str().unwrap_or("-");
    let mut brief = format!("{}/{}@{}", text("namespace"), text("name"), text("resourceVersion"));
    if metadata["deletionTimestamp"].is_string() {
        write!(brief, "!{}", metadata["deletionGracePeriodSeconds"]).unwrap();
    }
    brief
}

/// Runs lines of `METHOD PATH [BODY]` and compares the responses. `$name` in a body is a pod of
/// that name.
async fn check(server: &TestServer, script: &str, expect: &Expect) {
    let mut out = String::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (method, rest) = line.split_once(' ').unwrap();
        let (path, body) = rest.split_once(' ').unwrap_or((rest, ""));
        let path = path.replace("PODS", PODS);
        let body =
            body.split(" --- ").map(|word| word.strip_prefix('$').map_or(word.to_owned(), pod_manifest));
        let body = body.collect::<Vec<_>>().join("\n---\n");
        let reply = server.ask(&format!("{method} {path}"), &[], body).await;
        let response = match reply.json() {
            list if list["kind"] == "PodWriteList" => results(&reply),
            status if status["kind"] == "Status" => {
                format!("{} {}", reply.code, status["message"].as_str().unwrap())
            }
            list if list["kind"] == "PodList" => format!("{} {}", reply.code, reply.names().join(" ")),
            pod => format!("{} {}", reply.code, brief(&pod)),
        };
        writeln!(out, "> {line}\n{response}").unwrap();
    }
    expect.assert_eq(&ranked(&out));
}

/// Replaces each version by its rank in the text: the numbers of all streams and versions are taken
/// from one allocator, so those in between are not the same in each run.
fn ranked(text: &str) -> String {
    let split =
        |piece| str::split_at(piece, piece.find(|c: char| !c.is_ascii_digit()).unwrap_or(piece.len()));
    let mut pieces = text.split('@');
    let first = pieces.next().unwrap().to_owned();
    let pieces: Vec<(Option<u64>, &str)> =
        pieces.map(split).map(|(version, rest)| (version.parse().ok(), rest)).collect();
    let versions: BTreeSet<u64> = pieces.iter().filter_map(|(version, _)| *version).collect();
    pieces.iter().fold(first, |text, (version, rest)| {
        let rank = version.map(|version| versions.range(..=version).count().to_string());
        format!("{text}@{}{rest}", rank.unwrap_or_default())
    })
}

/// The manifest of `name` or `name=image`.
fn pod_manifest(text: &str) -> String {
    let (name, image) = text.split_once('=').unwrap_or((text, "i:1"));
    manifest(name).replace("i:1", image)
}

#[tokio::test]
async fn a_set_is_applied_and_replaced() {
    let server = TestServer::start().await;
    let script = "
        POST /pods $a --- $b
        POST /pods $a --- $b=i:2 --- $c
        POST /pods $a
        GET /pods
        PUT /pods $a --- $d
        PUT /pods {apiVersion: v1, kind: List, items: []}
        POST /pods {apiVersion: v1, kind: PodList, items: []}
        GET /pods
    ";
    check(
        &server,
        script,
        &expect![[r#"
        > POST /pods $a --- $b
        201 created default/a@1 created default/b@2
        > POST /pods $a --- $b=i:2 --- $c
        201 unchanged default/a@1 configured default/b@3 created default/c@4
        > POST /pods $a
        200 unchanged default/a@1
        > GET /pods
        200 default/a default/b default/c
        > PUT /pods $a --- $d
        201 terminating default/b@5!30 terminating default/c@6!30 unchanged default/a@1 created default/d@7
        > PUT /pods {apiVersion: v1, kind: List, items: []}
        200 terminating default/a@8!30 terminating default/d@9!30
        > POST /pods {apiVersion: v1, kind: PodList, items: []}
        200
        > GET /pods
        200 default/a default/b default/c default/d
    "#]],
    )
    .await;
}

#[tokio::test]
async fn the_uid_and_the_version_of_a_saved_pod_can_be_ignored() {
    let server = TestServer::start().await;
    let saved = manifest("a").replace(r#""name":"a""#, r#""name":"a","uid":"other","resourceVersion":"77""#);
    let post = |path| server.ask(path, &[], saved.clone());
    assert_eq!(post("POST /pods").await.code, 409);
    let ignored = "POST /pods?ignorePreconditions=true";
    let created = results(&post(ignored).await);
    assert!(created.starts_with("201 created default/a@"), "{created}");
    assert_eq!(results(&post(ignored).await), created.replace("201 created", "200 unchanged"));
    assert_eq!(post("POST /pods?ignorePreconditions=false").await.code, 409);
}

#[tokio::test]
async fn a_pod_is_created_replaced_and_deleted_on_kubernetes_paths() {
    let server = TestServer::start().await;
    let script = "
        POST PODS $a
        GET PODS/a
        PUT PODS/a $a=i:2
        PUT PODS/a $a=i:2
        GET PODS
        GET /api/v1/pods
        GET /api/v1/namespaces/other/pods
        DELETE PODS/a
        GET PODS/a
        DELETE PODS/a?gracePeriodSeconds=60
        DELETE PODS/a?gracePeriodSeconds=5
        DELETE PODS/a {\"gracePeriodSeconds\":0}
        GET PODS/a
    ";
    check(
        &server,
        script,
        &expect![[r#"
            > POST PODS $a
            201 default/a@1
            > GET PODS/a
            200 default/a@1
            > PUT PODS/a $a=i:2
            200 default/a@2
            > PUT PODS/a $a=i:2
            200 default/a@2
            > GET PODS
            200 default/a
            > GET /api/v1/pods
            200 default/a
            > GET /api/v1/namespaces/other/pods
            200 
            > DELETE PODS/a
            200 default/a@3!30
            > GET PODS/a
            200 default/a@3!30
            > DELETE PODS/a?gracePeriodSeconds=60
            200 default/a@3!30
            > DELETE PODS/a?gracePeriodSeconds=5
            200 default/a@4!5
            > DELETE PODS/a {"gracePeriodSeconds":0}
            200 default/a@5!0
            > GET PODS/a
            404 pods "a" not found
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let server = TestServer::start().await;
    let script = "
        POST /pods?dryRun=All $a
        PUT /pods?dryRun=All $a
        POST PODS?dryRun=All $a
        GET /pods
        POST PODS $a
        PUT PODS/a?dryRun=All $a=i:2
        DELETE PODS/a?dryRun=All
        DELETE PODS/a {\"dryRun\":[\"All\"]}
        DELETE PODS/a {dryRun: [All], gracePeriodSeconds: 0}
        GET PODS/a
    ";
    check(
        &server,
        script,
        &expect![[r#"
            > POST /pods?dryRun=All $a
            201 created default/a@-
            > PUT /pods?dryRun=All $a
            201 created default/a@-
            > POST PODS?dryRun=All $a
            201 default/a@-
            > GET /pods
            200 
            > POST PODS $a
            201 default/a@1
            > PUT PODS/a?dryRun=All $a=i:2
            200 default/a@1
            > DELETE PODS/a?dryRun=All
            200 default/a@1!30
            > DELETE PODS/a {"dryRun":["All"]}
            200 default/a@1!30
            > DELETE PODS/a {dryRun: [All], gracePeriodSeconds: 0}
            200 default/a@1!0
            > GET PODS/a
            200 default/a@1
        "#]],
    )
    .await;
}

#[tokio::test]
async fn the_namespace_is_that_of_the_path_and_the_name_may_be_generated() {
    let server = TestServer::start().await;
    let created = server.ask("POST /api/v1/namespaces/prod/pods", &[], manifest("a")).await;
    assert_eq!(server.get("/api/v1/namespaces/prod/pods").await.names(), ["prod/a"]);
    // On podmux's paths the query may have it.
    let of_query = server.ask("POST /pods?namespace=dev", &[], manifest("a")).await;
    let by_default = server.ask("POST /pods?namespace=", &[], manifest("a")).await;
    let created = format!("{} {}", created.code, brief(&created.json()));
    let written = [created, results(&of_query), results(&by_default)].join("\n");
    assert_eq!(ranked(&written), "201 prod/a@1\n201 created dev/a@2\n201 created default/a@3");
    let generated = manifest("web-").replace("\"name\":\"web-\"", "\"generateName\":\"web-\"");
    let mut names = Vec::new();
    for path in ["POST /api/v1/namespaces/prod/pods", "POST /pods"] {
        let pod = server.ask(path, &[], generated.clone()).await.json();
        let pod = if pod["kind"] == "Pod" { pod } else { pod["items"][0]["pod"].clone() };
        names.push(pod["metadata"]["name"].as_str().unwrap().to_owned());
    }
    for name in &names {
        let letters = name.strip_prefix("web-").unwrap();
        assert!(
            letters.len() == 5 && letters.chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)),
            "{name}"
        );
    }
    assert_ne!(names[0], names[1]);
}

#[tokio::test]
async fn a_written_pod_is_in_the_next_list_and_in_the_updates_at_its_version() {
    let server = TestServer::start().await;
    for n in 0..20 {
        let name = format!("p{n:02}");
        let written = server.ask("POST /pods", &[], manifest(&name)).await.json();
        let version: u64 = written["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        let list = server.get(&format!("/pods?resourceVersion={version}")).await;
        assert_eq!(list.names().len(), n + 1);
        let listed: u64 = list.json()["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        assert!(listed >= version);
        assert!(soon(server.history.snapshot()).await.unwrap().merged.len() == n + 1);
    }
}

#[tokio::test]
async fn a_response_has_the_pods_text_unchanged() {
    let server = TestServer::with(with_idle_runtime()).await;
    server.ask("POST /pods", &[], manifest("a")).await;
    let reply = server.get(&format!("{PODS}/a")).await;
    let snapshot = server.history.snapshot().await.unwrap();
    let (_, entry) = snapshot.merged.iter().next().unwrap();
    assert_eq!(reply.text().trim_end().as_bytes(), &**entry.pod().text());
    assert_eq!(entry.source(), SourceName::Http);
    let list = server.get("/pods").await;
    assert_eq!(list.header("content-length"), [list.body.len().to_string()]);
    assert!(list.text().contains(reply.text().trim_end()));
    let head = server.ask("HEAD /pods", &[], "").await;
    assert_eq!(
        (head.code, head.body.len(), head.header("content-length")),
        (200, 0, list.header("content-length"))
    );
}

#[tokio::test]
async fn a_posted_pod_in_conflict_with_a_file_stays_stored_and_can_be_deleted() {
    let server = TestServer::start().await;
    let posted = results(&server.ask("POST /pods", &[], manifest("web")).await);
    server.file_pod("/etc/podmux/web.yaml", pod("web")).await;
    let script = "
        GET PODS/web
        PUT PODS/web $web=i:2
    ";
    check(
        &server,
        script,
        &expect![[r#"
            > GET PODS/web
            200 default/web@1
            > PUT PODS/web $web=i:2
            403 pods "web" is forbidden: it is held by source file (from /etc/podmux/web.yaml): change it there
        "#]],
    )
    .await;
    let erased = server.ask(&format!("DELETE {PODS}/web?gracePeriodSeconds=0"), &[], "").await;
    let erased = format!("{} {}", erased.code, brief(&erased.json()));
    let both = ranked(&format!("{posted}\n{erased}"));
    assert_eq!(both, "201 created default/web@1\n200 default/web@2!0");
    check(
        &server,
        "DELETE PODS/web",
        &expect![[r#"
            > DELETE PODS/web
            403 pods "web" is forbidden: it is held by source file (from /etc/podmux/web.yaml): change it there
        "#]],
    )
    .await;
    assert!(server.posts.all().is_empty());
    // The file's pod is unchanged; when it is removed, the name is free.
    assert_eq!(server.get("/pods").await.names(), ["default/web"]);
    server.file(|file| file.remove(&Origin::from("/etc/podmux/web.yaml"))).await;
    assert_eq!(server.ask("POST /pods", &[], manifest("web")).await.code, 201);
}

#[tokio::test]
async fn writes_to_a_posted_pod_whose_uid_a_file_has_are_403() {
    let server = TestServer::start().await;
    let posted = server.ask(&format!("POST {PODS}"), &[], manifest("web")).await.json();
    let uid = posted["metadata"]["uid"].as_str().unwrap();
    server.file_pod("/etc/podmux/copy.yaml", pod(&format!("copy#{uid}"))).await;
    let why = "pods \"web\" is forbidden: its UID is held by the pod default/copy of source file \
        (from /etc/podmux/copy.yaml): remove metadata.uid there";
    let patch = [("content-type", "application/merge-patch+json")];
    let label = r#"{"metadata": {"labels": {"a": "b"}}}"#.to_owned();
    for (request, body) in [
        (format!("POST {PODS}"), manifest("web")),
        ("POST /pods".to_owned(), manifest("web")),
        (format!("PUT {PODS}/web"), manifest("web")),
        (format!("PATCH {PODS}/web"), label),
    ] {
        let headers = if request.starts_with("PATCH") { &patch[..] } else { &[] };
        let reply = server.ask(&request, headers, body).await;
        assert_eq!((reply.code, reply.json()["message"].as_str()), (403, Some(why)), "{request}");
        assert_eq!(reply.json()["details"]["causes"][0]["field"], "metadata.uid");
    }
    // It can be deleted, and without the copy it is there again.
    let dry = server.ask(&format!("DELETE {PODS}/web?dryRun=All"), &[], "").await;
    assert_eq!(dry.code, 200);
    server.file(|file| file.remove(&Origin::from("/etc/podmux/copy.yaml"))).await;
    assert_eq!(server.ask(&format!("PUT {PODS}/web"), &[], manifest("web")).await.code, 200);
}

/// A pod that has not changed stays in the merged view, with its first place.
#[tokio::test]
async fn a_manifest_that_was_renamed_is_named_by_its_new_path() {
    let server = TestServer::start().await;
    let both = format!("{}\n---\n{}", manifest("web"), manifest("db"));
    let posted = server.ask("POST /pods", &[], both).await.json();
    let uid = posted["items"][1]["pod"]["metadata"]["uid"].as_str().unwrap();
    let pods = || vec![pod("web"), pod(&format!("copy#{uid}"))];
    let (old, new) = (Origin::from("/m/old.yaml"), Origin::from("/m/new.yaml"));
    server.file(|file| file.put(&old, pods(), Timestamp::UNIX_EPOCH)).await;
    server
        .file(|file| {
            file.put(&new, pods(), Timestamp::UNIX_EPOCH);
            file.remove(&old)
        })
        .await;
    for (name, why) in [
        ("web", "it is held by source file (from /m/new.yaml): change it there"),
        (
            "db",
            "its UID is held by the pod default/copy of source file (from /m/new.yaml): remove metadata.uid there",
        ),
    ] {
        let reply = server.ask(&format!("PUT {PODS}/{name}"), &[], manifest(name)).await;
        let why = format!("pods {name:?} is forbidden: {why}");
        assert_eq!((reply.code, reply.json()["message"].as_str()), (403, Some(&*why)));
    }
    let http = server.get("/sources/http").await.json();
    let winners: Vec<&Value> =
        http["problems"].as_array().unwrap().iter().map(|problem| &problem["winner"]["origin"]).collect();
    assert_eq!(winners, ["/m/new.yaml", "/m/new.yaml"]);
    assert_eq!(server.get("/pods/default/web").await.json()["origin"], "/m/new.yaml");
}

#[tokio::test]
async fn a_version_of_the_future_is_504_for_a_missing_pod_too() {
    let server = TestServer::start().await;
    assert_eq!(server.ask("POST /pods", &[], manifest("web")).await.code, 201);
    for (query, web, none) in
        [("", 200, 404), ("?resourceVersion=1", 200, 404), ("?resourceVersion=99999999999999999", 504, 504)]
    {
        let code = async |name: &str| server.get(&format!("{PODS}/{name}{query}")).await.code;
        assert_eq!((code("web").await, code("none").await), (web, none), "{query}");
    }
}

#[tokio::test]
async fn writes_to_the_api_servers_pods_are_403() {
    let server = TestServer::with(with_api()).await;
    server.api(|api| api.put(&Origin::from("default/web"), vec![pod("web")], Timestamp::UNIX_EPOCH)).await;
    let script = "
        GET PODS/web
        POST PODS $web
        POST /pods $web
        PUT PODS/web $web=i:2
        DELETE PODS/web
    ";
    check(
        &server,
        script,
        &expect![[r#"
            > GET PODS/web
            200 default/web@1
            > POST PODS $web
            403 pods "web" is forbidden: it is held by source api: change it at the API server
            > POST /pods $web
            403 pods "web" is forbidden: it is held by source api: change it at the API server
            > PUT PODS/web $web=i:2
            403 pods "web" is forbidden: it is held by source api: change it at the API server
            > DELETE PODS/web
            403 pods "web" is forbidden: it is held by source api: change it at the API server
        "#]],
    )
    .await;
    assert!(server.posts.all().is_empty());
    // A pod that was posted earlier owns the name and can be changed.
    server.api(|api| api.remove(&Origin::from("default/web"))).await;
    assert_eq!(server.ask("POST /pods", &[], manifest("web")).await.code, 201);
    server.api(|api| api.put(&Origin::from("default/web"), vec![pod("web")], Timestamp::UNIX_EPOCH)).await;
    assert_eq!(server.ask("POST /pods", &[], manifest("web")).await.code, 200);
}

#[tokio::test]
async fn all_media_types_of_json_and_yaml_are_accepted() {
    let server = TestServer::start().await;
    let yaml =
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: NAME\nspec:\n  containers:\n  - {name: c, image: i}\n";
    let types = [
        ("application/json", true),
        ("application/json; charset=utf-8", true),
        ("text/json", true),
        ("Application/YAML", false),
        ("application/x-yaml", false),
        ("text/yaml;charset=utf-8", false),
        ("text/x-yaml", false),
        ("text/vnd.yaml", false),
        ("application/x-www-form-urlencoded", false),
        ("application/x-www-form-urlencoded", true),
        ("", false),
    ];
    for (n, (media_type, json)) in types.into_iter().enumerate() {
        let name = format!("p{n}");
        let body = if json { manifest(&name) } else { yaml.replace("NAME", &name) };
        let reply = server.ask("POST /pods", &[("content-type", media_type)], body).await;
        assert_eq!(reply.code, 201, "{media_type}: {}", reply.text());
    }
    let reply = server.ask("POST /pods", &[], yaml.replace("NAME", "none")).await;
    assert_eq!(reply.code, 201, "{}", reply.text());
}

/// A manifest of one pod that is larger than a small body.
fn large(name: &str) -> String {
    manifest(name)
        .replace("\"spec\":{", &format!("\"spec\":{{\"unknown\":\"{}\",", "x".repeat(2 * SMALL_BODY)))
}

#[tokio::test]
async fn a_large_rejected_body_is_answered_with_the_name_of_its_pod() {
    let server = TestServer::start().await;
    for path in [PODS, "/pods"] {
        let status = server.ask(&format!("POST {path}"), &[], large("_")).await.json();
        assert_eq!((&status["code"], &status["details"]["name"]), (&422.into(), &"_".into()));
        let message = status["message"].as_str().unwrap();
        assert!(message.starts_with("Pod \"_\" is invalid: "), "{message}");
    }
}

#[tokio::test]
async fn large_bodies_wait_for_a_permit_and_small_ones_do_not() {
    let server = TestServer::start().await;
    assert_eq!(server.ask("POST /pods", &[], large("first")).await.code, 201);
    // Clients with all permits begin a large body and stop.
    let mut slow = Vec::new();
    for n in 0..LARGE_BODIES {
        let body = large(&format!("slow{n}"));
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST /pods HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let (begin, rest) = body.split_at(SMALL_BODY + SMALL_BODY / 2);
        stream.write_all(begin.as_bytes()).await.unwrap();
        slow.push((stream, rest.to_owned()));
    }
    // A small body is read,
    assert_eq!(server.ask("POST /pods", &[], manifest("small")).await.code, 201);
    // and a large one waits for a permit.
    let mut waiting = Box::pin(server.ask("POST /pods", &[], large("waiting")));
    for n in 0..50 {
        tokio::select! {
            biased;
            reply = &mut waiting => panic!("the large body did not wait: {}", reply.code),
            reply = server.ask("POST /pods", &[], manifest(&format!("small{n}"))) => assert_eq!(reply.code, 201),
        }
    }
    let completed = async {
        for (mut stream, rest) in slow {
            stream.write_all(rest.as_bytes()).await.unwrap();
            let mut answer = String::new();
            soon(stream.read_to_string(&mut answer)).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
        }
    };
    let (reply, ()) = tokio::join!(waiting, completed);
    assert_eq!(reply.code, 201);
    assert_eq!(server.get("/pods").await.names().len(), 53 + LARGE_BODIES);
}
