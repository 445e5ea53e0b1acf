//! `podmux validate --templates`: the pod templates of workloads.
#![allow(clippy::needless_raw_string_hashes, reason = "expected output is written by expect-test")]

use std::collections::BTreeSet;

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::{
    support::{
        dialogue::{Answer, Side},
        kubernetes::Apiserver,
    },
    validate::{VALID, directory, output},
};

fn check(text: &str, args: &[&str], expected: &Expect) {
    let dir = directory(&[("a.yaml", text)]);
    expected.assert_eq(&output(&dir, &[&["--templates", "-v", "a.yaml"], args].concat(), b""));
}

fn indented(text: &str, depth: usize) -> String {
    text.lines().fold(String::new(), |text, line| text + &" ".repeat(depth) + line + "\n")
}

/// A workload whose template has these lines in its spec.
fn workload(version: &str, kind: &str, spec: &str) -> String {
    let (path, depth) = match kind {
        "CronJob" => ("  jobTemplate:\n    spec:\n      template:\n", 8),
        _ => ("  template:\n", 4),
    };
    let spec = format!("containers:\n- name: web\n  image: nginx\n{spec}");
    let spec = indented(&spec, 2);
    let template = format!("metadata: {{labels: {{app: web}}}}\nspec:\n{spec}");
    let template = indented(&template, depth);
    format!("apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: web\nspec:\n{path}{template}")
}

const KINDS: [(&str, &str); 7] = [
    ("apps/v1", "Deployment"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "ReplicaSet"),
    ("v1", "ReplicationController"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
];

#[test]
fn every_workload_is_checked_at_its_own_paths() {
    let kinds = KINDS;
    let bad = "restartPolicy: Perhaps\nhostNetwork: 1\n";
    let decoded: Vec<String> = kinds.iter().map(|(version, kind)| workload(version, kind, bad)).collect();
    check(
        &decoded.join("---\n"),
        &[],
        &expect![[r#"
        a.yaml:13:20: spec.template.spec.hostNetwork: FieldValueTypeInvalid: must be a boolean, true or false, but is the number 1
        a.yaml:27:20: spec.template.spec.hostNetwork: FieldValueTypeInvalid: must be a boolean, true or false, but is the number 1
        a.yaml:41:20: spec.template.spec.hostNetwork: FieldValueTypeInvalid: must be a boolean, true or false, but is the number 1
        a.yaml:55:20: spec.template.spec.hostNetwork: FieldValueTypeInvalid: must be a boolean, true or false, but is the number 1
        a.yaml:69:20: spec.template.spec.hostNetwork: FieldValueTypeInvalid: must be a boolean, true or false, but is the number 1
        a.yaml:83:20: spec.template.spec.hostNetwork: FieldValueTypeInvalid: must be a boolean, true or false, but is the number 1
        a.yaml:99:24: spec.jobTemplate.spec.template.spec.hostNetwork: FieldValueTypeInvalid: must be a boolean, true or false, but is the number 1
        ! podmux: 0 valid, 1 invalid
        exit 1
    "#]],
    );
    let invalid = "restartPolicy: Perhaps\n";
    let invalid: Vec<String> = kinds.iter().map(|(version, kind)| workload(version, kind, invalid)).collect();
    check(
        &invalid.join("---\n"),
        &[],
        &expect![[r#"
        a.yaml:12:22: spec.template.spec.restartPolicy: FieldValueNotSupported: Unsupported value: "Perhaps": supported values: "Always", "OnFailure", "Never"
        a.yaml:25:22: spec.template.spec.restartPolicy: FieldValueNotSupported: Unsupported value: "Perhaps": supported values: "Always", "OnFailure", "Never"
        a.yaml:38:22: spec.template.spec.restartPolicy: FieldValueNotSupported: Unsupported value: "Perhaps": supported values: "Always", "OnFailure", "Never"
        a.yaml:51:22: spec.template.spec.restartPolicy: FieldValueNotSupported: Unsupported value: "Perhaps": supported values: "Always", "OnFailure", "Never"
        a.yaml:64:22: spec.template.spec.restartPolicy: FieldValueNotSupported: Unsupported value: "Perhaps": supported values: "Always", "OnFailure", "Never"
        a.yaml:77:22: spec.template.spec.restartPolicy: FieldValueNotSupported: Unsupported value: "Perhaps": supported values: "Always", "OnFailure", "Never"
        a.yaml:92:26: spec.jobTemplate.spec.template.spec.restartPolicy: FieldValueNotSupported: Unsupported value: "Perhaps": supported values: "Always", "OnFailure", "Never"
        ! podmux: 0 valid, 1 invalid
        exit 1
    "#]],
    );
}

#[test]
fn a_valid_chart_is_valid_and_other_kinds_are_skipped_with_a_count() {
    let chart = [
        "# Source: chart\n".to_owned(),
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n".to_owned(),
        workload("apps/v1", "Deployment", "volumes:\n- name: v\n  configMap: {name: m}\n"),
        workload("batch/v1", "CronJob", "restartPolicy: OnFailure\n"),
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: other}\n".to_owned(),
        VALID.to_owned(),
    ];
    check(
        &chart.join("---\n"),
        &[],
        &expect![[r#"
        a.yaml: valid: default/web-node
        ! podmux: 1 valid, 0 invalid, 2 other objects skipped
        exit 0
    "#]],
    );
    let dir = directory(&[("a.yaml", &chart.join("---\n"))]);
    let json = output(&dir, &["--templates", "-o", "json", "a.yaml"], b"");
    let object: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(object["skipped"], 2);
    assert_eq!(object["pods"].as_array().unwrap().len(), 1);
}

#[test]
fn a_list_may_mix_kinds() {
    let list = "apiVersion: v1\nkind: List\nitems:\n\
                - {apiVersion: v1, kind: Secret, metadata: {name: s}}\n\
                - {apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: [{name: B, image: b}]}}}}\n\
                - {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}\n\
                - {kind: Pod}\n";
    check(
        list,
        &[],
        &expect![[r#"
            a.yaml:5:88: items[1].spec.template.spec.containers[0].name: FieldValueInvalid: Invalid value: "B": a lowercase RFC 1123 label consists of lower-case letters, digits and '-', and begins and ends with a letter or digit
            a.yaml:6:72: items[2].spec.containers[0].image: FieldValueRequired: Required value
            a.yaml:7:3: items[3].apiVersion: FieldValueRequired: Required value: apiVersion: v1 is expected
            ! podmux: 0 valid, 1 invalid, 1 other object skipped
            exit 1
        "#]],
    );
}

#[test]
fn pods_that_restart_otherwise_than_their_workload_are_invalid() {
    let jobs = [
        workload("batch/v1", "Job", ""),
        workload("batch/v1", "CronJob", "restartPolicy: Always\n"),
        workload("apps/v1", "Deployment", "restartPolicy: Never\n"),
    ];
    check(
        &jobs.join("---\n"),
        &[],
        &expect![[r#"
        a.yaml:9:7: spec.template.spec.restartPolicy: FieldValueRequired: Required value: valid values: OnFailure, Never
        a.yaml:26:26: spec.jobTemplate.spec.template.spec.restartPolicy: FieldValueRequired: Required value: valid values: OnFailure, Never
        a.yaml:39:22: spec.template.spec.restartPolicy: FieldValueNotSupported: Unsupported value: "Never": supported values: "Always"
        ! podmux: 0 valid, 1 invalid
        exit 1
    "#]],
    );
}

#[test]
fn a_workload_without_a_template_is_invalid() {
    let text = "apiVersion: apps/v1\nkind: Deployment\nspec: {}\n---\napiVersion: batch/v1\nkind: CronJob\nspec: {jobTemplate: {spec: 1}}\n---\napiVersion: batch/v1\nkind: Job\nspec: {template: 1}\n";
    check(
        text,
        &[],
        &expect![[r#"
        a.yaml:3:7: spec.template: FieldValueRequired: Required value
        a.yaml:7:28: spec.jobTemplate.spec.template: FieldValueRequired: Required value
        a.yaml:11:18: spec.template: FieldValueTypeInvalid: must be a map, but is a number
        ! podmux: 0 valid, 1 invalid
        exit 1
    "#]],
    );
}

#[test]
fn two_workloads_may_have_one_name_and_the_level_holds_for_templates() {
    let two = [
        workload("apps/v1", "Deployment", "hostNetwork: true\n"),
        workload("batch/v1", "Job", "restartPolicy: Never\n"),
    ];
    check(
        &two.join("---\n"),
        &[],
        &expect![[r#"
        a.yaml: valid:
        ! podmux: 1 valid, 0 invalid
        exit 0
    "#]],
    );
    check(
        &two.join("---\n"),
        &["--pod-security", "baseline"],
        &expect![[r#"
        a.yaml:7:5: spec.template: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)
        ! podmux: 0 valid, 1 invalid
        exit 1
    "#]],
    );
}

#[test]
fn without_the_flag_a_workload_is_rejected() {
    let dir = directory(&[("a.yaml", &workload("apps/v1", "Deployment", ""))]);
    let seen = output(&dir, &["a.yaml"], b"");
    assert!(seen.ends_with("exit 1\n"), "{seen}");
}

/// The metadata and specs of templates, in which an API server does not apply all rules of a pod.
fn templates() -> Vec<(&'static str, Value, Value)> {
    let no = || json!({});
    let token = json!({"serviceAccountToken": {"path": "token"}});
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let own = json!({"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}});
    let port = json!({"name": "a", "image": "i:1", "ports": [{"containerPort": 80}]});
    let mut same_port = port.clone();
    same_port["name"] = json!("b");
    let mut ports = port.clone();
    ports["ports"][0]["hostPort"] = json!(81);
    let limit = json!({"name": "a", "image": "i:1", "resources": {"limits": {"cpu": "2"}}});
    let named = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Value>();
    let ephemeral = json!([{"name": "e", "image": "i:1"}]);
    let mounts = |name: &str| json!([{"name": name, "mountPath": "/a"}]);
    let mounting = |name: &str| json!([{"name": "c", "image": "i:1", "volumeMounts": mounts(name)}]);
    vec![
        ("token", no(), json!({"volumes": [{"name": "v", "projected": {"sources": [token]}}]})),
        ("gates", no(), json!({"schedulingGates": named(&["example.com/a"])})),
        ("gates and node", no(), json!({"schedulingGates": named(&["a"]), "nodeName": "n"})),
        ("the same gate twice", no(), json!({"schedulingGates": named(&["a", "a"])})),
        ("an invalid node", no(), json!({"nodeName": "No"})),
        ("white space", no(), json!({"containers": [{"name": "c", "image": " i:1 "}]})),
        ("init white space", no(), json!({"initContainers": [{"name": "i", "image": "i:1 "}]})),
        ("no image", no(), json!({"containers": [{"name": "c"}]})),
        ("finalizers", json!({"finalizers": ["bad"]}), no()),
        ("generateName", json!({"generateName": "Bad_"}), no()),
        ("name", json!({"name": "Bad_", "namespace": "Bad_"}), no()),
        ("owners", json!({"ownerReferences": [{"kind": "", "name": "", "uid": "", "apiVersion": ""}]}), no()),
        ("generation", json!({"generation": -1}), no()),
        (
            "mirror",
            json!({"annotations": {"kubernetes.io/config.mirror": "a"}}),
            json!({"nodeName": "n", "resourceClaims": [{"name": "r", "resourceClaimName": "r"}]}),
        ),
        (
            "the claim of a volume of its own",
            no(),
            json!({"volumes": [own, {"name": "v", "persistentVolumeClaim": {"claimName": "-own"}}]}),
        ),
        ("the same port", no(), json!({"hostNetwork": true, "containers": [port, same_port]})),
        ("other ports", no(), json!({"hostNetwork": true, "containers": [ports]})),
        (
            "limits beyond the pod's",
            no(),
            json!({"containers": [limit], "resources": {"requests": {"cpu": "1"}}}),
        ),
        ("ephemeral containers", no(), json!({"ephemeralContainers": ephemeral})),
        ("a deadline", no(), json!({"activeDeadlineSeconds": 5})),
        ("host names", no(), json!({"hostname": "No", "subdomain": "Neither"})),
        ("a claim", no(), json!({"containers": mounting("www")})),
        ("no claim", no(), json!({"containers": mounting("other")})),
        (
            "a claim and volumes",
            no(),
            json!({
                "containers": mounting("www"),
                "volumes": [{"name": "www", "secret": {}}, {"name": "www"}, {"name": "v", "hostPath": {"path": ".."}}],
            }),
        ),
        ("volumes that are not mounted", no(), json!({"volumes": [{"name": "v"}]})),
        ("a deprecated volume", no(), json!({"volumes": [{"name": "v", "gitRepo": {"repository": "r"}}]})),
    ]
}

/// A workload with such a template. A `StatefulSet` has two claims.
fn wrapped(version: &str, kind: &str, metadata: &Value, spec: &Value) -> Value {
    let mut template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {}});
    template["spec"]["containers"] = json!([{"name": "c", "image": "i:1"}]);
    if version.starts_with("batch/") {
        template["spec"]["restartPolicy"] = json!("Never");
    }
    for (part, fields) in [("metadata", metadata), ("spec", spec)] {
        let fields = fields.as_object().unwrap().clone();
        template[part].as_object_mut().unwrap().extend(fields);
    }
    let mut spec = json!({"template": template});
    if version.starts_with("apps/") {
        spec["selector"] = json!({"matchLabels": {"app": "web"}});
    }
    if kind == "StatefulSet" {
        let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let claim = |name: &str| json!({"metadata": {"name": name}, "spec": claim});
        spec["volumeClaimTemplates"] = json!([claim("www"), claim("data")]);
    }
    if kind == "CronJob" {
        spec = json!({"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}});
    }
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, "spec": spec})
}

/// The verdict, and the fields of errors with their reasons or, of warnings, with their texts.
type Judged = (bool, BTreeSet<(String, String)>);

fn judged(is_valid: bool, problems: &Value) -> Judged {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let what = if is_valid { "detail" } else { "reason" };
    let problems = problems.as_array().into_iter().flatten();
    (is_valid, problems.map(|problem| (text(&problem["field"]), text(&problem[what]))).collect())
}

fn judged_by_podmux(object: &Value) -> Judged {
    let dir = directory(&[("a.json", &object.to_string())]);
    let ours = output(&dir, &["--templates", "-o", "json", "a.json"], b"");
    let ours: Value = serde_json::from_str(ours.lines().next().unwrap()).unwrap();
    judged(ours["ok"] == true, &ours["problems"])
}

fn judged_by_kubernetes(answer: &Answer) -> Judged {
    assert!(matches!(answer.code, 201 | 422), "{}", answer.json);
    if answer.code == 422 {
        return judged(false, &answer.json["details"]["causes"]);
    }
    let warnings = answer.headers.get_all("warning").iter().map(|value| {
        let text = value.to_str().unwrap().strip_prefix("299 - \"").unwrap().trim_end_matches('"');
        let (field, why) = text.split_once(": ").unwrap();
        json!({"field": field, "detail": why})
    });
    judged(true, &warnings.collect())
}

#[tokio::test]
async fn templates_have_the_errors_and_warnings_of_a_real_kube_apiserver() {
    let Some(apiserver) = Apiserver::shared() else { return };
    let mut kubernetes = Side::kubernetes(apiserver);
    let (mut valid, mut differ) = (0, Vec::new());
    let templates = templates();
    for (version, kind) in KINDS {
        let root = if version == "v1" { "api" } else { "apis" };
        let plural = kind.to_lowercase();
        let post = format!("POST /{root}/{version}/namespaces/default/{plural}s?dryRun=All");
        for (label, metadata, spec) in &templates {
            let object = wrapped(version, kind, metadata, spec);
            let theirs = judged_by_kubernetes(&kubernetes.aside(&post, &object).await);
            let ours = judged_by_podmux(&object);
            valid += usize::from(theirs.0);
            if ours != theirs {
                differ.push(format!("{label} in a {kind}:\nours   {ours:?}\ntheirs {theirs:?}"));
            }
        }
    }
    let all = KINDS.len() * templates.len();
    assert!(valid > all / 4 && valid < all * 3 / 4, "the cases are too similar: {valid} of {all} are valid");
    assert!(differ.is_empty(), "{} of {all} differ:\n{}", differ.len(), differ.join("\n"));
}
