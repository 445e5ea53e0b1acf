//! `-o yaml` has kubectl's style, and every YAML reader reads the same value from it.
#![allow(clippy::too_many_lines, reason = "a text a line makes long expected output")]

use expect_test::{Expect, expect};
use podmux::{cli::yaml::document, manifest::yaml::to_json};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

#[allow(clippy::needless_pass_by_value, reason = "so that the expectation can stand in the call")]
fn check(value: Value, expected: Expect) {
    let text = document(&value).unwrap();
    expected.assert_eq(&text);
    assert_eq!(to_json(&text).unwrap(), value);
}

#[test]
fn objects_have_kubectls_style() {
    check(
        json!({
            "apiVersion": "v1",
            "items": [{ "metadata": { "name": "web", "labels": {} }, "args": ["-c", "--x=1", ["a", ["b"]], []] }],
            "empty": null, "yes": true, "number": 8080, "float": 0.5,
        }),
        expect![[r#"
            apiVersion: v1
            empty: null
            float: 0.5
            items:
            - args:
              - -c
              - --x=1
              - - a
                - - b
              - []
              metadata:
                labels: {}
                name: web
            number: 8080
            "yes": true
        "#]],
    );
    check(json!([]), expect![["[]\n"]]);
    check(json!("a\nb"), expect![["|-\n  a\n  b\n"]]);
    check(json!(null), expect![["null\n"]]);
}

#[test]
fn ambiguous_texts_are_quoted() {
    check(
        json!([
            "y",
            "N",
            "Yes",
            "off",
            "TRUE",
            "null",
            "~",
            "0644",
            "0o17",
            "0x1F",
            "0b1",
            "1:30",
            "1e3",
            "1_000",
            ".5",
            "+1",
            ".inf",
            "-.INF",
            ".NaN",
            "2026-11-21",
            "2026-11-21T09:00:00Z",
            "1.2.3.4",
            "",
            " a",
            "a ",
            "a: b",
            "a:",
            "a #b",
            "#a",
            "- a",
            "-",
            "---",
            "--- a",
            "...",
            "*a",
            "&a",
            "!a",
            "|",
            ">",
            "%a",
            "@a",
            "`a",
            "[a]",
            "{a}",
            "'a'",
            "\"a\"",
            ",",
            "?",
            ": a",
            "<<",
            "=",
            "a\tb",
            "a\\b\"c\u{7}",
        ]),
        expect![[r##"
            - "y"
            - "N"
            - "Yes"
            - "off"
            - "TRUE"
            - "null"
            - "~"
            - "0644"
            - "0o17"
            - "0x1F"
            - "0b1"
            - "1:30"
            - "1e3"
            - "1_000"
            - ".5"
            - "+1"
            - ".inf"
            - "-.INF"
            - ".NaN"
            - "2026-11-21"
            - "2026-11-21T09:00:00Z"
            - "1.2.3.4"
            - ""
            - " a"
            - "a "
            - "a: b"
            - "a:"
            - "a #b"
            - "#a"
            - "- a"
            - '-'
            - "---"
            - "--- a"
            - "..."
            - "*a"
            - "&a"
            - "!a"
            - "|"
            - ">"
            - "%a"
            - "@a"
            - "`a"
            - "[a]"
            - "{a}"
            - "'a'"
            - "\"a\""
            - ","
            - "?"
            - ": a"
            - "<<"
            - "="
            - "a\tb"
            - "a\\b\"c\a"
        "##]],
    );
}

#[test]
fn unambiguous_texts_are_plain() {
    check(
        json!([
            "web",
            "nginx:1.25@sha256:0a",
            "/bin/sh",
            "100m",
            "1Gi",
            "http://a/b?c#d",
            "$(HOME)/x",
            "a, [b] {c}",
            "3f8a2c-b",
            "straße",
            "名前",
            "a'b\"c",
            "it's",
            "--flag",
            "-1x",
        ]),
        expect![[r#"
            - web
            - nginx:1.25@sha256:0a
            - /bin/sh
            - 100m
            - 1Gi
            - http://a/b?c#d
            - $(HOME)/x
            - a, [b] {c}
            - 3f8a2c-b
            - straße
            - 名前
            - a'b"c
            - it's
            - --flag
            - -1x
        "#]],
    );
}

#[test]
fn texts_of_several_lines_are_blocks_where_that_is_safe() {
    check(
        json!({
            "script": "#!/bin/sh\nset -e\n\n  exec: sleep 1\n",
            "bare": "a\nb",
            "open": "a\n\n",
            "in a list": ["a\n b\n", { "x": "y\nz" }],
            "indented": " a\nb",
            "tab": "a\n\tb",
            // Go's reader rejects a block that begins with a tab.
            "tab first": "\n\ta\nb",
            "only": "\n",
            "carriage": "a\r\nb",
        }),
        expect![[r#"
            bare: |-
              a
              b
            carriage: "a\r\nb"
            in a list:
            - |
              a
               b
            - x: |-
                y
                z
            indented: |2-
               a
              b
            only: |+

            open: |+
              a

            script: |
              #!/bin/sh
              set -e

                exec: sleep 1
            tab: |-
              a
              	b
            tab first: "\n\ta\nb"
        "#]],
    );
    assert_eq!(document(&json!("a\n  \nb")).unwrap(), "|-\n  a\n    \n  b\n");
}

/// Texts of the characters that mean something to YAML, and of some that are invisible.
fn texts() -> impl Strategy<Value = String> {
    let odd = "[-:# \n\t'\"\\\\\\[\\]{},&*!|>%@`?=<~.0-9eExXoObB_+yYnNtTaZz\u{85}\u{a0}\u{2028}\u{feff}\u{7}é名\u{1f600}]{0,12}";
    prop_oneof![4 => odd, 1 => ".{0,8}", 1 => "(true|no|null|[0-9]{1,3}:[0-9]{2}|0[0-7]{3}|[a-z]{1,6}\n){1,3}"]
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        texts().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((texts(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_value_is_read_back_as_it_was(value in values()) {
        let text = document(&value).unwrap();
        prop_assert_eq!(to_json(&text).map_err(|problem| format!("{problem}\n{text}")), Ok(value));
    }

    #[test]
    fn every_float_is_read_back_as_it_was(value in any::<f64>().prop_filter("JSON has no others", |value| value.is_finite())) {
        let text = document(&json!(value)).unwrap();
        prop_assert_eq!(to_json(&text).unwrap().as_f64(), Some(value), "{}", text);
    }
}
