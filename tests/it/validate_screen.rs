//! `podmux validate` on a terminal: faulty lines with carets, colours, widths, the summary.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::too_many_lines,
    reason = "expected output is written by expect-test and long"
)]

use std::{fmt::Write as _, fs};

use expect_test::{Expect, expect};
use tempfile::TempDir;

use crate::{
    support::process::{on_a_terminal_of, podmux},
    validate::{DOUBTFUL, VALID, directory, output},
};

/// What a terminal with so many columns receives, with `^[` for an escape.
fn screen(dir: &TempDir, columns: u16, variables: &[(&str, &str)], args: &[&str]) -> String {
    let mut command = podmux(&["validate", "--node-name", "node"]);
    command.args(args).current_dir(dir).envs(variables.iter().copied());
    let seen = on_a_terminal_of(columns, command);
    seen.replace("\r\n", "\n").replace('\r', "<CR>").replace('\u{1b}', "^[")
}

const XTERM: (&str, &str) = ("TERM", "xterm");
const PLAIN: (&str, &str) = ("NO_COLOR", "1");

fn check(files: &[(&str, &str)], columns: u16, args: &[&str], expected: &Expect) {
    expected.assert_eq(&screen(&directory(files), columns, &[XTERM, PLAIN], args));
}

#[test]
fn each_problem_has_its_line_and_a_caret() {
    let bad = VALID.replace("name: web\n    image", "name: Web\n    imagePullPolicy: Perhaps\n    image");
    check(
        &[("a.yaml", DOUBTFUL), ("bad.yaml", &bad), ("c.yaml", VALID)],
        80,
        &["."],
        &expect![[r#"
        warning: spec.containers[0].imagePullpolicy: unknown field, ignored; did you mean imagePullPolicy?
          --> ./a.yaml:10:5
           |
        10 |     imagePullpolicy: Never
           |     ^

        warning: spec.restartPolicy: duplicate key in line 6 and line 11; the last one is used
          --> ./a.yaml:11:3
           |
        11 |   restartPolicy: Never
           |   ^

        error[FieldValueInvalid]: spec.containers[0].name: Invalid value: "Web": a lowercase RFC 1123 label consists of lower-case letters, digits and '-', and begins and ends with a letter or digit
         --> ./bad.yaml:7:11
          |
        7 |   - name: Web
          |           ^

        error[FieldValueNotSupported]: spec.containers[0].imagePullPolicy: Unsupported value: "Perhaps": supported values: "Always", "IfNotPresent", "Never"
         --> ./bad.yaml:8:22
          |
        8 |     imagePullPolicy: Perhaps
          |                      ^

        error[DuplicateName]: metadata.name: default/web-node: the pod in ./a.yaml has the same name; rename one of them
        --> ./c.yaml

        3 manifests: 1 valid, 2 rejected, 2 warnings
    "#]],
    );
}

#[test]
fn a_problem_without_a_place_has_only_the_file() {
    check(
        &[("a.yaml", VALID), ("b.yaml", VALID)],
        80,
        &["-v", "."],
        &expect![[r#"
        ./a.yaml: valid: default/web-node
        error[DuplicateName]: metadata.name: default/web-node: the pod in ./a.yaml has the same name; rename one of them
        --> ./b.yaml

        2 manifests: 1 valid, 1 rejected
    "#]],
    );
}

#[test]
fn colours_are_for_terminals_that_have_them() {
    let dir = directory(&[("a.yaml", DOUBTFUL), ("b.yaml", "kind: [\n")]);
    expect![[r#"
        ^[[1;33mwarning^[[0m^[[1m: spec.containers[0].imagePullpolicy: unknown field, ignored; did you mean imagePullPolicy?^[[0m
          ^[[1;34m-->^[[0m a.yaml:10:5
        ^[[1;34m   |^[[0m
        ^[[1;34m10 |^[[0m     imagePullpolicy: Never
        ^[[1;34m   |^[[0m     ^[[1;33m^^[[0m

        ^[[1;33mwarning^[[0m^[[1m: spec.restartPolicy: duplicate key in line 6 and line 11; the last one is used^[[0m
          ^[[1;34m-->^[[0m a.yaml:11:3
        ^[[1;34m   |^[[0m
        ^[[1;34m11 |^[[0m   restartPolicy: Never
        ^[[1;34m   |^[[0m   ^[[1;33m^^[[0m

        ^[[1;31merror^[[0m^[[1m: unclosed bracket '['^[[0m
         ^[[1;34m-->^[[0m b.yaml:1:7
        ^[[1;34m  |^[[0m
        ^[[1;34m1 |^[[0m kind: [
        ^[[1;34m  |^[[0m       ^[[1;31m^^[[0m

        2 manifests: 1 valid, ^[[31m1 rejected^[[0m, ^[[1;33m2 warnings^[[0m
    "#]].assert_eq(&screen(&dir, 80, &[XTERM], &["a.yaml", "b.yaml"]));
    let plain = screen(&dir, 80, &[XTERM, PLAIN], &["a.yaml", "b.yaml"]);
    assert!(!plain.contains("^["), "{plain}");
    assert_eq!(screen(&dir, 80, &[("TERM", "dumb")], &["a.yaml", "b.yaml"]), plain);
    assert!(!output(&dir, &["a.yaml", "b.yaml"], b"").contains('\u{1b}'));
}

#[test]
fn a_narrow_terminal_cuts_lines_around_the_caret() {
    let bad = VALID
        .replace("image: ", "unknown: 1\n    image: ")
        .replace("kind: Pod", "kind: 'Pod' # 日本語日本語");
    for columns in [10, 11, 20] {
        let seen = screen(&directory(&[("a.yaml", &bad)]), columns, &[XTERM, PLAIN], &["a.yaml"]);
        let shown = seen.lines().skip_while(|line| !line.contains("-->")).skip(1);
        for line in shown.take_while(|line| !line.is_empty()) {
            assert!(line.chars().count() <= usize::from(columns), "{columns}: {line:?}");
        }
    }
    check(
        &[("a.yaml", &bad)],
        10,
        &["a.yaml"],
        &expect![[r#"
        warning: spec.containers[0].unknown: unknown field, ignored
        --> a.yaml:8:5
            unkno…
            ^

        1 manifest: 1 valid, 1 warning
    "#]],
    );
    check(
        &[("a.yaml", &bad)],
        20,
        &["a.yaml"],
        &expect![[r#"
        warning: spec.containers[0].unknown: unknown field, ignored
         --> a.yaml:8:5
          |
        8 |     unknown: 1
          |     ^

        1 manifest: 1 valid, 1 warning
    "#]],
    );
}

#[test]
fn without_a_width_the_variable_columns_or_80_is_used() {
    let long = format!("kind: Pod # {}\nx: [\n", "long ".repeat(40));
    let long = long.replace("kind: Pod", "kind: 'Pod' x");
    let dir = directory(&[("a.yaml", &long)]);
    let width = |variables: &[(&str, &str)]| {
        let seen = screen(&dir, 0, variables, &["a.yaml"]);
        seen.lines().find(|line| line.starts_with("1 | ")).unwrap().chars().count()
    };
    assert_eq!(width(&[XTERM, PLAIN]), 80);
    assert_eq!(width(&[XTERM, PLAIN, ("COLUMNS", "40")]), 40);
}

#[test]
fn tabs_and_wide_characters_move_the_caret_as_they_move_the_text() {
    let wide = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, 日本語: 1, \u{301}e: 2}\nspec: {x:\t1, \ty: 2, containers: [{name: c, image: i}]}\r\n";
    check(
        &[("a.yaml", wide)],
        80,
        &["a.yaml"],
        &expect![[r#"
        warning: metadata.日本語: unknown field, ignored
         --> a.yaml:3:23
          |
        3 | metadata: {name: web, 日本語: 1, ́e: 2}
          |                       ^

        warning: metadata.\u{301}e: unknown field, ignored
         --> a.yaml:3:31
          |
        3 | metadata: {name: web, 日本語: 1, ́e: 2}
          |                                  ^

        warning: spec.x: unknown field, ignored
         --> a.yaml:4:8
          |
        4 | spec: {x:    1,     y: 2, containers: [{name: c, image: i}]}
          |        ^

        warning: spec.true: unknown field, ignored
         --> a.yaml:4:15
          |
        4 | spec: {x:    1,     y: 2, containers: [{name: c, image: i}]}
          |                     ^

        1 manifest: 1 valid, 4 warnings
    "#]],
    );
}

#[test]
fn no_control_character_reaches_the_terminal() {
    let controls =
        "\u{1}\u{7}\u{8}\u{1b}[31m\u{1b}]0;title\u{7}\u{7f}\u{85}\u{9b}31m\u{202e}\u{2066}\u{200d}";
    let dir = directory(&[
        ("raw\u{1b}[5m\u{9b}5m.yaml", &format!("kind: Pod # {controls}\n")),
        ("json", &format!("{{\"apiVersion\": \"v1\", \"kind\": \"{controls}\"}}").replace('\u{1}', " ")),
        ("yaml", "apiVersion: v1\nkind: \"\\e[31m\\x9b31m\\u202e\"\n"),
    ]);
    for variables in [&[XTERM][..], &[XTERM, PLAIN]] {
        let mut seen = screen(&dir, 200, variables, &["."]);
        // The program's own.
        for style in ["0", "1", "31", "1;31", "1;33", "1;34"] {
            seen = seen.replace(&format!("^[[{style}m"), "");
        }
        let foreign = |c: char| {
            (c.is_control() && c != '\n') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert!(!seen.contains(foreign) && !seen.contains("^["), "{seen:?}");
        assert!(seen.contains("3 manifests: 0 valid, 3 rejected"), "{seen}");
    }
    fs::remove_file(dir.path().join("raw\u{1b}[5m\u{9b}5m.yaml")).unwrap();
    expect![[r#"
        error: a control character in a string: escape it
         --> ./json:1:32
          |
        1 | {"apiVersion": "v1", "kind": " ␇␈␛[31m␛]0;title␇␡��31m���"}
          |                                ^

        error: kind: "\u{1b}[31m\u{9b}31m\u{202e}" v1 is not a Pod: podmux runs pods only; Pod, PodList or List is expected here
         --> ./yaml:2:7
          |
        2 | kind: "\e[31m\x9b31m\u202e"
          |       ^

        2 manifests: 0 valid, 2 rejected
    "#]]
    .assert_eq(&screen(&dir, 80, &[XTERM, PLAIN], &["."]));
}

#[test]
fn a_very_long_line_is_cut_around_the_caret() {
    let space = " ".repeat(300_000);
    let long = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\n\
         spec: {{containers: [{space}{{image: before, name: A_, command: [after]}}{space}]}}\n"
    );
    check(
        &[("a.yaml", &long)],
        60,
        &["a.yaml"],
        &expect![[r#"
        error[FieldValueInvalid]: spec.containers[0].name: Invalid value: "A_": a lowercase RFC 1123 label consists of lower-case letters, digits and '-', and begins and ends with a letter or digit
         --> a.yaml:4:300043
          |
        4 | …               {image: before, name: A_, command: [aft…
          |                                       ^

        1 manifest: 0 valid, 1 rejected
    "#]],
    );
}

#[test]
fn progress_is_shown_only_on_a_terminal_and_fits_into_it() {
    let dir = directory(&[]);
    for number in 0..120 {
        let text = VALID.replace("name: web", &format!("name: web-{number}"));
        fs::write(dir.path().join(number.to_string()), text).unwrap();
    }
    let seen = screen(&dir, 80, &[XTERM], &["."]);
    assert!(seen.contains("<CR>^[[K100 of 120 manifests"), "{seen:?}");
    assert!(seen.ends_with("<CR>^[[K120 manifests: 120 valid\n"), "{seen:?}");
    let narrow = screen(&dir, 10, &[XTERM], &["."]);
    assert!(narrow.contains("<CR>^[[K100 of 12<CR>"), "{narrow:?}");
    assert_eq!(screen(&dir, 80, &[("TERM", "dumb")], &["."]), "120 manifests: 120 valid\n");
    assert_eq!(output(&dir, &["."], b""), "exit 0\n");
}

#[test]
fn of_very_many_problems_the_first_are_shown_and_the_others_counted() {
    let bad = |errors: usize| {
        let mut text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels:\n".to_owned();
        (0..errors).for_each(|label| writeln!(text, "    l{label}: 1").unwrap());
        text
    };
    let dir = directory(&[]);
    // 1,000,150 problems.
    fs::write(dir.path().join("0"), bad(150)).unwrap();
    for number in 1..=10 {
        fs::write(dir.path().join(format!("{number:02}")), bad(100_000)).unwrap();
    }
    let seen = screen(&dir, 80, &[XTERM, PLAIN], &["."]);
    let count = |text: &str| seen.lines().filter(|line| line.starts_with(text)).count();
    assert_eq!(count("error[FieldValueTypeInvalid]: metadata.labels["), 991);
    assert_eq!(seen.lines().filter(|line| *line == "error: and 50 more errors").count(), 1, "{seen}");
    assert!(seen.ends_with(
        "\n199,909 more problems are not shown: podmux validate -o json prints at most 100 errors and 100 warnings of each manifest\n11 manifests: 0 valid, 11 rejected\n"
    ), "{}", &seen[seen.len() - 300..]);
}
