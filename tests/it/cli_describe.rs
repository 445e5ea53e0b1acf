//! `podmux describe`, and `--source` of `podmux get`, against a real agent.
#![allow(clippy::too_many_lines, reason = "expected output is long")]

use std::{fs, process::Command};

use expect_test::{Expect, expect};
use serde_json::Value;

use crate::{
    cli::transcript,
    cli_agent::Real,
    support::{
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
            _ if word.starts_with("20") && word.ends_with('Z') && word.contains("T") => "TIME".to_owned(),
            _ if word.trim_start_matches('(').strip_suffix('s').is_some_and(digits) => "AGE".to_owned(),
            _ => word.to_owned(),
        }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ") + "\n";
    text.lines().map(line).collect()
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
    let real = Real::start();
    write(&real, "two.yaml", TWO);
    prints(&real, &["get", "pods"], "web-node1");
    let all = ["describe", "pod", "web-node1"];
    check(&real, &all, expect![[r#""#]]);
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
    let real = Real::start();
    write(&real, "two.yaml", TWO);
    prints(&real, &["get", "pods"], "web-node1");
    assert!(shown(&real, &["describe", "pod/fir"]).starts_with("Name:           first-node1\n"));
    for name in ["webb", "weber"] {
        transcript(&mut real.podmux(&["apply", "-f", "-", "-n", "infra"]), pod(name, "i").as_bytes());
    }
    check(&real, &["describe", "pod", "web", "-n", "infra"], expect![[r#""#]]);
    check(&real, &["describe", "pod", "first", "-n", "infra"], expect![[r#""#]]);
    check(&real, &["describe", "pod", "none"], expect![[r#""#]]);
    check(&real, &["describe", "pod"], expect![[r#""#]]);
    check(&real, &["describe", "node", "node1"], expect![[r#""#]]);
    check(&real, &["describe", "source", "url"], expect![[r#""#]]);
    check(&real, &["describe", "source", "none"], expect![[r#""#]]);
    real.ends();
}

#[test]
fn conflicts_and_rejected_manifests_are_described_on_both_sides() {
    let real = Real::start();
    let posted = transcript(&mut real.podmux(&["apply", "-f", "-"]), pod("web-node1", "i").as_bytes());
    assert!(posted.contains("created"), "{posted}");
    assert!(shown(&real, &["describe", "pod", "web"]).contains("Origin:         posted over the API\n"));
    write(&real, "web.yaml", &pod("web", "i:2"));
    prints(&real, &["describe", "pod", "web"], "Conflict");
    write(&real, "web.yaml", &pod("web", "[]").replace("containers:", "containers: x\n  foo:"));
    write(&real, "web.yaml.\u{1b}[31m", "kind: Pod");
    let file = prints(&real, &["describe", "pod", "web"], "Invalid");
    expect![[r#""#]].assert_eq(&file);
    prints(&real, &["describe", "source", "file"], "u{1b}");
    check(&real, &["describe", "source", "file"], expect![[r#""#]]);
    check(&real, &["describe", "source", "http"], expect![[r#""#]]);
    let raw = real.podmux(&["describe", "source", "file"]).output().unwrap().stdout;
    assert!(!raw.contains(&0x1b));
    real.ends();
}

#[test]
fn pods_and_updates_of_some_sources_are_shown() {
    let real = Real::start();
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
    check(&real, &["get", "pods", "--source", "url"], expect![[r#""#]]);
    check(&real, &["get", "pods", "--source", "file,disk"], expect![[r#""#]]);
    check(&real, &["get", "events", "--source", "file"], expect![[r#""#]]);

    // The first update of http comes after that of file.
    let mut updates: Command = real.podmux(&["get", "updates", "--source", "http", "-o", "jsonl"]);
    let updates = Process::start(&mut updates);
    let first = updates.stdout.wait_for("an update", |lines| lines.first().cloned());
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&first["source"], &first["op"]), (&"http".into(), &"SET".into()));
    real.ends();
}

#[test]
fn the_longest_name_is_described_in_colours_on_a_terminal() {
    let real = Real::start();
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
