//! `podmux describe`, and `--source` of `podmux get`, against a real agent.
#![allow(clippy::too_many_lines, reason = "expected output is long")]

use std::{fs, process::Command};

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::{
    cli::transcript,
    cli_agent::Real,
    support::{
        agent::{Agent, Reply},
        files::pod,
        process::{Process, on_a_terminal, wait_for},
    },
};

/// Two pods, of which the second has something in most fields that are shown. It has secrets, too.
const TWO: &str = r#"# Two pods.
apiVersion: v1
kind: Pod
metadata: {name: first}
spec: {containers: [{name: c, image: "i:1"}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web, tier: front}
  annotations: {note: canary1}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 5
  initContainers:
  - {name: init, image: busybox, command: [sh, -c, "true"]}
  containers:
  - name: web
    image: nginx:1.29
    imagePullPolicy: IfNotPresent
    command: [nginx, "-g", "daemon off;\u001b[31m"]
    args: ["\u009b31m", "\u007f"]
    ports: [{name: http, containerPort: 8080, protocol: TCP}]
    env:
    - {name: PASSWORD, value: canary2}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    resources: {limits: {cpu: "1", memory: 1Gi}, requests: {cpu: 500m}}
    livenessProbe: {httpGet: {path: /live, port: http, httpHeaders: [{name: Token, value: canary3}]}}
    volumeMounts: [{name: data, mountPath: /data, readOnly: true}, {name: tmp, mountPath: /tmp}]
  volumes:
  - {name: data, hostPath: {path: /srv}}
  - {name: tmp}
"#;

/// What a command prints, with words instead of what differs between runs.
fn shown(real: &Real, args: &[&str]) -> String {
    let text = transcript(&mut real.podmux(args), b"").replace(&*real.dir.path().to_string_lossy(), "DIR");
    let word = |word: &str| {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match word {
            _ if word.len() == 16 && digits(word) => "SEQ".to_owned(),
            _ if word.starts_with("20") && word.ends_with('Z') && word.contains('T') => "TIME".to_owned(),
            _ if word.trim_start_matches('(').strip_suffix('s').is_some_and(digits) => "AGE".to_owned(),
            _ => word.to_owned(),
        }
    };
    // The widths of columns depend on the directory.
    let line = |line: &str| {
        let indentation = line.len() - line.trim_start().len();
        let mut line = line.split(' ').map(word).collect::<Vec<_>>().join(" ");
        while let Some(at) = line[indentation..].find("    ") {
            line.remove(indentation + at);
        }
        line + "\n"
    };
    text.lines().map(line).collect()
}

/// An agent that has read its directory.
fn start() -> Real {
    let real = Real::start();
    prints(&real, &["describe", "source", "file"], "State:   synced\n");
    real
}

#[allow(clippy::needless_pass_by_value, reason = "so that the expectation can stand in the call")]
fn check(real: &Real, args: &[&str], expected: Expect) {
    expected.assert_eq(&shown(real, args));
}

fn write(real: &Real, name: &str, text: &str) {
    fs::write(real.dir.path().join("new"), text).unwrap();
    fs::rename(real.dir.path().join("new"), real.dir.path().join("m").join(name)).unwrap();
}

/// Waits until a command prints this.
fn prints(real: &Real, args: &[&str], wanted: &str) -> String {
    wait_for(|| Some(shown(real, args)).filter(|text| text.contains(wanted)))
}

#[test]
fn a_pod_is_described_with_its_line_its_defaults_and_without_secrets() {
    let real = start();
    write(&real, "two.yaml", TWO);
    prints(&real, &["get", "pods"], "web-node1");
    let all = ["describe", "pod", "web-node1"];
    check(
        &real,
        &all,
        expect![[r#"
        Name:   web-node1
        Namespace:   default
        Source:   file
        Origin:   DIR/m/two.yaml:7
        Published:   TIME AGE ago)
        UID:   72346c40-a5af-511e-b900-0b2e84f45d35
        Version:   SEQ
        Labels:   app=web
                        tier=front
        Node:   node1
        Restart policy: Always
        Status:   Wanted
        Message:   the agent delivers this pod to its sinks; it runs no pods itself
        Ready:   0/1
        Init containers:
          init:
            Image:   busybox
            Command:   ["sh","-c","true"]
        Containers:
          web:
            Image:   nginx:1.29
            Command:   ["nginx","-g","daemon off;\u001b[31m"]
            Args:   ["\u{9b}31m","\u{7f}"]
            Ports:   http 8080/TCP (host 8080)
            Env:   PASSWORD, NODE (spec.nodeName)
            Mounts:   /data from data (read-only), /tmp from tmp
            Limits:   cpu=1, memory=1Gi
            Requests:   cpu=500m, memory=1Gi
            Liveness:   GET http://:http/live, every 10s, timeout 1s, fails after 3
        Volumes:   data: hostPath /srv
                        tmp: emptyDir
        Conditions:   <none>
        Defaults:
          FIELD   VALUE
          spec.containers[0].env[1].valueFrom.fieldRef.apiVersion   v1
          spec.containers[0].imagePullPolicy   IfNotPresent
          spec.containers[0].livenessProbe.failureThreshold   3
          spec.containers[0].livenessProbe.httpGet.scheme   HTTP
          spec.containers[0].livenessProbe.periodSeconds   10
          spec.containers[0].livenessProbe.successThreshold   1
          spec.containers[0].livenessProbe.timeoutSeconds   1
          spec.containers[0].ports[0].hostPort   8080
          spec.containers[0].ports[0].protocol   TCP
          spec.containers[0].resources.requests.memory   1Gi
          spec.containers[0].terminationMessagePath   /dev/termination-log
          spec.containers[0].terminationMessagePolicy   File
          spec.dnsPolicy   ClusterFirst
          spec.enableServiceLinks   true
          spec.initContainers[0].imagePullPolicy   Always
          spec.initContainers[0].terminationMessagePath   /dev/termination-log
          spec.initContainers[0].terminationMessagePolicy   File
          spec.restartPolicy   Always
          spec.schedulerName   default-scheduler
          spec.volumes[0].hostPath.type   ""
        Problems:   <none>
        Updates:
          SEQ   AGE   OP   SOURCE   PODS
          SEQ   AGE   ADD   file   default/first-node1,default/web-node1
        Events:   <none>
        exit 0
    "#]],
    );
    let raw = real.podmux(&all).output().unwrap().stdout;
    let raw = String::from_utf8(raw).unwrap();
    assert!(!raw.contains("canary"), "{raw}");
    assert!(raw.chars().all(|character| character == '\n' || !character.is_control()), "{raw:?}");

    // An edit that moves a pod is shown, and is no update.
    let before = shown(&real, &all);
    write(&real, "two.yaml", &format!("# Three more\n# lines of a\n# comment.\n{TWO}"));
    let after = prints(&real, &all, "DIR/m/two.yaml:10\n");
    assert_eq!(after, before.replace("two.yaml:7\n", "two.yaml:10\n"));
    real.ends();
}

#[test]
fn the_beginning_of_a_name_is_enough_and_a_name_that_no_pod_has_is_explained() {
    let real = start();
    write(&real, "two.yaml", TWO);
    prints(&real, &["get", "pods"], "web-node1");
    assert!(shown(&real, &["describe", "pod/fir"]).starts_with("Name:   first-node1\n"));
    for name in ["webb", "weber"] {
        transcript(&mut real.podmux(&["apply", "-f", "-", "-n", "infra"]), pod(name, "i").as_bytes());
    }
    check(
        &real,
        &["describe", "pod", "web", "-n", "infra"],
        expect![[r#"
        ! Error from server (NotFound): pods "web" not found in namespace "infra": the names of 2 pods begin so: webb, weber
        exit 1
    "#]],
    );
    check(
        &real,
        &["describe", "pod", "first", "-n", "infra"],
        expect![[r#"
        ! Error from server (NotFound): pods "first" not found in namespace "infra", but there is default/first-node1: give -n default
        exit 1
    "#]],
    );
    check(
        &real,
        &["describe", "pod", "none"],
        expect![[r#"
        ! Error from server (NotFound): pods "none" not found in namespace "default": podmux get pods -A lists all pods
        exit 1
    "#]],
    );
    check(
        &real,
        &["describe", "pod"],
        expect![[r#"
        ! podmux: no pod is named: give pod NAME; podmux get pods -A lists them
        exit 2
    "#]],
    );
    check(
        &real,
        &["describe", "node", "node1"],
        expect![[r#"
        ! podmux: cannot describe "node": give pod NAME or source NAME
        exit 2
    "#]],
    );
    check(
        &real,
        &["describe", "source", "url"],
        expect![[r#"
        ! Error from server (NotFound): sources "url" not found: podmux get sources lists those of this agent
        exit 1
    "#]],
    );
    check(
        &real,
        &["describe", "source", "none"],
        expect![[r#"
        ! podmux: unknown source "none": use file, http, url or api
        exit 2
    "#]],
    );
    real.ends();
}

#[test]
fn conflicts_and_rejected_manifests_are_described_on_both_sides() {
    let real = start();
    let posted = transcript(&mut real.podmux(&["apply", "-f", "-"]), pod("web-node1", "i").as_bytes());
    assert!(posted.contains("created"), "{posted}");
    assert!(shown(&real, &["describe", "pod", "web"]).contains("Origin:   posted over the API\n"));
    write(&real, "web.yaml", &pod("web", "i:2"));
    prints(&real, &["describe", "pod", "web"], "Conflict");
    write(&real, "web.yaml", &pod("web", "[]").replace("containers:", "containers: x\n  foo:"));
    write(&real, "web.yaml.\u{1b}[31m", "kind: Pod");
    prints(&real, &["describe", "pod", "web"], "FailedValidation");
    // That page may lack the problems: its parts are read one after the other.
    let file = shown(&real, &["describe", "pod", "web"]);
    expect![[r#"
        Name:   web-node1
        Namespace:   default
        Source:   file
        Origin:   DIR/m/web.yaml:1
        Published:   TIME AGE ago)
        UID:   72346c40-a5af-511e-b900-0b2e84f45d35
        Version:   SEQ
        Labels:   <none>
        Node:   node1
        Restart policy: Always
        Status:   Wanted
        Message:   the agent delivers this pod to its sinks; it runs no pods itself
        Ready:   0/1
        Containers:
          c:
            Image:   i:2
        Volumes:   <none>
        Conditions:   <none>
        Defaults:
          FIELD   VALUE
          spec.containers[0].imagePullPolicy   IfNotPresent
          spec.containers[0].terminationMessagePath   /dev/termination-log
          spec.containers[0].terminationMessagePolicy   File
          spec.dnsPolicy   ClusterFirst
          spec.enableServiceLinks   true
          spec.restartPolicy   Always
          spec.schedulerName   default-scheduler
          spec.terminationGracePeriodSeconds   30
        Problems:
          REASON   ORIGIN   WINNER   MESSAGE
          Invalid   file DIR/m/web.yaml:6:15   <none>   spec.containers: must be a list, but is a string
          Invalid   file DIR/m/web.yaml:7:3   <none>   warning: spec.foo: unknown field, ignored
          Conflict   http default/web-node1   file (DIR/m/web.yaml)   a pod of source file has the same name; rename one of them
        Updates:
          SEQ   AGE   OP   SOURCE   PODS
          SEQ   AGE   ADD   http   default/web-node1
          SEQ   AGE   REMOVE   http   default/web-node1
          SEQ   AGE   ADD   file   default/web-node1
        Events:
          AGE   COUNT   TYPE   REASON   MESSAGE
          AGE   1   Warning   Conflict   rejected default/web-node1 of source http: a pod of source file has the same name; rename one of them
          AGE   1   Warning   FailedValidation   rejected DIR/m/web.yaml of source file: 6:15: spec.containers: must be a list, but is a string
        exit 0
    "#]].assert_eq(&file);
    // The count is of the source, the problems are those of the merged view.
    let is_settled =
        |text: &String| text.contains("2 rejected\n") && text.contains(r"web.yaml.\u{1b}[31m:1:1   ");
    let settled = wait_for(|| Some(shown(&real, &["describe", "source", "file"])).filter(is_settled));
    expect![[r#"
        Name:   file
        Kind:   manifests in a directory, or one manifest
        Reads:   DIR/m
        State:   synced
        Detail:   watching; 2 manifests, 2 rejected
        Last success:   TIME AGE ago)
        Pods:
          NAMESPACE   NAME   READY   STATUS   RESTARTS   AGE
          default   web-node1   0/1   Wanted   0   AGE
        Problems:
          REASON   ORIGIN   WINNER   MESSAGE
          Invalid   DIR/m/web.yaml:6:15   <none>   spec.containers: must be a list, but is a string
          Invalid   DIR/m/web.yaml:7:3   <none>   warning: spec.foo: unknown field, ignored
          Invalid   DIR/m/web.yaml.\u{1b}[31m:1:1   <none>   apiVersion: Required value: apiVersion: v1 is expected
        Updates:
          SEQ   AGE   OP   SOURCE   PODS
          SEQ   AGE   SET   file   <none>
          SEQ   AGE   ADD   file   default/web-node1
        exit 0
    "#]].assert_eq(&settled);
    check(
        &real,
        &["describe", "source", "http"],
        expect![[r#"
        Name:   http
        Kind:   pods that clients posted
        Reads:   posted pods, stored
        State:   synced
        Last success:   TIME AGE ago)
        Pods:   <none>
        Problems:
          REASON   ORIGIN   WINNER   MESSAGE
          Conflict   default/web-node1   file (DIR/m/web.yaml)   a pod of source file has the same name; rename one of them
        Updates:
          SEQ   AGE   OP   SOURCE   PODS
          SEQ   AGE   SET   http   <none>
          SEQ   AGE   ADD   http   default/web-node1
          SEQ   AGE   REMOVE   http   default/web-node1
        exit 0
    "#]],
    );
    let raw = real.podmux(&["describe", "source", "file"]).output().unwrap().stdout;
    assert!(!raw.contains(&0x1b));
    // The events of the pod of the file are not those of the next pod of its name.
    fs::remove_file(real.dir.path().join("m").join("web.yaml")).unwrap();
    // In between, its parts are of both: they are read one after the other.
    let is_alone = |text: &String| {
        text.contains("Origin:   posted over the API\n") && text.ends_with("Events:   <none>\nexit 0\n")
    };
    wait_for(|| Some(shown(&real, &["describe", "pod", "web"])).filter(is_alone));
    real.ends();
}

#[test]
fn pods_and_updates_of_some_sources_are_shown() {
    let real = start();
    write(&real, "two.yaml", TWO);
    transcript(&mut real.podmux(&["apply", "-f", "-"]), pod("posted", "i").as_bytes());
    let all = prints(&real, &["get", "pods", "-o", "name"], "web-node1");
    let of = |source: &str| shown(&real, &["get", "pods", "--source", source, "-o", "name"]);
    assert_eq!(of("file,http"), all);
    assert_eq!(of("file"), "pod/first-node1\npod/web-node1\nexit 0\n");
    assert_eq!(of("http"), "pod/posted\nexit 0\n");
    let both =
        ["get", "pods", "--source", "file", "--field-selector", "metadata.name=web-node1", "-o", "name"];
    assert_eq!(shown(&real, &both), "pod/web-node1\nexit 0\n");
    check(
        &real,
        &["get", "pods", "--source", "url"],
        expect![[r#"
            ! No resources found in default namespace. podmux get pods -A shows all namespaces.
            exit 0
        "#]],
    );
    check(
        &real,
        &["get", "pods", "--source", "file,disk"],
        expect![[r#"
        ! podmux: invalid value 'disk' for '--source <NAME>'; [possible values: file, http, url, api]; see podmux get --help
        exit 2
    "#]],
    );
    check(
        &real,
        &["get", "events", "--source", "file"],
        expect![[r#"
        ! podmux: --source is for pods and updates only
        exit 2
    "#]],
    );

    // The first update of http comes after that of file.
    let mut updates: Command = real.podmux(&["get", "updates", "--source", "http", "-o", "jsonl"]);
    let updates = Process::start(&mut updates);
    let first = updates.stdout.wait_for("an update", |lines| lines.first().cloned());
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&first["source"], &first["op"]), (&"http".into(), &"SET".into()));
    real.ends();
}

#[test]
fn events_are_in_the_order_of_their_times_and_a_reason_is_shown_once() {
    let agent = Agent::start(|asked, _| {
        let event =
            |reason: &str, time: &str| json!({"type": "Normal", "reason": reason, "lastTimestamp": time});
        let state = json!({"waiting": {"reason": "ExecFailed", "message": "ExecFailed: run ADD failed"}});
        Reply::json(
            200,
            &if asked.line.contains("/events") {
                // By name, as the agent lists them.
                json!({"kind": "EventList", "items": [event("Newest", "2026-11-21T09:00:09Z"), event("Oldest", "2026-11-21T08:00:00Z")]})
            } else if asked.line.contains("/api/v1/") {
                json!({
                    "metadata": {"name": "web", "namespace": "default"},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                    "status": {"containerStatuses": [{"name": "c", "state": state}]},
                })
            } else {
                json!({"source": "http"})
            },
        )
    });
    let text = transcript(&mut agent.podmux(&["describe", "pod", "web"]), b"");
    assert!(text.contains("State:          waiting, ExecFailed: run ADD failed\n"), "{text}");
    assert!(text.find("Oldest") < text.find("Newest") && text.contains("Oldest"), "{text}");
    let namespaced = transcript(&mut agent.podmux(&["describe", "source", "file", "-n", "default"]), b"");
    assert_eq!(namespaced, "! podmux: a source has no namespace: omit --namespace\nexit 2\n");
}

#[test]
fn the_longest_name_is_described_in_colours_on_a_terminal() {
    let real = start();
    let label = "n".repeat(63);
    let name = [&*label, &label, &label, &label[..61]].join(".");
    transcript(&mut real.podmux(&["apply", "-f", "-"]), pod(&name, "i").as_bytes());
    let mut command = real.podmux(&["describe", "pod", &name[..10]]);
    command.env("TERM", "xterm");
    let text = on_a_terminal(command).replace("\r\n", "\n");
    assert!(text.starts_with(&format!("Name:           {name}\nNamespace:      default\n")), "{text}");
    assert!(
        text.contains("\u{1b}[1mContainers:\u{1b}[0m\n  \u{1b}[1mc:\u{1b}[0m\n    Image:          i\n"),
        "{text:?}"
    );
    real.ends();
}
