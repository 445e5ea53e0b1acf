//! kubectl's JSONPath templates give what the real kubectl gives, errors included, with bounded work.

use std::{fmt::Write as _, fs, process::Command};

use podmux::cli::jsonpath::{MAX_TEMPLATE, Template};
use serde_json::{Value, json};

use crate::support::{kubectl::programs, kubernetes::not_tested};

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "creationTimestamp": null,
            "labels": {"x": "y", "app.kubernetes.io/name": "web"}},
        "spec": {"priority": 5, "share": 1.5, "big": 1_000_000, "whole": true, "none": [], "empty": {}, "text": "", "containers": [
            {"name": "a", "image": "<i&1>", "stdin": true, "ports": [{"containerPort": 80}, {"containerPort": 81}], "null": null},
            {"name": "b", "image": "i2", "args": ["x", "y"], "share": 0.5},
        ]},
    })
}

/// Templates, and for each filter of `FILTERS` another one.
const TEMPLATES: &[&str] = &[
    "{.metadata.name}",
    "a{.kind}b",
    "{}",
    "{@}",
    "{.}",
    "{ .kind }",
    "{.kind .name}",
    "{.kind}}",
    "{{.kind}}",
    "x}y{\"z\"}",
    "{.metadata.name",
    "{metadata.name}",
    "{foo}",
    "{é}",
    "{rangex}",
    "{trueish}",
    "{end",
    "{end}",
    "{#}",
    "{a|b}",
    "{.metadata.labels.app\\.kubernetes\\.io/name}",
    "{.metadata.labels['app\\.kubernetes\\.io/name']}",
    "{['metadata.name','kind']}",
    "{.metadata['name','namespace']}",
    "{['metadata']['name']}",
    "{.metadata.missing}",
    "{.metadata.missing.x}",
    "{.metadata.name.x}",
    "{.spec.containers[0]}",
    "{.spec.containers[*].name}",
    "{.spec.containers[].name}",
    "{.spec.containers.name}",
    "{.spec.containers[0,1].name}",
    "{.spec.containers[5].name}",
    "{.spec.containers[-1].name}",
    "{.spec.containers[-2].name}",
    "{.spec.containers[-3].name}",
    "{.spec.containers[0:1].name}",
    "{.spec.containers[::2].name}",
    "{.spec.containers[0:0].name}",
    "{.spec.containers[:1].name}",
    "{.spec.containers[1:].name}",
    "{.spec.containers[-1:].name}",
    "{.spec.containers[0:5].name}",
    "{.spec.containers[1:0].name}",
    "{.spec.containers[0:2:0].name}",
    "{.spec.containers[-]}",
    "{.spec.containers[0:-]}",
    "{.spec.containers[a]}",
    "{.spec.containers[1:2:3:4]}",
    "{.spec.containers[99999999999999999999]}",
    "{.spec.containers[*",
    "{.spec.containers[0][\"name\"]}",
    "{.metadata.name[0]}",
    "{.metadata[0]}",
    "{.spec.priority[0]}",
    "{.spec.share[0]}",
    "{.spec.whole[0]}",
    "{.metadata.creationTimestamp[0]}|{.metadata.creationTimestamp.*}",
    "{range .spec.containers[*]}{.name}{\"\\n\"}{end}",
    "{range .spec.containers[*]}{.name}{\"\\t\"}{.image}{\",\"}",
    "{range .spec.containers[*]}{range .ports[*]}{.containerPort}{\" \"}{end}{.name}{\";\"}{end}",
    "{range .spec.missing[*]}{.a}{end}x",
    "{range .spec.containers[*]}{end}{end}",
    "{range}{.kind}{end}",
    "{range .spec.containers[*]}{range .ports[*]}{@}{end}x",
    "{range .metadata.labels}{.x}{end}",
    "{range .spec.containers[*].name}[{@}]{end}",
    "{range .metadata.creationTimestamp}a{end}b",
    "{range .spec.containers[0:1]}{.name}{end}{range .spec.containers[1:2]}{.name}{end}z",
    "{range .spec.containers[*]}{.name}{.args[0]}{end}",
    "{..containerPort}",
    "{..image}",
    "{.spec..containerPort}",
    "{....name}",
    "{..*}",
    "{..[0]}",
    "{..x}{..}{.kind",
    "{.metadata.name..}",
    "{$..x}",
    "{1}{true}{false}{1.5}{\"x y\"}{@.kind}{$.kind}",
    "{+5}{-5}{5.}{0.10}",
    "{100000000000000000000000.5}{0.00001}{1234567.5}{123456.5}{99999999999999999999}",
    "{-}",
    "{1.2.3}",
    "{1e5}",
    "{.kind 5}{.spec.containers[*].name \"z\"}",
    "{'single'}{\"d\\\"q\"}{\"\\u00e9\\x41\\101\\t\"}",
    "{\"\\q\"}",
    "{\"\\x\"}",
    "{\"\\u12\"}",
    "{\"\\777\"}",
    "{'a\"b'}{\"a'b\"}{'\\''}",
    "{'\\\"'}",
    "{\"a",
    "{.kind\n}",
    "{\"\n\"}",
    "{.metadata.name,.kind}",
    "{.spec.priority} {.spec.share} {.spec.big} {.spec.whole} {.spec.none} {.spec.empty} {.spec.text}|",
    "{.metadata.labels}",
    "{.metadata.name.*}",
    "{.spec.containers[*].args}",
    "{.spec.containers[*].args[*]}",
    "{.spec.none[0]}",
    "{.spec.none[*]}",
    "{.spec.containers[?(@.name==\"a\")}",
    "{.spec.containers[?(@.name==\"a\"]}",
    "{.metadata.name[?(@.x)]}",
    "{.spec.priority[?(@.x)]}",
    "{.spec.containers[?(@.name==\"a\")].ports[?(@.containerPort>80)].containerPort}",
    "{.spec.containers[?(@.name==\")\")].name}x",
];

const FILTERS: &[&str] = &[
    "@.name==\"a\"",
    "@.name=='a'",
    "@.name!=\"a\"",
    "@.name>\"a\"",
    "@.name<=\"a\"",
    "@.name>1",
    "@.name==a",
    ".name==\"a\"",
    " @.name == \"a\" ",
    "@.stdin",
    "@.stdin==true",
    "@.stdin!=false",
    "@.stdin>true",
    "@.null",
    "@.null==1",
    "@.missing",
    "@.missing==1",
    "@.missing!=1",
    "@.name==\"a\" || @.name==\"b\"",
    "@.name=~\"a.*\"",
    "@.ports[0].containerPort==80",
    "@.ports[*].containerPort==80",
    "@.ports==1",
    "@.args",
    "@.args[1]",
    "@.args[5]",
    "@.args[5]==1",
    "@.args[*]==\"x\"",
    "@.share==0.5",
    "@.share>0",
    "@.share<1.0",
    "@.ports[0]==@.ports[0]",
    "@.name==@.name",
    "1==1",
    "\"a\"==\"a\"",
    "@.name==",
    "==1",
    "@.name===\"a\"",
    "@.name=!\"a\"",
    "true",
    "@.ports[?(@.x)]",
    "",
];

/// What a template gives, or its error.
fn ours(template: &str) -> Result<String, String> {
    let template = Template::parse(template).map_err(|error| error.to_string())?;
    template.execute(&pod(), str::to_owned).map_err(|error| error.to_string())
}

#[test]
fn templates_give_what_kubectl_gives() {
    let Some(kubectl) = programs().into_iter().next() else { return not_tested("there is no kubectl") };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pod.json");
    fs::write(&file, pod().to_string()).unwrap();
    let theirs = |template: &str| {
        let mut command = Command::new(&kubectl);
        command.args(["label", "--local", "--overwrite", "-f"]).arg(&file).arg("x=y");
        command
            .args(["-o", &format!("jsonpath={template}")])
            .env("KUBECONFIG", "/dev/null")
            .env("HOME", directory.path());
        let output = command.output().unwrap();
        let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        if output.status.success() {
            return Ok(out);
        }
        // `error parsing jsonpath TEMPLATE, WHAT`, or `error executing jsonpath "…": Error executing template: WHAT. Printing more…`.
        let executing = error
            .split_once("Error executing template: ")
            .and_then(|(_, rest)| rest.split_once(". Printing more"));
        let parsing = error.split_once(&format!("jsonpath {template}, ")).map(|(_, rest)| rest.trim_end());
        Err(executing.map(|(what, _)| what).or(parsing).unwrap_or(error.trim_end()).to_owned())
    };
    let filters = FILTERS.iter().map(|filter| format!("{{.spec.containers[?({filter})].name}}"));
    let mut problems = String::new();
    for template in TEMPLATES.iter().map(|template| (*template).to_owned()).chain(filters) {
        let (theirs, ours) = (theirs(&template), ours(&template));
        if theirs != ours {
            writeln!(problems, "{template}\n  kubectl: {theirs:?}\n  podmux:  {ours:?}").unwrap();
        }
    }
    assert_eq!(problems, "");
}

#[test]
fn a_template_without_braces_is_an_expression_and_sort_by_takes_one() {
    assert_eq!(ours(".metadata.name"), Ok("web".to_owned()));
    assert_eq!(ours("name"), Ok("name".to_owned()));
    for text in [".metadata.name", "metadata.name", "{.metadata.name}", "{metadata.name}"] {
        let template = Template::expression(text).unwrap();
        assert_eq!((template.text(), template.first(&pod())), ("{.metadata.name}", Ok(Some("web".into()))));
    }
    for text in ["", "{}", "{.a}{.b}", "{.a", "."] {
        let error = Template::expression(text).unwrap_err().to_string();
        assert!(error.starts_with("unexpected path string, expected a 'name1.name2'"), "{text}: {error}");
    }
}

#[test]
fn the_work_of_a_template_is_bounded() {
    assert!(Template::parse(&"x".repeat(MAX_TEMPLATE)).is_ok());
    let error = Template::parse(&"x".repeat(MAX_TEMPLATE + 1)).unwrap_err();
    assert_eq!(error.to_string(), "the template has more than 16384 bytes: shorten it");
    let ranges = Template::parse(&"{range .spec}".repeat(33)).unwrap();
    let error = ranges.execute(&pod(), str::to_owned).unwrap_err();
    assert_eq!(error.to_string(), "more than 32 ranges in each other: end some of them");
    // Each of these multiplies the values: a thousand of them would not end.
    let deep = (0..100).fold(json!({}), |inner, _| json!({"a": inner, "b": "b"}));
    for template in ["{..a".to_owned() + &"..a".repeat(1000) + "}", "{range .a..}".repeat(32)] {
        let template = Template::parse(&template).unwrap();
        let error = template.execute(&deep, str::to_owned).unwrap_err();
        assert_eq!(error.to_string(), "the template gives too many values: use fewer .. and {range}");
    }
    // The text counts, too: this would be 2 GB.
    let long = json!({"text": "x".repeat(1 << 20)});
    let template = Template::parse(&"{.text}".repeat(2000)).unwrap();
    assert!(template.execute(&long, str::to_owned).is_err());
}
