//! `podmux validate`: the problems it finds, its output and its exit code.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::too_many_lines,
    reason = "expected output is written by expect-test and long"
)]

use std::{
    fmt::Write as _,
    fs::{self, File},
    process::{Command, Stdio},
};

use expect_test::{Expect, expect};
use rustix::fs::{CWD, Mode};
use serde_json::Value;
use tempfile::TempDir;

use crate::{cli::transcript, support::process::podmux};

pub const VALID: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: web
    image: docker.io/library/nginx:1.27
";

/// A directory of these files.
pub fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// The output of `podmux validate --node-name node` in the directory.
pub fn output(dir: &TempDir, args: &[&str], stdin: &[u8]) -> String {
    let mut command = podmux(&[]);
    command.current_dir(dir).args(["validate", "--node-name", "node"]).args(args);
    transcript(&mut command, stdin)
}

fn check(files: &[(&str, &str)], args: &[&str], expected: &Expect) {
    expected.assert_eq(&output(&directory(files), args, b""));
}

#[test]
fn a_pod_beyond_the_level_is_invalid() {
    let host = VALID.replace("spec:\n", "spec:\n  hostNetwork: true\n");
    check(
        &[("host.yaml", &host), ("web.yaml", VALID)],
        &["--pod-security", "baseline", "."],
        &expect![[r#"
        ./host.yaml:1:1: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)
        exit 1
    "#]],
    );
}

#[test]
fn a_valid_manifest_prints_nothing() {
    check(
        &[("web.yaml", VALID)],
        &["web.yaml"],
        &expect![[r#"
        exit 0
    "#]],
    );
    check(
        &[("web.yaml", VALID)],
        &["-v", "web.yaml"],
        &expect![[r#"
            web.yaml: valid: default/web-node
            ! podmux: 1 valid, 0 invalid
            exit 0
        "#]],
    );
}

#[test]
fn every_problem_of_a_manifest_is_a_line_with_its_place_and_field() {
    let bad = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels:
    tier: 1
spec:
  hostNetwork: 'yes'
  containers:
  - name: web
    ports:
    - containerPort: eighty
";
    check(
        &[("bad.yaml", bad)],
        &["bad.yaml"],
        &expect![[r#"
            bad.yaml:6:11: metadata.labels[tier]: FieldValueTypeInvalid: must be a string, but is a number: put it in quotes
            bad.yaml:8:16: spec.hostNetwork: FieldValueTypeInvalid: must be a boolean, true or false, but is the string "yes"
            bad.yaml:12:22: spec.containers[0].ports[0].containerPort: FieldValueTypeInvalid: must be an integer of 32 bits, but is the string "eighty"
            exit 1
        "#]],
    );
}

#[test]
fn a_syntax_error_has_its_position() {
    check(
        &[("bad.yaml", "kind: Pod\n  metadata: {}\n")],
        &["bad.yaml"],
        &expect![[r#"
            bad.yaml:2:11: mapping values are not allowed in this context: check the indentation, or put a text that contains ': ' in quotes
            exit 1
        "#]],
    );
    check(
        &[("tab.yaml", "kind: Pod\nmetadata:\n\tname: a\n")],
        &["tab.yaml"],
        &expect![[r#"
            tab.yaml:3:2: tabs disallowed within this context (block indentation): use spaces, not tabs
            exit 1
        "#]],
    );
    check(
        &[("empty.yaml", "# nothing\n")],
        &["empty.yaml"],
        &expect![[r#"
            empty.yaml:1:1: no pod found (is it empty?): a Pod, a PodList or a List is expected
            exit 1
        "#]],
    );
    check(
        &[("kind.yaml", "apiVersion: apps/v1\nkind: Deployment\n")],
        &["kind.yaml"],
        &expect![[r#"
            kind.yaml:2:7: kind: Deployment apps/v1 is not a Pod: podmux runs pods only; its pod is at spec.template (podmux validate --templates FILE checks it)
            exit 1
        "#]],
    );
    check(
        &[("nameless.yaml", "apiVersion: v1\nkind: Pod\n")],
        &["nameless.yaml"],
        &expect![[r#"
        nameless.yaml:1:1: metadata.name: FieldValueRequired: Required value: a pod needs a name
        exit 1
    "#]],
    );
}

#[test]
fn a_pod_that_the_api_rejects_has_the_field_and_the_reason() {
    let bad = VALID.replace("name: web\n    image", "name: Web\n    imagePullPolicy: Perhaps\n    image");
    let refers = format!("{VALID}  volumes:\n  - name: v\n    configMap: {{name: m}}\n");
    let files = [("bad.yaml", &*bad), ("refers.yaml", &*refers)];
    check(
        &files,
        &["."],
        &expect![[r#"
            ./bad.yaml:7:11: spec.containers[0].name: FieldValueInvalid: Invalid value: "Web": a lowercase RFC 1123 label consists of lower-case letters, digits and '-', and begins and ends with a letter or digit
            ./bad.yaml:8:22: spec.containers[0].imagePullPolicy: FieldValueNotSupported: Unsupported value: "Perhaps": supported values: "Always", "IfNotPresent", "Never"
            ./refers.yaml:11:16: spec.volumes[0].configMap: pods of file, http and url may not reference configmaps (via configmap volumes): only an API server can resolve them
            exit 1
        "#]],
    );
    let dir = directory(&files);
    let json = output(&dir, &["-o", "json", "."], b"");
    let stages: Vec<Value> = json
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|object| object["stage"].clone())
        .collect();
    assert_eq!(stages, ["validate", "reference"]);
}

pub const DOUBTFUL: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  restartPolicy: Always
  containers:
  - name: web
    image: nginx
    imagePullpolicy: Never
  restartPolicy: Never
";

#[test]
fn warnings_are_marked_and_strict_makes_them_errors() {
    check(
        &[("a.yaml", DOUBTFUL)],
        &["a.yaml"],
        &expect![[r#"
            a.yaml:10:5: warning: spec.containers[0].imagePullpolicy: unknown field, ignored; did you mean imagePullPolicy?
            a.yaml:11:3: warning: spec.restartPolicy: duplicate key in line 6 and line 11; the last one is used
            exit 0
        "#]],
    );
    check(
        &[("a.yaml", DOUBTFUL)],
        &["--strict", "a.yaml"],
        &expect![[r#"
            a.yaml:10:5: spec.containers[0].imagePullpolicy: unknown field; did you mean imagePullPolicy?
            a.yaml:11:3: spec.restartPolicy: duplicate key in line 6 and line 11
            exit 1
        "#]],
    );
}

/// What an API server warns of, everywhere.
const DEPRECATED: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web.example
  annotations:
    security.alpha.kubernetes.io/sysctls: a=b
spec:
  containers:
  - name: web
    image: nginx
    env:
    - {name: A, value: a}
    - {name: A, value: b}
    ports:
    - containerPort: 80
    - containerPort: 80
  nodeSelector:
    beta.kubernetes.io/os: linux
  volumes:
  - name: fields
    downwardAPI:
      items:
      - {path: a, fieldRef: {fieldPath: metadata.name}}
      - {path: a/b, fieldRef: {fieldPath: metadata.name}}
";

#[test]
fn what_an_api_server_warns_of_stays_a_warning_with_strict() {
    let unknown = DEPRECATED.replace("spec:\n", "spec:\n  bogus: 1\n");
    check(
        &[("a.yaml", DEPRECATED), ("b.yaml", &unknown)],
        &["--strict", "a.yaml", "b.yaml"],
        &expect![[r#"
            a.yaml:4:9: warning: metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]
            a.yaml:6:43: warning: metadata.annotations[security.alpha.kubernetes.io/sysctls]: non-functional in v1.11+; use the "sysctls" field instead
            a.yaml:13:7: warning: spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply
            a.yaml:16:7: warning: spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]
            a.yaml:18:28: warning: spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead
            a.yaml:20:5: warning: volume "fields" (DownwardAPI): overlapping paths: "a/b" with "a"
            b.yaml:4:9: warning: metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]
            b.yaml:6:43: warning: metadata.annotations[security.alpha.kubernetes.io/sysctls]: non-functional in v1.11+; use the "sysctls" field instead
            b.yaml:8:3: spec.bogus: unknown field
            b.yaml:14:7: warning: spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply
            b.yaml:17:7: warning: spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]
            b.yaml:19:28: warning: spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead
            b.yaml:21:5: warning: volume "fields" (DownwardAPI): overlapping paths: "a/b" with "a"
            exit 1
        "#]],
    );
    let invalid = DEPRECATED.replace("name: fields", "name: FIELDS");
    check(
        &[("a.yaml", &invalid)],
        &["a.yaml"],
        &expect![[r#"
        a.yaml:20:11: spec.volumes[0].name: FieldValueInvalid: Invalid value: "FIELDS": a lowercase RFC 1123 label consists of lower-case letters, digits and '-', and begins and ends with a letter or digit
        exit 1
    "#]],
    );
}

#[test]
fn a_directory_is_read_like_the_file_source_does() {
    let dir = directory(&[
        ("z.yaml", "kind: Pod\n"),
        (
            "a.json",
            r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "json"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}"#,
        ),
        ("web", VALID),
        (".hidden.yaml", "bad"),
        ("web.yaml~", "bad"),
        ("web.yaml.bak", "bad"),
        ("web.yaml.dpkg-old", "bad"),
        ("#web.yaml#", "bad"),
        ("4913", "bad"),
    ]);
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("sub/bad.yaml"), "bad").unwrap();
    rustix::fs::mkfifoat(CWD, dir.path().join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    std::os::unix::fs::symlink("missing", dir.path().join("dangling")).unwrap();
    std::os::unix::fs::symlink("z.yaml", dir.path().join("link")).unwrap();
    expect![[r#"
        ./link:1:1: apiVersion: FieldValueRequired: Required value: apiVersion: v1 is expected
        ./z.yaml:1:1: apiVersion: FieldValueRequired: Required value: apiVersion: v1 is expected
        exit 1
    "#]]
    .assert_eq(&output(&dir, &["."], b""));
    expect![[r#"
        ./a.json: valid: default/json-node
        ./link:1:1: apiVersion: FieldValueRequired: Required value: apiVersion: v1 is expected
        ./web: valid: default/web-node
        ./z.yaml:1:1: apiVersion: FieldValueRequired: Required value: apiVersion: v1 is expected
        ! podmux: ./#web.yaml#: skipped: an editor's, a package manager's or a backup file
        ! podmux: ./.hidden.yaml: skipped: hidden
        ! podmux: ./4913: skipped: an editor's, a package manager's or a backup file
        ! podmux: ./dangling: skipped: a dangling symbolic link
        ! podmux: ./fifo: skipped: a fifo
        ! podmux: ./sub: skipped: a directory
        ! podmux: ./web.yaml.bak: skipped: an editor's, a package manager's or a backup file
        ! podmux: ./web.yaml.dpkg-old: skipped: an editor's, a package manager's or a backup file
        ! podmux: ./web.yaml~: skipped: an editor's, a package manager's or a backup file
        ! podmux: 2 valid, 2 invalid
        exit 1
    "#]]
    .assert_eq(&output(&dir, &["-v", "."], b""));
}

#[test]
fn an_empty_directory_is_a_note() {
    check(
        &[(".hidden", "")],
        &["."],
        &expect![[r#"
            ! podmux: .: no manifests in it
            exit 0
        "#]],
    );
}

#[test]
fn a_name_or_uid_that_occurs_twice_in_a_directory_is_found() {
    let uid = |name| VALID.replace("name: web\nspec", &format!("name: {name}\n  uid: '1'\nspec"));
    let files = [
        ("a.yaml", VALID),
        ("b.yaml", VALID),
        ("c.yaml", &*uid("c")),
        ("d.yaml", &*uid("d")),
        ("e.yaml", ""),
    ];
    check(
        &files,
        &["."],
        &expect![[r#"
            ./b.yaml: metadata.name: DuplicateName: default/web-node: the pod in ./a.yaml has the same name; rename one of them
            ./d.yaml: metadata.uid: DuplicateUID: default/d-node: the pod default/c-node in ./c.yaml has the same UID; remove metadata.uid from one of them
            ./e.yaml:1:1: no pod found (is it empty?): a Pod, a PodList or a List is expected
            exit 1
        "#]],
    );
    // As separate arguments, or for the http source, they are no duplicates.
    check(
        &files[..2],
        &["a.yaml", "b.yaml"],
        &expect![[r#"
        exit 0
    "#]],
    );
    check(
        &files[..2],
        &["--source", "http", "."],
        &expect![[r#"
        exit 0
    "#]],
    );
}

#[test]
fn a_missing_path_is_exit_code_2_and_the_others_are_checked() {
    check(
        &[("bad", "bad")],
        &["missing", "bad"],
        &expect![[r#"
            bad:1:1: a map with apiVersion and kind is expected, but this is a string (is this a manifest?)
            ! podmux: missing: No such file or directory; is the path right?
            exit 2
        "#]],
    );
    check(
        &[("web", VALID)],
        &["web", "missing/web"],
        &expect![[r#"
            ! podmux: missing/web: No such file or directory; is the path right?
            exit 2
        "#]],
    );
}

#[test]
fn a_device_is_not_read() {
    let dir = directory(&[]);
    expect![[r#"
        ! podmux: /dev/null: neither a file nor a directory; pipe it into podmux validate -
        exit 2
    "#]]
    .assert_eq(&output(&dir, &["/dev/null"], b""));
}

#[test]
fn a_fifo_is_read_to_its_end() {
    let dir = directory(&[]);
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let writer = std::thread::spawn(move || fs::write(fifo, "kind: [\n"));
    expect![[r#"
        fifo:1:7: unclosed bracket '['
        exit 1
    "#]]
    .assert_eq(&output(&dir, &["fifo"], b""));
    writer.join().unwrap().unwrap();
}

#[test]
fn process_substitution_of_a_shell_is_a_manifest() {
    let dir = directory(&[("web.yaml", VALID)]);
    let mut shell = Command::new("bash");
    let script = "\"$PODMUX\" validate -v --node-name n <(cat web.yaml) <(sed s/web/Db/ web.yaml; printf '\\n') \
                  | sed 's:/dev/fd/[0-9]*:FD:'; exit ${PIPESTATUS[0]}";
    shell.current_dir(&dir).arg("-c").arg(script).env("PODMUX", env!("CARGO_BIN_EXE_podmux"));
    expect![[r#"
        FD: valid: default/web-n
        FD:4:9: metadata.name: FieldValueInvalid: Invalid value: "Db-n": a lowercase RFC 1123 subdomain consists of lower-case letters, digits, '-' and '.', and each of its parts begins and ends with a letter or digit
        FD:7:11: spec.containers[0].name: FieldValueInvalid: Invalid value: "Db": a lowercase RFC 1123 label consists of lower-case letters, digits and '-', and begins and ends with a letter or digit
        ! podmux: 1 valid, 1 invalid
        exit 1
    "#]]
    .assert_eq(&transcript(&mut shell, b""));
}

#[test]
fn a_manifest_that_is_too_large_is_rejected() {
    let dir = directory(&[]);
    File::create(dir.path().join("large")).unwrap().set_len(10 * 1024 * 1024 + 1).unwrap();
    expect![[r#"
        large: 10485761 bytes are too many for a manifest: 10485760 at most; split the file
        exit 1
    "#]]
    .assert_eq(&output(&dir, &["large"], b""));
    expect![[r#"
        -: too large: a manifest has at most 10485760 bytes; split it
        exit 1
    "#]]
    .assert_eq(&output(&dir, &["-"], &vec![b'#'; 10 * 1024 * 1024 + 1]));
}

#[test]
fn standard_input_can_be_a_manifest() {
    let dir = directory(&[]);
    expect![[r#"
        exit 0
    "#]]
    .assert_eq(&output(&dir, &["-"], VALID.as_bytes()));
    expect![[r#"
        -:1:7: unclosed bracket '['
        exit 1
    "#]]
    .assert_eq(&output(&dir, &["-"], b"kind: [\n"));
    expect![[r#"
        ! podmux: - is given twice, but standard input can be read only once
        exit 2
    "#]]
    .assert_eq(&output(&dir, &["-", "-"], b""));
}

#[test]
fn json_is_an_object_a_line_for_each_manifest() {
    let dir = directory(&[
        ("bad.yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n  namespace: a\n"),
        ("doubtful.yaml", DOUBTFUL),
        ("good.yaml", VALID),
        ("none.yaml", ""),
    ]);
    let shown = |args: &[&str]| {
        let mut shown = String::new();
        for line in output(&dir, args, b"").lines() {
            let Ok(mut object) = serde_json::from_str::<Value>(line) else {
                writeln!(shown, "{line}").unwrap();
                continue;
            };
            // The next test compares whole pods; here, their names.
            for pod in object["pods"].as_array_mut().unwrap() {
                *pod = pod["metadata"]["name"].take();
            }
            writeln!(shown, "{object:#}").unwrap();
        }
        shown
    };
    expect![[r#"
        {
          "ok": false,
          "path": "./bad.yaml",
          "pods": [],
          "problems": [
            {
              "column": 3,
              "detail": "Required value: a pod needs a name",
              "field": "metadata.name",
              "line": 4,
              "reason": "FieldValueRequired",
              "severity": "error"
            }
          ],
          "stage": "name"
        }
        {
          "ok": true,
          "path": "./doubtful.yaml",
          "pods": [
            "web-node"
          ],
          "problems": [
            {
              "column": 5,
              "detail": "unknown field, ignored; did you mean imagePullPolicy?",
              "field": "spec.containers[0].imagePullpolicy",
              "line": 10,
              "severity": "warning"
            },
            {
              "column": 3,
              "detail": "duplicate key in line 6 and line 11; the last one is used",
              "field": "spec.restartPolicy",
              "line": 11,
              "severity": "warning"
            }
          ]
        }
        {
          "ok": false,
          "path": "./good.yaml",
          "pods": [],
          "problems": [
            {
              "detail": "default/web-node: the pod in ./doubtful.yaml has the same name; rename one of them",
              "field": "metadata.name",
              "reason": "DuplicateName",
              "severity": "error"
            }
          ]
        }
        {
          "ok": false,
          "path": "./none.yaml",
          "pods": [],
          "problems": [
            {
              "column": 1,
              "detail": "no pod found (is it empty?): a Pod, a PodList or a List is expected",
              "line": 1,
              "severity": "error"
            }
          ],
          "stage": "decode"
        }
        exit 1
    "#]]
    .assert_eq(&shown(&["-o", "json", "."]));
    expect![[r#"
        {
          "ok": false,
          "path": "doubtful.yaml",
          "pods": [],
          "problems": [
            {
              "column": 5,
              "detail": "unknown field; did you mean imagePullPolicy?",
              "field": "spec.containers[0].imagePullpolicy",
              "line": 10,
              "severity": "error"
            },
            {
              "column": 3,
              "detail": "duplicate key in line 6 and line 11",
              "field": "spec.restartPolicy",
              "line": 11,
              "severity": "error"
            }
          ],
          "stage": "decode"
        }
        ! podmux: missing: No such file or directory; is the path right?
        exit 2
    "#]]
    .assert_eq(&shown(&["-o", "json", "--strict", "doubtful.yaml", "missing"]));
}

/// The pods that `-o json` prints for a manifest.
fn pods(args: &[&str]) -> Value {
    let mut command = podmux(&[]);
    command.args(["validate", "-o", "json", "-"]).args(args).env("PODMUX_NODE_NAME", "edge");
    let output = transcript(&mut command, VALID.as_bytes());
    serde_json::from_str::<Value>(output.lines().next().unwrap()).unwrap()["pods"].take()
}

#[test]
fn json_has_the_pods_that_the_agent_would_publish() {
    expect![[r#"
        [
          {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
              "annotations": {
                "kubernetes.io/config.hash": "a30adb5b3e13e49d0eb0c933a2d017b1"
              },
              "name": "web-edge",
              "namespace": "default",
              "uid": "bf4cd69f-5069-5d94-a987-b522eec57681"
            },
            "spec": {
              "containers": [
                {
                  "image": "docker.io/library/nginx:1.27",
                  "imagePullPolicy": "IfNotPresent",
                  "name": "web",
                  "resources": {},
                  "terminationMessagePath": "/dev/termination-log",
                  "terminationMessagePolicy": "File"
                }
              ],
              "dnsPolicy": "ClusterFirst",
              "enableServiceLinks": true,
              "nodeName": "edge",
              "restartPolicy": "Always",
              "schedulerName": "default-scheduler",
              "securityContext": {},
              "terminationGracePeriodSeconds": 30,
              "tolerations": [
                {
                  "effect": "NoExecute",
                  "operator": "Exists"
                }
              ]
            },
            "status": {
              "phase": "Pending"
            }
          }
        ]"#]]
    .assert_eq(&format!("{:#}", pods(&[])));
}

#[test]
fn the_pod_depends_on_the_source_and_the_node() {
    let name = |args| pods(args)[0]["metadata"]["name"].take();
    assert_eq!(name(&[]), "web-edge");
    assert_eq!(name(&["--node-name", "other"]), "web-other");
    assert_eq!(name(&["--source", "url"]), "web-edge");
    assert_eq!(name(&["--source", "http"]), "web");
    assert_eq!(pods(&["--source", "http"])[0]["spec"]["tolerations"], Value::Null);
}

#[test]
fn a_closed_standard_output_does_not_change_the_exit_code() {
    for (text, code) in [(VALID, 0), ("bad", 1)] {
        let dir = directory(&[("a", text)]);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = podmux(&[]);
        command.args(["validate", "-v", "-o", "json", "a"]).current_dir(&dir).stdout(writer);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panic"));
    }
}

#[test]
fn control_characters_of_names_and_texts_are_escaped() {
    let bad = "apiVersion: v1\nkind: \"\\e[31mPod\"\n";
    check(
        &[("a\u{1b}[0m\nb", bad)],
        &["a\u{1b}[0m\nb"],
        &expect![[r#"
            a\u{1b}[0m\nb:2:7: kind: "\u{1b}[31mPod" v1 is not a Pod: podmux runs pods only; Pod, PodList or List is expected here
            exit 1
        "#]],
    );
}
