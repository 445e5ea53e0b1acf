//! `podmux get`: its requests, and what it prints of the responses.
#![allow(clippy::too_many_lines, reason = "expected output is long")]

use std::{cell::Cell, fmt::Write as _, io::Read as _, process::Stdio, sync::LazyLock};

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

/// Compares the output and the requests.
fn check(agent: &Agent, args: &[&str], expected: &Expect) {
    let before = agent.lines().len();
    let output = transcript(&mut agent.podmux(args), b"");
    let output = output.replace(agent.server().trim_start_matches("unix:"), "SOCKET");
    expected.assert_eq(&(output + "--\n" + &agent.lines()[before..]));
}

/// A time some days ago, whose age does not change while a test runs.
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

/// A row of the server's table, whose cells the test chooses.
fn row(pod: &Value) -> Value {
    let (metadata, status) = (&pod["metadata"], &pod["status"]["phase"]);
    let is_deleted = metadata["deletionTimestamp"].is_string();
    let status = if is_deleted { &json!("Terminating") } else { status };
    let source = &metadata["annotations"]["kubernetes.io/config.source"];
    let restarts = pod["status"]["restarts"].as_str().unwrap_or("0");
    json!({
        "cells": [metadata["name"], "0/1", status, restarts, "5d", "10.0.0.7", "node1", source],
        "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata},
    })
}

/// The server's table of some rows.
fn table(rows: &[Value], seq: u64) -> Value {
    let names = ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Source"];
    let column = |(index, name)| json!({"name": name, "type": "string", "priority": u8::from(index > 4)});
    let columns: Vec<Value> = names.into_iter().enumerate().map(column).collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": seq.to_string()},
        "columnDefinitions": columns, "rows": rows,
    })
}

fn wants_table(asked: &Asked) -> bool {
    asked.headers.contains("as=Table;v=v1;g=meta.k8s.io")
}

/// A list in the form that is asked for.
fn listed(asked: &Asked, pods: &[Value], seq: u64) -> Reply {
    let rows = || pods.iter().map(row).collect::<Vec<_>>();
    Reply::json(200, &if wants_table(asked) { table(&rows(), seq) } else { list(pods, seq) })
}

/// An agent with three pods.
fn three(asked: &Asked, _: usize) -> Reply {
    let all = pods();
    let (path, _) = asked.line["GET ".len()..].split_once('?').unwrap_or((&asked.line["GET ".len()..], ""));
    if path == "/api/v1/pods" {
        return listed(asked, &all, 7);
    }
    let mut parts = path.strip_prefix("/api/v1/namespaces/").unwrap().split("/pods");
    let (namespace, name) = (parts.next().unwrap(), parts.next().unwrap());
    let mut here = all.into_iter().filter(|pod| pod["metadata"]["namespace"] == namespace);
    match name.strip_prefix('/') {
        None => listed(asked, &here.collect::<Vec<_>>(), 7),
        Some(name) => match here.find(|pod| pod["metadata"]["name"] == name) {
            Some(pod) if wants_table(asked) => Reply::json(200, &table(&[row(&pod)], 7)),
            Some(pod) => Reply::json(200, &pod),
            None => Reply::golden("404-get").with("web", name),
        },
    }
}

#[test]
fn pods_are_a_table() {
    let agent = Agent::start(three);
    check(
        &agent,
        &["get", "pods"],
        &expect![[r#"
            NAME           READY   STATUS                   RESTARTS   AGE
            polled-node1   0/1     Pending                  0          5d
            web            0/1     Terminating (24h late)   0          5d
            exit 0
            --
            GET /api/v1/namespaces/default/pods?limit=500
        "#]],
    );
    check(
        &agent,
        &["get", "po", "-A"],
        &expect![[r#"
            NAMESPACE     NAME           READY   STATUS                   RESTARTS   AGE
            default       polled-node1   0/1     Pending                  0          5d
            default       web            0/1     Terminating (24h late)   0          5d
            kube-system   dns-node1      0/1     Pending                  0          5d
            exit 0
            --
            GET /api/v1/pods?limit=500
        "#]],
    );
    check(
        &agent,
        &["get", "pod", "-A", "-o", "wide", "--show-labels"],
        &expect![[r#"
            NAMESPACE     NAME           READY   STATUS                   RESTARTS   AGE   IP         NODE    SOURCE   LABELS
            default       polled-node1   0/1     Pending                  0          5d    10.0.0.7   node1   http     <none>
            default       web            0/1     Terminating (24h late)   0          5d    10.0.0.7   node1   http     app=web,tier=front
            kube-system   dns-node1      0/1     Pending                  0          5d    10.0.0.7   node1   file     <none>
            exit 0
            --
            GET /api/v1/pods?limit=500
        "#]],
    );
    check(
        &agent,
        &["get", "pods", "-n", "kube-system", "--no-headers"],
        &expect![[r#"
            dns-node1   0/1   Pending   0     5d
            exit 0
            --
            GET /api/v1/namespaces/kube-system/pods?limit=500
        "#]],
    );
}

#[test]
fn cells_are_those_of_the_server_and_a_pod_that_has_failed_is_red() {
    let agent = Agent::start(|_, _| {
        let mut failed = row(&pod("default", "failed", "file"));
        failed["cells"] = json!(["failed", "1/2", "Evicted", "7 (3d ago)", "99y", "<none>", "n", "api"]);
        failed["conditions"] = json!([{"type": "Completed", "status": "True", "reason": "Failed"}]);
        let mut nothing = row(&pod("default", "nothing", "file"));
        nothing["cells"][2] = "".into();
        Reply::json(200, &table(&[failed, nothing], 7))
    });
    check(
        &agent,
        &["get", "pods", "-o", "wide"],
        &expect![[r#"
        NAME      READY   STATUS    RESTARTS     AGE   IP         NODE    SOURCE
        failed    1/2     Evicted   7 (3d ago)   99y   <none>     n       api
        nothing   0/1     Unknown   0            5d    10.0.0.7   node1   file
        exit 0
        --
        GET /api/v1/namespaces/default/pods?limit=500
    "#]],
    );
    let mut command = agent.podmux(&["get", "pods", "--no-headers"]);
    command.env("TERM", "xterm");
    let coloured = on_a_terminal(command);
    assert!(coloured.contains("\u{1b}[31mEvicted\u{1b}[0m"), "{coloured:?}");
}

#[test]
fn pods_are_named_as_kubectl_names_them() {
    let agent = Agent::start(three);
    check(
        &agent,
        &["get", "pod", "web"],
        &expect![[r#"
            NAME   READY   STATUS                   RESTARTS   AGE
            web    0/1     Terminating (24h late)   0          5d
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
            ! podmux: invalid name "b/d": give either pods NAME… or pod/NAME…
            exit 2
            --
        "#]],
    );
    check(
        &agent,
        &["get", "pod/web", "source/file"],
        &expect![[r#"
            ! podmux: invalid name "source/file": after "web", give only names of the same form
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
fn a_missing_pod_does_not_hide_the_others() {
    let agent = Agent::start(three);
    check(
        &agent,
        &["get", "pods", "missing", "web"],
        &expect![[r#"
            NAME   READY   STATUS                   RESTARTS   AGE
            web    0/1     Terminating (24h late)   0          5d
            ! Error from server (NotFound): pods "missing" not found
            ! podmux: podmux get pods -A shows the pods of all namespaces; the name of a pod from a file or a URL ends with that of its node
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
            ! podmux: invalid name "a?b/c%": give either pods NAME… or pod/NAME…
            exit 2
            --
        "#]],
    );
    check(
        &agent,
        &["get", "pod", "a?b c%"],
        &expect![[r#"
            ! Error from server (NotFound): pods "a%3Fb%20c%25" not found
            ! podmux: podmux get pods -A shows the pods of all namespaces; the name of a pod from a file or a URL ends with that of its node
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
            ! No resources found in empty namespace. podmux get pods -A shows all namespaces.
            exit 0
            --
            GET /api/v1/namespaces/empty/pods?limit=500
        "#]],
    );
    // As in a script with a variable that is not set.
    check(
        &agent,
        &["get", "pod", "missing", "-n", ""],
        &expect![[r#"
        ! Error from server (NotFound): pods "missing" not found
        ! podmux: podmux get pods -A shows the pods of all namespaces; the name of a pod from a file or a URL ends with that of its node
        exit 1
        --
        GET /api/v1/namespaces/default/pods/missing
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "-n", "empty", "-l", "app=web"],
        &expect![[r#"
        ! No resources found in empty namespace. No object matches the selector.
        exit 0
        --
        GET /api/v1/namespaces/empty/pods?labelSelector=app%3Dweb&limit=500
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
fn pods_can_be_json_and_yaml() {
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
    let output = transcript(&mut agent.podmux(&["get", "pod", "web", "-o", "yaml"]), b"");
    assert!(
        output.starts_with("metadata:\n  annotations:\n    kubernetes.io/config.hash: 0f1e\n"),
        "{output}"
    );
    let output = transcript(&mut agent.podmux(&["get", "pod", "web", "polled-node1", "-o", "json"]), b"");
    assert!(output.contains("    \"kind\": \"List\",\n"), "{output}");
}

#[test]
fn the_server_evaluates_selectors() {
    let agent = Agent::start(|asked, _| {
        if asked.line.contains("labelSelector=app%3Dweb") {
            return listed(asked, &pods()[1..2], 7);
        }
        Reply::golden("400-label-selector")
    });
    check(
        &agent,
        &["get", "pods", "-l", "app=web,tier in (front)", "--field-selector", "spec.nodeName=node1"],
        &expect![[r#"
            NAME   READY   STATUS                   RESTARTS   AGE
            web    0/1     Terminating (24h late)   0          5d
            exit 0
            --
            GET /api/v1/namespaces/default/pods?labelSelector=app%3Dweb%2Ctier%20in%20%28front%29&fieldSelector=spec.nodeName%3Dnode1&limit=500
        "#]],
    );
    check(
        &agent,
        &["get", "pods", "-l", "%"],
        &expect![[r#"
            ! Error from server (BadRequest): unable to parse labelSelector: found 'b', expected: '('
            exit 1
            --
            GET /api/v1/namespaces/default/pods?labelSelector=%25&limit=500
        "#]],
    );
}

#[test]
fn a_long_list_is_requested_in_pages() {
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
            return Reply::golden("410-continue");
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

#[test]
fn names_are_completed_though_the_first_pages_expire() {
    let agent = Agent::start(|asked, _| {
        let mut page = table(&pods().iter().map(row).collect::<Vec<_>>(), 7);
        if asked.line.contains("continue=") {
            return Reply::golden("410-continue");
        } else if asked.line.contains("limit=") {
            page["metadata"]["continue"] = "token".into();
        }
        Reply::json(200, &page)
    });
    check(
        &agent,
        &["__complete", "get", "pods", ""],
        &expect![[r#"
        polled-node1
        web
        dns-node1
        exit 0
        --
        GET /api/v1/namespaces/default/pods?includeObject=None&limit=500
        GET /api/v1/namespaces/default/pods?includeObject=None&limit=500&continue=token
        GET /api/v1/namespaces/default/pods?includeObject=None
    "#]],
    );
}

#[test]
fn switches_may_have_a_value_as_kubectls_have() {
    let agent = Agent::start(three);
    for args in [
        "get pods -A=true -w=false --no-headers=true --ignore-not-found=false -o name",
        "get -Aw=false --no-headers pods -o name",
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        check(
            &agent,
            &args,
            &expect![[r#"
            pod/polled-node1
            pod/web
            pod/dns-node1
            exit 0
            --
            GET /api/v1/pods?limit=500
        "#]],
        );
    }
    let help = transcript(&mut podmux(&["get", "--help"]), b"");
    assert!(help.contains("-w, --watch\n") && !help.contains("BOOL"), "{help}");
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
    Reply::text(200, lines.concat()).header("content-type", "application/x-ndjson")
}

/// An answer that no other attempt mends: it ends a command that connects again.
fn no_more() -> Reply {
    Reply::json(403, &json!({ "kind": "Status", "code": 403, "reason": "Forbidden", "message": "no more" }))
}

/// Answers each other stream with these lines, and then with no more.
fn stream_once(answer: impl Fn(&Asked) -> Reply + Send) -> impl Fn(&Asked, usize) -> Reply + Send {
    let asked_before = Cell::new(false);
    move |asked, _| {
        let is_stream = asked.line.contains("watch=1") || asked.line.starts_with("GET /updates");
        let is_second = is_stream && asked_before.replace(!asked_before.get());
        if is_second { no_more() } else { answer(asked) }
    }
}

/// An event of a watch in the form that is asked for.
fn event(asked: &Asked, kind: &str, version: u64, pod: &Value) -> String {
    let mut pod = pod.clone();
    pod["metadata"]["resourceVersion"] = version.to_string().into();
    let mut object = if wants_table(asked) { table(&[row(&pod)], version) } else { pod };
    if kind == "BOOKMARK" {
        object = json!({"kind": "Pod", "metadata": {"resourceVersion": version.to_string()}});
    }
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn error(code: u16) -> String {
    let status = json!({"kind": "Status", "code": code, "reason": "Expired", "message": "too old"});
    format!("{}\n", json!({"type": "ERROR", "object": status}))
}

/// An agent whose watch adds, changes and removes pods.
fn changing(asked: &Asked) -> Reply {
    if !asked.line.contains("watch=1") {
        return three(asked, 0);
    }
    let mut db = pod("default", "db", "url");
    let added = event(asked, "ADDED", 8, &db);
    db["status"]["phase"] = "Running".into();
    let changed = event(asked, "MODIFIED", 9, &db);
    let web = event(asked, "MODIFIED", 10, &pods()[1]);
    let removed = event(asked, "DELETED", 11, &db);
    lines(&[added, changed, web, removed, event(asked, "BOOKMARK", 12, &db)])
}

#[test]
fn a_watch_prints_the_pods_and_then_each_change() {
    let agent = Agent::start(stream_once(changing));
    check(
        &agent,
        &["get", "pods", "-w"],
        &expect![[r#"
            NAME           READY   STATUS                   RESTARTS   AGE
            polled-node1   0/1     Pending                  0          5d
            web            0/1     Terminating (24h late)   0          5d
            db             0/1     Pending                  0          5d
            db             0/1     Running                  0          5d
            web            0/1     Terminating (24h late)   0          5d
            db             0/1     Removed                  0          5d
            ! Error from server (Forbidden): no more
            exit 1
            --
            GET /api/v1/namespaces/default/pods?limit=500
            GET /api/v1/namespaces/default/pods?watch=1&allowWatchBookmarks=1&resourceVersion=7
            GET /api/v1/namespaces/default/pods?watch=1&allowWatchBookmarks=1&resourceVersion=12
        "#]],
    );
    check(
        &agent,
        &["get", "pods", "--watch", "-A", "-l", "a=b"],
        &expect![[r#"
            NAMESPACE     NAME           READY   STATUS                   RESTARTS   AGE
            default       polled-node1   0/1     Pending                  0          5d
            default       web            0/1     Terminating (24h late)   0          5d
            kube-system   dns-node1      0/1     Pending                  0          5d
            default       db             0/1     Pending                  0          5d
            default       db             0/1     Running                  0          5d
            default       web            0/1     Terminating (24h late)   0          5d
            default       db             0/1     Not listed               0          5d
            ! Error from server (Forbidden): no more
            exit 1
            --
            GET /api/v1/pods?labelSelector=a%3Db&limit=500
            GET /api/v1/pods?labelSelector=a%3Db&watch=1&allowWatchBookmarks=1&resourceVersion=7
            GET /api/v1/pods?labelSelector=a%3Db&watch=1&allowWatchBookmarks=1&resourceVersion=12
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
            NAME   READY   STATUS                   RESTARTS   AGE
            web    0/1     Terminating (24h late)   0          5d
            web    0/1     Terminating (24h late)   0          5d
            ! Error from server (Forbidden): no more
            exit 1
            --
            GET /api/v1/namespaces/default/pods?limit=500
            GET /api/v1/namespaces/default/pods?watch=1&allowWatchBookmarks=1&resourceVersion=7
            GET /api/v1/namespaces/default/pods?watch=1&allowWatchBookmarks=1&resourceVersion=12
        "#]],
    );
    // An agent that makes no tables.
    let agent = Agent::start(|_, _| Reply::json(200, &list(&pods(), 7)));
    for args in [&["get", "pods"][..], &["get", "pods", "-w"]] {
        let expected = expect![[r#"
            ! podmux: the agent makes no tables (an older podmux?): use -o json, yaml or name
            exit 1
            --
            GET /api/v1/namespaces/default/pods?limit=500
        "#]];
        check(&agent, args, &expected);
    }
    let agent = Agent::start(stream_once(|asked| {
        let x = json!({ "kind": "Pod", "metadata": { "namespace": "other", "name": "x" } });
        if !asked.line.contains("watch=1") {
            return Reply::json(200, &list(&[], 7));
        }
        lines(&[event(asked, "ADDED", 8, &x), event(asked, "DELETED", 9, &x)])
    }));
    check(
        &agent,
        &["get", "pods", "-n", "other", "-w", "-o", "jsonl"],
        &expect![[r#"
        {"kind":"Pod","metadata":{"name":"x","namespace":"other","resourceVersion":"8"}}
        {"kind":"Pod","metadata":{"name":"x","namespace":"other","resourceVersion":"9"}}
        ! Error from server (Forbidden): no more
        exit 1
        --
        GET /api/v1/namespaces/other/pods?limit=500
        GET /api/v1/namespaces/other/pods?watch=1&allowWatchBookmarks=1&resourceVersion=7
        GET /api/v1/namespaces/other/pods?watch=1&allowWatchBookmarks=1&resourceVersion=9
    "#]],
    );
}

#[test]
fn a_watch_prints_what_changed_while_it_was_not_connected() {
    let agent = Agent::start(move |asked, before| {
        let mut all = pods();
        // The agent is another run.
        all[0]["metadata"]["resourceVersion"] = "4711".into();
        all[0]["metadata"]["annotations"]["kubernetes.io/config.seen"] = ago(2).into();
        // Only time has gone by.
        let mut first = pods();
        first[0]["status"]["restarts"] = "1 (5m ago)".into();
        all[0]["status"]["restarts"] = "1 (6m ago)".into();
        let sources = |state: &str| Reply::json(200, &json!({"items": [{"name": "url", "state": state}]}));
        match (before, asked.line.contains("watch=1")) {
            (0, false) => listed(asked, &first[..2], 7),
            (1, true) => lines(&[error(410)]),
            // The url source is not known yet, so its pod stays.
            (2, false) => listed(asked, &all[1..2], 20),
            (3, false) => sources("waiting"),
            (4, true) => lines(&[event(asked, "BOOKMARK", 21, &all[0])]),
            (5, false) => listed(asked, &[all[0].clone(), pod("default", "new", "http")], 22),
            (6, false) => sources("synced"),
            (7, true) => Reply::text(503, "stopping"),
            (8, true) => lines(&[event(asked, "DELETED", 23, &all[0])]),
            (9, true) => no_more(),
            _ => panic!("{asked:?}"),
        }
    });
    check(
        &agent,
        &["get", "pods", "-w"],
        &expect![[r#"
            NAME           READY   STATUS                   RESTARTS     AGE
            polled-node1   0/1     Pending                  1 (5m ago)   5d
            web            0/1     Terminating (24h late)   0            5d
            web            0/1     Removed                  0            5d
            new            0/1     Pending                  0            5d
            polled-node1   0/1     Removed                  1 (6m ago)   5d
            ! connection lost: Error from server: 503 Service Unavailable: stopping; reconnecting
            ! reconnected
            ! Error from server (Forbidden): no more
            exit 1
            --
            GET /api/v1/namespaces/default/pods?limit=500
            GET /api/v1/namespaces/default/pods?watch=1&allowWatchBookmarks=1&resourceVersion=7
            GET /api/v1/namespaces/default/pods?limit=500
            GET /sources
            GET /api/v1/namespaces/default/pods?watch=1&allowWatchBookmarks=1&resourceVersion=20
            GET /api/v1/namespaces/default/pods?limit=500
            GET /sources
            GET /api/v1/namespaces/default/pods?watch=1&allowWatchBookmarks=1&resourceVersion=22
            GET /api/v1/namespaces/default/pods?watch=1&allowWatchBookmarks=1&resourceVersion=22
            GET /api/v1/namespaces/default/pods?watch=1&allowWatchBookmarks=1&resourceVersion=23
        "#]],
    );
}

#[test]
fn updates_continue_after_the_last_complete_one() {
    let first = |seq, run: &str| {
        update(seq, "SET", "file", &[]).replacen(",\"time\"", &format!(",\"run\":\"{run}\",\"time\""), 1)
    };
    let agent = Agent::start(move |asked, before| match before {
        // The second line is cut off.
        0 => lines(&[first(1, "r1"), update(2, "ADD", "file", &pods())[..100].to_owned()])
            .header("content-length", "1000"),
        1 => lines(&[first(2, "r1"), update(7, "REMOVE", "file", &pods()[..1])]),
        2 => Reply::golden("410-not-held"),
        3 => lines(&[first(1000, "r2")]),
        4 => Reply::json(429, &json!({ "kind": "Status", "message": "too many" })),
        5 => Reply::text(502, "a proxy"),
        6 => no_more(),
        _ => panic!("{asked:?}"),
    });
    check(
        &agent,
        &["get", "updates", "--no-headers"],
        &expect![[r#"
        1                  2026-11-21T09:00:00Z   SET         file   <none>
        2                  2026-11-21T09:00:00Z   SET         file   <none>
        7                  2026-11-21T09:00:00Z   REMOVE      file   default/polled-node1
        1000               2026-11-21T09:00:00Z   SET         file   <none>
        ! connection lost: SOCKET closed the connection before its response was complete; reconnecting
        ! reconnected: the stream continues
        ! connection lost: the agent has ended the stream; reconnecting
        ! reconnected: the stream starts again, with all pods
        ! connection lost: the agent has ended the stream; reconnecting
        ! Error from server (Forbidden): no more
        exit 1
        --
        GET /updates
        GET /updates?from=r1-2
        GET /updates?from=r1-8
        GET /updates
        GET /updates?from=r2-1001
        GET /updates?from=r2-1001
        GET /updates?from=r2-1001
    "#]],
    );
}

#[test]
fn the_first_connection_is_not_repeated() {
    let agent = Agent::start(|asked, _| {
        let is_stream = asked.line.starts_with("GET /updates") || asked.line.contains("watch=1");
        if is_stream { Reply::text(503, "stopping") } else { three(asked, 0) }
    });
    check(
        &agent,
        &["get", "updates"],
        &expect![[r#"
        ! Error from server: 503 Service Unavailable: stopping
        exit 1
        --
        GET /updates
    "#]],
    );
    check(
        &agent,
        &["get", "pods", "-w", "-o", "name"],
        &expect![[r#"
            pod/polled-node1
            pod/web
            ! Error from server: 503 Service Unavailable: stopping
            exit 1
            --
            GET /api/v1/namespaces/default/pods?limit=500
            GET /api/v1/namespaces/default/pods?watch=1&allowWatchBookmarks=1&resourceVersion=7
        "#]],
    );
}

#[test]
fn a_number_that_is_not_held_is_explained() {
    let agent = Agent::start(|_, _| Reply::golden("410-not-held"));
    check(
        &agent,
        &["get", "updates", "--from", "1"],
        &expect![[r#"
        ! Error from server (Expired): this run of the agent does not hold that update: leave out --from to begin with all pods
        exit 1
        --
        GET /updates?from=1
    "#]],
    );
}

/// Sinks in all states.
fn sinks() -> Reply {
    let soon = Timestamp::now() + SignedDuration::from_secs(3600 * 5 + 30);
    let failing = |error: &str| json!({ "since": ago(3), "attempts": 17, "nextAttempt": format!("{soon:.0}"), "error": error });
    let items = json!([
        { "name": "jsonl", "state": "current", "podsBehind": 0, "acknowledged": 9 },
        { "name": "jsonl=/var/log/u.jsonl", "state": "behind", "podsBehind": 2, "since": ago(1), "acknowledged": 3 },
        { "name": "jsonl=/mnt/u.jsonl", "state": "failing", "podsBehind": 7, "since": ago(3),
          "acknowledged": 2, "failing": failing("disk full\nof pods") },
        { "name": "jsonl=/x", "state": "waiting", "podsBehind": 7, "since": ago(3), "failing": failing("no number") },
        { "name": "jsonl=/y", "state": "stuck", "podsBehind": 1, "since": ago(2) },
    ]);
    Reply::json(200, &json!({ "kind": "SinkList", "apiVersion": "podmux/v1", "items": items }))
}

#[test]
fn sinks_are_printed_with_how_far_they_are_behind() {
    let agent = Agent::start(|_, _| sinks());
    check(
        &agent,
        &["get", "sinks"],
        &expect![[r#"
        NAME                     STATE     PODS-BEHIND   SINCE    ERROR
        jsonl                    current   0             <none>   <none>
        jsonl=/var/log/u.jsonl   behind    2             24h      <none>
        jsonl=/mnt/u.jsonl       failing   7             3d       disk full\nof pods
        jsonl=/x                 waiting   7             3d       no number
        jsonl=/y                 stuck     1             2d       <none>
        exit 0
        --
        GET /sinks
    "#]],
    );
    check(
        &agent,
        &["get", "sink", "-o", "wide"],
        &expect![[r#"
        NAME                     STATE     PODS-BEHIND   SINCE    ERROR                ACKNOWLEDGED   ATTEMPTS   NEXT-ATTEMPT
        jsonl                    current   0             <none>   <none>               9              <none>     <none>
        jsonl=/var/log/u.jsonl   behind    2             24h      <none>               3              <none>     <none>
        jsonl=/mnt/u.jsonl       failing   7             3d       disk full\nof pods   2              17         in 5h
        jsonl=/x                 waiting   7             3d       no number            <none>         17         in 5h
        jsonl=/y                 stuck     1             2d       <none>               <none>         <none>     <none>
        exit 0
        --
        GET /sinks
    "#]],
    );
    check(
        &agent,
        &["get", "sinks", "-o", "name"],
        &expect![[r#"
        sink/jsonl
        sink/jsonl=/var/log/u.jsonl
        sink/jsonl=/mnt/u.jsonl
        sink/jsonl=/x
        sink/jsonl=/y
        exit 0
        --
        GET /sinks
    "#]],
    );
    let failing = "jsonl=/mnt/u.jsonl";
    check(
        &agent,
        &["get", "sinks", failing, "jsonl=/z", "--no-headers"],
        &expect![[r#"
        jsonl=/mnt/u.jsonl   failing   7     3d    disk full\nof pods
        ! Error from server (NotFound): sinks "jsonl=/z" not found
        exit 1
        --
        GET /sinks
    "#]],
    );
    let one = format!("sink/{failing}");
    let object = agent.podmux(&["get", &one, "-o", "json"]).output().unwrap();
    let object: Value = serde_json::from_slice(&object.stdout).unwrap();
    assert_eq!((&object["name"], &object["failing"]["attempts"]), (&failing.into(), &17.into()));
    let lists = agent.podmux(&["get", "sinks", "-o", "yaml"]).output().unwrap();
    assert!(String::from_utf8(lists.stdout).unwrap().contains("\nkind: SinkList\n"));
    let mut command = agent.podmux(&["get", "sinks"]);
    command.env("TERM", "xterm");
    let seen = on_a_terminal(command);
    assert!(seen.contains("\u{1b}[31mfailing") && seen.contains("\u{1b}[1;33mbehind"), "{seen:?}");
}

/// The sources in the real server's golden file, with a time whose age does not change, and
/// with a failing source that has more problems than are listed.
fn sources() -> Reply {
    let conflict = json!({
        "origin": "https://host/pods", "pod": "default/copy-node1", "reason": "Conflict",
        "message": "the UID is in use by default/original of source api; remove metadata.uid",
        "winner": { "source": "api", "pod": "default/original", "origin": "default/original" },
    });
    let url = json!({
        "name": "url", "state": "failing", "pods": 1, "target": "https://host/pods", "detail": "polling",
        "failing": { "since": ago(3), "attempts": 17, "error": "connection refused\nby host" },
        "problems": [conflict], "moreProblems": 3,
    });
    Reply::golden("sources")
        .with("2026-11-21T09:00:00Z", &ago(2))
        .with(r#""items": ["#, &format!(r#""items": [{url},"#))
}

#[test]
fn sources_are_printed_with_their_problems() {
    let agent = Agent::start(|_, _| sources());
    check(
        &agent,
        &["get", "sources"],
        &expect![[r#"
            NAME   STATE     PODS   PROBLEMS   LAST-SUCCESS   TARGET
            url    failing   1      4          <none>         https://host/pods
            file   synced    1      3          2d             /etc/podmux
            http   synced    1      1          <none>         posted pods, in memory only

            SOURCE   POD                  REASON          WINNER                      ORIGIN                    MESSAGE
            url      <none>               Failing         <none>                      https://host/pods         connection refused\nby host (failing for 3d, 17 attempts)
            url      default/copy-node1   Conflict        api default/original        https://host/pods         the UID is in use by default/original of source api; remove metadata.uid
            url      <none>               <none>          <none>                      <none>                    and 3 more problems, not listed
            file     <none>               Invalid         <none>                      /etc/podmux/bad.yaml      3:5: spec.containers[0].image: Required value
            file     <none>               Unreadable      <none>                      /etc/podmux/secret.yaml   permission denied
            file     default/web          DuplicateName   file (/etc/podmux/1.yaml)   /etc/podmux/2.yaml        the pod in /etc/podmux/1.yaml has the same name; rename one of them
            http     default/web          Conflict        file (/etc/podmux/1.yaml)   default/web               a pod of source file has the same name; rename one of them
            exit 0
            --
            GET /sources
        "#]],
    );
    check(
        &agent,
        &["get", "sources", "-o", "wide"],
        &expect![[r#"
            NAME   STATE     PODS   PROBLEMS   LAST-SUCCESS   TARGET                        PHASE    RESOURCE-VERSION   LAST-EVENT   NEXT-ATTEMPT   DETAIL
            url    failing   1      4          <none>         https://host/pods             <none>   <none>             <none>       <none>         polling
            file   synced    1      3          2d             /etc/podmux                   <none>   <none>             <none>       <none>         watching
            http   synced    1      1          <none>         posted pods, in memory only   <none>   <none>             <none>       <none>         <none>

            SOURCE   POD                  REASON          WINNER                      ORIGIN                    MESSAGE
            url      <none>               Failing         <none>                      https://host/pods         connection refused\nby host (failing for 3d, 17 attempts)
            url      default/copy-node1   Conflict        api default/original        https://host/pods         the UID is in use by default/original of source api; remove metadata.uid
            url      <none>               <none>          <none>                      <none>                    and 3 more problems, not listed
            file     <none>               Invalid         <none>                      /etc/podmux/bad.yaml      3:5: spec.containers[0].image: Required value
            file     <none>               Invalid         <none>                      /etc/podmux/bad.yaml      4:5: warning: spec.foo: unknown field, ignored
            file     <none>               Unreadable      <none>                      /etc/podmux/secret.yaml   permission denied
            file     default/web          DuplicateName   file (/etc/podmux/1.yaml)   /etc/podmux/2.yaml        the pod in /etc/podmux/1.yaml has the same name; rename one of them
            http     default/web          Conflict        file (/etc/podmux/1.yaml)   default/web               a pod of source file has the same name; rename one of them
            exit 0
            --
            GET /sources
        "#]],
    );
    check(
        &agent,
        &["get", "sources", "http", "api", "--no-headers"],
        &expect![[r#"
            http   synced   1     1     <none>   posted pods, in memory only

            http   default/web   Conflict   file (/etc/podmux/1.yaml)   default/web   a pod of source file has the same name; rename one of them
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
            pods: 1
            problems:
            - message: a pod of source file has the same name; rename one of them
              origin: default/web
              pod: default/web
              reason: Conflict
              winner:
                origin: /etc/podmux/1.yaml
                pod: default/web
                source: file
            state: synced
            target: posted pods, in memory only
            exit 0
            --
            GET /sources
        "#]],
    );
    check(
        &agent,
        &["get", "sources", "-o", "name"],
        &expect![[r#"
            source/url
            source/file
            source/http
            exit 0
            --
            GET /sources
        "#]],
    );
}

#[test]
fn the_reflector_of_the_api_source_is_printed() {
    let agent = Agent::start(|_, _| {
        let file = json!({ "name": "file", "state": "restored", "pods": 4, "target": "/m", "detail": "", "problems": [] });
        let soon = Timestamp::now() + SignedDuration::from_mins(20 * 60 + 30);
        let failing = json!({ "since": ago(1), "attempts": 17, "error": "connection refused" });
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
        api      <none>   Failing   <none>   https://10.0.0.1:6443   connection refused (failing for 24h, 17 attempts)
        api      <none>   Failing   <none>   https://10.0.0.1:6443   connection refused (failing for 24h, 17 attempts)
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
        api      <none>   Failing   <none>   https://10.0.0.1:6443   connection refused (failing for 24h, 17 attempts)
        api      <none>   Failing   <none>   https://10.0.0.1:6443   connection refused (failing for 24h, 17 attempts)
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
fn only_terminals_get_colours_and_no_color_turns_them_off() {
    let agent = Agent::start(|_, _| {
        let file =
            json!({ "name": "file", "state": "failing", "pods": 0, "target": "/m\u{1b}[0m", "problems": [] });
        let reply = Reply::json(200, &json!({ "kind": "SourceList", "items": [file] }));
        reply.header("warning", "299 - \"old\"")
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
fn a_response_that_is_too_large_is_rejected() {
    let agent = Agent::start(|_, _| {
        let length = (512 << 20) + 1;
        Reply::text(200, "{}").header("content-length", &length.to_string())
    });
    let output = transcript(&mut agent.podmux(&["get", "sources"]), b"");
    assert!(output.ends_with(" sent more than the limit of 536870912 bytes\nexit 1\n"), "{output}");
}

#[test]
fn completions_know_the_resources_and_the_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = transcript(&mut podmux(&["completion", shell]), b"");
        assert!(script.contains("field-selector") && script.contains("grace-period"), "{shell}");
    }
    let script = transcript(&mut podmux(&["completion", "bash"]), b"");
    assert!(script.contains("pods events sources sinks updates"), "{script}");
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
fn updates_are_a_table() {
    let agent = Agent::start(stream_once(|_| {
        let many: Vec<Value> = (0..5).map(|n| pod("default", &format!("p{n}"), "file")).collect();
        lines(&[update(1_793_000_000_000_001, "ADD", "file", &many), update(2, "REMOVE", "http", &many[..1])])
    }));
    check(
        &agent,
        &["get", "updates"],
        &expect![[r#"
            SEQ                TIME                   OP          SOURCE   PODS
            1793000000000001   2026-11-21T09:00:00Z   ADD         file     default/p0,default/p1,default/p2,and 2 more
            2                  2026-11-21T09:00:00Z   REMOVE      http     default/p0
            ! connection lost: the agent has ended the stream; reconnecting
            ! Error from server (Forbidden): no more
            exit 1
            --
            GET /updates
            GET /updates
        "#]],
    );
    check(
        &agent,
        &["get", "updates", "-o", "wide", "--no-headers"],
        &expect![[r#"
            1793000000000001   2026-11-21T09:00:00Z   ADD         file   default/p0,default/p1,default/p2,default/p3,default/p4
            2                  2026-11-21T09:00:00Z   REMOVE      http   default/p0
            ! connection lost: the agent has ended the stream; reconnecting
            ! Error from server (Forbidden): no more
            exit 1
            --
            GET /updates
            GET /updates
        "#]],
    );
    check(
        &agent,
        &["get", "updates", "--from", "1"],
        &expect![[r#"
            SEQ                TIME                   OP          SOURCE   PODS
            1793000000000001   2026-11-21T09:00:00Z   ADD         file     default/p0,default/p1,default/p2,and 2 more
            2                  2026-11-21T09:00:00Z   REMOVE      http     default/p0
            ! connection lost: the agent has ended the stream; reconnecting
            ! Error from server (Forbidden): no more
            exit 1
            --
            GET /updates?from=1
            GET /updates
        "#]],
    );
}

#[test]
fn updates_as_jsonl_are_unchanged() {
    // JSON that podmux would write differently.
    let raw = "{\"seq\":1,  \"op\":\"ADD\", \"pods\":[]}\n{\"seq\":2,  \"pods\":[]}\n";
    let agent = Agent::start(stream_once(move |_| lines(&[raw.to_owned()])));
    let output = agent.podmux(&["get", "updates", "-o", "jsonl"]).output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), raw.as_bytes()));
    check(
        &agent,
        &["get", "updates", "-o", "yaml"],
        &expect![[r#"
            op: ADD
            pods: []
            seq: 1
            ---
            pods: []
            seq: 2
            ! connection lost: the agent has ended the stream; reconnecting
            ! Error from server (Forbidden): no more
            exit 1
            --
            GET /updates
            GET /updates
        "#]],
    );
}

#[test]
fn a_closed_standard_output_ends_the_command_without_an_error() {
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
fn invalid_arguments_are_errors() {
    let mut output = String::new();
    for args in [
        "nodes",
        "pods --from 1",
        "sources -w",
        "sources -A",
        "updates -n default",
        "sinks --watch=maybe",
        "pods --no-such=true -- -x",
        "updates web",
        "updates -o name",
        "pods web -l a=b",
        "pods web -A",
        "pods -n a -A",
        "pods -o table2",
        "pod/",
        "pods --server ftp://host",
        "pods --server http://host/path",
        "pods --server http://127.0.0.1:70000",
        "pods --server unix:",
        "pods --server https://user:s3cret@host",
        "pods --token-file /missing --server https://localhost:1",
        "pods --client-cert x",
        "pods --ca-file /missing --server https://localhost:1",
    ] {
        let all: Vec<&str> = ["get"].into_iter().chain(args.split(' ')).collect();
        writeln!(output, "$ podmux get {args}\n{}", transcript(&mut podmux(&all), b"").trim_end()).unwrap();
    }
    expect![[r#"
        $ podmux get nodes
        ! podmux: invalid value 'nodes' for '<RESOURCE>'; [possible values: pods, events, sources, sinks, updates]; tip: a similar value exists: 'pods'; kubectl shows it: podmux kubeconfig prints what it needs; see podmux get --help
        exit 2
        $ podmux get pods --from 1
        ! podmux: --from is for updates only
        exit 2
        $ podmux get sources -w
        ! podmux: sources and sinks cannot be watched: watch updates, pods or events
        exit 2
        $ podmux get sources -A
        ! podmux: --namespace, --all-namespaces, --selector, --field-selector and --show-labels are for pods and events only
        exit 2
        $ podmux get updates -n default
        ! podmux: --namespace, --all-namespaces, --selector, --field-selector and --show-labels are for pods and events only
        exit 2
        $ podmux get sinks --watch=maybe
        ! podmux: invalid value 'maybe' for '--watch[=<WATCH>]'; [possible values: true, false]; see podmux get --help
        exit 2
        $ podmux get pods --no-such=true -- -x
        ! podmux: unexpected argument '--no-such' found; see podmux get --help
        exit 2
        $ podmux get updates web
        ! podmux: updates have no names: use --from SEQ to start with one
        exit 2
        $ podmux get updates -o name
        ! podmux: updates have no names: use -o table, wide, json, yaml or jsonl
        exit 2
        $ podmux get pods web -l a=b
        ! podmux: give names or a selector, not both
        exit 2
        $ podmux get pods web -A
        ! podmux: a name belongs to one namespace: use -n NS instead of -A
        exit 2
        $ podmux get pods -n a -A
        ! podmux: the argument '--namespace <NS>' cannot be used with '--all-namespaces'; see podmux get --help
        exit 2
        $ podmux get pods -o table2
        ! podmux: invalid value 'table2' for '--output <FORMAT>'; [possible values: table, wide, json, yaml, name, jsonl, jsonpath=]; tip: a similar value exists: 'table'; see podmux get --help
        exit 2
        $ podmux get pod/
        ! podmux: invalid value 'pod/' for '<RESOURCE>'; [possible values: pods, events, sources, sinks, updates]; tip: a similar value exists: 'pods'; see podmux get --help
        exit 2
        $ podmux get pods --server ftp://host
        ! podmux: --server: invalid address "ftp://host": use http://HOST:PORT, https://HOST:PORT or unix:PATH
        exit 2
        $ podmux get pods --server http://host/path
        ! podmux: --server: invalid address "http://host/path": use http://HOST:PORT, https://HOST:PORT or unix:PATH
        exit 2
        $ podmux get pods --server http://127.0.0.1:70000
        ! podmux: --server: invalid address "http://127.0.0.1:70000": use http://HOST:PORT, https://HOST:PORT or unix:PATH
        exit 2
        $ podmux get pods --server unix:
        ! podmux: --server: invalid address "unix:": use http://HOST:PORT, https://HOST:PORT or unix:PATH
        exit 2
        $ podmux get pods --server https://user:s3cret@host
        ! podmux: --server: the address holds a user or a password: give --token-file FILE instead
        exit 2
        $ podmux get pods --token-file /missing --server https://localhost:1
        ! podmux: cannot use the token file /missing: No such file or directory (os error 2)
        exit 2
        $ podmux get pods --client-cert x
        ! podmux: the following required arguments were not provided: --client-key <FILE>; see podmux get --help
        exit 2
        $ podmux get pods --ca-file /missing --server https://localhost:1
        ! podmux: cannot read /missing (does it exist, and may podmux read it?): No such file or directory (os error 2)
        exit 2
    "#]].assert_eq(&output);
}

#[test]
fn a_missing_socket_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let server = format!("unix:{}/none", dir.path().display());
    let output = transcript(&mut podmux(&["get", "pods", "--server", &server]), b"");
    let output = output.replace(&dir.path().display().to_string(), "DIR");
    expect![[r#"
        ! podmux: no agent at unix:DIR/none: start "podmux run", or see systemctl status podmux
        exit 1
    "#]]
    .assert_eq(&output);
}

#[test]
fn another_server_on_the_address_is_detected() {
    let agent = Agent::start(|_, before| match before {
        0 => Reply::text(200, "<html>"),
        1 => Reply::text(200, "{}"),
        2 => Reply::text(200, "not json\n"),
        _ => Reply::text(503, "<h1>Down</h1>"),
    });
    check(
        &agent,
        &["get", "pods"],
        &expect![[r#"
            ! podmux: the response to /api/v1/namespaces/default/pods?limit=500 is not JSON (is this a podmux agent?): expected value at line 1 column 1
            exit 1
            --
            GET /api/v1/namespaces/default/pods?limit=500
        "#]],
    );
    check(
        &agent,
        &["get", "sources"],
        &expect![[r#"
            ! podmux: the response to /sources is not a list (is this a podmux agent?)
            exit 1
            --
            GET /sources
        "#]],
    );
    check(
        &agent,
        &["get", "updates"],
        &expect![[r#"
            ! podmux: the update stream has a line that is not JSON: it was cut off (try again)
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
fn the_token_is_never_sent_in_clear_text_over_a_network() {
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
        ! podmux: the token would be sent in clear text to http://192.0.2.1:1: use https, or a tunnel to a local port
        exit 2
    "#]].assert_eq(&transcript(&mut podmux(open), b""));
    // This machine, though nothing listens.
    let mapped = &["get", "pods", "--token-file", file, "--server", "http://[::ffff:127.0.0.1]:1"];
    expect![[r#"
        ! podmux: no agent at [::ffff:127.0.0.1]:1: start "podmux run", or see systemctl status podmux
        exit 1
    "#]]
    .assert_eq(&transcript(&mut podmux(mapped), b""));
    for text in ["\n", "two words", "zwölf"] {
        std::fs::write(file, text).unwrap();
        let output = transcript(&mut agent.podmux(&["get", "pods", "--token-file", file]), b"");
        assert!(
            output.starts_with("! podmux: cannot use the token file ")
                && output.contains(": it must contain one token of printable ASCII"),
            "{output}"
        );
    }
}

#[test]
fn warnings_of_the_server_are_printed() {
    let agent = Agent::start(|asked, before| {
        let reply = three(asked, before).header("warning", r#"299 - "unknown field \"spec.foo\"""#);
        reply.header("warning", "something else")
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
