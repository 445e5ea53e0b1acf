//! `podmux get`: what it asks an agent, and what a person sees of the answers.
#![allow(clippy::too_many_lines, reason = "golden texts are as long as what a person sees")]

use std::{fmt::Write as _, io::Read as _, process::Stdio, sync::LazyLock};

use expect_test::{Expect, expect};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    cli::transcript,
    support::{
        agent::{Agent, Asked, Reply},
        process::{on_a_terminal, podmux},
    },
};

/// What a person sees, and what the agent was asked.
fn check(agent: &Agent, args: &[&str], expected: &Expect) {
    let before = agent.lines().len();
    let told = transcript(&mut agent.podmux(args), b"");
    expected.assert_eq(&(told + "--\n" + &agent.lines()[before..]));
}

/// A time so long ago that its age does not change while a test runs.
fn ago(days: i64) -> String {
    static NOW: LazyLock<Timestamp> = LazyLock::new(Timestamp::now);
    let time = *NOW - SignedDuration::from_hours(24 * days) - SignedDuration::from_mins(20);
    format!("{time:.0}")
}

fn pod(namespace: &str, name: &str, source: &str) -> Value {
    json!({
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("uid-of-{name}"), "creationTimestamp": ago(5),
            "annotations": {
                "kubernetes.io/config.source": source, "kubernetes.io/config.hash": "0f1e",
                // It was posted when it was created.
                "kubernetes.io/config.seen": ago(5).replace('Z', ".987Z"),
            },
        },
        "spec": { "nodeName": "node1" },
        "status": { "phase": "Pending" },
    })
}

fn pods() -> Vec<Value> {
    let mut web = pod("default", "web", "http");
    web["metadata"]["deletionTimestamp"] = ago(1).into();
    web["metadata"]["labels"] = json!({ "app": "web", "tier": "front" });
    let mut dns = pod("kube-system", "dns-node1", "file");
    dns["metadata"]["creationTimestamp"].take();
    dns["metadata"]["annotations"]["kubernetes.io/config.seen"] = ago(10).into();
    dns["spec"]["priority"] = 2_000_001_000.into();
    let mut polled = pod("default", "polled-node1", "http");
    polled["metadata"]["uid"] = "fdcbe939-db1e-5d8b-a02a-354693b88324".into();
    polled["metadata"]["annotations"]["kubernetes.io/config.seen"] = ago(3).into();
    vec![polled, web, dns]
}

fn list(pods: &[Value], seq: u64) -> Value {
    json!({
        "kind": "PodList", "apiVersion": "v1", "metadata": { "resourceVersion": seq.to_string() }, "items": pods,
    })
}

/// An agent with three pods.
fn three(asked: &Asked, _: usize) -> Reply {
    let all = pods();
    let (path, _) = asked.line["GET ".len()..].split_once('?').unwrap_or((&asked.line["GET ".len()..], ""));
    if path == "/api/v1/pods" {
        return Reply::json(200, &list(&all, 7));
    }
    let mut parts = path.strip_prefix("/api/v1/namespaces/").unwrap().split("/pods");
    let (namespace, name) = (parts.next().unwrap(), parts.next().unwrap());
    let mut here = all.into_iter().filter(|pod| pod["metadata"]["namespace"] == namespace);
    match name.strip_prefix('/') {
        None => Reply::json(200, &list(&here.collect::<Vec<_>>(), 7)),
        Some(name) => match here.find(|pod| pod["metadata"]["name"] == name) {
            Some(pod) => Reply::json(200, &pod),
            None => Reply::status(404, "NotFound", &format!("pods \"{name}\" not found")),
        },
    }
}

#[test]
fn pods_come_in_columns() {
    let agent = Agent::start(three);
    check(
        &agent,
        &["get", "pods"],
        &expect![[r#"
        NAME           SOURCE   STATUS        AGE
        polled-node1   url      Pending       5d
        web            http     Terminating   5d
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
    "#]],
    );
    check(
        &agent,
        &["get", "po", "-A"],
        &expect![[r#"
        NAMESPACE     NAME           SOURCE   STATUS        AGE
        default       polled-node1   url      Pending       5d
        default       web            http     Terminating   5d
        kube-system   dns-node1      file     Pending       10d
        exit 0
        --
        GET /api/v1/pods?limit=500
    "#]],
    );
    check(
        &agent,
        &["get", "pod", "-A", "-o", "wide", "--show-labels"],
        &expect![[r#"
        NAMESPACE     NAME           SOURCE   STATUS        AGE   NODE    UID                                    PRIORITY     HASH   LABELS
        default       polled-node1   url      Pending       5d    node1   fdcbe939-db1e-5d8b-a02a-354693b88324   <none>       0f1e   <none>
        default       web            http     Terminating   5d    node1   uid-of-web                             <none>       0f1e   app=web,tier=front
        kube-system   dns-node1      file     Pending       10d   node1   uid-of-dns-node1                       2000001000   0f1e   <none>
        exit 0
        --
        GET /api/v1/pods?limit=500
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "-n", "kube-system", "--no-headers"],
        &expect![[r#"
        dns-node1   file   Pending   10d
        exit 0
        --
        GET /api/v1/namespaces/kube-system/pods?limit=500
    "#]],
    );
}

#[test]
fn pods_are_named_as_kubectl_names_them() {
    let agent = Agent::start(three);
    check(
        &agent,
        &["get", "pod", "web"],
        &expect![[r#"
        NAME   SOURCE   STATUS        AGE
        web    http     Terminating   5d
        exit 0
        --
        GET /api/v1/namespaces/default/pods/web
    "#]],
    );
    check(
        &agent,
        &["get", "pod/web", "po/polled-node1", "-o", "name"],
        &expect![[r#"
        pod/web
        pod/polled-node1
        exit 0
        --
        GET /api/v1/namespaces/default/pods/web
        GET /api/v1/namespaces/default/pods/polled-node1
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "web", "b/d"],
        &expect![[r#"
        ! podmux: "b/d" is no name; give either pods NAME… or pod/NAME…
        exit 2
        --
    "#]],
    );
    check(
        &agent,
        &["get", "pod/web", "source/file"],
        &expect![[r#"
        ! podmux: "source/file" beside "web": give either pods NAME… or pod/NAME…, of one kind
        exit 2
        --
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "-o", "name"],
        &expect![[r#"
        pod/polled-node1
        pod/web
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
    "#]],
    );
}

#[test]
fn what_is_not_there_does_not_hide_what_is() {
    let agent = Agent::start(three);
    check(
        &agent,
        &["get", "pods", "missing", "web"],
        &expect![[r#"
        NAME   SOURCE   STATUS        AGE
        web    http     Terminating   5d
        ! Error from server (NotFound): pods "missing" not found
        exit 1
        --
        GET /api/v1/namespaces/default/pods/missing
        GET /api/v1/namespaces/default/pods/web
    "#]],
    );
    check(
        &agent,
        &["get", "pod", "a?b/c%"],
        &expect![[r#"
        ! podmux: "a?b/c%" is no name; give either pods NAME… or pod/NAME…
        exit 2
        --
    "#]],
    );
    check(
        &agent,
        &["get", "pod", "a?b c%"],
        &expect![[r#"
        ! Error from server (NotFound): pods "a%3Fb%20c%25" not found
        exit 1
        --
        GET /api/v1/namespaces/default/pods/a%3Fb%20c%25
    "#]],
    );
    check(
        &agent,
        &["get", "pod", "missing", "--ignore-not-found"],
        &expect![[r#"
        exit 0
        --
        GET /api/v1/namespaces/default/pods/missing
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "-n", "empty"],
        &expect![[r#"
        ! No resources found in empty namespace.
        exit 0
        --
        GET /api/v1/namespaces/empty/pods?limit=500
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "-n", "empty", "--ignore-not-found"],
        &expect![[r#"
        exit 0
        --
        GET /api/v1/namespaces/empty/pods?limit=500
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "-n", "empty", "-o", "json"],
        &expect![[r#"
        {
            "apiVersion": "v1",
            "items": [],
            "kind": "List",
            "metadata": {
                "resourceVersion": "7"
            }
        }
        exit 0
        --
        GET /api/v1/namespaces/empty/pods?limit=500
    "#]],
    );
}

#[test]
fn objects_come_as_json_and_yaml() {
    let agent = Agent::start(|_, _| {
        let pod = json!({ "metadata": { "name": "web", "namespace": "default" }, "spec": { "y": "no" } });
        Reply::json(200, &list(&[pod], 7))
    });
    check(
        &agent,
        &["get", "pods", "-o", "json"],
        &expect![[r#"
        {
            "apiVersion": "v1",
            "items": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        "name": "web",
                        "namespace": "default"
                    },
                    "spec": {
                        "y": "no"
                    }
                }
            ],
            "kind": "List",
            "metadata": {
                "resourceVersion": "7"
            }
        }
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "-o", "yaml"],
        &expect![[r#"
        apiVersion: v1
        items:
        - apiVersion: v1
          kind: Pod
          metadata:
            name: web
            namespace: default
          spec:
            "y": "no"
        kind: List
        metadata:
          resourceVersion: "7"
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "-o", "jsonl"],
        &expect![[r#"
        {"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"default"},"spec":{"y":"no"}}
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
    "#]],
    );
    let agent = Agent::start(three);
    let told = transcript(&mut agent.podmux(&["get", "pod", "web", "-o", "yaml"]), b"");
    assert!(told.starts_with("metadata:\n  annotations:\n    kubernetes.io/config.hash: 0f1e\n"), "{told}");
    let told = transcript(&mut agent.podmux(&["get", "pod", "web", "polled-node1", "-o", "json"]), b"");
    assert!(told.contains("    \"kind\": \"List\",\n"), "{told}");
}

#[test]
fn selectors_are_the_servers_to_understand() {
    let agent = Agent::start(|asked, _| {
        if asked.line.contains("labelSelector=app%3Dweb") {
            return Reply::json(200, &list(&pods()[1..2], 7));
        }
        Reply::status(400, "BadRequest", "unable to parse requirement: found '%'")
    });
    check(
        &agent,
        &["get", "pods", "-l", "app=web,tier in (front)", "--field-selector", "spec.nodeName=node1"],
        &expect![[r#"
            NAME   SOURCE   STATUS        AGE
            web    http     Terminating   5d
            exit 0
            --
            GET /api/v1/namespaces/default/pods?labelSelector=app%3Dweb%2Ctier%20in%20%28front%29&fieldSelector=spec.nodeName%3Dnode1&limit=500
        "#]],
    );
    check(
        &agent,
        &["get", "pods", "-l", "%"],
        &expect![[r#"
        ! Error from server (BadRequest): unable to parse requirement: found '%'
        exit 1
        --
        GET /api/v1/namespaces/default/pods?labelSelector=%25&limit=500
    "#]],
    );
}

#[test]
fn a_long_list_is_asked_for_in_pages() {
    let agent = Agent::start(|asked, before| {
        let mut page = list(&pods()[before % 2..][..1], 7);
        if !asked.line.contains("continue=") {
            page["metadata"]["continue"] = "to+ken=".into();
        }
        Reply::json(200, &page)
    });
    check(
        &agent,
        &["get", "pods", "-o", "name"],
        &expect![[r#"
        pod/polled-node1
        pod/web
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
        GET /api/v1/namespaces/default/pods?limit=500&continue=to%2Bken%3D
    "#]],
    );

    // The second page has expired: everything at once.
    let agent = Agent::start(|asked, _| {
        let mut page = list(&pods()[..2], 7);
        if asked.line.contains("continue=") {
            return Reply::status(410, "Expired", "the continue token is too old");
        } else if asked.line.contains("limit=") {
            page["metadata"]["continue"] = "token".into();
        }
        Reply::json(200, &page)
    });
    check(
        &agent,
        &["get", "pods", "-o", "name"],
        &expect![[r#"
        pod/polled-node1
        pod/web
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
        GET /api/v1/namespaces/default/pods?limit=500&continue=token
        GET /api/v1/namespaces/default/pods
    "#]],
    );
}

fn update(seq: u64, op: &str, source: &str, pods: &[Value]) -> String {
    let mut line = format!(
        r#"{{"seq":{seq},"time":"2026-11-21T09:00:00.123456Z","op":"{op}","source":"{source}","pods":{}}}"#,
        Value::from(pods)
    );
    line.push('\n');
    line
}

fn lines(lines: &[String]) -> Reply {
    Reply(200, vec![("content-type", "application/x-ndjson".to_owned())], lines.concat())
}

fn gone(seq: u64) -> String {
    let message = format!("update {seq} is not held");
    format!("{}\n", json!({"kind": "Status", "reason": "Expired", "code": 410, "message": message}))
}

/// An agent whose stream tells of pods that come, change and go.
fn changing(asked: &Asked, _: usize) -> Reply {
    if !asked.line.starts_with("GET /updates") {
        return three(asked, 0);
    }
    let mut db = pod("default", "db", "url");
    let added = update(8, "ADD", "url", &[db.clone(), pod("other", "x", "file")]);
    db["status"]["phase"] = "Running".into();
    let reconciled = update(9, "RECONCILE", "url", &[db.clone()]);
    let removed = update(10, "REMOVE", "url", &[db, pod("other", "x", "file")]);
    lines(&[added, reconciled, removed])
}

#[test]
fn watching_begins_with_what_is_there_and_goes_on_with_what_changes() {
    let agent = Agent::start(changing);
    check(
        &agent,
        &["get", "pods", "-w"],
        &expect![[r#"
        NAME           SOURCE   STATUS        AGE
        polled-node1   url      Pending       5d
        web            http     Terminating   5d
        db             url      Pending       5d
        db             url      Running       5d
        db             url      Removed       5d
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
        GET /updates?from=8
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "--watch", "--output-watch-events", "-A"],
        &expect![[r#"
        EVENT      NAMESPACE     NAME           SOURCE   STATUS        AGE
        ADDED      default       polled-node1   url      Pending       5d
        ADDED      default       web            http     Terminating   5d
        ADDED      kube-system   dns-node1      file     Pending       10d
        ADDED      default       db             url      Pending       5d
        ADDED      other         x              url      Pending       5d
        MODIFIED   default       db             url      Running       5d
        DELETED    default       db             url      Removed       5d
        DELETED    other         x              url      Removed       5d
        exit 0
        --
        GET /api/v1/pods?limit=500
        GET /updates?from=8
    "#]],
    );
    check(
        &agent,
        &["get", "pod", "db", "web", "-w", "-o", "name"],
        &expect![[r#"
        ! Error from server (NotFound): pods "db" not found
        exit 1
        --
        GET /api/v1/namespaces/default/pods?limit=500
    "#]],
    );
    check(
        &agent,
        &["get", "pod", "web", "-w"],
        &expect![[r#"
        NAME   SOURCE   STATUS        AGE
        web    http     Terminating   5d
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
        GET /updates?from=8
    "#]],
    );
    let agent = Agent::start(|_, before| {
        let pods = [json!({ "metadata": { "namespace": "other", "name": "x" } })];
        if before == 0 {
            return Reply::json(200, &list(&[], 7));
        }
        lines(&[update(8, "ADD", "file", &pods), update(9, "REMOVE", "file", &pods)])
    });
    let watch = ["get", "pods", "-n", "other", "-w", "-o", "jsonl"];
    check(
        &agent,
        &watch,
        &expect![[r#"
        {"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","namespace":"other"}}
        {"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","namespace":"other"}}
        exit 0
        --
        GET /api/v1/namespaces/other/pods?limit=500
        GET /updates?from=8
    "#]],
    );
    let agent = Agent::start(changing);
    let told = transcript(&mut agent.podmux(&[&watch[..], &["--output-watch-events"]].concat()), b"");
    assert!(told.contains(r#""type":"ADDED"}"#) && told.contains(r#""type":"DELETED"}"#), "{told}");
    assert!(told.contains(r#"{"object":{"apiVersion":"v1","kind":"Pod","metadata":{"#), "{told}");
}

#[test]
fn a_stream_that_lost_its_reader_is_taken_up_with_a_new_list() {
    let agent = Agent::start(|asked, before| match (before, asked.line.starts_with("GET /updates")) {
        (0, _) => Reply::json(200, &list(&pods()[..2], 7)),
        (1, true) => lines(&[gone(8)]),
        // Meanwhile one has gone, one has come, and one has not changed.
        (2, _) => Reply::json(200, &list(&[pods()[0].clone(), pod("default", "new", "file")], 30)),
        (3, true) => Reply::status(410, "Expired", "update 31 is not held"),
        (4, _) => Reply::json(200, &list(&pods()[..1], 40)),
        // An agent that was restarted begins with a SET.
        (5, true) => lines(&[update(41, "SET", "*", &pods())]),
        _ => panic!("{asked:?}"),
    });
    check(
        &agent,
        &["get", "pods", "-w", "--output-watch-events"],
        &expect![[r#"
        EVENT      NAME           SOURCE   STATUS        AGE
        ADDED      polled-node1   url      Pending       5d
        ADDED      web            http     Terminating   5d
        DELETED    web            http     Removed       5d
        ADDED      new            file     Pending       5d
        DELETED    new            file     Removed       5d
        ADDED      web            http     Terminating   5d
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
        GET /updates?from=8
        GET /api/v1/namespaces/default/pods?limit=500
        GET /updates?from=31
        GET /api/v1/namespaces/default/pods?limit=500
        GET /updates?from=41
    "#]],
    );
}

#[test]
fn what_a_selector_selects_is_asked_again_when_it_changes() {
    let agent = Agent::start(|asked, before| match before {
        0 => Reply::json(200, &list(&pods()[1..2], 7)),
        1 => lines(&[update(8, "UPDATE", "http", &pods()[..2])]),
        // The polled one is not selected, and web is no more.
        2 | 3 => Reply::json(200, &list(&[], 8)),
        _ => panic!("{asked:?}"),
    });
    let selectors = ["-l", "app=web", "--field-selector", "status.phase=Pending"];
    check(
        &agent,
        &[&["get", "pods", "-w", "--output-watch-events"], &selectors[..]].concat(),
        &expect![[r#"
            EVENT      NAME   SOURCE   STATUS        AGE
            ADDED      web    http     Terminating   5d
            DELETED    web    http     Removed       5d
            exit 0
            --
            GET /api/v1/namespaces/default/pods?labelSelector=app%3Dweb&fieldSelector=status.phase%3DPending&limit=500
            GET /updates?from=8
            GET /api/v1/namespaces/default/pods?labelSelector=app%3Dweb&fieldSelector=metadata.name%3Dpolled-node1%2Cstatus.phase%3DPending
            GET /api/v1/namespaces/default/pods?labelSelector=app%3Dweb&fieldSelector=metadata.name%3Dweb%2Cstatus.phase%3DPending
        "#]],
    );
}

#[test]
fn sources_are_shown_with_what_is_wrong_with_them() {
    let agent = Agent::start(|_, _| {
        let conflict = json!({
            "origin": "POST", "pod": "default/web", "reason": "Conflict",
            "message": "held by source file (from /m/web.yaml); it takes over when that one goes",
            "winner": { "source": "file", "pod": "default/web", "origin": "/m/web.yaml" },
        });
        let uid = json!({
            "origin": "/m/copy.yaml", "pod": "default/copy-node1", "reason": "UidInUse", "message": "its UID is in use",
            "winner": { "source": "api", "pod": "default/original", "origin": "default/original" },
        });
        let refused = json!({
            "origin": "/m/bad.yaml", "reason": "Refused",
            "message": "3:5: spec.containers[0].name: Required value (and 1 more error)",
            "details": [
                { "severity": "error", "line": 3, "column": 5, "field": "spec.containers[0].name", "detail": "Required value" },
                { "severity": "warning", "field": "spec.foo", "detail": "unknown field, ignored" },
            ],
        });
        let failing = json!({ "since": ago(3), "attempts": 17, "error": "nobody listens\nthere" });
        Reply::json(
            200,
            &json!({"kind": "SourceList", "apiVersion": "podmux/v1", "items": [
                { "name": "file", "state": "synced", "pods": 12, "target": "/m", "detail": "watching", "lastSuccess": ago(2), "problems": [uid, refused], "moreProblems": 3 },
                { "name": "http", "state": "synced", "pods": 3, "target": "", "detail": "", "problems": [conflict] },
                { "name": "url", "state": "failing", "pods": 1, "target": "https://host/pods", "detail": "polling", "failing": failing, "problems": [] },
            ]}),
        )
    });
    check(
        &agent,
        &["get", "sources"],
        &expect![[r#"
        NAME   STATE     PODS   PROBLEMS   LAST-SUCCESS   TARGET
        file   synced    12     5          2d             /m
        http   synced    3      1          <none>         <none>
        url    failing   1      0          <none>         https://host/pods

        SOURCE   POD                  REASON     WINNER                 ORIGIN              MESSAGE
        file     default/copy-node1   UidInUse   api default/original   /m/copy.yaml        its UID is in use
        file     <none>               Refused    <none>                 /m/bad.yaml         3:5: spec.containers[0].name: Required value (and 1 more error)
        file     <none>               <none>     <none>                 <none>              and 3 more that are not told
        http     default/web          Conflict   file (/m/web.yaml)     POST                held by source file (from /m/web.yaml); it takes over when that one goes
        url      <none>               Failing    <none>                 https://host/pods   nobody listens\nthere (for 3d, 17 attempts)
        exit 0
        --
        GET /sources
    "#]],
    );
    check(
        &agent,
        &["get", "sources", "-o", "wide"],
        &expect![[r#"
            NAME   STATE     PODS   PROBLEMS   LAST-SUCCESS   TARGET              PHASE    RESOURCE-VERSION   LAST-EVENT   NEXT-ATTEMPT   DETAIL
            file   synced    12     5          2d             /m                  <none>   <none>             <none>       <none>         watching
            http   synced    3      1          <none>         <none>              <none>   <none>             <none>       <none>         <none>
            url    failing   1      0          <none>         https://host/pods   <none>   <none>             <none>       <none>         polling

            SOURCE   POD                  REASON     WINNER                 ORIGIN              MESSAGE
            file     default/copy-node1   UidInUse   api default/original   /m/copy.yaml        its UID is in use
            file     <none>               Refused    <none>                 /m/bad.yaml         3:5: spec.containers[0].name: Required value
            file     <none>               Refused    <none>                 /m/bad.yaml         warning: spec.foo: unknown field, ignored
            file     <none>               <none>     <none>                 <none>              and 3 more that are not told
            http     default/web          Conflict   file (/m/web.yaml)     POST                held by source file (from /m/web.yaml); it takes over when that one goes
            url      <none>               Failing    <none>                 https://host/pods   nobody listens\nthere (for 3d, 17 attempts)
            exit 0
            --
            GET /sources
        "#]],
    );
    check(
        &agent,
        &["get", "sources", "http", "api", "--no-headers"],
        &expect![[r#"
        http   synced   3     1     <none>   <none>

        http   default/web   Conflict   file (/m/web.yaml)   POST   held by source file (from /m/web.yaml); it takes over when that one goes
        ! Error from server (NotFound): sources "api" not found
        exit 1
        --
        GET /sources
    "#]],
    );
    check(
        &agent,
        &["get", "source/http", "-o", "yaml"],
        &expect![[r#"
        detail: ""
        name: http
        pods: 3
        problems:
        - message: held by source file (from /m/web.yaml); it takes over when that one goes
          origin: POST
          pod: default/web
          reason: Conflict
          winner:
            origin: /m/web.yaml
            pod: default/web
            source: file
        state: synced
        target: ""
        exit 0
        --
        GET /sources
    "#]],
    );
    check(
        &agent,
        &["get", "sources", "-o", "name"],
        &expect![[r#"
        source/file
        source/http
        source/url
        exit 0
        --
        GET /sources
    "#]],
    );
}

#[test]
fn an_api_source_says_what_its_reflector_does() {
    let agent = Agent::start(|_, _| {
        let file = json!({ "name": "file", "state": "restored", "pods": 4, "target": "/m", "detail": "", "problems": [] });
        let soon = Timestamp::now() + SignedDuration::from_mins(20 * 60 + 30);
        let failing = json!({ "since": ago(1), "attempts": 17, "error": "nobody listens there" });
        let api = |state: &str, reflector: &Value| {
            json!({
                "name": "api", "state": state, "pods": 12, "target": "https://10.0.0.1:6443", "detail": "pods of node node1",
                "problems": [], "lastSuccess": ago(2), "reflector": reflector,
            })
        };
        let waiting = json!({
            "phase": "waiting", "resourceVersion": "4711", "lastEvent": ago(2), "nextAttempt": format!("{soon:.0}"),
        });
        let mut restored = api("restored", &waiting);
        restored["restored"] = ago(3).into();
        let mut offline = restored.clone();
        offline["failing"] = failing.clone();
        let mut late = waiting.clone();
        late["nextAttempt"] = ago(1).into();
        let mut failing_live = api("failing", &late);
        failing_live["failing"] = failing;
        let connecting = api("waiting", &json!({ "phase": "connecting" }));
        let items = [file, connecting, restored, offline, failing_live, api("synced", &waiting)];
        Reply::json(200, &json!({ "kind": "SourceList", "apiVersion": "podmux/v1", "items": items }))
    });
    check(
        &agent,
        &["get", "sources"],
        &expect![[r#"
        NAME   STATE                       PODS   PROBLEMS   LAST-SUCCESS   TARGET
        file   restored                    4      0          <none>         /m
        api    waiting                     12     0          2d             https://10.0.0.1:6443
        api    restored, 3d old            12     0          2d             https://10.0.0.1:6443
        api    restored, 3d old, failing   12     0          2d             https://10.0.0.1:6443
        api    failing                     12     0          2d             https://10.0.0.1:6443
        api    synced                      12     0          2d             https://10.0.0.1:6443

        SOURCE   POD      REASON    WINNER   ORIGIN                  MESSAGE
        api      <none>   Failing   <none>   https://10.0.0.1:6443   nobody listens there (for 24h, 17 attempts)
        api      <none>   Failing   <none>   https://10.0.0.1:6443   nobody listens there (for 24h, 17 attempts)
        exit 0
        --
        GET /sources
    "#]],
    );
    check(
        &agent,
        &["get", "sources", "-o", "wide"],
        &expect![[r#"
        NAME   STATE                       PODS   PROBLEMS   LAST-SUCCESS   TARGET                  PHASE        RESOURCE-VERSION   LAST-EVENT   NEXT-ATTEMPT   DETAIL
        file   restored                    4      0          <none>         /m                      <none>       <none>             <none>       <none>         <none>
        api    waiting                     12     0          2d             https://10.0.0.1:6443   connecting   <none>             <none>       <none>         pods of node node1
        api    restored, 3d old            12     0          2d             https://10.0.0.1:6443   waiting      4711               2d           in 20h         pods of node node1
        api    restored, 3d old, failing   12     0          2d             https://10.0.0.1:6443   waiting      4711               2d           in 20h         pods of node node1
        api    failing                     12     0          2d             https://10.0.0.1:6443   waiting      4711               2d           in 0s          pods of node node1
        api    synced                      12     0          2d             https://10.0.0.1:6443   waiting      4711               2d           in 20h         pods of node node1

        SOURCE   POD      REASON    WINNER   ORIGIN                  MESSAGE
        api      <none>   Failing   <none>   https://10.0.0.1:6443   nobody listens there (for 24h, 17 attempts)
        api      <none>   Failing   <none>   https://10.0.0.1:6443   nobody listens there (for 24h, 17 attempts)
        exit 0
        --
        GET /sources
    "#]],
    );
    let yaml = transcript(&mut agent.podmux(&["get", "sources", "-o", "yaml"]), b"");
    assert!(yaml.contains("    nextAttempt: "), "{yaml}");
}

#[test]
fn a_restored_source_is_yellow_and_a_failing_one_red() {
    let colour = |failing: Value| {
        let agent = Agent::start(move |_, _| {
            let api = json!({ "name": "api", "state": "restored", "restored": ago(3), "pods": 0, "problems": [], "failing": failing });
            Reply::json(200, &json!({ "kind": "SourceList", "items": [api] }))
        });
        let mut command = agent.podmux(&["get", "sources", "--no-headers"]);
        command.env("TERM", "xterm");
        on_a_terminal(command)
    };
    let restored = colour(Value::Null);
    assert!(restored.contains("api   \u{1b}[1;33mrestored, 3d old\u{1b}[0m"), "{restored:?}");
    let failing = colour(json!({ "since": ago(1), "attempts": 1, "error": "no" }));
    assert!(failing.contains("api   \u{1b}[31mrestored, 3d old, failing\u{1b}[0m"), "{failing:?}");
}

#[test]
fn colours_are_for_terminals_whose_owner_wants_them() {
    let agent = Agent::start(|_, _| {
        let file =
            json!({ "name": "file", "state": "failing", "pods": 0, "target": "/m\u{1b}[0m", "problems": [] });
        let mut reply = Reply::json(200, &json!({ "kind": "SourceList", "items": [file] }));
        reply.1.push(("warning", "299 - \"old\"".to_owned()));
        reply
    });
    let seen = |variables: &[(&str, &str)]| {
        let mut command = agent.podmux(&["get", "sources", "--no-headers"]);
        command.envs(variables.iter().copied());
        on_a_terminal(command)
    };
    let coloured = seen(&[("TERM", "xterm")]);
    expect![[r#"
        "\u{1b}[1;33mWarning:\u{1b}[0m old\r\nfile   \u{1b}[31mfailing\u{1b}[0m   0     0     <none>   /m\\u{1b}[0m\r\n"
    "#]]
    .assert_eq(&format!("{coloured:?}\n"));
    assert!(!seen(&[("TERM", "xterm"), ("NO_COLOR", "1")]).contains('\u{1b}'));
    assert!(!seen(&[("TERM", "dumb")]).contains('\u{1b}'));
    assert!(!transcript(&mut agent.podmux(&["get", "sources"]), b"").contains('\u{1b}'));
}

#[test]
fn an_answer_that_is_too_large_is_not_taken() {
    let agent = Agent::start(|_, _| {
        let length = (512 << 20) + 1;
        Reply(200, vec![("content-length", length.to_string())], "{}".to_owned())
    });
    let told = transcript(&mut agent.podmux(&["get", "sources"]), b"");
    assert!(told.ends_with(" sent more than the limit of 536870912 bytes\nexit 1\n"), "{told}");
}

#[test]
fn completions_know_the_resources_and_the_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = transcript(&mut podmux(&["completion", shell]), b"");
        assert!(script.contains("field-selector") && script.contains("grace-period"), "{shell}");
    }
    let script = transcript(&mut podmux(&["completion", "bash"]), b"");
    assert!(script.contains("pods sources updates"), "{script}");
}

#[test]
fn sources_without_problems_are_one_table() {
    let agent = Agent::start(|_, _| {
        let file = json!({ "name": "file", "state": "waiting", "pods": 0, "target": "/m", "detail": "", "problems": [] });
        Reply::json(200, &json!({ "kind": "SourceList", "items": [file] }))
    });
    check(
        &agent,
        &["get", "sources"],
        &expect![[r#"
        NAME   STATE     PODS   PROBLEMS   LAST-SUCCESS   TARGET
        file   waiting   0      0          <none>         /m
        exit 0
        --
        GET /sources
    "#]],
    );
}

#[test]
fn updates_are_told_as_they_come() {
    let agent = Agent::start(|asked, _| {
        let many: Vec<Value> = (0..5).map(|n| pod("default", &format!("p{n}"), "file")).collect();
        let mut told = vec![update(1, "ADD", "file", &many), update(2, "REMOVE", "http", &many[..1])];
        if asked.line.ends_with("from=1") {
            told.push(gone(3));
        }
        lines(&told)
    });
    check(
        &agent,
        &["get", "updates"],
        &expect![[r#"
        SEQ    TIME                   OP          SOURCE   PODS
        1      2026-11-21T09:00:00Z   ADD         file     default/p0,default/p1,default/p2,and 2 more
        2      2026-11-21T09:00:00Z   REMOVE      http     default/p0
        exit 0
        --
        GET /updates
    "#]],
    );
    check(
        &agent,
        &["get", "updates", "-o", "wide", "--no-headers"],
        &expect![[r#"
        1      2026-11-21T09:00:00Z   ADD         file   default/p0,default/p1,default/p2,default/p3,default/p4
        2      2026-11-21T09:00:00Z   REMOVE      http   default/p0
        exit 0
        --
        GET /updates
    "#]],
    );
    check(
        &agent,
        &["get", "updates", "--from", "1"],
        &expect![[r#"
        SEQ    TIME                   OP          SOURCE   PODS
        1      2026-11-21T09:00:00Z   ADD         file     default/p0,default/p1,default/p2,and 2 more
        2      2026-11-21T09:00:00Z   REMOVE      http     default/p0
        ! Error from server (Expired): update 3 is not held
        exit 1
        --
        GET /updates?from=1
    "#]],
    );
}

#[test]
fn updates_pass_through_as_they_are() {
    // Not as this program would write them.
    let raw = "{\"seq\":1,  \"op\":\"ADD\", \"pods\":[]}\n{\"seq\":2}\n";
    let agent = Agent::start(move |_, _| lines(&[raw.to_owned()]));
    let output = agent.podmux(&["get", "updates", "-o", "jsonl"]).output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), raw.as_bytes()));
    check(
        &agent,
        &["get", "updates", "-o", "yaml"],
        &expect![[r#"
        op: ADD
        pods: []
        seq: 1
        ---
        seq: 2
        exit 0
        --
        GET /updates
    "#]],
    );
}

#[test]
fn a_stream_that_is_cut_off_is_a_failure() {
    let cut = |_: &Asked, _| {
        let length = vec![("content-length", "1000".to_owned())];
        Reply(200, length, update(1, "ADD", "file", &[]))
    };
    let agent = Agent::start(cut);
    let told = transcript(&mut agent.podmux(&["get", "updates"]), b"");
    assert!(told.contains("closed the connection before its response was complete\nexit 1\n"), "{told}");
}

#[test]
fn a_reader_that_has_gone_away_ends_it_without_a_word() {
    let agent = Agent::start(|_, _| lines(&vec![update(1, "ADD", "file", &pods()); 10_000]));
    let mut command = agent.podmux(&["get", "updates", "-o", "jsonl"]);
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 10]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut told = String::new();
    for args in [
        "nodes",
        "pods --from 1",
        "sources -w",
        "sources -A",
        "updates web",
        "updates -o name",
        "pods web -l a=b",
        "pods web -A",
        "pods -n a -A",
        "pods -o table2",
        "pods --output-watch-events",
        "pod/",
        "pods --server ftp://host",
        "pods --server http://host/path",
        "pods --server unix:",
        "pods --token-file /missing",
        "pods --client-cert x",
        "pods --ca-file /missing --server https://localhost:1",
    ] {
        let all: Vec<&str> = ["get"].into_iter().chain(args.split(' ')).collect();
        writeln!(told, "$ podmux get {args}\n{}", transcript(&mut podmux(&all), b"").trim_end()).unwrap();
    }
    expect![[r#"
        $ podmux get nodes
        ! podmux: invalid value 'nodes' for '<RESOURCE>'; [possible values: pods, sources, updates]; see podmux get --help
        exit 2
        $ podmux get pods --from 1
        ! podmux: --from goes with updates only
        exit 2
        $ podmux get sources -w
        ! podmux: sources cannot be watched; watch updates or pods
        exit 2
        $ podmux get sources -A
        ! podmux: --all-namespaces, --selector, --field-selector and --show-labels go with pods only
        exit 2
        $ podmux get updates web
        ! podmux: updates have no names; give --from SEQ to begin with one
        exit 2
        $ podmux get updates -o name
        ! podmux: updates have no names: -o table, wide, json, yaml or jsonl shows them
        exit 2
        $ podmux get pods web -l a=b
        ! podmux: give names or a selector, not both
        exit 2
        $ podmux get pods web -A
        ! podmux: a name belongs to one namespace: give -n NS instead of -A
        exit 2
        $ podmux get pods -n a -A
        ! podmux: the argument '--namespace <NS>' cannot be used with '--all-namespaces'; see podmux get --help
        exit 2
        $ podmux get pods -o table2
        ! podmux: invalid value 'table2' for '--output <FORM>'; [possible values: table, wide, json, yaml, name, jsonl]; tip: a similar value exists: 'table'; see podmux get --help
        exit 2
        $ podmux get pods --output-watch-events
        ! podmux: the following required arguments were not provided: --watch; see podmux get --help
        exit 2
        $ podmux get pod/
        ! podmux: invalid value 'pod/' for '<RESOURCE>'; [possible values: pods, sources, updates]; see podmux get --help
        exit 2
        $ podmux get pods --server ftp://host
        ! podmux: --server: "ftp://host" is no address: http://HOST:PORT, https://HOST:PORT or unix:PATH is expected
        exit 2
        $ podmux get pods --server http://host/path
        ! podmux: --server: "http://host/path" is no address: http://HOST:PORT, https://HOST:PORT or unix:PATH is expected
        exit 2
        $ podmux get pods --server unix:
        ! podmux: --server: "unix:" is no address: http://HOST:PORT, https://HOST:PORT or unix:PATH is expected
        exit 2
        $ podmux get pods --token-file /missing
        ! podmux: the token file /missing: No such file or directory (os error 2)
        exit 2
        $ podmux get pods --client-cert x
        ! podmux: the following required arguments were not provided: --client-key <FILE>; see podmux get --help
        exit 2
        $ podmux get pods --ca-file /missing --server https://localhost:1
        ! podmux: cannot read /missing: No such file or directory (os error 2)
        exit 2
    "#]].assert_eq(&told);
}

#[test]
fn an_agent_that_is_not_there_is_told_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let server = format!("unix:{}/none", dir.path().display());
    let told = transcript(&mut podmux(&["get", "pods", "--server", &server]), b"");
    let told = told.replace(&dir.path().display().to_string(), "DIR");
    expect![[r#"
        ! podmux: the socket DIR/none does not exist (is the server running, and is this its socket?)
        exit 1
    "#]]
    .assert_eq(&told);
}

#[test]
fn somebody_else_on_the_address_is_noticed() {
    let agent = Agent::start(|_, before| match before {
        0 => Reply(200, Vec::new(), "<html>".to_owned()),
        1 => Reply(200, Vec::new(), "{}".to_owned()),
        2 => Reply(200, Vec::new(), "not json\n".to_owned()),
        _ => Reply(503, Vec::new(), "<h1>Down</h1>".to_owned()),
    });
    check(
        &agent,
        &["get", "pods"],
        &expect![[r#"
        ! podmux: what /api/v1/namespaces/default/pods?limit=500 answered is no JSON; is this a podmux agent?: expected value at line 1 column 1
        exit 1
        --
        GET /api/v1/namespaces/default/pods?limit=500
    "#]],
    );
    check(
        &agent,
        &["get", "sources"],
        &expect![[r#"
        ! podmux: what /sources answered is no list of sources; is this a podmux agent?
        exit 1
        --
        GET /sources
    "#]],
    );
    check(
        &agent,
        &["get", "updates"],
        &expect![[r#"
        ! podmux: a line of the updates is no JSON: it was cut off
        exit 1
        --
        GET /updates
    "#]],
    );
    check(
        &agent,
        &["get", "sources"],
        &expect![[r#"
        ! Error from server: 503 Service Unavailable: <h1>Down</h1>
        exit 1
        --
        GET /sources
    "#]],
    );
}

#[test]
fn the_token_goes_where_only_the_agent_can_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "\n  s3cret \n").unwrap();
    let file = file.to_str().unwrap();
    let agent = Agent::start(three);
    agent.podmux(&["get", "pods", "--token-file", file]).output().unwrap();
    agent.podmux(&["get", "pods"]).env("PODMUX_TOKEN_FILE", file).output().unwrap();
    agent.podmux(&["get", "pods"]).output().unwrap();
    let bearer: Vec<bool> =
        agent.asked().iter().map(|asked| asked.headers.contains("authorization: Bearer s3cret\n")).collect();
    assert_eq!(bearer, [true, true, false]);
    let open = &["get", "pods", "--token-file", file, "--server", "http://192.0.2.1:1"];
    expect![[r#"
        ! podmux: the token would be readable on the way to http://192.0.2.1:1: use https, or a tunnel to a local port
        exit 2
    "#]].assert_eq(&transcript(&mut podmux(open), b""));
    for text in ["\n", "two words", "zwölf"] {
        std::fs::write(file, text).unwrap();
        let told = transcript(&mut podmux(&["get", "pods", "--token-file", file]), b"");
        assert!(
            told.starts_with("! podmux: the token file ")
                && told.contains(": one word of printable ASCII is needed"),
            "{told}"
        );
    }
}

#[test]
fn what_the_server_warns_of_is_passed_on() {
    let agent = Agent::start(|asked, before| {
        let mut reply = three(asked, before);
        reply.1.push(("warning", r#"299 - "unknown field \"spec.foo\"""#.to_owned()));
        reply.1.push(("warning", "something else".to_owned()));
        reply
    });
    check(
        &agent,
        &["get", "pods", "-o", "name"],
        &expect![[r#"
        pod/polled-node1
        pod/web
        ! Warning: unknown field "spec.foo"
        ! Warning: something else
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
    "#]],
    );
}

#[test]
fn help_says_what_there_is() {
    expect![[r#"
        Show pods, sources or updates of a running agent

        Usage: podmux get [OPTIONS] <RESOURCE> [NAME]...

        Arguments:
          <RESOURCE>  What to show: pods (po, pod), sources or updates; pod/NAME for one [possible values:
                      pods, sources, updates]
          [NAME]...   Only these

        Options:
          -o, --output <FORM>              The form of the output; jsonl is an object a line [default:
                                           table] [possible values: table, wide, json, yaml, name, jsonl]
          -w, --watch                      Show pods, then every change, until stopped
              --output-watch-events        With --watch: say of each pod whether it was added, modified or
                                           deleted
          -n, --namespace <NS>             The namespace [default: default]
          -A, --all-namespaces             Pods of all namespaces
          -l, --selector <SELECTOR>        Only pods with these labels: app=web,tier!=cache,zone in
                                           (a,b),canary
              --field-selector <SELECTOR>  Only pods with these fields:
                                           spec.nodeName=n1,status.phase!=Running
              --show-labels                A column with the pods' labels
              --no-headers                 No line with the columns' names
              --ignore-not-found           What is not there is no error
              --from <SEQ>                 With updates: begin with this number, or say what is the first
                                           that is held
          -h, --help                       Print help (see more with '--help')

        Connection:
              --server <ADDRESS>    The agent: http://HOST:PORT, https://HOST:PORT or unix:PATH
                                    [default: unix:/run/podmux/podmux.sock if it is there, else
                                    http://127.0.0.1:10240] [env: PODMUX_SERVER]
              --token-file <FILE>   A file with the token that the agent wants
                                    [env: PODMUX_TOKEN_FILE]
              --ca-file <FILE>      The CA of the agent's certificate, if it is none of the system's
              --client-cert <FILE>  A certificate that says who you are, with --client-key
              --client-key <FILE>   The private key of --client-cert
        exit 0
    "#]]
    .assert_eq(&transcript(&mut podmux(&["get", "-h"]), b""));
    let told = transcript(&mut podmux(&["get", "--help"]), b"");
    assert!(told.contains("\nExamples:\n  podmux get pods -A\n") && told.ends_with("exit 0\n"), "{told}");
}
