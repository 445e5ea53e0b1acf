//! `podmux validate -o sarif|github|junit`: the formats of other programs.
#![allow(clippy::needless_raw_string_hashes, reason = "expected output is written by expect-test")]

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use expect_test::expect;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    support::python::python,
    validate::{DOUBTFUL, VALID, directory, output},
};

/// Manifests with problems of every kind, and characters that each format has to escape.
fn troubled() -> TempDir {
    let odd = "apiVersion: v1\nkind: \"100%\\n<&>\\\"',: \\e[31m\\ufffe 日本\"\n";
    directory(&[
        ("a b,c:d%<&\">.yaml", odd),
        ("doubtful.yaml", DOUBTFUL),
        ("good.yaml", VALID),
        ("nameless.yaml", "apiVersion: v1\nkind: Pod\n"),
    ])
}

/// The output without the lines of standard error and of the exit code.
fn stdout(dir: &TempDir, format: &str, args: &[&str]) -> String {
    let all = output(dir, &[&["-o", format], args].concat(), b"");
    all.lines()
        .filter(|line| !line.starts_with("! ") && !line.starts_with("exit "))
        .fold(String::new(), |text, line| text + line + "\n")
}

/// Checks a text against the schema of its format.
fn check_schema(format: &str, text: &str) {
    let Some(python) = python("validate") else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/validate/check.py");
    let mut child = Command::new(python)
        .arg(script)
        .arg(format)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn sarif_fits_its_schema() {
    let dir = troubled();
    let text = stdout(&dir, "sarif", &[".", "/missing"]);
    let log: Value = serde_json::from_str(&text).unwrap();
    expect![[""]].assert_eq(&format!("{log:#}"));
    check_schema("sarif", &text);
    let empty = stdout(&dir, "sarif", &["good.yaml"]);
    assert_eq!(serde_json::from_str::<Value>(&empty).unwrap()["runs"][0]["results"], Value::Array(vec![]));
    check_schema("sarif", &empty);
    check_schema("sarif", &stdout(&directory(&[]), "sarif", &["."]));
}

#[test]
fn junit_fits_its_schema() {
    let dir = troubled();
    let text = stdout(&dir, "junit", &[".", "/missing"]);
    expect![[""]].assert_eq(&text);
    check_schema("junit", &text);
    check_schema("junit", &stdout(&directory(&[]), "junit", &["."]));
}

#[test]
fn annotations_of_github_are_one_line_each_and_escaped() {
    expect![[""]].assert_eq(&output(&troubled(), &["-o", "github", ".", "missing"], b""));
}
