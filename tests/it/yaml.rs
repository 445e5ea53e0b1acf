//! YAML and JSON are parsed by the kubelet's rules (go-yaml v2 through sigs.k8s.io/yaml), with positions.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::format_collect,
    reason = "expect-test writes the one; the other reads well in a test"
)]

use expect_test::{Expect, expect};
use podmux::manifest::yaml::to_json;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Checks the JSON value of a text, or its error.
#[allow(clippy::needless_pass_by_value, reason = "so that the expectation can stand in the call")]
fn check(text: &str, expect: Expect) {
    expect.assert_eq(&match to_json(text) {
        Ok(value) => value.to_string(),
        Err(problem) => problem.to_string(),
    });
}

#[test]
fn plain_scalars_follow_yaml_1_1() {
    check(
        "[0644, 0o644, 0x1F, 0b101, 08, 1_000, 1e3, 1.0, .5, +7, -0b11]",
        expect!["[420,420,31,5,8,1000,1000,1,0.5,7,-3]"],
    );
    check("[y, No, ON, oFF, True, tRUE]", expect![[r#"[true,false,true,"oFF",true,"tRUE"]"#]]);
    check("[~, null, Null, nULL, '', 'null']", expect![[r#"[null,null,null,"nULL","","null"]"#]]);
    check(
        "[1:30, 2026-01-02, 0x, 1e400, 1.2.3, =, -x]",
        expect![[r#"["1:30","2026-01-02","0x","1e400","1.2.3","=","-x"]"#]],
    );
    check("a: .inf", expect!["1:4: inf cannot be written as JSON: put it in quotes if it is a string"]);
    check("[!!str 5, !!int '5', !!float 1, ! 5, !mine 5]", expect![[r#"["5",5,1,"5","5"]"#]]);
    check("a: !!int x", expect!["1:10: the value is not a !!int"]);
}

#[test]
fn scalar_keys_become_strings() {
    check(
        "{1: a, true: b, 1.5: c, 1e6: d, 0x10: e}",
        expect![[r#"{"1":"a","1.5":"c","16":"e","1e+06":"d","true":"b"}"#]],
    );
    check("? [a, b]\n: c", expect!["1:3: a list cannot be a key: a key must be a string"]);
    check("a:\n  ~: c", expect!["2:3: null cannot be a key"]);
    check("- {a\n  b: c}", expect!["1:4: a key must be on one line"]);
}

#[test]
fn the_position_of_a_merge_key_counts() {
    check(
        "a: &a {p: 1, q: 2}\nb: {<<: *a, q: 3}\nc: {q: 3, <<: *a}",
        expect![[r#"{"a":{"p":1,"q":2},"b":{"p":1,"q":3},"c":{"p":1,"q":2}}"#]],
    );
    check(
        "[&a {p: 1}, &b {p: 2, q: 2}, {<<: [*a, *b]}]",
        expect![[r#"[{"p":1},{"p":2,"q":2},{"p":1,"q":2}]"#]],
    );
    check("a: {<<: 5}", expect!["1:9: the value of a merge key (<<) must be a map or a list of maps"]);
    check("'<<': {x: 1}", expect![[r#"{"<<":{"x":1}}"#]]);
}

#[test]
fn a_byte_order_mark_and_all_line_breaks_are_accepted() {
    check("\u{feff}a: 1\r\nb: |\r\n  x\r\n  y\r\n", expect![[r#"{"a":1,"b":"x\ny\n"}"#]]);
    check("\u{feff}{\"a\": 1}", expect![[r#"{"a":1}"#]]);
    check("a: |\n  no line end", expect![[r#"{"a":"no line end"}"#]]);
    check("%YAML 1.2\n---\na: 1\n", expect![[r#"{"a":1}"#]]);
    check("", expect!["null"]);
}

#[test]
fn what_yaml_1_1_forbids_is_rejected_with_its_position() {
    check(
        "a:\n\tb: 1",
        expect!["2:2: tabs disallowed within this context (block indentation): use spaces, not tabs"],
    );
    check("a:\n- \tb: 1", expect!["2:2: a tab in the indentation: use spaces"]);
    check("a: b\n\t\nc: d", expect!["2:1: a tab in the indentation: use spaces"]);
    check(
        "a: \"b\u{7}\"",
        expect![[r#"1:6: the control character U+0007 is not allowed in YAML: write "\x07""#]],
    );
    check("[a?b]", expect!["1:2: a string with a question mark within [ ] or { } must be in quotes"]);
    check(
        "a: &b/c d",
        expect![
            "1:4: the name of an anchor may have letters, digits, '_' and '-': put a string that begins with & in quotes"
        ],
    );
    check("a: *b", expect!["1:4: while parsing node, found unknown anchor"]);
    check("a: 1\n---\nb: 2", expect!["3:1: a second document: only one is allowed here"]);
}

#[test]
fn a_tab_below_a_plain_string_is_rejected_at_the_tab() {
    check("a: 1\nkind: Pod\n\tb: 2", expect!["3:1: a tab in the indentation: use spaces"]);
    check("a:\n  b: x\n\n\n\n\tc: y", expect!["6:1: a tab in the indentation: use spaces"]);
    check("a: b\tc\n \td\n\te: f", expect!["3:1: a tab in the indentation: use spaces"]);
    check("a: [b,\n\tc\n\td]", expect!["3:1: a tab in the indentation: use spaces"]);
    check("- a\n\tb", expect!["2:1: a tab in the indentation: use spaces"]);
    check("\u{feff}a: b\n\tc: d", expect!["2:1: a tab in the indentation: use spaces"]);
}

#[test]
fn errors_of_the_parser_have_advice() {
    check("- @foo", expect!["1:3: unexpected character: `@': put the text in quotes"]);
    check("- `date`", expect!["1:3: unexpected character: ``': put the text in quotes"]);
    let no_end = "a bracket that begins before has no end";
    for text in ["a:\n  b: [c, d\n  e: f", "a:\n- b: [c\n  d: e", "a: [b\nc:\n- d", "a:\n- b: [c\n- d: e"] {
        let problem = to_json(text).unwrap_err();
        assert!(problem.detail.ends_with(no_end), "{text:?}: {problem}");
    }
}

#[test]
fn tabs_that_do_not_indent_are_accepted() {
    check(
        "a:\t1\nb: \"x\n \ty\"\nc: {d:\t1,\n  \t e: 2}\nf: |\n  x\n  \ty\n",
        expect![[r#"{"a":1,"b":"x y","c":{"d":1,"e":2},"f":"x\n\ty\n"}"#]],
    );
}

#[test]
fn text_that_begins_with_a_brace_is_json_if_possible() {
    // JSON has its own `1e3` and escapes; the other texts are YAML in flow style.
    check(r#"{"a": "\ud83d\ude00\/", "b": 1e3}"#, expect![[r#"{"a":"😀/","b":1000.0}"#]]);
    check("{\"a\": 1, # a comment\n \"b\": [yes, 010],}", expect![[r#"{"a":1,"b":[true,8]}"#]]);
    check(r#"{"a": 1,}"#, expect![[r#"{"a":1}"#]]);
    check(r#"{"a": 1} trailing"#, expect!["1:10: unexpected text after the end of the value"]);
    check("{\"a\": 1,\n \"b\" 2}", expect!["2:6: a colon is missing here"]);
    check("{\"a\": [1, 2", expect!["1:12: the text ends inside a value"]);
}

#[test]
fn nesting_aliases_and_size_are_bounded() {
    let deep = |open: &str, close: &str, n: usize| format!("a: {}{}", open.repeat(n), close.repeat(n));
    assert!(to_json(&deep("[", "]", 190)).is_ok());
    for too_deep in [deep("[", "]", 100_000), "{\"a\":".repeat(100_000), "- ".repeat(100_000)] {
        assert_eq!(to_json(&too_deep).unwrap_err().detail, "nested more than 200 levels deep");
    }

    let bomb = (1..40)
        .fold("a0: &a0 [x, x]\n".to_owned(), |text, n| format!("{text}a{n}: &a{n} [*a{0}, *a{0}]\n", n - 1));
    check(&bomb, expect!["10:10: aliases repeat too much of this text"]);
    let tower = (1..40).fold(format!("a0: &a0 {}x{}\n", "[".repeat(20), "]".repeat(20)), |text, n| {
        format!("{text}a{n}: &a{n} {}*a{}{}\n", "[".repeat(20), n - 1, "]".repeat(20))
    });
    check(&tower, expect!["10:29: nested more than 200 levels deep"]);
    check("&a [*a]", expect!["1:5: an alias cannot be inside the value that it repeats"]);

    let many = "{\"a\":[".to_owned() + &"1,".repeat(2_100_000) + "1]}";
    assert_eq!(to_json(&many).unwrap_err().detail, "more than 2000000 values in one text");
}

#[test]
fn the_values_of_nested_anchors_are_bounded() {
    let nested = |levels: usize, values: usize| {
        let open: String = (0..levels).map(|level| format!("&a{level} [")).collect();
        format!("a: {open}{}{}", "1,".repeat(values), "]".repeat(levels))
    };
    assert!(to_json(&nested(100, 1_000)).is_ok());
    assert_eq!(to_json(&nested(100, 30_000)).unwrap_err().detail, "more than 2000000 values in one text");
}

#[test]
fn binary_is_decoded_as_by_go() {
    check("!!binary aGVsbG8=", expect![[r#""hello""#]]);
    check("!!binary |\n  aGVs\n  bG8=\n", expect![[r#""hello""#]]);
    check("!!binary aGVsbG9=", expect![[r#""hello""#]]);
    check("!!binary /w==", expect![["\"\u{fffd}\""]]);
    check("!!binary aGVsbG8", expect!["1:10: a !!binary must be base64"]);
    check("!!binary a-Vs", expect!["1:10: a !!binary must be base64"]);
}

/// Any JSON value, with strings that look like other scalars.
fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[ -~]{0,12}",
        "\\PC{0,6}",
        prop::sample::select(vec![
            "yes", "0644", "1e3", "null", "~", "<<", "- a", "a: b", "# c", "\ta", "a\n\n b ", "😀"
        ])
        .prop_map(str::to_owned),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(text.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A value in YAML's block style, with every string in double quotes.
fn block(value: &Value, indent: usize) -> String {
    let margin = " ".repeat(indent);
    match value {
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(|item| format!("\n{margin}- {}", block(item, indent + 2))).collect()
        }
        Value::Object(map) if !map.is_empty() => map
            .iter()
            .map(|(key, item)| {
                format!("\n{margin}{}: {}", Value::from(key.as_str()), block(item, indent + 2))
            })
            .collect(),
        other => other.to_string(),
    }
}

/// Whether YAML can contain the value without escapes.
fn is_plain(value: &Value) -> bool {
    !value.to_string().contains(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

proptest! {
    #[test]
    fn a_value_is_the_same_from_json_flow_style_and_block_style(value in any_json()) {
        prop_assume!(is_plain(&value));
        let wrapped = json!({ "v": value });
        prop_assert_eq!(&to_json(&wrapped.to_string()).unwrap(), &wrapped);
        prop_assert_eq!(&to_json(&format!("# flow\n{wrapped}")).unwrap(), &wrapped);
        prop_assert_eq!(&to_json(&block(&wrapped, 0)).unwrap(), &wrapped);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[ -~\\n\\t\u{85}\u{feff}é]{0,60}") {
        if let Err(problem) = to_json(&text) {
            prop_assert!(!problem.to_string().contains('\n'), "{problem}");
        }
    }
}
