//! `podmux delete`: whom it deletes, how gracefully, and how long it waits.
#![allow(clippy::too_many_lines, reason = "golden texts are as long as what a person sees")]

use std::{fmt::Write as _, fs, process::Command};

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::{
    cli::transcript,
    support::{
        agent::{Agent, Asked, Reply},
        process::podmux,
    },
};

/// What a person sees, and what the agent was asked.
fn check(agent: &Agent, command: &mut Command, stdin: &str, expected: &Expect) {
    let before = agent.lines().len();
    let told = transcript(command, stdin.as_bytes());
    expected.assert_eq(&(told + "--\n" + &agent.lines()[before..]));
}

fn ending(name: &str) -> Value {
    let metadata =
        json!({ "name": name, "uid": format!("{name}-1"), "deletionTimestamp": "2026-11-21T09:00:00Z" });
    json!({ "kind": "Pod", "apiVersion": "v1", "metadata": metadata })
}

/// An agent that deletes what it is told to, but for `missing` and `held`, and
/// has nothing left when it is looked at.
fn deletes(asked: &Asked, _: usize) -> Reply {
    let (method, path) = asked.line.split_once(' ').unwrap();
    let name = path.rsplit('/').next().unwrap().split('?').next().unwrap();
    match (method, name) {
        ("DELETE", "held") => {
            Reply::status(403, "Forbidden", "pods \"held\" is forbidden: it is held by source file")
        }
        ("DELETE", name) if name != "missing" => Reply::json(200, &ending(name)),
        _ => Reply::status(404, "NotFound", &format!("pods \"{name}\" not found")),
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
    check(
        &agent,
        &mut delete(&["pods", "missing", "held", "web", "-n", "a b"]),
        "",
        &expect![[r#"
        pod "web" deleted
        ! Error from server (NotFound): pods "missing" not found
        ! Error from server (Forbidden): pods "held" is forbidden: it is held by source file
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

#[test]
fn the_grace_is_kubectls() {
    let agent = Agent::start(deletes);
    let mut told = String::new();
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
        let said = transcript(&mut agent.podmux(&all), b"");
        writeln!(told, "$ {args}\n{said}{}", agent.lines()[before..].trim_end()).unwrap();
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
        ! podmux: --force erases at once: --grace-period=5 does not go with it
        exit 2

        $ --now --grace-period=5
        ! podmux: the argument '--now' cannot be used with '--grace-period <SECONDS>'; see podmux delete --help
        exit 2

    "#]].assert_eq(&told);
}

#[test]
fn it_waits_until_the_pod_is_gone() {
    let agent = Agent::start(|asked, before| match before {
        0..4 => Reply::json(200, &ending("web")),
        _ => Reply::status(404, "NotFound", &format!("{} not found", asked.line)),
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
    // Another pod of its name is not it, nor is one that is not being deleted.
    for (uid, deletion) in [("web-2", Some("2026-11-21T09:00:00Z")), ("web-1", None)] {
        let agent = Agent::start(move |_, before| {
            let mut pod = ending("web");
            if before > 0 {
                pod["metadata"]["uid"] = uid.into();
                pod["metadata"]["deletionTimestamp"] = deletion.into();
            }
            Reply::json(200, &pod)
        });
        let told = transcript(&mut agent.podmux(&["delete", "pod", "web"]), b"");
        assert_eq!((&*told, agent.asked().len()), ("pod \"web\" deleted\nexit 0\n", 2));
    }
}

#[test]
fn it_waits_no_longer_than_it_is_told() {
    let agent = Agent::start(|_, _| Reply::json(200, &ending("web")));
    let told = transcript(&mut agent.podmux(&["delete", "pod", "web", "--timeout=120ms"]), b"");
    expect![[r#"
        pod "web" deleted
        ! error: timed out waiting for the condition on pods/web
        exit 1
    "#]]
    .assert_eq(&told);
    assert!(agent.asked().len() > 1);
    let agent = Agent::start(|_, before| match before {
        0 => Reply::json(200, &ending("web")),
        _ => Reply::status(503, "ServiceUnavailable", "the agent is stopping"),
    });
    check(
        &agent,
        &mut agent.podmux(&["delete", "pod", "web"]),
        "",
        &expect![[r#"
        pod "web" deleted
        ! Error from server (ServiceUnavailable): the agent is stopping
        exit 1
        --
        DELETE /api/v1/namespaces/default/pods/web
        GET /api/v1/namespaces/default/pods/web
    "#]],
    );
}

#[test]
fn manifests_say_what_is_to_be_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let several = "\
# Nothing but the names counts.
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
        ! podmux: several.yaml: one is in the namespace "staging", not in "other": leave out -n
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
        let told = transcript(&mut delete(&["-f", "-"]), text.as_bytes());
        assert!(told.starts_with("! podmux: STDIN: ") && told.ends_with("\nexit 1\n"), "{text:?}: {told}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut told = String::new();
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
        writeln!(told, "$ podmux delete {args}\n{}", transcript(&mut podmux(&all), b"").trim_end()).unwrap();
    }
    expect![[r#"
        $ podmux delete 
        ! podmux: the following required arguments were not provided: <pod NAME>...; see podmux delete --help
        exit 2
        $ podmux delete pod
        ! podmux: which pod? give pod NAME…
        exit 2
        $ podmux delete web
        ! podmux: "web" cannot be deleted; pod NAME… or pod/NAME… can
        exit 2
        $ podmux delete sources file
        ! podmux: "sources" cannot be deleted; pod NAME… or pod/NAME… can
        exit 2
        $ podmux delete pod/
        ! podmux: "" is no name; give pod NAME… or pod/NAME…
        exit 2
        $ podmux delete pod/web db
        ! podmux: "db" cannot be deleted; pod NAME… or pod/NAME… can
        exit 2
        $ podmux delete pod a/b
        ! podmux: "a/b" is no name; give pod NAME… or pod/NAME…
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
    "#]].assert_eq(&told);
}

#[test]
fn help_says_what_there_is() {
    expect![[r#"
        Delete pods of a running agent

        Usage: podmux delete [OPTIONS] [pod NAME]...

        Arguments:
          [pod NAME]...  pod NAME…, or pod/NAME…

        Options:
          -f, --filename <PATH>         A manifest, a directory of *.json, *.yaml and *.yml, or - for
                                        standard input; may be repeated
          -R, --recursive               Directories with all that is below them
          -n, --namespace <NS>          The namespace; of a manifest's pod if it says none
              --grace-period <SECONDS>  How long the pod may take to end, in seconds, 1 at least; its own
                                        grace if absent
              --now                     A grace of one second
              --force                   Erase at once, without waiting for anybody to end the pod
              --wait[=<BOOL>]           Wait until the pod is gone [default: true] [possible values: true,
                                        false]
              --timeout <DURATION>      How long to wait, like 30s or 2m; 0 is as long as it takes [default:
                                        0]
              --ignore-not-found        A pod that is not there is no error
              --dry-run <HOW>           Say what would be done: server asks the agent, which changes nothing
                                        [default: none] [possible values: none, server]
          -o, --output <FORM>           The form of the output: name for pod/NAME alone [possible values:
                                        name]
          -h, --help                    Print help (see more with '--help')

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
    .assert_eq(&transcript(&mut podmux(&["delete", "-h"]), b""));
    let told = transcript(&mut podmux(&["delete", "--help"]), b"");
    assert!(told.contains("\nExamples:\n  podmux delete pod web\n") && told.ends_with("exit 0\n"), "{told}");
}
