//! `podmux apply`: the manifests it finds, its requests, and what it prints of the responses.
#![allow(clippy::too_many_lines, reason = "expected output is long")]

use std::{fs, path::Path, process::Command};

use expect_test::{Expect, expect};
use podmux::manifest::MAX_MANIFEST;
use serde_json::json;

use crate::{
    cli::transcript,
    support::{
        agent::{Agent, Asked, Reply},
        files::pod,
        process::{on_a_terminal, podmux},
    },
};

/// Compares the output and the requests.
fn check(agent: &Agent, command: &mut Command, stdin: &str, expected: &Expect) {
    let before = agent.lines().len();
    let output = transcript(command, stdin.as_bytes());
    expected.assert_eq(&(output + "--\n" + &agent.lines()[before..]));
}

/// An agent that stores every manifest without `bad` or `held` in it.
fn stores(asked: &Asked, before: usize) -> Reply {
    let text = String::from_utf8_lossy(&asked.body).into_owned();
    if text.contains("bad") {
        return Reply::golden("422-list");
    }
    if text.contains("held") {
        return Reply::golden("403-apply");
    }
    let results = ["created", "configured", "unchanged"];
    let name = text.lines().find_map(|line| line.trim().strip_prefix("name: ")).unwrap_or("x").to_owned();
    let item = json!({ "result": results[before % 3], "pod": { "kind": "Pod", "apiVersion": "v1", "metadata": { "name": name } } });
    let mut items = vec![item];
    if text.contains("two") {
        items.push(json!({ "result": "created", "pod": { "metadata": { "name": "second" } } }));
    }
    Reply::json(
        201,
        &json!({ "kind": "PodWriteList", "apiVersion": "podmux/v1", "metadata": {}, "items": items }),
    )
}

fn write(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn what_is_stored_is_printed_whatever_ends_the_command() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "web.yaml", &pod("web", "i"));
    write(dir.path(), "other.yaml", &pod("other", "i"));
    let agent = Agent::start(|asked, before| match before {
        0 => stores(asked, before),
        _ => Reply::text(200, "no JSON"),
    });
    let mut command = agent.podmux(&["apply", "-f", "web.yaml", "-f", "other.yaml", "-o", "json"]);
    command.current_dir(&dir);
    check(
        &agent,
        &mut command,
        "",
        &expect![[r#"
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "web"
            }
        }
        ! podmux: the response to /pods?ignorePreconditions=true is not JSON (is this a podmux agent?): expected ident at line 1 column 2
        exit 1
        --
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
    "#]],
    );
}

#[test]
fn each_pod_is_printed_like_kubectl_does() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "web.yaml", &pod("web", "i"));
    let agent = Agent::start(stores);
    let apply = |args: &[&str]| {
        let mut command = agent.podmux(&[&["apply", "-f", "web.yaml"], args].concat());
        command.current_dir(&dir);
        command
    };
    check(
        &agent,
        &mut apply(&[]),
        "",
        &expect![[r#"
        pod/web created
        exit 0
        --
        POST /pods?ignorePreconditions=true
    "#]],
    );
    check(
        &agent,
        &mut apply(&[]),
        "",
        &expect![[r#"
        pod/web configured
        exit 0
        --
        POST /pods?ignorePreconditions=true
    "#]],
    );
    check(
        &agent,
        &mut apply(&["--dry-run=server", "--validate=strict"]),
        "",
        &expect![[r#"
        pod/web unchanged (server dry run)
        exit 0
        --
        POST /pods?ignorePreconditions=true&dryRun=All&fieldValidation=Strict
    "#]],
    );
    check(
        &agent,
        &mut apply(&["-o", "name", "--validate=ignore"]),
        "",
        &expect![[r#"
        pod/web
        exit 0
        --
        POST /pods?ignorePreconditions=true&fieldValidation=Ignore
    "#]],
    );
    check(
        &agent,
        &mut apply(&["-o", "json"]),
        "",
        &expect![[r#"
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "web"
            }
        }
        exit 0
        --
        POST /pods?ignorePreconditions=true
    "#]],
    );
    check(
        &agent,
        &mut apply(&["-o", "yaml", "-f", "web.yaml"]),
        "",
        &expect![[r#"
        apiVersion: v1
        items:
        - apiVersion: v1
          kind: Pod
          metadata:
            name: web
        - apiVersion: v1
          kind: Pod
          metadata:
            name: web
        kind: List
        metadata:
          resourceVersion: ""
        exit 0
        --
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
    "#]],
    );
    check(
        &agent,
        &mut apply(&["-o", "jsonl"]),
        "",
        &expect![[r#"
        {"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"}}
        exit 0
        --
        POST /pods?ignorePreconditions=true
    "#]],
    );
}

#[test]
fn manifests_are_sent_unchanged_with_their_media_type() {
    let dir = tempfile::tempdir().unwrap();
    let texts: [(&str, &str, &[u8]); 6] = [
        ("a.yaml", "application/yaml", b"# a comment\nname: a\r\n"),
        ("b.json", "application/json", b"\n { \"a\" : 1e3 }\n"),
        // It is not JSON, despite its name and braces.
        ("c.json", "application/yaml", b"{a: 1, }"),
        ("d.txt", "application/yaml", b"\xff\x00"),
        ("e", "application/yaml", b""),
        // What a server sets stays in it: the agent ignores it.
        ("f.yaml", "application/yaml", b"kind: Pod\nmetadata: {name: f, uid: u}\nstatus: {phase: Running}\n"),
    ];
    let agent = Agent::start(stores);
    for (name, _, text) in &texts {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let files = texts.iter().flat_map(|(name, ..)| ["-f", *name]);
    let args: Vec<&str> = ["apply"].into_iter().chain(files).collect();
    let output = agent.podmux(&args).current_dir(&dir).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let asked = agent.asked();
    assert_eq!(asked.len(), texts.len());
    for (asked, (name, media_type, text)) in asked.iter().zip(texts) {
        assert_eq!(asked.line, "POST /pods?ignorePreconditions=true", "{name}");
        assert!(
            asked.headers.contains(&format!("content-type: {media_type}\n")),
            "{name}: {}",
            asked.headers
        );
        assert_eq!(asked.body, text, "{name}");
    }
}

#[test]
fn a_rejected_manifest_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "m/1-web.yaml", &pod("web", "i"));
    write(dir.path(), "m/2-bad.yaml", "bad");
    write(dir.path(), "m/3-held.yaml", "held");
    write(dir.path(), "m/4-two.yaml", &pod("two", "i"));
    let agent = Agent::start(stores);
    check(
        &agent,
        agent.podmux(&["apply", "-f", "m"]).current_dir(&dir),
        "",
        &expect![[r#"
            pod/web created
            pod/two created
            pod/second created
            ! Error from server (Invalid): error when applying "m/2-bad.yaml": the body is invalid
            ! * items[1].metadata.labels[a]: must be a string, but is a number: put it in quotes (line 6, column 54)
            ! * items[2].metadata.name: Invalid value: "Not_A_Name": a lowercase RFC 1123 subdomain consists of lower-case letters, digits, '-' and '.', and each of its parts begins and ends with a letter or digit (line 7, column 48)
            ! * items[2].spec.containers[0].image: Required value (line 7, column 81)
            ! * items[2].spec.containers[1].name: Duplicate value: "c" (line 7, column 99)
            ! * items[3].metadata.name: Required value: a pod needs a name (line 8, column 3)
            ! * items[4].kind: Deployment apps/v1 is not a Pod: podmux runs pods only; its pod is at spec.template (podmux validate --templates FILE checks it) (line 9, column 31)
            ! * items[5].metadata.name: Duplicate value: default/good is also the name of the pod at 5:3; rename one of them (line 10, column 3)
            ! Error from server (Forbidden): error when applying "m/3-held.yaml": pods "web" is forbidden: it is held by source file (from /etc/podmux/web.yaml): change it there; pods "db" is forbidden: it is held by source file (from /etc/podmux/db.yaml): change it there
            exit 1
            --
            POST /pods?ignorePreconditions=true
            POST /pods?ignorePreconditions=true
            POST /pods?ignorePreconditions=true
            POST /pods?ignorePreconditions=true
        "#]],
    );
}

#[test]
fn directories_are_read_like_kubectl_does() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b.yaml", "a.yml", "c.json", "d.txt", "e.yaml~", ".f.yaml", "sub/g.yaml", "sub/deep/h.yaml"]
    {
        write(dir.path(), &format!("m/{name}"), &pod(&name.replace(['/', '.', '~'], "-"), "i"));
    }
    std::os::unix::fs::symlink("../m/d.txt", dir.path().join("m/link.yaml")).unwrap();
    std::os::unix::fs::symlink("..", dir.path().join("m/sub/circle.yaml")).unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    let agent = Agent::start(stores);
    let apply = |args: &[&str]| {
        let mut command = agent.podmux(&[&["apply", "-o", "name"], args].concat());
        command.current_dir(&dir);
        command
    };
    check(
        &agent,
        &mut apply(&["-f", "m"]),
        "",
        &expect![[r#"
        pod/-f-yaml
        pod/a-yml
        pod/b-yaml
        pod/c-json
        pod/d-txt
        exit 0
        --
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
    "#]],
    );
    check(
        &agent,
        &mut apply(&["-R", "-f", "m"]),
        "",
        &expect![[r#"
        pod/-f-yaml
        pod/a-yml
        pod/b-yaml
        pod/c-json
        pod/d-txt
        pod/sub-deep-h-yaml
        pod/sub-g-yaml
        exit 0
        --
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
        POST /pods?ignorePreconditions=true
    "#]],
    );
    // A file argument is read whatever its extension is.
    check(
        &agent,
        &mut apply(&["-f", "m/d.txt"]),
        "",
        &expect![[r#"
        pod/d-txt
        exit 0
        --
        POST /pods?ignorePreconditions=true
    "#]],
    );
    check(
        &agent,
        &mut apply(&["-f", "-"]),
        &pod("piped", "i"),
        &expect![[r#"
        pod/piped
        exit 0
        --
        POST /pods?ignorePreconditions=true
    "#]],
    );
    check(
        &agent,
        &mut apply(&["-f", "-", "-f", "m/d.txt", "-f", "-"]),
        "",
        &expect![[r#"
            ! podmux: - is given twice, but standard input can be read only once
            exit 2
            --
        "#]],
    );
    check(
        &agent,
        &mut apply(&["-f", "m", "-f", "missing"]),
        "",
        &expect![[r#"
            ! podmux: missing: No such file or directory; is the path right?
            exit 2
            --
        "#]],
    );
    check(
        &agent,
        &mut apply(&["-f", "empty"]),
        "",
        &expect![[r#"
            ! podmux: empty: the directory has no *.json, *.yaml or *.yml files
            exit 2
            --
        "#]],
    );
    check(
        &agent,
        &mut apply(&["-f", "https://example.com/web.yaml"]),
        "",
        &expect![[r#"
            ! podmux: https://example.com/web.yaml: cannot fetch a URL: try curl -L https://example.com/web.yaml | podmux … -f -
            exit 2
            --
        "#]],
    );
    check(
        &agent,
        &mut apply(&[]),
        "",
        &expect![[r#"
            ! podmux: no manifest: give -f PATH, or -f - for standard input
            exit 2
            --
        "#]],
    );
}

#[test]
fn the_namespace_applies_to_pods_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let staging = pod("web", "i").replace("name: web", "name: web\n  namespace: staging");
    write(dir.path(), "web.yaml", &staging);
    write(dir.path(), "broken.yaml", "a: [");
    let agent = Agent::start(stores);
    let apply = |namespace| {
        let mut command = agent.podmux(&["apply", "-f", "web.yaml", "-f", "broken.yaml", "-n", namespace]);
        command.current_dir(&dir);
        command
    };
    check(
        &agent,
        &mut apply("staging"),
        "",
        &expect![[r#"
        pod/web created
        pod/x configured
        exit 0
        --
        POST /pods?ignorePreconditions=true&namespace=staging
        POST /pods?ignorePreconditions=true&namespace=staging
    "#]],
    );
    // A variable of a script that is not set.
    check(
        &agent,
        &mut apply(""),
        "",
        &expect![[r#"
            pod/web unchanged
            pod/x created
            exit 0
            --
            POST /pods?ignorePreconditions=true
            POST /pods?ignorePreconditions=true
        "#]],
    );
    check(
        &agent,
        &mut apply("other"),
        "",
        &expect![[r#"
            pod/x configured
            ! podmux: web.yaml: a pod in it has the namespace "staging", not "other": omit -n, or change the manifest
            exit 1
            --
            POST /pods?ignorePreconditions=true&namespace=other
        "#]],
    );
}

#[test]
fn a_manifest_that_is_too_large_is_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "m/large.yaml", &" ".repeat(MAX_MANIFEST + 1));
    write(dir.path(), "m/web.yaml", &pod("web", "i"));
    let agent = Agent::start(stores);
    check(
        &agent,
        agent.podmux(&["apply", "-f", "m"]).current_dir(&dir),
        "",
        &expect![[r#"
            pod/web created
            ! podmux: m/large.yaml: too large: a manifest has at most 10485760 bytes; split it
            exit 1
            --
            POST /pods?ignorePreconditions=true
        "#]],
    );
    write(dir.path(), "m/large.yaml", &" ".repeat(MAX_MANIFEST));
    let output = agent.podmux(&["apply", "-f", "m/large.yaml"]).current_dir(&dir).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(agent.asked().last().unwrap().body.len(), MAX_MANIFEST);
}

#[test]
fn progress_is_shown_on_a_terminal_without_the_results() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        write(dir.path(), &format!("m/{name}.yaml"), &pod(name, "i"));
    }
    let agent = Agent::start(stores);
    let seen = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_podmux")]).env_clear();
        command.current_dir(&dir).env("PODMUX_SERVER", agent.server());
        on_a_terminal(command)
    };
    let clear = "\r\u{1b}[K";
    let step = |done| format!("{clear}{done} of 3 manifests{clear}");
    assert_eq!(seen("exec \"$0\" apply -f m > /dev/null"), [step(0), step(1), step(2)].concat());
    assert_eq!(seen("exec \"$0\" apply -f m/a.yaml > /dev/null"), "");
    assert!(!seen("exec \"$0\" apply -f m").contains("of 3"));
}

#[test]
fn a_missing_agent_ends_the_command() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.yaml", &pod("a", "i"));
    let server = format!("unix:{}/none", dir.path().display());
    let mut apply = podmux(&["apply", "-f", "a.yaml", "-f", "a.yaml", "--server", &server]);
    let output = transcript(apply.current_dir(&dir), b"").replace(&dir.path().display().to_string(), "DIR");
    expect![[r#"
        ! podmux: no agent at unix:DIR/none: start "podmux run", or see systemctl status podmux
        exit 1
    "#]]
    .assert_eq(&output);
}
