//! `podmux delete`: the pods it deletes, the grace period, and how long it waits.
#![allow(clippy::too_many_lines, reason = "expected output is long")]

use std::{fmt::Write as _, fs, os::unix::net::UnixListener, process::Command};

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::{
    cli::transcript,
    support::{
        agent::{Agent, Asked, Reply},
        process::podmux,
    },
};

/// Compares the output and the requests.
fn check(agent: &Agent, command: &mut Command, stdin: &str, expected: &Expect) {
    let before = agent.lines().len();
    let output = transcript(command, stdin.as_bytes());
    expected.assert_eq(&(output + "--\n" + &agent.lines()[before..]));
}

fn terminating(name: &str) -> Value {
    let metadata =
        json!({ "name": name, "uid": format!("{name}-1"), "deletionTimestamp": "2026-11-21T09:00:00Z" });
    json!({ "kind": "Pod", "apiVersion": "v1", "metadata": metadata })
}

/// An agent that deletes every pod but `missing` and `held` at once.
fn deletes(asked: &Asked, _: usize) -> Reply {
    let (method, path) = asked.line.split_once(' ').unwrap();
    let name = path.rsplit('/').next().unwrap().split('?').next().unwrap();
    match (method, name) {
        ("DELETE", "held") => Reply::golden("403-delete").with("web", "held"),
        ("DELETE", name) if name != "missing" => Reply::json(200, &terminating(name)),
        _ => Reply::golden("404-delete").with("web", name),
    }
}

#[test]
fn pods_are_deleted_by_name() {
    let agent = Agent::start(deletes);
    let delete = |args: &[&str]| agent.podmux(&[&["delete"], args].concat());
    check(
        &agent,
        &mut delete(&["pod", "web"]),
        "",
        &expect![[r#"
        pod "web" deleted
        exit 0
        --
        DELETE /api/v1/namespaces/default/pods/web
        GET /api/v1/namespaces/default/pods/web
    "#]],
    );
    // As in a script with a variable that is not set.
    check(
        &agent,
        &mut delete(&["pod", "missing", "-n", ""]),
        "",
        &expect![[r#"
        ! Error from server (NotFound): pods "missing" not found
        exit 1
        --
        DELETE /api/v1/namespaces/default/pods/missing
    "#]],
    );
    check(
        &agent,
        &mut delete(&["pods", "missing", "held", "web", "-n", "a b"]),
        "",
        &expect![[r#"
            pod "web" deleted
            ! Error from server (NotFound): pods "missing" not found
            ! Error from server (Forbidden): pods "held" is forbidden: it is held by source file (from /etc/podmux/held.yaml): change it there
            exit 1
            --
            DELETE /api/v1/namespaces/a%20b/pods/missing
            DELETE /api/v1/namespaces/a%20b/pods/held
            DELETE /api/v1/namespaces/a%20b/pods/web
            GET /api/v1/namespaces/a%20b/pods/web
        "#]],
    );
    check(
        &agent,
        &mut delete(&["pod/web", "po/db", "--wait=false"]),
        "",
        &expect![[r#"
        pod "web" deleted
        pod "db" deleted
        exit 0
        --
        DELETE /api/v1/namespaces/default/pods/web
        DELETE /api/v1/namespaces/default/pods/db
    "#]],
    );
    check(
        &agent,
        &mut delete(&["pod", "missing", "--ignore-not-found"]),
        "",
        &expect![[r#"
        exit 0
        --
        DELETE /api/v1/namespaces/default/pods/missing
    "#]],
    );
    check(
        &agent,
        &mut delete(&["pod", "web", "-o", "name", "--wait=false"]),
        "",
        &expect![[r#"
        pod/web
        exit 0
        --
        DELETE /api/v1/namespaces/default/pods/web
    "#]],
    );
    check(
        &agent,
        &mut delete(&["pod", "web", "--dry-run=server"]),
        "",
        &expect![[r#"
        pod "web" deleted (server dry run)
        exit 0
        --
        DELETE /api/v1/namespaces/default/pods/web?dryRun=All
    "#]],
    );
}

/// Two that delete all pods at the same time: the later one finds some gone, and some created again.
#[test]
fn pods_that_were_listed_are_deleted_if_they_still_exist() {
    let agent = Agent::start(|asked, _| {
        if asked.line.ends_with("/pods") {
            let row = |name: &str| {
                json!({
                    "cells": ["http"],
                    "object": {"metadata": {"namespace": "default", "name": name, "uid": format!("{name}-1")}},
                })
            };
            let rows: Vec<Value> = ["missing", "again", "web"].map(row).to_vec();
            return Reply::json(200, &json!({"columnDefinitions": [{"name": "Source"}], "rows": rows}));
        }
        match asked.line.rsplit('/').next().unwrap() {
            "http" => Reply::json(200, &json!({"name": "http", "problems": []})),
            "again" => Reply::json(409, &json!({"kind": "Status", "code": 409, "reason": "Conflict"})),
            "web" if asked.line.starts_with("DELETE") => Reply::json(200, &terminating("web")),
            name => Reply::golden("404-delete").with("web", name),
        }
    });
    check(
        &agent,
        &mut agent.podmux(&["delete", "pods", "--all"]),
        "",
        &expect![[r#"
        pod "web" deleted
        exit 0
        --
        GET /api/v1/namespaces/default/pods
        GET /sources/http
        DELETE /api/v1/namespaces/default/pods/missing
        DELETE /api/v1/namespaces/default/pods/again
        DELETE /api/v1/namespaces/default/pods/web
        GET /api/v1/namespaces/default/pods/web
    "#]],
    );
    let deletions = agent.asked().into_iter().filter(|asked| asked.line.starts_with("DELETE"));
    let bodies: Vec<String> = deletions.map(|asked| String::from_utf8(asked.body).unwrap()).collect();
    expect![[r#"
        {"preconditions":{"uid":"missing-1"}}
        {"preconditions":{"uid":"again-1"}}
        {"preconditions":{"uid":"web-1"}}"#]]
    .assert_eq(&bodies.join("\n"));
}

#[test]
fn the_grace_period_follows_kubectls_rules() {
    let agent = Agent::start(deletes);
    let mut output = String::new();
    for args in [
        "--grace-period=5",
        "--grace-period=-1",
        "--grace-period=0",
        "--now",
        "--force",
        "--force --grace-period=0",
        "--force --grace-period=5",
        "--now --grace-period=5",
    ] {
        let before = agent.lines().len();
        let all: Vec<&str> =
            ["delete", "pod", "web", "--wait=false"].into_iter().chain(args.split(' ')).collect();
        let text = transcript(&mut agent.podmux(&all), b"");
        writeln!(output, "$ {args}\n{text}{}", agent.lines()[before..].trim_end()).unwrap();
    }
    expect![[r#"
        $ --grace-period=5
        pod "web" deleted
        exit 0
        DELETE /api/v1/namespaces/default/pods/web?gracePeriodSeconds=5
        $ --grace-period=-1
        pod "web" deleted
        exit 0
        DELETE /api/v1/namespaces/default/pods/web
        $ --grace-period=0
        pod "web" deleted
        exit 0
        DELETE /api/v1/namespaces/default/pods/web?gracePeriodSeconds=1
        $ --now
        pod "web" deleted
        exit 0
        DELETE /api/v1/namespaces/default/pods/web?gracePeriodSeconds=1
        $ --force
        pod "web" force deleted
        exit 0
        DELETE /api/v1/namespaces/default/pods/web?gracePeriodSeconds=0
        $ --force --grace-period=0
        pod "web" force deleted
        exit 0
        DELETE /api/v1/namespaces/default/pods/web?gracePeriodSeconds=0
        $ --force --grace-period=5
        ! podmux: --force has no grace period: omit --force or --grace-period=5
        exit 2

        $ --now --grace-period=5
        ! podmux: the argument '--now' cannot be used with '--grace-period <SECONDS>'; see podmux delete --help
        exit 2

    "#]].assert_eq(&output);
}

#[test]
fn it_waits_until_the_pod_is_gone() {
    let agent = Agent::start(|_, before| match before {
        0..4 => Reply::json(200, &terminating("web")),
        _ => Reply::golden("404-get"),
    });
    check(
        &agent,
        &mut agent.podmux(&["delete", "pod", "web"]),
        "",
        &expect![[r#"
        pod "web" deleted
        exit 0
        --
        DELETE /api/v1/namespaces/default/pods/web
        GET /api/v1/namespaces/default/pods/web
        GET /api/v1/namespaces/default/pods/web
        GET /api/v1/namespaces/default/pods/web
        GET /api/v1/namespaces/default/pods/web
    "#]],
    );
    // A pod with the same name is another one if it has another UID or is not terminating.
    for (uid, deletion) in [("web-2", Some("2026-11-21T09:00:00Z")), ("web-1", None)] {
        let agent = Agent::start(move |_, before| {
            let mut pod = terminating("web");
            if before > 0 {
                pod["metadata"]["uid"] = uid.into();
                pod["metadata"]["deletionTimestamp"] = deletion.into();
            }
            Reply::json(200, &pod)
        });
        let output = transcript(&mut agent.podmux(&["delete", "pod", "web"]), b"");
        assert_eq!((&*output, agent.asked().len()), ("pod \"web\" deleted\nexit 0\n", 2));
    }
}

#[test]
fn it_waits_no_longer_than_the_timeout() {
    let agent = Agent::start(|_, _| Reply::json(200, &terminating("web")));
    let output = transcript(&mut agent.podmux(&["delete", "pod", "web", "--timeout=120ms"]), b"");
    expect![[r#"
        pod "web" deleted
        ! error: timed out waiting for the condition on pods/web
        exit 1
    "#]]
    .assert_eq(&output);
    assert!(agent.asked().len() > 1);
    let agent = Agent::start(|_, before| match before {
        0 => Reply::json(200, &terminating("web")),
        _ => Reply::golden("503-list"),
    });
    check(
        &agent,
        &mut agent.podmux(&["delete", "pod", "web"]),
        "",
        &expect![[r#"
            pod "web" deleted
            ! Error from server (ServiceUnavailable): the agent is shutting down: retry when it has restarted
            exit 1
            --
            DELETE /api/v1/namespaces/default/pods/web
            GET /api/v1/namespaces/default/pods/web
        "#]],
    );
}

#[test]
fn the_timeout_bounds_the_requests_too() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    // It accepts and never answers: without the limit, the command would wait for a minute.
    let _listener = UnixListener::bind(&socket).unwrap();
    let server = format!("unix:{}", socket.display());
    for args in [&["pod", "web"][..], &["--all"]] {
        let args = [&["delete", "--timeout=10ms", "--server", &server], args].concat();
        expect![[r#"
            ! podmux: no answer within 10ms: what was asked for may still be deleted
            exit 1
        "#]]
        .assert_eq(&transcript(&mut podmux(&args), b""));
    }
}

#[test]
fn manifests_name_the_pods_to_delete() {
    let dir = tempfile::tempdir().unwrap();
    let several = "\
# Only the names matter.
kind: Pod
metadata: {name: one, namespace: staging}
spec: nonsense
---
---
kind: List
items:
- {kind: Pod, metadata: {name: two}}
- {metadata: {name: missing}}
";
    fs::write(dir.path().join("several.yaml"), several).unwrap();
    fs::write(dir.path().join("job.yaml"), "kind: Job\nmetadata: {name: j}\n").unwrap();
    let agent = Agent::start(deletes);
    let delete = |args: &[&str]| {
        let mut command = agent.podmux(&[&["delete"], args].concat());
        command.current_dir(&dir);
        command
    };
    check(
        &agent,
        &mut delete(&["-f", "several.yaml", "--wait=false"]),
        "",
        &expect![[r#"
        pod "one" deleted
        pod "two" deleted
        ! Error from server (NotFound): error when deleting "several.yaml": pods "missing" not found
        exit 1
        --
        DELETE /api/v1/namespaces/staging/pods/one
        DELETE /api/v1/namespaces/default/pods/two
        DELETE /api/v1/namespaces/default/pods/missing
    "#]],
    );
    check(
        &agent,
        &mut delete(&["-f", "several.yaml", "-n", "other", "--wait=false"]),
        "",
        &expect![[r#"
            ! podmux: several.yaml: a pod in it has the namespace "staging", not "other": omit -n, or change the manifest
            exit 1
            --
        "#]],
    );
    check(
        &agent,
        &mut delete(&["-f", "job.yaml", "-f", "-", "-n", "other", "--wait=false"]),
        r#"{"kind":"Pod","metadata":{"name":"web"}}"#,
        &expect![[r#"
        pod "web" deleted
        ! podmux: job.yaml: a Job in it; a Pod, a PodList or a List is expected
        exit 1
        --
        DELETE /api/v1/namespaces/other/pods/web
    "#]],
    );
    for text in [
        "",
        "kind: Pod\n",
        "a: [",
        "kind: Pod\nmetadata: {name: ''}\n",
        "metadata: {}\n",
        "- 1\n",
        "kind: List\nitems: [{kind: Job}]\n",
    ] {
        let output = transcript(&mut delete(&["-f", "-"]), text.as_bytes());
        assert!(
            output.starts_with("! podmux: STDIN: ") && output.ends_with("\nexit 1\n"),
            "{text:?}: {output}"
        );
    }
}

#[test]
fn invalid_arguments_are_errors() {
    let mut output = String::new();
    for args in [
        "",
        "pod",
        "web",
        "sources file",
        "pod/",
        "pod/web db",
        "pod a/b",
        "pod web -f x.yaml",
        "pod web --timeout 5",
        "pod web --wait=maybe",
    ] {
        let all: Vec<&str> = ["delete"].into_iter().chain(args.split_terminator(' ')).collect();
        writeln!(output, "$ podmux delete {args}\n{}", transcript(&mut podmux(&all), b"").trim_end())
            .unwrap();
    }
    expect![[r#"
        $ podmux delete 
        ! podmux: the following required arguments were not provided: <pod NAME>...; see podmux delete --help
        exit 2
        $ podmux delete pod
        ! podmux: no pod is named: give pod NAME…
        exit 2
        $ podmux delete web
        ! podmux: cannot delete "web": give pod NAME… or pod/NAME…
        exit 2
        $ podmux delete sources file
        ! podmux: cannot delete "sources": give pod NAME… or pod/NAME…
        exit 2
        $ podmux delete pod/
        ! podmux: invalid name "": give pod NAME… or pod/NAME…
        exit 2
        $ podmux delete pod/web db
        ! podmux: cannot delete "db": give pod NAME… or pod/NAME…
        exit 2
        $ podmux delete pod a/b
        ! podmux: invalid name "a/b": give pod NAME… or pod/NAME…
        exit 2
        $ podmux delete pod web -f x.yaml
        ! podmux: give names or manifests (-f), not both
        exit 2
        $ podmux delete pod web --timeout 5
        ! podmux: invalid value '5' for '--timeout <DURATION>': "5" has no unit: write 5s for seconds, or use ms, m or h; see podmux delete --help
        exit 2
        $ podmux delete pod web --wait=maybe
        ! podmux: invalid value 'maybe' for '--wait[=<BOOL>]'; [possible values: true, false]; see podmux delete --help
        exit 2
    "#]].assert_eq(&output);
}
