//! `podmux get`, `apply` and `delete` against a real agent, over its Unix socket.
#![allow(clippy::too_many_lines, reason = "expected output is long")]

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use expect_test::{Expect, expect};
use podmux::manifest::yaml::to_json;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cli::transcript,
    support::{
        files::pod,
        process::{Process, podmux, podmux_run, wait_for},
        web::Authority,
    },
};

/// A real agent with a directory of manifests.
pub struct Real {
    pub dir: TempDir,
    agent: Process,
}

impl Real {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("m")).unwrap();
        let agent = Self::run(dir.path());
        Self { dir, agent }
    }

    fn run(dir: &Path) -> Process {
        let text = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let (socket, state) = (format!("unix:{}", text("s")), text("state"));
        let flags = ["--listen", &socket, "--state-dir", &state, "--file-check-frequency", "1s"];
        let agent = Process::start(&mut podmux_run(&dir.join("m"), &flags));
        agent.logs("listening");
        agent
    }

    pub fn podmux(&self, args: &[&str]) -> Command {
        let mut command = podmux(args);
        command.env("PODMUX_SERVER", format!("unix:{}", self.dir.path().join("s").display()));
        command.current_dir(&self.dir);
        command
    }

    /// The output without what differs between runs: ages, the test's directory, and the widths
    /// of columns.
    fn output(&self, args: &[&str], stdin: &str) -> String {
        let output = transcript(&mut self.podmux(args), stdin.as_bytes());
        let output = output.replace(&*self.dir.path().to_string_lossy(), "DIR");
        let is_age = |word: &str| word.ends_with('s') && word[..word.len() - 1].parse::<u64>().is_ok();
        let shown = |line: &str| {
            let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
            cells.map(|cell| if is_age(cell) { "AGO" } else { cell }).collect::<Vec<_>>().join("   ") + "\n"
        };
        output.lines().map(shown).collect()
    }

    #[allow(clippy::needless_pass_by_value, reason = "so that the expectation can stand in the call")]
    fn check(&self, args: &[&str], stdin: &str, expected: Expect) {
        expected.assert_eq(&self.output(args, stdin));
    }

    pub fn ends(self) {
        self.agent.signal(Signal::TERM);
        let (code, log) = self.agent.ends();
        assert_eq!(code, 0, "{log}");
    }
}

#[test]
fn a_pod_is_applied_listed_and_deleted() {
    let real = Real::start();
    real.check(
        &["get", "pods"],
        "",
        expect![[r#"
            ! No resources found in default namespace. podmux get pods -A shows all namespaces.
            exit 0
        "#]],
    );
    real.check(
        &["apply", "-f", "-"],
        &pod("web", "i"),
        expect![[r#"
        pod/web created
        exit 0
    "#]],
    );
    real.check(
        &["apply", "-f", "-"],
        &pod("web", "i"),
        expect![[r#"
        pod/web unchanged
        exit 0
    "#]],
    );
    real.check(
        &["apply", "-f", "-", "--dry-run=server"],
        &pod("web", "i:2"),
        expect![[r#"
        pod/web configured (server dry run)
        exit 0
    "#]],
    );
    real.check(
        &["apply", "-f", "-"],
        &pod("web", "i:2"),
        expect![[r#"
        pod/web configured
        exit 0
    "#]],
    );
    real.check(
        &["apply", "-f", "-", "-n", "staging"],
        &pod("web", "i"),
        expect![[r#"
        pod/web created
        exit 0
    "#]],
    );
    real.check(
        &["get", "pods", "-A"],
        "",
        expect![[r#"
            NAMESPACE   NAME   READY   STATUS   RESTARTS   AGE
            default   web   0/1   Wanted   0   AGO
            staging   web   0/1   Wanted   0   AGO
            exit 0
        "#]],
    );
    real.check(
        &["delete", "pod", "web"],
        "",
        expect![[r#"
        pod "web" deleted
        exit 0
    "#]],
    );
    real.check(
        &["get", "pod", "web"],
        "",
        expect![[r#"
            ! Error from server (NotFound): pods "web" not found
            ! podmux: podmux get pods -A shows the pods of all namespaces; the name of a pod from a file or a URL ends with that of its node
            exit 1
        "#]],
    );
    real.check(
        &["delete", "pod", "web"],
        "",
        expect![[r#"
        ! Error from server (NotFound): pods "web" not found
        exit 1
    "#]],
    );
    real.ends();
}

#[test]
fn printed_pods_can_be_applied_again() {
    let real = Real::start();
    real.output(&["apply", "-f", "-"], &pod("web", "i"));
    for form in ["yaml", "json"] {
        let shown = real.podmux(&["get", "pod", "web", "-o", form]).output().unwrap().stdout;
        let shown = String::from_utf8(shown).unwrap();
        assert_eq!(real.output(&["apply", "-f", "-"], &shown), "pod/web unchanged\nexit 0\n");
    }
    let list = real.podmux(&["get", "pods", "-o", "yaml"]).output().unwrap().stdout;
    let list = String::from_utf8(list).unwrap();
    assert_eq!(real.output(&["apply", "-f", "-"], &list), "pod/web unchanged\nexit 0\n");
    let json = real.podmux(&["get", "pods", "-o", "json"]).output().unwrap().stdout;
    assert_eq!(to_json(&list).unwrap(), serde_json::from_slice::<Value>(&json).unwrap());
    assert_eq!(real.output(&["delete", "-f", "-", "--now"], &list), "pod \"web\" deleted\nexit 0\n");
    real.ends();
}

#[test]
fn a_backup_of_get_can_be_applied_again() {
    let real = Real::start();
    real.output(&["apply", "-f", "-"], &format!("{}---\n{}", pod("web", "i"), pod("db", "i")));
    let printed = |args: &[&str]| String::from_utf8(real.podmux(args).output().unwrap().stdout).unwrap();
    let uid = || to_json(&printed(&["get", "pod", "web", "-o", "json"])).unwrap()["metadata"]["uid"].clone();
    for form in ["yaml", "json"] {
        let (backup, saved) = (printed(&["get", "pods", "-o", form]), uid());
        assert!(backup.contains("status") && backup.contains(saved.as_str().unwrap()), "{backup}");
        // The pod is another one now, which a version or UID of the backup would not match.
        real.output(&["delete", "pod", "web", "--force"], "");
        real.output(&["apply", "-f", "-"], &pod("web", "other"));
        let other = uid();
        let applied = real.output(&["apply", "-f", "-"], &backup);
        assert_eq!(applied, "pod/db unchanged\npod/web configured\nexit 0\n");
        assert_eq!(uid(), other);
        // A pod that is gone is created anew.
        real.output(&["delete", "pod", "web", "--force"], "");
        let applied = real.output(&["apply", "-f", "-"], &backup);
        assert_eq!(applied, "pod/db unchanged\npod/web created\nexit 0\n");
        assert!(uid() != saved && uid() != other);
    }
    real.ends();
}

#[test]
fn the_pipe_in_the_help_of_apply_changes_a_pod_of_the_agent() {
    let real = Real::start();
    real.output(&["apply", "-f", "-"], &pod("web", "nginx:1.27"));
    let help = transcript(&mut podmux(&["apply", "--help"]), b"");
    let pipe = help.lines().find(|line| line.contains("| podmux apply")).unwrap().replace("podmux", "\"$0\"");
    let mut command = Command::new("sh");
    command.args(["-c", &pipe, env!("CARGO_BIN_EXE_podmux")]);
    command.env("PODMUX_SERVER", format!("unix:{}", real.dir.path().join("s").display()));
    assert_eq!(transcript(&mut command, b""), "pod/web configured\nexit 0\n");
    real.ends();
}

#[test]
fn a_printed_pod_is_checked_as_it_was_edited() {
    let real = Real::start();
    real.output(&["apply", "-f", "-"], &pod("web", "i"));
    let edited = |form: &str, from: &str, to: &str| {
        let shown = real.podmux(&["get", "pod", "web", "-o", form]).output().unwrap().stdout;
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains(from) && shown.contains("uid") && shown.contains("status"), "{shown}");
        shown.replace(from, to)
    };
    let twice = [
        edited("yaml", "  restartPolicy:", "  restartPolicy: Never\n  restartPolicy:"),
        edited("json", "\"restartPolicy\":", "\"restartPolicy\": \"Never\", \"restartPolicy\":"),
    ];
    for text in twice {
        let duplicate = "duplicate field \"spec.restartPolicy\"";
        assert_eq!(
            real.output(&["apply", "-f", "-"], &text),
            format!("pod/web unchanged\n! Warning: {duplicate}\nexit 0\n")
        );
        let strict = real.output(&["apply", "-f", "-", "--validate=strict"], &text);
        assert!(strict.contains(&format!("strict decoding error: {duplicate}")), "{strict}");
    }
    let invalid = edited("yaml", "    name: c\n", "    name: C_\n");
    let line = invalid.lines().position(|line| line == "    name: C_").unwrap() + 1;
    for command in ["apply", "diff"] {
        let rejected = real.output(&[command, "-f", "-"], &invalid);
        assert!(rejected.contains(&format!("(line {line}, column 11)")), "{rejected}");
    }
    real.ends();
}

#[test]
fn sources_show_the_owner_of_a_name_and_the_reason() {
    let real = Real::start();
    real.output(&["apply", "-f", "-"], &pod("web-node1", "posted"));
    fs::write(real.dir.path().join("m/bad.yaml"), "kind: Pod\napiVersion: v2\n").unwrap();
    real.agent.logs("bad.yaml");
    // The file source takes over the name; the posted pod stays stored.
    fs::write(real.dir.path().join("m/web.yaml"), pod("web", "i")).unwrap();
    real.agent.holds("the file's pod", |held| {
        held.pods.get("default/web-node1").is_some_and(|pod| pod.contains(r#"config.source":"file""#))
    });
    real.check(&["get", "sources"], "", expect![[r#"
        NAME   STATE   PODS   PROBLEMS   LAST-SUCCESS   TARGET
        file   synced   1   1   AGO   DIR/m
        http   synced   0   1   AGO   posted pods, stored

        SOURCE   POD   REASON   WINNER   ORIGIN   MESSAGE
        file   <none>   Invalid   <none>   DIR/m/bad.yaml   2:13: apiVersion: the version of Pod is "v2": write apiVersion: v1
        http   default/web-node1   Conflict   file (DIR/m/web.yaml)   default/web-node1   a pod of source file has the same name; rename one of them
        exit 0
    "#]]);
    real.check(
        &["get", "pods"],
        "",
        expect![[r#"
            NAME   READY   STATUS   RESTARTS   AGE
            web-node1   0/1   Wanted   0   AGO
            exit 0
        "#]],
    );
    real.check(&["apply", "-f", "-"], &pod("web-node1", "again"), expect![[r#"
        ! Error from server (Forbidden): error when applying "STDIN": pods "web-node1" is forbidden: it is held by source file (from DIR/m/web.yaml): change it there
        exit 1
    "#]]);
    // DELETE removes the stored pod; the pod of the file stays.
    real.check(
        &["delete", "pod", "web-node1"],
        "",
        expect![[r#"
        pod "web-node1" deleted
        exit 0
    "#]],
    );
    wait_for(|| (!real.output(&["get", "sources"], "").contains("Conflict")).then_some(()));
    real.check(&["delete", "pod", "web-node1"], "", expect![[r#"
        ! Error from server (Forbidden): pods "web-node1" is forbidden: it is held by source file (from DIR/m/web.yaml): change it there
        exit 1
    "#]]);
    real.ends();
}

#[test]
fn delete_all_deletes_the_posted_pods_that_a_file_hides() {
    let real = Real::start();
    let posted = pod("web-node1", "posted");
    real.output(&["apply", "-f", "-"], &posted);
    real.output(&["apply", "-f", "-", "-n", "staging"], &posted);
    for (name, text) in
        [("web.yaml", pod("web", "i")), ("staging.yaml", pod("web\n  namespace: staging", "i"))]
    {
        fs::write(real.dir.path().join("m").join(name), text).unwrap();
    }
    let hidden = || real.output(&["get", "sources"], "").matches("Conflict").count();
    wait_for(|| (hidden() == 2).then_some(()));
    real.check(&["delete", "pods", "-l", "app!=none", "-A"], "", expect![[r#"
        ! podmux: 2 pods stay: they were not created over the API; change the source (podmux get pods -o wide names it)
        ! podmux: posted pods that pods of other sources hide stay: default/web-node1, staging/web-node1; delete them by name
        exit 0
    "#]]);
    real.check(&["delete", "pods", "--all", "-n", "staging"], "", expect![[r#"
        pod "web-node1" deleted
        ! podmux: 1 pod stays: it was not created over the API; change the source (podmux get pods -o wide names it)
        exit 0
    "#]]);
    wait_for(|| (hidden() == 1).then_some(()));
    let all = real.output(&["delete", "pods", "--all", "-A"], "");
    assert_eq!(all.matches("\" deleted").count(), 1, "{all}");
    wait_for(|| (hidden() == 0).then_some(()));
    for name in ["web.yaml", "staging.yaml"] {
        fs::remove_file(real.dir.path().join("m").join(name)).unwrap();
    }
    let is_empty = || real.output(&["get", "pods", "-A"], "").contains("No resources found").then_some(());
    wait_for(is_empty);
    real.ends();
}

#[test]
fn the_errors_of_a_manifest_are_printed_by_field() {
    let real = Real::start();
    let bad = "apiVersion: v1\nkind: Pod\nmetadata: {name: Web_1}\nspec:\n  containers:\n  - {name: c, imag: i}\n  - {name: c, image: 5}\n";
    real.check(
        &["apply", "-f", "-"],
        bad,
        expect![[r#"
        ! Error from server (Invalid): error when applying "STDIN": Pod "Web_1" is invalid
        ! * spec.containers[1].image: must be a string, but is a number: put it in quotes (line 7, column 22)
        exit 1
    "#]],
    );
    real.check(
        &["apply", "-f", "-"],
        "kind: Job\napiVersion: v1\n",
        expect![[r#"
            ! Error from server (Invalid): error when applying "STDIN": the body is invalid
            ! * kind: Job v1 is not a Pod: podmux runs pods only; its pod is at spec.template (podmux validate --templates FILE checks it) (line 1, column 7)
            exit 1
        "#]],
    );
    real.check(&["apply", "-f", "-"], "a: [", expect![[r#"
        ! Error from server (BadRequest): error when applying "STDIN": the body cannot be decoded: 1:4: unclosed bracket '['
        exit 1
    "#]]);
    let unknown = pod("web", "i") + "    imag: x\n";
    real.check(
        &["apply", "-f", "-"],
        &unknown,
        expect![[r#"
        pod/web created
        ! Warning: unknown field "spec.containers[0].imag"; did you mean image?
        exit 0
    "#]],
    );
    // What a terminal would obey is escaped once.
    let hostile = pod("web", "i") + "    \"x\\e[1m\": y\n";
    real.check(
        &["apply", "-f", "-"],
        &hostile,
        expect![[r#"
            pod/web unchanged
            ! Warning: unknown field "spec.containers[0].x\u{1b}[1m"
            exit 0
        "#]],
    );
    // The warnings before an error are printed too.
    real.check(&["apply", "-f", "-"], &(unknown.clone() + "  restartPolicy: Bad\n"), expect![[r#"
        ! Warning: unknown field "spec.containers[0].imag"; did you mean image?
        ! Error from server (Invalid): error when applying "STDIN": Pod "web" is invalid
        ! * spec.restartPolicy: Unsupported value: "Bad": supported values: "Always", "OnFailure", "Never" (line 10, column 18)
        exit 1
    "#]]);
    let twice = pod("web", "i") + "    env: [{name: A, value: a}, {name: A, value: b}]\n";
    real.check(&["apply", "-f", "-"], &twice, expect![[r#"
        pod/web configured
        ! Warning: spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply
        exit 0
    "#]]);
    real.check(&["apply", "-f", "-", "--validate=strict"], &unknown, expect![[r#"
        ! Error from server (BadRequest): error when applying "STDIN": strict decoding error: unknown field "spec.containers[0].imag"; did you mean image?
        exit 1
    "#]]);
    real.check(
        &["get", "pods", "-l", "a in ("],
        "",
        expect![[r#"
        ! Error from server (BadRequest): unable to parse labelSelector: found '', expected: ',' or ')'
        exit 1
    "#]],
    );
    real.ends();
}

#[test]
fn a_watch_prints_every_change_and_outlives_the_agent() {
    let mut real = Real::start();
    real.output(&["apply", "-f", "-"], &pod("a", "i"));
    let pods = Process::start(&mut real.podmux(&["get", "pods", "-w", "--no-headers", "-o", "wide"]));
    let updates = Process::start(&mut real.podmux(&["get", "updates", "-o", "jsonl"]));
    wait_for(|| pods.stdout.text().contains("Wanted").then_some(()));
    real.output(&["apply", "-f", "-"], &pod("b", "i"));
    // Two changes that come at once may be one event.
    wait_for(|| pods.stdout.text().lines().any(|line| line.starts_with("b ")).then_some(()));
    real.output(&["apply", "-f", "-"], &pod("b", "i:2"));
    fs::write(real.dir.path().join("m/c.yaml"), pod("c", "i")).unwrap();
    wait_for(|| pods.stdout.text().contains("c-node1").then_some(()));
    real.output(&["delete", "pod", "b"], "");
    wait_for(|| pods.stdout.text().contains("Removed").then_some(()));
    updates.holds("the pods that are left", |held| held.pods.keys().eq(["default/a", "default/c-node1"]));

    // One pod goes and another comes while there is no agent.
    for (signal, gone, new) in [(Signal::TERM, "c", "d"), (Signal::KILL, "d", "e")] {
        let stopped = real.agent;
        stopped.signal(signal);
        stopped.ends();
        for follower in [&pods, &updates] {
            follower.stderr.wait_for("loss", |lines| {
                let lost = lines.iter().filter(|line| line.starts_with("connection lost: ")).count();
                (lost == if gone == "c" { 1 } else { 2 }).then_some(())
            });
        }
        fs::remove_file(real.dir.path().join(format!("m/{gone}.yaml"))).unwrap();
        fs::write(real.dir.path().join(format!("m/{new}.yaml")), pod(new, "i")).unwrap();
        real.agent = Real::run(real.dir.path());
        wait_for(|| pods.stdout.text().contains(&format!("{new}-node1")).then_some(()));
        let wanted = ["default/a".to_owned(), format!("default/{new}-node1")];
        updates.holds("the pods after the restart", |held| held.pods.keys().eq(&wanted));
    }
    // The last row of each pod. An agent that was killed may know removed pods once more at first.
    let latest = || -> BTreeMap<String, String> {
        let text = pods.stdout.text();
        let rows = text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        rows.map(|row| (row[0].clone(), format!("{} {}", row[7], row[2]))).collect()
    };
    let wanted = [
        ("a", "http Wanted"),
        ("b", "http Removed"),
        ("c-node1", "file Removed"),
        ("d-node1", "file Removed"),
        ("e-node1", "file Wanted"),
    ];
    let wanted = wanted.map(|(name, row)| (name.to_owned(), row.to_owned()));
    wait_for(|| latest().into_iter().eq(wanted.clone()).then_some(()));
    let rows = pods.stdout.text();
    let rows_of = |name: &str| rows.lines().filter(|line| line.split(' ').next() == Some(name)).count();
    assert_eq!(rows_of("a"), 1, "what has not changed is not printed again: {rows}");
    assert!(rows_of("b") >= 3, "every change is printed: {rows}");
    for follower in [pods, updates] {
        follower.signal(Signal::INT);
        let (code, told) = follower.ends();
        assert_eq!(code, 130, "interrupted: {told}");
        let told: Vec<&str> = told.lines().collect();
        let [first, back, second, again] = &told[..] else { panic!("{told:?}") };
        for lost in [first, second] {
            assert!(lost.starts_with("connection lost: ") && lost.ends_with("; reconnecting"), "{lost}");
        }
        for back in [back, again] {
            assert!(back.starts_with("reconnected"), "{back}");
        }
    }
    real.ends();
}

#[test]
fn a_token_or_a_client_certificate_authenticates_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, clients) = (Authority::new(dir.path(), "ca"), Authority::new(dir.path(), "clients"));
    let (cert, key) = ca.server_files("127.0.0.1");
    let (own_cert, own_key) = clients.client("operator");
    let (token, wrong) = (dir.path().join("token"), dir.path().join("wrong"));
    fs::write(&token, "s3cret\n").unwrap();
    fs::write(&wrong, "guessed\n").unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (cert, key, token, ca) = (text(&cert), text(&key), text(&token), text(&ca.ca_file));
    let wrong = text(&wrong);
    let (clients, own_cert, own_key) = (text(&clients.ca_file), text(&own_cert), text(&own_key));
    let mut run = podmux(&["run", "--listen", "127.0.0.1:0", "--state-dir", "none", "--node-name", "node1"]);
    run.args(["--tls-cert-file", &cert, "--tls-private-key-file", &key]);
    run.args(["--client-ca-file", &clients, "--token-file", &token]);
    let agent = Process::start(&mut run);
    let line = agent.logs("listening");
    let port = line.split("127.0.0.1:").nth(1).unwrap().split(|c: char| !c.is_ascii_digit()).next().unwrap();
    let server = format!("https://127.0.0.1:{port}");

    let get = |args: &[&str]| {
        let output = transcript(&mut podmux(&[&["get", "sources", "-o", "name"], args].concat()), b"");
        output.replace(port, "PORT")
    };
    let good = "source/http\nexit 0\n";
    assert_eq!(get(&["--server", &server, "--ca-file", &ca, "--token-file", &token]), good);
    let certificate = ["--client-cert", &own_cert, "--client-key", &own_key];
    assert_eq!(get(&[&["--server", &server, "--ca-file", &ca], &certificate[..]].concat()), good);
    let mut seen = get(&["--server", &server, "--ca-file", &ca]);
    seen += &get(&["--server", &server, "--ca-file", &ca, "--token-file", &wrong]);
    seen += &get(&["--server", &server, "--ca-file", &clients, "--token-file", &token]);
    expect![[r#"
        ! Error from server (Unauthorized): the caller is not authenticated: send the token as Authorization: Bearer TOKEN, or a client certificate
        ! podmux: give this agent's --token-file, or --client-cert and --client-key
        exit 1
        ! Error from server (Unauthorized): the caller is not authenticated: the Authorization header has no token of this agent: send that of auth/token in its state directory, or of its --token-file
        ! podmux: give this agent's --token-file, or --client-cert and --client-key
        exit 1
        ! podmux: the certificate of 127.0.0.1:PORT is not trusted: it was issued by an unknown CA; set the file of the right CA with --ca-file
        exit 1
    "#]].assert_eq(&seen);
    let open = get(&["--server", &format!("http://127.0.0.1:{port}")]);
    assert!(open.starts_with("! podmux: 127.0.0.1:PORT ") && open.ends_with("exit 1\n"), "{open}");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}
