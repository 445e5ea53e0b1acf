//! A manifest is accepted or rejected as a whole; each problem has a position, a field and a hint.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::format_collect,
    reason = "expect-test writes the one; the other reads well in a test"
)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use expect_test::{Expect, expect};
use podmux::{
    manifest::{self, Generate, MAX_MANIFEST, Manifest, NAME_ATTEMPTS, Preparation},
    pod::{NodeName, Prepared, SourceName, Stage},
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn read_as(source: SourceName, text: &str) -> Result<Manifest, podmux::pod::InvalidManifest> {
    manifest::decode(
        text.as_bytes(),
        &Preparation { source, node: NodeName::new("node1").unwrap(), generate: None, namespace: None },
    )
}

fn read(text: &str) -> Result<Manifest, podmux::pod::InvalidManifest> {
    read_as(SourceName::File, text)
}

/// Checks the keys of the pods and the problems of a manifest, one on each line.
#[allow(clippy::needless_pass_by_value, reason = "so that the expectation can stand in the call")]
fn check(text: &str, expect: Expect) {
    let (mut lines, problems) = match read(text) {
        Ok(manifest) => {
            (manifest.pods.iter().map(|pod| format!("pod {}", pod.key())).collect(), manifest.warnings)
        }
        Err(invalid) => (vec![format!("rejected at {}", invalid.stage.as_str())], invalid.problems),
    };
    lines.extend(problems.iter().map(ToString::to_string));
    expect.assert_eq(&lines.join("\n"));
}

fn one(source: SourceName, text: &str) -> Value {
    let manifest = read_as(source, text).unwrap();
    let [pod] = &manifest.pods[..] else { panic!("{} pods", manifest.pods.len()) };
    pod.object().clone().into()
}

const WEB: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: c
    image: nginx:1.27
";

fn with(spec: &str) -> String {
    format!("{WEB}{spec}")
}

#[test]
fn an_error_has_line_column_field_and_a_hint() {
    check(
        &with("    env:\n    - {name: A, value: \"x\"}\n    - {name: B, value: 5}\n"),
        expect![[r#"
            rejected at decode
            11:24: spec.containers[0].env[1].value: must be a string, but is a number: put it in quotes"#]],
    );
    check(
        &with("    ports:\n    - containerPort: \"80\"\n    - containerPort: 99999999999\n"),
        expect![[r#"
            rejected at decode
            10:22: spec.containers[0].ports[0].containerPort: must be an integer of 32 bits, but is the string "80": remove the quotes
            11:22: spec.containers[0].ports[1].containerPort: must be an integer of 32 bits, but is the number 99999999999"#]],
    );
    check(
        &with("    args: --verbose\n    stdin: 1\n    resources: [cpu]\n"),
        expect![[r#"
            rejected at decode
            9:11: spec.containers[0].args: must be a list, but is a string
            10:12: spec.containers[0].stdin: must be a boolean, true or false, but is the number 1
            11:16: spec.containers[0].resources: must be a map, but is a list"#]],
    );
    check(
        &with("    resources: {limits: {cpu: lots}}\n  activeDeadlineSeconds: 1.5\n"),
        expect![[r#"
            rejected at decode
            9:31: spec.containers[0].resources.limits[cpu]: must be a quantity (a number with an optional suffix or exponent: 500m, 1.5Gi, 1e3), but is the string "lots"
            10:26: spec.activeDeadlineSeconds: must be an integer of 64 bits, but is the number 1.5"#]],
    );
    check(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: w, labels: {app: 1}, creationTimestamp: 2026-01-02}\n",
        expect![[r#"
            rejected at decode
            3:35: metadata.labels[app]: must be a string, but is a number: put it in quotes
            3:58: metadata.creationTimestamp: must be a time like 2026-01-02T15:04:05Z, but is the string "2026-01-02""#]],
    );
}

#[test]
fn errors_in_json_have_positions() {
    check(
        "{\"apiVersion\": \"v1\", \"kind\": \"Pod\",\n \"metadata\": {\"name\": 5, \"nam\": 1}}",
        expect![[r#"
            rejected at decode
            2:23: metadata.name: must be a string, but is a number: put it in quotes
            2:26: warning: metadata.nam: unknown field, ignored; did you mean name?"#]],
    );
    check(
        r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "generation": 1.0}}"#,
        expect![[r#"
        rejected at decode
        1:77: metadata.generation: must be an integer of 64 bits, but is the number 1.0"#]],
    );
}

#[test]
fn unknown_fields_and_duplicate_keys_are_warnings() {
    check(
        &with("    imagePullpolicy: Always\n    foo: {bar: 1}\nstatsu: {}\n"),
        expect![[r#"
        pod default/web-node1
        9:5: warning: spec.containers[0].imagePullpolicy: unknown field, ignored; did you mean imagePullPolicy?
        10:5: warning: spec.containers[0].foo: unknown field, ignored
        11:1: warning: statsu: unknown field, ignored; did you mean status?"#]],
    );
    check(
        &with("    image: nginx:1.28\n  nodeSelector: {a: b, a: c}\n"),
        expect![[r#"
            pod default/web-node1
            9:5: warning: spec.containers[0].image: duplicate key in line 8 and line 9; the last one is used
            10:24: warning: spec.nodeSelector[a]: duplicate key in line 10 and line 10; the last one is used"#]],
    );
    let pod = one(SourceName::File, &with("    image: nginx:1.28\n"));
    assert_eq!(pod["spec"]["containers"][0]["image"], "nginx:1.28");
}

#[test]
fn a_manifest_is_a_pod_a_list_or_several_documents() {
    let pod = |name: &str| format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n");
    check(
        &format!("---\n# nothing\n---\n{}---\n{}---\n", pod("a"), pod("b")),
        expect![[r#"
        pod default/a-node1
        pod default/b-node1"#]],
    );
    check(
        "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n- {apiVersion: v1, kind: Pod, metadata: {name: b, namespace: prod}}\n",
        expect![[r#"
            pod default/a-node1
            pod prod/b-node1"#]],
    );
    check(
        r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}]}"#,
        expect![["pod default/a-node1"]],
    );
    check("apiVersion: v1\nkind: PodList\nitems: []\n", expect![[""]]);
    check("apiVersion: v1\nkind: PodList\n", expect![[""]]);
}

#[test]
fn other_objects_than_pods_are_rejected() {
    for empty in ["", "---\n", "# nothing\n---\n---\n", "null\n"] {
        let invalid = read(empty).unwrap_err();
        assert_eq!(invalid.stage, Stage::Decode);
        assert_eq!(
            invalid.to_string(),
            "1:1: no pod found (is it empty?): a Pod, a PodList or a List is expected"
        );
    }
    check(
        "apiVersion: apps/v1\nkind: Deployment\n",
        expect![[r#"
            rejected at decode
            2:7: kind: Deployment apps/v1 is not a Pod: podmux runs pods only; its pod is at spec.template (podmux validate --templates FILE checks it)"#]],
    );
    check(
        "kind: ConfigMap\napiVersion: v1\n",
        expect![[r#"
            rejected at decode
            1:7: kind: ConfigMap v1 is not a Pod: podmux runs pods only; give its values to the pod itself, with env or a hostPath volume, and remove it"#]],
    );
    check(
        "- a\n",
        expect![[r#"
            rejected at decode
            1:1: a map with apiVersion and kind is expected, but this is a list (is this a manifest?)"#]],
    );
    check(
        "apiVersion: v1\nkind: List\nitems:\n- metadata: {name: a}\n- {kind: Node, apiVersion: v1}\n- 5\n",
        expect![[r#"
            rejected at decode
            4:3: items[0].kind: Required value: kind: Pod is expected
            5:10: items[1].kind: Node v1 is not a Pod: podmux runs pods only; Pod is expected here
            6:3: items[2]: a map with apiVersion and kind is expected, but this is a number (is this a manifest?)"#]],
    );
    check(
        "apiVersion: v1\nkind: PodList\nitems: {}\n",
        expect![[r#"
        rejected at decode
        3:8: items: must be a list, but is a map"#]],
    );
}

/// kubelet config: `TestExtractInvalidPods`, the cases of decoding
/// ("No version", "Invalid version").
#[test]
fn a_pod_with_a_missing_or_wrong_version_is_rejected() {
    check(
        "kind: Pod\nmetadata: {name: x}\n",
        expect![[r#"
        rejected at decode
        1:1: apiVersion: Required value: apiVersion: v1 is expected"#]],
    );
    check(
        "kind: Pod\napiVersion: v1betta2\nmetadata: {name: x}\n",
        expect![[r#"
            rejected at decode
            2:13: apiVersion: the version of Pod is "v1betta2": write apiVersion: v1"#]],
    );
    check(
        "apiVersion: v1\nkind: 5\n",
        expect![[r#"
            rejected at decode
            2:7: kind: must be a string, but is a number: put it in quotes"#]],
    );
}

#[test]
fn a_pod_needs_a_name() {
    check(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  labels: {a: b}\n",
        expect![[r#"
        rejected at name
        4:3: metadata.name: Required value: a pod needs a name"#]],
    );
    check(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: ''}\n",
        expect![[r#"
        rejected at name
        3:11: metadata.name: Required value: a pod needs a name"#]],
    );
    let invalid = read("apiVersion: v1\nkind: Pod\n").unwrap_err();
    assert_eq!((invalid.stage, invalid.problems[0].reason), (Stage::Name, Some("FieldValueRequired")));
}

#[test]
fn one_invalid_item_rejects_the_manifest_and_each_is_reported() {
    check(
        "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: good}\n- metadata: {}\n- metadata: {name: 5}\n---\nkind: Pod\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: fine}\n",
        expect![[r#"
            rejected at decode
            5:13: items[1].metadata.name: Required value: a pod needs a name
            6:20: items[2].metadata.name: must be a string, but is a number: put it in quotes
            8:1: apiVersion: Required value: apiVersion: v1 is expected"#]],
    );
}

#[test]
fn two_pods_with_one_name_are_rejected_with_both_positions() {
    let pod = |meta: &str| format!("apiVersion: v1\nkind: Pod\nmetadata: {{{meta}}}\n---\n");
    check(
        &(pod("name: a") + &pod("name: b") + &pod("name: a, namespace: default")),
        expect![[r#"
            rejected at decode
            9:1: metadata.name: Duplicate value: default/a-node1 is also the name of the pod at 1:1; rename one of them"#]],
    );
    check(
        &(pod("name: a") + &pod("name: a, namespace: other")),
        expect![[r#"
        pod default/a-node1
        pod other/a-node1"#]],
    );
}

#[test]
fn a_manifest_that_is_too_large_or_not_utf_8_is_rejected() {
    let mut large = WEB.to_owned();
    large.push_str(&"#".repeat(MAX_MANIFEST - large.len()));
    assert!(read(&large).is_ok());
    large.push('#');
    check(
        &large,
        expect![[r#"
            rejected at decode
            10485761 bytes are too many: a manifest has at most 10485760"#]],
    );

    let preparation = Preparation {
        source: SourceName::File,
        node: NodeName::new("n").unwrap(),
        generate: None,
        namespace: None,
    };
    let invalid = manifest::decode(b"apiVersion: v1\nkind: \xff\n", &preparation).unwrap_err();
    assert_eq!(invalid.to_string(), "2:7: not UTF-8: save the file as UTF-8");
    // As with the kubelet, JSON text may contain such bytes.
    let json = b"{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"x\",\"annotations\":{\"a\":\"\xff\xe2\x82\"}}}";
    let read = manifest::decode(json, &preparation).unwrap();
    assert_eq!(read.pods[0].object()["metadata"]["annotations"]["a"], "\u{fffd}\u{fffd}\u{fffd}");
}

#[test]
fn problems_beyond_the_first_hundred_are_counted() {
    let fields: String = (0..5_000).map(|n| format!("x{n}: 1\n")).collect();
    let warnings = read(&format!("{WEB}{fields}")).unwrap().warnings;
    assert_eq!(warnings.len(), 101);
    assert_eq!(warnings[100].to_string(), "warning: and 4900 more warnings");
}

/// A line of the log had three megabytes.
#[test]
fn a_long_name_of_a_field_or_key_is_shown_in_part() {
    let name = "ß".repeat(100_000);
    let pod =
        |spec: Value| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web"}, "spec": spec});
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}], &name: 1});
    let unknown = read(&pod(spec.clone()).to_string()).unwrap().warnings;
    spec["containers"][0]["resources"] = json!({"limits": {&name: "bad"}});
    let invalid = read(&pod(spec).to_string()).unwrap_err().problems;
    for problem in unknown.iter().chain(&invalid) {
        let text = problem.to_string();
        assert!(text.contains(&format!("{}…", "ß".repeat(2_048))), "{text}");
        assert!(text.len() < 5_000, "{} bytes", text.len());
    }
}

#[test]
fn a_problem_that_is_not_reported_needs_no_position() {
    // With a search for each position this test would take hours.
    let labels: String = (0..60_000).map(|n| format!("    k{n}: v\n")).collect();
    let twice = WEB.replace("  name: web\n", &format!("  name: web\n  labels:\n{labels}{labels}"));
    let warnings = read(&twice).unwrap().warnings;
    assert_eq!(warnings[100].to_string(), "warning: and 59900 more warnings");

    let pods: String = (0..20_000).map(|n| WEB.replace("web", &format!("web-{n}")) + "---\n").collect();
    let invalid = read(&(pods.clone() + &pods)).unwrap_err();
    assert_eq!(invalid.problems[100].to_string(), "and 19900 more errors");
    assert!(invalid.to_string().ends_with(" (and 19999 more errors)"), "{invalid}");
}

/// kubelet config: `TestDecodeSinglePod`: the same pod from JSON and from YAML.
#[test]
fn json_and_yaml_give_the_same_prepared_pod() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "test", "uid": "12345", "namespace": "mynamespace"},
        "spec": {"restartPolicy": "Always", "containers": [{"name": "image", "image": "test/image",
            "securityContext": {"privileged": false}}]}});
    let yaml = "apiVersion: v1\nkind: Pod\nmetadata: {name: test, uid: \"12345\", namespace: mynamespace}\nspec:\n  restartPolicy: Always\n  containers:\n  - name: image\n    image: test/image\n    securityContext: {privileged: false}\n";
    let prepared = one(SourceName::Url, &pod.to_string());
    assert_eq!(prepared, one(SourceName::Url, yaml));
    let hash = prepared["metadata"]["annotations"]["kubernetes.io/config.hash"].clone();
    assert_eq!(
        prepared,
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "test-node1", "uid": "12345", "namespace": "mynamespace",
                "annotations": {"kubernetes.io/config.hash": hash}},
            "spec": {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "enableServiceLinks": true,
                "nodeName": "node1", "schedulerName": "default-scheduler", "securityContext": {},
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "image", "image": "test/image", "imagePullPolicy": "Always",
                    "resources": {}, "securityContext": {"privileged": false},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}]},
            "status": {"phase": "Pending"}})
    );
}

/// kubelet config: `TestDecodeSinglePodWithOptions`.
#[test]
fn a_container_may_have_its_own_restart_policy() {
    let pod = one(SourceName::File, &with("    restartPolicy: Always\n  restartPolicy: Never\n"));
    assert_eq!(pod["spec"]["containers"][0]["restartPolicy"], "Always");
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
}

/// kubelet config: `TestDecodePodList`.
#[test]
fn every_pod_of_a_list_is_prepared_like_a_single_pod() {
    let items: Vec<Value> = ["a", "b"]
        .map(
            |name| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        )
        .into();
    let list = json!({"apiVersion": "v1", "kind": "PodList", "items": items});
    let read = read(&list.to_string()).unwrap();
    let alone = |mut item: Value| {
        item["apiVersion"] = "v1".into();
        item["kind"] = "Pod".into();
        one(SourceName::File, &item.to_string())
    };
    let objects: Vec<Value> = read.pods.iter().map(|pod| pod.object().clone().into()).collect();
    assert_eq!(objects, items.into_iter().map(alone).collect::<Vec<_>>());
}

/// kubelet config: `TestStaticPodNameGenerate`.
#[test]
fn the_name_of_a_static_pod_ends_with_the_node_name_in_lower_case() {
    for node in ["node1", "Node1", "NODE1"] {
        let preparation = Preparation {
            source: SourceName::File,
            node: NodeName::new(node).unwrap(),
            generate: None,
            namespace: None,
        };
        let read = manifest::decode(WEB.replace("web", "static-pod1").as_bytes(), &preparation).unwrap();
        assert_eq!(read.pods[0].key().name(), "static-pod1-node1");
    }
}

#[test]
fn each_source_prepares_a_pod_by_its_own_rules() {
    let toleration = json!([{"effect": "NoExecute", "operator": "Exists"}]);
    let file = one(SourceName::File, WEB);
    assert_eq!(file["spec"]["tolerations"], toleration);
    let url = one(SourceName::Url, WEB);
    assert_eq!((&url["metadata"]["name"], &url["spec"]["tolerations"]), (&json!("web-node1"), &Value::Null));
    let posted = one(SourceName::Http, WEB);
    assert_eq!((&posted["metadata"]["name"], &posted["metadata"]["uid"]), (&json!("web"), &Value::Null));
    for pod in [&file, &url, &posted] {
        assert_eq!(pod["spec"]["nodeName"], "node1");
        assert_eq!(pod["status"]["phase"], "Pending");
    }
    let own = with(
        "  tolerations:\n  - {operator: Exists, effect: NoExecute, tolerationSeconds: 5}\n  - {key: a, operator: Exists}\n",
    );
    assert_eq!(
        one(SourceName::File, &own)["spec"]["tolerations"],
        json!([{"effect": "NoExecute", "operator": "Exists"}, {"key": "a", "operator": "Exists"}])
    );
}

#[test]
fn a_pod_has_exactly_the_fields_that_go_writes() {
    let pod = one(
        SourceName::Url,
        &with(
            "    ports: [{containerPort: 80, hostPort: 0, hostIP: \"\"}]\n    stdin: false\n    command: []\n    env: [{name: A, value: \"\"}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]\n    securityContext: {runAsUser: 0, privileged: false, capabilities: {}}\n  hostNetwork: false\n  nodeSelector: {}\n  activeDeadlineSeconds: null\n  volumes: [{name: v, projected: {sources: []}}, {name: w}]\n",
        ),
    );
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["ports"], json!([{"containerPort": 80, "protocol": "TCP"}]));
    assert_eq!(
        container["env"],
        json!([{"name": "A"}, {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}}])
    );
    assert_eq!(
        container["securityContext"],
        json!({"runAsUser": 0, "privileged": false, "capabilities": {}})
    );
    assert_eq!(
        (&container["resources"], &container["stdin"], &container["command"]),
        (&json!({}), &Value::Null, &Value::Null)
    );
    for gone in ["hostNetwork", "nodeSelector", "activeDeadlineSeconds"] {
        assert_eq!(pod["spec"].get(gone), None, "{gone}");
    }
    assert_eq!(
        pod["spec"]["volumes"],
        json!([{"name": "v", "projected": {"defaultMode": 420, "sources": []}}, {"name": "w", "emptyDir": {}}])
    );
}

/// The canonical form of a quantity in a field that is not rounded.
fn quantity(text: &str) -> Option<String> {
    let text =
        with(&format!("  volumes:\n  - name: v\n    emptyDir: {{sizeLimit: {}}}\n", Value::from(text)));
    let pod = read(&text).ok()?;
    pod.pods[0].object()["spec"]["volumes"][0]["emptyDir"]["sizeLimit"].as_str().map(str::to_owned)
}

#[test]
fn quantities_are_written_in_gos_canonical_form() {
    for (given, expected) in [
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1e9", "1e9"),
        ("1000000000", "1G"),
        ("1.5Gi", "1536Mi"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("0.5Ki", "512"),
        ("100Mi", "100Mi"),
        ("1.1Mi", "1153433600m"),
        ("0.0000000001", "1n"),
        ("-0.0000000001", "-1n"),
        ("12e2", "1200"),
        ("16Ei", "9223372036854775807"),
        ("8Ei", "9223372036854775807"),
        ("-0", "0"),
        ("0Ki", "0"),
        (".5", "500m"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1000000000000000000000", "1"),
        ("+5", "+5"),
        ("1.500", "1.500"),
        (" 5 ", "5"),
    ] {
        assert_eq!(quantity(given).as_deref(), Some(expected), "{given}");
    }
    for bad in ["", "x", "1 Gi", "1gi", "1.2.3", "0x10", "1e", "--1", "1Kii", "e9999999999999999999", "Pi"] {
        assert_eq!(quantity(bad), None, "{bad}");
    }
    // The resources of a container are rounded up to thousandths, and limits become requests.
    let pod = one(
        SourceName::File,
        &with("    resources: {limits: {cpu: 1.0001, memory: 1Gi}, requests: {cpu: 1e-4}}\n"),
    );
    assert_eq!(
        pod["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "1001m", "memory": "1Gi"}, "requests": {"cpu": "1m", "memory": "1Gi"}})
    );
}

proptest! {
    #[test]
    fn a_canonical_quantity_is_its_own_canonical_form(
        text in "[+-]?[0-9]{0,25}(\\.[0-9]{0,12})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9]{1,2})?"
    ) {
        if let Some(canonical) = quantity(&text) {
            prop_assert_eq!(quantity(&canonical), Some(canonical.clone()), "{}", text);
        }
    }
}

#[test]
fn times_are_written_in_gos_form() {
    let time = |text: &str| {
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: x, creationTimestamp: '{text}'}}\n");
        read(&text).ok().map(|read| read.pods[0].object()["metadata"].get("creationTimestamp").cloned())
    };
    for (given, expected) in [
        ("2026-01-02T15:04:05.678+02:00", "2026-01-02T13:04:05Z"),
        ("2026-01-02T3:04:05Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T15:04:05,9Z", "2026-01-02T15:04:05Z"),
        ("2026-01-01T00:30:00+24:00", "2025-12-31T00:30:00Z"),
    ] {
        assert_eq!(time(given), Some(Some(expected.into())), "{given}");
    }
    assert_eq!(time("0001-01-01T00:00:00Z"), Some(None), "Go's zero time is absent");
    for bad in [
        "2026-02-30T00:00:00Z",
        "2026-01-02",
        "2026-01-02 15:04:05Z",
        "2026-01-02T15:04:60Z",
        "2026-01-02T15:04:05",
    ] {
        assert_eq!(time(bad), None, "{bad}");
    }
}

#[test]
fn the_default_pull_policy_of_a_latest_image_is_always() {
    let policy = |image: &str| {
        one(SourceName::File, &WEB.replace("nginx:1.27", image))["spec"]["containers"][0]["imagePullPolicy"]
            .clone()
    };
    for latest in
        ["nginx", "a.example:5000/b/c", "nginx:latest", &format!("nginx:latest@sha256:{}", "0".repeat(64))]
    {
        assert_eq!(policy(latest), "Always", "{latest}");
    }
    for other in ["nginx:1.27", &format!("nginx@sha256:{}", "0".repeat(64)), "Not/An-Image", &"a".repeat(64)]
    {
        assert_eq!(policy(other), "IfNotPresent", "{other}");
    }
}

fn identity(prepared: &Prepared) -> (String, String) {
    let metadata = &prepared.object()["metadata"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&metadata["uid"]), text(&metadata["annotations"]["kubernetes.io/config.hash"]))
}

/// A release that changes one of these values restarts static pods on every node.
#[test]
fn uid_and_hash_are_the_same_in_every_release() {
    let read = read(&with("    resources: {limits: {cpu: 0.5}}\n")).unwrap();
    let (uid, hash) = identity(&read.pods[0]);
    expect!["72346c40-a5af-511e-b900-0b2e84f45d35"].assert_eq(&uid);
    expect!["e62708ea1222d72e86185d95b3c9b162"].assert_eq(&hash);
    let url = read_as(SourceName::Url, WEB).unwrap();
    expect!["b739ec9c-9adb-5067-8d38-113dbc955dae"].assert_eq(&identity(&url.pods[0]).0);
}

#[test]
fn the_hash_depends_on_the_content_and_the_uid_does_not() {
    let of = |text: &str| identity(&read(text).unwrap().pods[0]);
    let (uid, hash) = of(WEB);
    let same = |text: &str| assert_eq!(of(text), (uid.clone(), hash.clone()), "{text}");
    same(&format!("# a comment\n{WEB}"));
    same(&with("    resources: {}\n    stdin: false\n    command: null\n  hostNetwork: false\n"));
    same(&with("status: {phase: Running}\nunknown: 1\n"));
    same(&WEB.replace(
        "name: web\n",
        "name: web\n  annotations: {kubernetes.io/config.seen: x}\n  generation: 5\n",
    ));
    for other in [
        with("    stdin: true\n"),
        WEB.replace("name: web\n", "name: web\n  labels: {a: b}\n"),
        WEB.replace("name: web\n", "name: web\n  annotations: {a: b}\n"),
    ] {
        let (other_uid, other_hash) = of(&other);
        assert_eq!(other_uid, uid);
        assert_ne!(other_hash, hash, "{other}");
    }
    let given = of(&WEB.replace("name: web\n", "name: web\n  uid: my-own\n"));
    assert_eq!(given, ("my-own".to_owned(), hash));
}

#[test]
fn every_field_of_a_container_is_known() {
    let fields = "args command env envFrom image imagePullPolicy lifecycle livenessProbe ports readinessProbe resizePolicy resources restartPolicyRules securityContext startupProbe terminationMessagePath volumeDevices volumeMounts workingDir";
    let spec: String = fields
        .split(' ')
        .filter(|field| *field != "image")
        .map(|field| format!("    {field}: null\n"))
        .collect();
    assert_eq!(read(&with(&spec)).unwrap().warnings, []);
}

/// Generates names with these letters at the end; some names exist already.
fn generate(letters: fn() -> String, taken: &'static [&str]) -> Generate {
    Generate { letters: Arc::new(letters), is_taken: Arc::new(|key| taken.contains(&key.as_str())) }
}

fn five_letters() -> String {
    "b5c6d".to_owned()
}

#[test]
fn a_name_is_generated_only_if_the_source_allows_it() {
    let long = "x".repeat(80);
    let read = |prefix: &str, generate| {
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata:\n  generateName: {prefix}\n");
        let node = NodeName::new("node1").unwrap();
        manifest::decode(
            text.as_bytes(),
            &Preparation { source: SourceName::Http, node, generate, namespace: None },
        )
    };
    let name =
        |prefix: &str| read(prefix, Some(generate(five_letters, &[]))).unwrap().pods[0].key().to_string();
    assert_eq!(name("web-"), "default/web-b5c6d");
    // The name is never longer than a label.
    assert_eq!(name(&long), format!("default/{}b5c6d", &long[..58]));
    assert_eq!(name(&"é".repeat(80)), format!("default/{}b5c6d", "é".repeat(29)));

    let invalid = read("web-", None).unwrap_err();
    assert_eq!(invalid.stage, Stage::Name);
    assert_eq!(invalid.to_string(), "4:3: metadata.name: Required value: a pod needs a name");
}

/// Upstream `TestStoreCreateWithRetryNameGenerate`
/// (`apiserver/pkg/registry/generic/registry/store_test.go`).
#[test]
fn a_generated_name_is_unused() {
    fn counted() -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        COUNT.fetch_add(1, Ordering::SeqCst).to_string()
    }
    fn repeated() -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        ["x", "x", "x", "y"][COUNT.fetch_add(1, Ordering::SeqCst) % 4].to_owned()
    }
    fn few() -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(1);
        COUNT.fetch_add(1, Ordering::SeqCst).to_string()
    }
    let names = |metadata: &str, pods: usize, generate: Generate| -> Vec<String> {
        let pod = format!("apiVersion: v1\nkind: Pod\nmetadata: {metadata}\n---\n");
        let node = NodeName::new("node1").unwrap();
        let generate = Some(generate);
        let namespace = Some("prod".to_owned());
        let preparation = Preparation { source: SourceName::Http, node, generate, namespace };
        let read = manifest::decode(pod.repeat(pods).as_bytes(), &preparation);
        read.unwrap().pods.iter().map(|pod| pod.key().to_string()).collect()
    };
    // The counter goes on through this test. The namespace is that of the prepared pod.
    let taken = generate(counted, &["prod/web-0", "prod/web-1", "dev/web-3", "default/web-4"]);
    assert_eq!(names("{generateName: web-}", 1, taken.clone()), ["prod/web-2"]);
    assert_eq!(names("{generateName: web-, namespace: dev}", 1, taken.clone()), ["dev/web-4"]);
    assert_eq!(names("{generateName: web-, name: web-0}", 1, taken), ["prod/web-0"]);
    // Another pod of the same manifest does not have the name either.
    assert_eq!(names("{generateName: web-}", 2, generate(repeated, &[])), ["prod/web-x", "prod/web-y"]);
    // If all attempts fail, the source rejects the pod.
    let first = &["prod/a1", "prod/a2", "prod/a3", "prod/a4", "prod/a5", "prod/a6", "prod/a7", "prod/a8"];
    assert_eq!(names("{generateName: a}", 1, generate(few, first)), [format!("prod/a{NAME_ATTEMPTS}")]);
}

#[test]
fn each_pod_of_a_manifest_has_the_line_on_which_it_begins() {
    let lines = |text: &str| read(text).unwrap().lines;
    assert_eq!(lines(WEB), [1]);
    assert_eq!(lines(&format!("# web\n\n---\n{WEB}")), [4]);
    assert_eq!(lines(&format!("{WEB}---\n---\n# other\n{}", WEB.replace("web", "other"))), [1, 12]);
    let item = |name: &str| {
        format!(
            r#"{{"metadata": {{"name": "{name}"}}, "spec": {{"containers": [{{"name": "c", "image": "i"}}]}}}}"#
        )
    };
    let list = format!(
        "{{\"apiVersion\": \"v1\", \"kind\": \"PodList\", \"items\": [\n{},\n\n{}\n]}}",
        item("a"),
        item("b")
    );
    assert_eq!(lines(&list), [2, 4]);
    // A posted pod has no file.
    assert_eq!(read_as(SourceName::Http, WEB).unwrap().lines, [0_u32; 0]);
}
