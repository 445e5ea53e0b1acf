//! `podmux validate` on many manifests: their order, directories below, and pipes.
#![allow(clippy::needless_raw_string_hashes, reason = "expected output is written by expect-test")]

use std::{fmt::Write as _, fs};

use expect_test::expect;

use crate::validate::{DOUBTFUL, VALID, directory, output};

/// The number of manifests: several blocks that several threads check.
const MANY: usize = 1_700;

#[test]
fn many_manifests_are_reported_in_the_order_of_arguments_and_names() {
    let dir = directory(&[]);
    let mut expected = String::new();
    let name = |number: usize| format!("{number:04}.yaml");
    for number in 0..MANY {
        // Of different sizes, so that threads do not end in the order in which they begin.
        let padding = "#\n".repeat(number * 7919 % 3_000);
        let text = if number % 3 == 0 {
            format!("{padding}kind: [\n")
        } else {
            padding + &VALID.replace("name: web", &format!("name: web-{number}"))
        };
        fs::write(dir.path().join(name(number)), text).unwrap();
    }
    let line = |number: usize| number * 7919 % 3_000 + 1;
    for number in (0..MANY).filter(|number| number % 3 == 0) {
        writeln!(expected, "./{}:{}:7: unclosed bracket '['", name(number), line(number)).unwrap();
    }
    assert_eq!(output(&dir, &["."], b""), expected.clone() + "exit 1\n");
    // As arguments, in another order.
    let names: Vec<String> = (0..MANY).rev().map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let reversed: String = expected.lines().rev().fold(String::new(), |text, line| text + &line[2..] + "\n");
    assert_eq!(output(&dir, &names, b""), reversed + "exit 1\n");
}

#[test]
fn names_that_occur_twice_are_found_across_blocks() {
    let dir = directory(&[]);
    for number in 0..MANY {
        let text = VALID.replace("name: web", &format!("name: web-{}", number % (MANY - 1)));
        fs::write(dir.path().join(format!("{number:04}.yaml")), text).unwrap();
    }
    expect![[r#"
        ./1699.yaml: metadata.name: DuplicateName: default/web-0-node: the pod in ./0000.yaml has the same name; rename one of them
        exit 1
    "#]]
    .assert_eq(&output(&dir, &["."], b""));
}

#[test]
fn recursion_reads_each_directory_below_by_extension() {
    let dir = directory(&[("web.yaml", VALID), ("README.md", "# not a manifest\n"), ("z.yml", "bad")]);
    let below = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    below("a/b/bad.yaml", "bad");
    // Another directory: the same name is no duplicate.
    below("a/web.json", VALID);
    below("a/again.yml", VALID);
    below("c/doubtful.yaml", DOUBTFUL);
    below(".git/bad.yaml", "bad");
    std::os::unix::fs::symlink(".", dir.path().join("loop")).unwrap();
    expect![[r#"
        ./web.yaml: valid: default/web-node
        ./z.yml:1:1: a map with apiVersion and kind is expected, but this is a string (is this a manifest?)
        ./a/again.yml: valid: default/web-node
        ./a/web.json: metadata.name: DuplicateName: default/web-node: the pod in ./a/again.yml has the same name; rename one of them
        ./a/b/bad.yaml:1:1: a map with apiVersion and kind is expected, but this is a string (is this a manifest?)
        ./c/doubtful.yaml:10:5: warning: spec.containers[0].imagePullpolicy: unknown field, ignored; did you mean imagePullPolicy?
        ./c/doubtful.yaml:11:3: warning: spec.restartPolicy: duplicate key in line 6 and line 11; the last one is used
        ./c/doubtful.yaml: valid: default/web-node
        ! podmux: ./.git: skipped: hidden
        ! podmux: ./loop: skipped: a link to a directory
        ! podmux: ./README.md: skipped: another extension
        ! podmux: 3 valid, 3 invalid
        exit 1
    "#]].assert_eq(&output(&dir, &["-R", "-v", "."], b""));
    expect![[r#"
        c/doubtful.yaml:10:5: warning: spec.containers[0].imagePullpolicy: unknown field, ignored; did you mean imagePullPolicy?
        c/doubtful.yaml:11:3: warning: spec.restartPolicy: duplicate key in line 6 and line 11; the last one is used
        a/b/bad.yaml:1:1: a map with apiVersion and kind is expected, but this is a string (is this a manifest?)
        exit 1
    "#]].assert_eq(&output(&dir, &["-R", "c", "a/b"], b""));
    fs::create_dir(dir.path().join("empty")).unwrap();
    expect![[r#"
        ! podmux: empty: no manifests in it
        exit 0
    "#]]
    .assert_eq(&output(&dir, &["-R", "empty"], b""));
}
