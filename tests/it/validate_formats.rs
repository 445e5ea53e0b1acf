//! `podmux validate -o sarif|github|junit`: the formats of other programs.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::too_many_lines,
    reason = "expected output is written by expect-test and long"
)]

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
    expect![[r#"
        {
          "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
          "runs": [
            {
              "columnKind": "unicodeCodePoints",
              "invocations": [
                {
                  "executionSuccessful": false,
                  "toolExecutionNotifications": [
                    {
                      "level": "error",
                      "message": {
                        "text": "/missing: No such file or directory; is the path right?"
                      }
                    }
                  ]
                }
              ],
              "results": [
                {
                  "level": "error",
                  "locations": [
                    {
                      "logicalLocations": [
                        {
                          "fullyQualifiedName": "kind"
                        }
                      ],
                      "physicalLocation": {
                        "artifactLocation": {
                          "uri": "a%20b%2Cc%3Ad%25%3C%26%22%3E.yaml"
                        },
                        "region": {
                          "startColumn": 7,
                          "startLine": 2
                        }
                      }
                    }
                  ],
                  "message": {
                    "text": "kind: \"100%\\n<&>\\\"',: \\u{1b}[31m\\u{fffe} 日本\" v1 is not a Pod: podmux runs pods only; Pod, PodList or List is expected here"
                  },
                  "ruleId": "decode"
                },
                {
                  "level": "warning",
                  "locations": [
                    {
                      "logicalLocations": [
                        {
                          "fullyQualifiedName": "spec.containers[0].imagePullpolicy"
                        }
                      ],
                      "physicalLocation": {
                        "artifactLocation": {
                          "uri": "doubtful.yaml"
                        },
                        "region": {
                          "startColumn": 5,
                          "startLine": 10
                        }
                      }
                    }
                  ],
                  "message": {
                    "text": "spec.containers[0].imagePullpolicy: unknown field, ignored; did you mean imagePullPolicy?"
                  },
                  "ruleId": "warning"
                },
                {
                  "level": "warning",
                  "locations": [
                    {
                      "logicalLocations": [
                        {
                          "fullyQualifiedName": "spec.restartPolicy"
                        }
                      ],
                      "physicalLocation": {
                        "artifactLocation": {
                          "uri": "doubtful.yaml"
                        },
                        "region": {
                          "startColumn": 3,
                          "startLine": 11
                        }
                      }
                    }
                  ],
                  "message": {
                    "text": "spec.restartPolicy: duplicate key in line 6 and line 11; the last one is used"
                  },
                  "ruleId": "warning"
                },
                {
                  "level": "error",
                  "locations": [
                    {
                      "logicalLocations": [
                        {
                          "fullyQualifiedName": "metadata.name"
                        }
                      ],
                      "physicalLocation": {
                        "artifactLocation": {
                          "uri": "good.yaml"
                        },
                        "region": {
                          "startColumn": 1,
                          "startLine": 1
                        }
                      }
                    }
                  ],
                  "message": {
                    "text": "metadata.name: default/web-node: the pod in ./doubtful.yaml has the same name; rename one of them"
                  },
                  "ruleId": "DuplicateName"
                },
                {
                  "level": "error",
                  "locations": [
                    {
                      "logicalLocations": [
                        {
                          "fullyQualifiedName": "metadata.name"
                        }
                      ],
                      "physicalLocation": {
                        "artifactLocation": {
                          "uri": "nameless.yaml"
                        },
                        "region": {
                          "startColumn": 1,
                          "startLine": 1
                        }
                      }
                    }
                  ],
                  "message": {
                    "text": "metadata.name: Required value: a pod needs a name"
                  },
                  "ruleId": "FieldValueRequired"
                }
              ],
              "tool": {
                "driver": {
                  "name": "podmux",
                  "rules": [
                    {
                      "id": "DuplicateName",
                      "shortDescription": {
                        "text": "Another pod of the directory has the name."
                      }
                    },
                    {
                      "id": "FieldValueRequired",
                      "shortDescription": {
                        "text": "A field is missing."
                      }
                    },
                    {
                      "id": "decode",
                      "shortDescription": {
                        "text": "The text cannot be decoded as pods."
                      }
                    },
                    {
                      "id": "warning",
                      "shortDescription": {
                        "text": "The manifest is valid, but its author probably meant something else."
                      }
                    }
                  ],
                  "semanticVersion": "0.1.0",
                  "version": "0.1.0"
                }
              }
            }
          ],
          "version": "2.1.0"
        }"#]].assert_eq(&format!("{log:#}"));
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
    expect![[r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites tests="5" failures="3" errors="1">
        <testsuite name="podmux validate" tests="5" failures="3" errors="1">
        <testcase classname="podmux.validate" name="a b,c:d%&lt;&amp;&quot;&gt;.yaml"><failure type="decode" message="kind: &quot;100%\n&lt;&amp;&gt;\&quot;',: \u{1b}[31m\u{fffe} 日本&quot; v1 is not a Pod: podmux runs pods only; Pod, PodList or List is expected here">a b,c:d%&lt;&amp;&quot;&gt;.yaml:2:7: kind: &quot;100%\n&lt;&amp;&gt;\&quot;',: \u{1b}[31m\u{fffe} 日本&quot; v1 is not a Pod: podmux runs pods only; Pod, PodList or List is expected here
        </failure></testcase>
        <testcase classname="podmux.validate" name="doubtful.yaml"><system-out>doubtful.yaml:10:5: warning: spec.containers[0].imagePullpolicy: unknown field, ignored; did you mean imagePullPolicy?
        doubtful.yaml:11:3: warning: spec.restartPolicy: duplicate key in line 6 and line 11; the last one is used
        </system-out></testcase>
        <testcase classname="podmux.validate" name="good.yaml"><failure type="DuplicateName" message="metadata.name: default/web-node: the pod in ./doubtful.yaml has the same name; rename one of them">good.yaml: metadata.name: DuplicateName: default/web-node: the pod in ./doubtful.yaml has the same name; rename one of them
        </failure></testcase>
        <testcase classname="podmux.validate" name="nameless.yaml"><failure type="FieldValueRequired" message="metadata.name: Required value: a pod needs a name">nameless.yaml:1:1: metadata.name: FieldValueRequired: Required value: a pod needs a name
        </failure></testcase>
        <testcase classname="podmux.validate" name="/missing"><error type="unusable" message="No such file or directory; is the path right?">No such file or directory; is the path right?</error></testcase>
        </testsuite>
        </testsuites>
    "#]].assert_eq(&text);
    check_schema("junit", &text);
    check_schema("junit", &stdout(&directory(&[]), "junit", &["."]));
}

#[test]
fn annotations_of_github_are_one_line_each_and_escaped() {
    expect![[r#"
        ::error file=a b%2Cc%3Ad%25<&">.yaml,line=2,col=7,title=decode::kind: "100%25\n<&>\"',: \u{1b}[31m\u{fffe} 日本" v1 is not a Pod: podmux runs pods only; Pod, PodList or List is expected here
        ::warning file=doubtful.yaml,line=10,col=5,title=warning::spec.containers[0].imagePullpolicy: unknown field, ignored; did you mean imagePullPolicy?
        ::warning file=doubtful.yaml,line=11,col=3,title=warning::spec.restartPolicy: duplicate key in line 6 and line 11; the last one is used
        ::error file=good.yaml,title=DuplicateName::metadata.name: default/web-node: the pod in ./doubtful.yaml has the same name; rename one of them
        ::error file=nameless.yaml,line=1,col=1,title=FieldValueRequired::metadata.name: Required value: a pod needs a name
        ::error title=unusable::missing: No such file or directory; is the path right?
        ! podmux: missing: No such file or directory; is the path right?
        exit 2
    "#]].assert_eq(&output(&troubled(), &["-o", "github", ".", "missing"], b""));
}
