//! Every parser and endpoint is linear: three times the input takes three times the instructions, or little more.
//!
//! valgrind's callgrind counts them, so the result does not depend on the machine or its load. Each
//! test starts this program again, under callgrind, with one group of cases.

use std::{hint::black_box, iter, sync::Arc};

use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use podmux::{
    events::{Published, facts},
    manifest::{
        self, Preparation,
        patch::{LastApplied, Patch, PatchError, PatchType},
        yaml,
    },
    pod::{ListingBuilder, NodeName, Origin, PodKey, Prepared, SecurityLevel, Severity, SourceName},
    runtime::{ActualPod, ObservedPod, observe, podman::translate, runtime_hash},
    server::Selector,
    source::api::{json_splitter::BodyShape, splitter::Splitter},
    storage::PodStorage,
};
use serde_json::{Value, json};
use tokio::runtime;

use crate::support::{callgrind, server::TestServer};

/// The lengths of the texts, in bytes.
const LENGTHS: [usize; 2] = [1024, 3072];

/// How much more work three times the text may be: sorting and growing buffers need some.
const GROWTH: f64 = 3.5;

/// The instructions that a case may need more, whatever its text is.
const SLACK: f64 = 50_000.0;

/// A text of any length: `unit` again and again, then `second` again and again, between fixed parts.
/// In a unit, `№` is its number and `→` as many spaces.
#[derive(Clone, Copy, Debug)]
struct Shape {
    prefix: &'static str,
    unit: &'static str,
    middle: &'static str,
    second: &'static str,
    suffix: &'static str,
}

/// A unit alone,
const fn run(unit: &'static str) -> Shape {
    within("", unit, "")
}

/// within other text,
const fn within(prefix: &'static str, unit: &'static str, suffix: &'static str) -> Shape {
    Shape { prefix, unit, middle: "", second: "", suffix }
}

/// or two units: each is half of the text.
const fn two(parts: [&'static str; 5]) -> Shape {
    let [prefix, unit, middle, second, suffix] = parts;
    Shape { prefix, unit, middle, second, suffix }
}

impl Shape {
    fn text(&self, length: usize) -> String {
        let half = if self.second.is_empty() { length } else { length / 2 };
        let mut text = self.prefix.to_owned();
        repeat(&mut text, self.unit, half);
        text.push_str(self.middle);
        if !self.second.is_empty() {
            repeat(&mut text, self.second, half);
        }
        text + self.suffix
    }
}

fn repeat(text: &mut String, unit: &str, length: usize) {
    let begin = text.len();
    for number in 0.. {
        if text.len() - begin >= length {
            return;
        }
        text.push_str(&unit.replace('№', &number.to_string()).replace('→', &" ".repeat(number)));
    }
}

/// The texts that made YAML parsers slow.
const YAML: &[Shape] = &[
    run("\t"),
    run("\t\n"),
    run(" "),
    run("  \n"),
    run("\n"),
    run("\r"),
    run("- "),
    run("-\n"),
    run("-"),
    run("-\t"),
    run("? "),
    run("?\n"),
    run(": "),
    run(":\n"),
    run("#\n"),
    within("#", "x", ""),
    run("a #x\n"),
    run("["),
    run("[]"),
    run("{"),
    run("{a: "),
    within("[", "[],", "]"),
    within("[", "a,", "]"),
    within("[", "a: b,", "]"),
    within("[", "a\n", "]"),
    within("[", "\t\n", "]"),
    within("[", "a,\t\n", "]"),
    within("[", "\"a\",", "]"),
    within("{\"", "a", "\": b}"),
    within("{", "k№: v,", "}"),
    within("{", "? k№ : v,", "}"),
    run("k№: v\n"),
    run("k: v\n"),
    run("? k№\n: v\n"),
    run("- a\n"),
    run("- a: b\n"),
    run("→a:\n"),
    run("- &a№ x\n"),
    run("- &a x\n"),
    run("&a№ "),
    run("&a№ ["),
    run("- &a№ x\n- *a№\n"),
    within("- &a x\n", "- *a\n", ""),
    within("a: &a {x: y}\n", "<<: *a\n", ""),
    within("a: &a {x: y}\n<<: [", "*a,", "]\n"),
    run("- !!str x\n"),
    run("!"),
    within("!<", "a", "> x"),
    within("!", "%41", " x"),
    run("word "),
    run("word\n"),
    run("a:b"),
    run("a#b"),
    within("a:\n ", "word\n ", ""),
    within("a: b\n", " \tb\n", ""),
    within("a: b\n", " \n", " c\n"),
    within("", "a", ": b\n"),
    within("", "a\n", ": b"),
    within("\"", "a", ""),
    within("\"", "\\n", "\""),
    within("\"", "\\u0041", "\""),
    within("\"", "\\\n", "\""),
    within("\"", "a\n", "\""),
    within("\"", "\n", "\""),
    within("\"a", " ", "b\""),
    within("\"a", "  \n", "b\""),
    within("'", "''", "'"),
    within("'", "a\n", "'"),
    within("|\n", " a\n", ""),
    within("|\n", " \ta\n", ""),
    within("|\n", "\n", " a\n"),
    within("|\n", "→a\n", ""),
    within("|\n", "→\n", ""),
    two(["a: |\n", "  \n", "  a\n", "  \tb\n", ""]),
    two(["a: |\n", "  \n", "", "\t\n", ""]),
    within("|+\n", "\n", ""),
    within(">\n", " a\n", ""),
    within(">\n", " a\n  b\n", ""),
    run("- |\n a\n"),
    run("- |\n"),
    run("---\n"),
    run("--- a\n"),
    run("...\n"),
    run("a\n...\n"),
    run("%YAML 1.2\n---\n"),
    run("%X a\n"),
    within("", "%TAG !a№! b\n", "---\na\n"),
    within("%", "X", ""),
    run("\u{feff}"),
    run("\0"),
    run("é"),
    run("\u{2028}"),
];

/// JSON as text, of a manifest or of an API server.
const JSON: &[Shape] = &[
    within("{", "\"k№\":1,", "\"z\":1}"),
    within("{", "\"k\":1,", "\"z\":1}"),
    within("{", "\"k№\":1,", "x"),
    run("{\"a\":"),
    within("{\"a\":[", "[],", "1]}"),
    within("{\"a\":", "[", ""),
    within("{\"a\":", " ", ""),
    within("{\"a\":\"", "\\n", "\"}"),
    within("{\"a\":\"", "\\ud83d\\ude00", "\"}"),
    within("{\"a\":\"", "\\ud83d", "\"}"),
    within("{\"a\":\"", "x", ""),
    within("{\"a\":", "9", "}"),
    within("{\"metadata\":{\"managedFields\":[", "{\"a\":\"]\"},", "1]}}"),
    within("{\"metadata\":{\"managedFields\":", "[", ""),
    within("{\"metadata\":{\"managedFields\":\"", "\\\"", "\"}}"),
    within("{\"metadata\":{", "\"managedFields\":[],", "\"name\":\"a\"}}"),
];

/// The fields of pods, as JSON from `metadata` on.
const PODS: &[Shape] = &[
    within("\"annotations\":{", "\"k№\":\"v\",", "\"z\":\"\"}},\"spec\":{"),
    within("\"annotations\":{", "\"k№\":1,", "\"z\":\"\"}},\"spec\":{"),
    within("\"annotations\":{", "\"k\":1,", "\"z\":\"\"}},\"spec\":{"),
    within("\"labels\":{", "\"-№\":\"v\",", "\"z\":\"\"}},\"spec\":{"),
    within("", "\"x№\":1,", "\"labels\":{}},\"spec\":{"),
    within("\"labels\":{}},\"spec\":{\"containers\":[", "{\"name\":\"a№\",\"image\":\"a\"},", "{}]"),
    within("\"labels\":{}},\"spec\":{\"containers\":[", "{\"name\":\"a\",\"image\":\"a\"},", "{}]"),
    within("\"labels\":{}},\"spec\":{\"containers\":[", "{},", "{}]"),
    within(
        "\"labels\":{}},\"spec\":{\"containers\":[{\"ports\":[",
        "{\"containerPort\":№,\"hostPort\":№},",
        "{}]}]",
    ),
    within("\"labels\":{}},\"spec\":{\"containers\":[{\"ports\":[", "{\"containerPort\":\"a№\"},", "{}]}]"),
    within(
        "\"labels\":{}},\"spec\":{\"containers\":[{\"env\":[",
        "{\"name\":\"a№\",\"value\":\"b\"},",
        "{}]}]",
    ),
    within("\"labels\":{}},\"spec\":{\"containers\":[{\"env\":[", "{\"name\":\"a\",\"value\":1},", "{}]}]"),
    within(
        "\"labels\":{}},\"spec\":{\"containers\":[{\"volumeMounts\":[",
        "{\"name\":\"v\",\"mountPath\":\"/№\"},",
        "{}]}]",
    ),
    within(
        "\"labels\":{}},\"spec\":{\"containers\":[{\"resources\":{\"claims\":[",
        "{\"name\":\"a№\"},",
        "{}]}}]",
    ),
    within("\"labels\":{}},\"spec\":{\"containers\":[", "{\"resources\":{\"claims\":[]}},", "{}]"),
    within("\"labels\":{}},\"spec\":{\"volumes\":[", "{\"name\":\"v№\"},", "{}]"),
    within(
        "\"labels\":{}},\"spec\":{\"volumes\":[{\"name\":\"p\",\"projected\":{\"sources\":[",
        "{\"secret\":{\"name\":\"a№\"}},",
        "{}]}}]",
    ),
    within("\"labels\":{}},\"spec\":{\"tolerations\":[", "{\"key\":\"a№\",\"operator\":\"Exists\"},", "{}]"),
    within("\"labels\":{}},\"spec\":{\"hostAliases\":[{\"hostnames\":[", "\"a№\",", "\"a\"]}]"),
    within("\"labels\":{}},\"spec\":{\"containers\":[{\"resources\":{\"limits\":{\"cpu\":\"", "9", "\"}}}]"),
    within("\"labels\":{}},\"spec\":{\"containers\":[{\"image\":\"", "a/", "\"}]"),
    within("\"labels\":{}},\"spec\":{\"containers\":[{\"image\":\"", "a-", "\"}]"),
    within("\"labels\":{}},\"spec\":{\"hostname\":\"", "a.", "\""),
    within("\"creationTimestamp\":\"2026-01-01T00:00:00.", "9", "Z\"},\"spec\":{"),
    two([
        "\"labels\":{}},\"spec\":{\"resources\":{\"limits\":{\"cpu\":1}},\"initContainers\":[{\"restartPolicy\":\"Always\",\"resources\":{\"limits\":{",
        "\"a№\":1,",
        "\"a\":1}}},",
        "{\"resources\":{\"limits\":{\"cpu\":1}}},",
        "{}]",
    ]),
    two([
        "\"labels\":{}},\"spec\":{\"resources\":{\"limits\":{\"cpu\":1}},\"containers\":[{\"resources\":{\"limits\":{",
        "\"a№\":1,",
        "\"a\":1}}},",
        "{\"resources\":{\"limits\":{\"cpu\":\"1e999\"}}},",
        "{}]",
    ]),
];

/// Valid pods with many warnings, as JSON from `metadata` on.
const WARNED: &[Shape] = &[
    within(
        "\"labels\":{}},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\",\"ports\":[",
        "{\"containerPort\":80},",
        "{\"containerPort\":80}]}]",
    ),
    within(
        "\"labels\":{}},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\",\"ports\":[",
        "{\"containerPort\":80,\"hostPort\":№1},",
        "{\"containerPort\":80,\"hostPort\":1}]}]",
    ),
    within(
        "\"labels\":{}},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\",\"env\":[",
        "{\"name\":\"a\",\"value\":\"№\"},",
        "{\"name\":\"a\"}]}]",
    ),
    within(
        "\"labels\":{}},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\"}],\"volumes\":[{\"name\":\"v\",\"configMap\":{\"name\":\"",
        "m",
        "\",\"items\":[{\"key\":\"k\",\"path\":\"a\"},{\"key\":\"k\",\"path\":\"a\"}]}}]",
    ),
    within(
        "\"labels\":{}},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\"}],\"volumes\":[{\"name\":\"v\",\"configMap\":{\"name\":\"m\",\"items\":[",
        "{\"key\":\"k\",\"path\":\"a/№\"},",
        "{\"key\":\"k\",\"path\":\"a\"}]}}]",
    ),
    within(
        "\"labels\":{}},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\"}],\"volumes\":[{\"name\":\"v\",\"configMap\":{\"name\":\"m\",\"items\":[{\"key\":\"k\",\"path\":\"",
        "a/",
        "b\"},{\"key\":\"k\",\"path\":\"a\"}]}}]",
    ),
    two([
        "\"labels\":{}},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\"}],\"volumes\":[{\"name\":\"v\",\"configMap\":{\"name\":\"m\",\"items\":[{\"key\":\"k\",\"path\":\"",
        "a/",
        "b\"},",
        "{\"key\":\"k\",\"path\":\"a\"},",
        "{\"key\":\"k\",\"path\":\"b\"}]}}]",
    ]),
];

const LABEL_SELECTORS: &[Shape] = &[
    within("", "a№=b,", "c"),
    within("a in (", "b№,", "c)"),
    within("a in (", ",", ")"),
    within("", " ", "a"),
    run("!"),
    run("("),
    run("a"),
    within("a in", " ", "(b)"),
];

const FIELD_SELECTORS: &[Shape] = &[
    within("", "metadata.name=a№,", ""),
    run(","),
    run("\\"),
    within("metadata.name=", "\\,", ""),
    within("metadata.name", "!", "=a"),
];

const KUBECONFIGS: &[Shape] = &[
    within("contexts:\n", "- name: a№\n  context: {cluster: a, user: b}\n", ""),
    run("k№: v\n"),
    run("\t"),
    run("- "),
];

/// Checks that a parser is linear for these shapes. `test` is the name of the calling test.
fn check(test: &str, shapes: &[Shape], parse: &dyn Fn(&str)) {
    if callgrind::is_watched() {
        for shape in shapes {
            for length in LENGTHS {
                let input = shape.text(length);
                callgrind::case(|| parse(&input));
            }
        }
        return;
    }
    let Some(counts) = callgrind::count(&format!("complexity::{test}"), shapes.len() * LENGTHS.len()) else {
        return;
    };
    let mut faults = Vec::new();
    for (shape, counts) in shapes.iter().zip(counts.chunks(LENGTHS.len())) {
        let counts: Vec<f64> = counts.iter().map(|counts| counts.instructions).collect();
        if counts[1] > GROWTH * counts[0] + SLACK {
            faults.push(format!("{counts:?} instructions for {LENGTHS:?} bytes of {shape:?}"));
        }
    }
    assert_eq!(faults, [""; 0]);
}

fn read(source: SourceName, text: &str) {
    let node = NodeName::new("node1").unwrap();
    let preparation = Preparation { source, node, generate: None, namespace: None };
    drop(black_box(manifest::read(text.as_bytes(), &preparation)));
}

/// A pod with these fields from `metadata` on.
fn pod(fields: &str) -> String {
    format!("{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"a\",{fields}}}}}")
}

#[test]
fn reading_yaml_is_linear() {
    check("reading_yaml_is_linear", YAML, &|text| read(SourceName::File, text));
}

#[test]
fn reading_json_is_linear() {
    check("reading_json_is_linear", JSON, &|text| {
        read(SourceName::Url, text);
        drop(black_box(Prepared::from_server(text.as_bytes())));
    });
}

#[test]
fn decoding_and_validating_pods_is_linear() {
    check("decoding_and_validating_pods_is_linear", PODS, &|fields| {
        let text = pod(fields);
        read(SourceName::File, &text);
        drop(black_box(Prepared::from_server(text.as_bytes())));
    });
}

#[test]
fn warning_of_pods_is_linear() {
    check("warning_of_pods_is_linear", WARNED, &|fields| {
        let node = NodeName::new("node1").unwrap();
        let preparation = Preparation { source: SourceName::Http, node, generate: None, namespace: None };
        let reviewed = manifest::review(pod(fields).as_bytes(), &preparation, SecurityLevel::Privileged);
        let problems = reviewed.map_or_else(|invalid| invalid.problems, |manifest| manifest.warnings);
        let warned = problems.iter().any(|problem| problem.severity == Severity::Warning);
        assert!(warned || fields.contains("hostPort"), "{fields}: {problems:?}");
        black_box(problems);
    });
}

/// Containers, and directives about them.
const PATCHES: &[Shape] = &[
    within("{\"spec\":{\"containers\":[", "{\"name\":\"c№\",\"image\":\"i\"},", "{\"name\":\"c\"}]}}"),
    within("{\"spec\":{\"containers\":[", "{\"name\":\"c№\",\"$patch\":\"delete\"},", "{\"name\":\"c\"}]}}"),
    within("{\"spec\":{\"$setElementOrder/containers\":[", "{\"name\":\"c№\"},", "{\"name\":\"c\"}]}}"),
    within("{\"metadata\":{\"finalizers\":[", "\"c№\",", "\"c\"]}}"),
    within("{\"metadata\":{\"$deleteFromPrimitiveList/finalizers\":[", "\"c№\",", "\"c\"]}}"),
    within("{\"metadata\":{\"labels\":{\"$retainKeys\":[", "\"c№\",", "\"c\"]}}}"),
    within("{\"metadata\":{\"labels\":{", "\"c№\":null,", "\"c\":\"d\"}}}"),
    run("{\"a\":"),
];

/// A patch is applied to a pod that grows with it: the lists and maps of both are merged.
#[test]
fn patching_a_pod_is_linear() {
    check("patching_a_pod_is_linear", PATCHES, &|text| {
        let names: Vec<String> = (0..text.len() / 20).map(|number| format!("c{number}")).collect();
        let containers: Vec<Value> =
            names.iter().rev().map(|name| json!({"name": name, "image": "i:1"})).collect();
        let labels: Value = names.iter().map(|name| (name.clone(), Value::from("x"))).collect();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": labels, "finalizers": names}, "spec": {"containers": containers},
        });
        let pod = pod.as_object().unwrap();
        for kind in [PatchType::Merge, PatchType::Strategic, PatchType::Apply] {
            let text = match kind {
                PatchType::Apply => text.replacen('{', "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",", 1),
                _ => text.to_owned(),
            };
            let patched = Patch::parse(kind, text.as_bytes()).and_then(|patch| {
                patch
                    .apply_to(pod.clone(), &LastApplied { own: vec![pod.clone()], others: vec![pod.clone()] })
            });
            drop(black_box(patched));
        }
    });
}

#[test]
fn reading_the_fields_of_a_config_file_is_linear() {
    let shapes = [run("k№: v\n"), run("k: v\n"), run("\t"), within("k: \"", "\\n", "\""), run("é: v\n")];
    check("reading_the_fields_of_a_config_file_is_linear", &shapes, &|text| {
        drop(black_box(yaml::fields(text)));
    });
}

#[test]
fn reading_a_kubeconfig_is_linear() {
    check("reading_a_kubeconfig_is_linear", KUBECONFIGS, &|text| {
        drop(black_box(kube::config::Kubeconfig::from_yaml(text)));
    });
}

#[test]
fn splitting_the_answer_of_an_api_server_is_linear() {
    let items = [
        within("{\"items\":[", "{},", "{}]}"),
        within("{", "\"a№\":1,", "\"items\":[]}"),
        within("{\"items\":[{\"a\":\"", "x", "\"}]}"),
    ];
    let shapes = [JSON, &items, &[run("{}"), run(" "), run("{\"a\":\"\\\""), run("1")]].concat();
    check("splitting_the_answer_of_an_api_server_is_linear", &shapes, &|text| {
        for shape in [BodyShape::Events, BodyShape::List] {
            let mut splitter = Splitter::new(false, shape);
            for chunk in text.as_bytes().chunks(7) {
                splitter.push(chunk);
                while let Ok(Some(part)) = splitter.next() {
                    drop(black_box(part));
                }
            }
        }
    });
}

/// As many manifests as the text has bytes, all of which have the same name.
#[test]
fn finding_many_pods_with_one_name_is_linear() {
    check("finding_many_pods_with_one_name_is_linear", &[run("x")], &|text| {
        let pod = Prepared::from_json(br#"{"metadata": {"name": "web", "uid": "1"}}"#).unwrap();
        let mut builder = ListingBuilder::new(SourceName::File);
        for number in 0..text.len() / 16 {
            let origin = Origin::from(&*format!("{number:05}"));
            builder.put(&origin, vec![pod.clone()], Timestamp::UNIX_EPOCH);
        }
        assert_eq!(black_box(builder.listing()).rejections().count(), text.len() / 16 - 1);
    });
}

/// Two manifests, each with as many pods as the text has bytes, all of which have the same name and UID.
#[test]
fn replacing_many_pods_with_one_uid_is_linear() {
    check("replacing_many_pods_with_one_uid_is_linear", &[run("x")], &|text| {
        let pod = || {
            let pod = Prepared::from_json(br#"{"metadata": {"name": "web", "uid": "1"}}"#).unwrap();
            iter::repeat_n(Arc::new(pod.published_by(SourceName::File, Timestamp::UNIX_EPOCH)), text.len())
                .collect()
        };
        let mut builder = ListingBuilder::new(SourceName::File);
        for origin in ["a.yaml", "b.yaml", "b.yaml"] {
            assert!(builder.put_published(&Origin::from(origin), pod()));
        }
        assert_eq!(black_box(builder).pods_of(&Origin::from("b.yaml")), text.len());
    });
}

/// As many ports of the node as the text has bytes, of a pod whose label changes.
#[test]
fn changing_a_pod_with_many_ports_is_linear() {
    check("changing_a_pod_with_many_ports_is_linear", &[run("x")], &|text| {
        let port = |port: usize| json!({"containerPort": port, "hostPort": port});
        let ports: Vec<Value> = (1..=text.len()).map(port).collect();
        let spec = json!({"containers": [{"name": "c", "image": "i:1", "ports": ports}]});
        let mut builder = ListingBuilder::new(SourceName::File);
        let mut storage = PodStorage::new(&[SourceName::File]);
        for label in ["a", "b"] {
            let metadata = json!({"name": "web", "uid": "1", "labels": {"l": label}});
            let pod = json!({"metadata": metadata, "spec": spec}).to_string();
            let pod = Prepared::from_json(pod.as_bytes()).unwrap();
            builder.put(&Origin::from("web.yaml"), vec![pod], Timestamp::UNIX_EPOCH);
            drop(storage.apply(&builder.listing()));
        }
        let merged = black_box(storage.merged());
        assert_eq!(merged.values().next().unwrap().pod().host_ports().len(), text.len());
    });
}

/// A fourth as many sidecars, and other containers, as the text has bytes.
#[test]
fn translating_a_pod_for_podman_is_linear() {
    check("translating_a_pod_for_podman_is_linear", &[run("x")], &|text| {
        let containers = |container: Value| Value::from(vec![container; text.len() / 4]);
        let sidecars = containers(json!({"name": "s", "image": "i:1", "restartPolicy": "Always"}));
        let spec = json!({"initContainers": sidecars, "containers": containers(json!({"name": "c", "image": "i:1"}))});
        let pod = json!({"metadata": {"name": "web", "uid": "1"}, "spec": spec});
        let pod = Prepared::from_json(pod.to_string().as_bytes()).unwrap();
        let pod = pod.published_by(SourceName::File, Timestamp::UNIX_EPOCH);
        assert_eq!(black_box(translate(&pod, 1 << 30)).containers.len(), text.len() / 4 * 2);
    });
}

/// Observes a pod whose runtime gives it a status, and again after that.
fn observe_twice(mut pod: Value, given: Value) {
    pod["metadata"] = json!({"name": "web", "uid": "1"});
    let mut builder = ListingBuilder::new(SourceName::Api);
    builder.put(&Origin::from("a"), vec![Prepared::from_value(pod).unwrap()], Timestamp::UNIX_EPOCH);
    let listing = builder.listing();
    let entry = listing.values().next().unwrap();
    let actual = ActualPod {
        key: entry.pod().key().clone(),
        uid: entry.pod().uid().clone(),
        hash: runtime_hash(entry.pod()).into(),
        source: entry.source(),
        is_ours: true,
        is_complete: true,
        started: None,
        status: Some(Arc::new(given)),
    };
    let observed = |before| observe(entry, Some(&actual), None, before, Timestamp::UNIX_EPOCH);
    let first = observed(None);
    assert_eq!(black_box(observed(first.as_ref())), first);
}

/// Half as many sidecars, and other containers, as the text has bytes. None has begun, so that all are looked at.
#[test]
fn observing_many_containers_is_linear() {
    check("observing_many_containers_is_linear", &[run("x")], &|text| {
        let list = |name: &str, fields: &Value| -> Value {
            let container = |number: usize| {
                let mut container = fields.clone();
                container["name"] = format!("{name}{number}").into();
                container
            };
            (0..text.len() / 2).map(container).collect()
        };
        let (container, status) = (json!({"image": "i:1"}), json!({"ready": false, "state": {}}));
        let sidecar = json!({"image": "i:1", "restartPolicy": "Always"});
        let spec = json!({"initContainers": list("s", &sidecar), "containers": list("c", &container)});
        let given =
            json!({"initContainerStatuses": list("s", &status), "containerStatuses": list("c", &status)});
        observe_twice(json!({"spec": spec}), given);
    });
}

/// Half as many readiness gates, and conditions of others and of the runtime, as the text has bytes.
#[test]
fn observing_many_conditions_is_linear() {
    check("observing_many_conditions_is_linear", &[run("x")], &|text| {
        let list = |field: &str, name: &str| -> Value {
            (0..text.len() / 2)
                .map(|number| json!({field: format!("{name}{number}"), "status": "True"}))
                .collect()
        };
        let spec = json!({"containers": [{"name": "c", "image": "i:1"}], "readinessGates": list("conditionType", "g")});
        let given =
            json!({"containerStatuses": [{"name": "c", "ready": true}], "conditions": list("type", "g")});
        observe_twice(json!({"spec": spec, "status": {"conditions": list("type", "o")}}), given);
    });
}

/// Half as many containers whose images cannot be pulled any more as the text has bytes.
#[test]
fn reporting_of_many_containers_is_linear() {
    check("reporting_of_many_containers_is_linear", &[run("x")], &|text| {
        let published = |state: &Value| {
            let status = |number: usize| json!({"name": format!("c{number}"), "state": state});
            let statuses: Value = (0..text.len() / 2).map(status).collect();
            let status = Arc::new(json!({"containerStatuses": statuses}));
            let pod = (PodKey::new("default", "web"), ObservedPod { uid: "1".into(), status });
            Published { observed: [pod].into_iter().collect(), ..Published::default() }
        };
        let (before, after) =
            (published(&json!({})), published(&json!({"waiting": {"reason": "ErrImagePull"}})));
        let facts = facts(&NodeName::new("node1").unwrap(), Timestamp::UNIX_EPOCH, &before, &after);
        assert_eq!(black_box(facts).len(), text.len() / 2);
    });
}

#[test]
fn parsing_selectors_is_linear() {
    check("parsing_selectors_is_linear", &[LABEL_SELECTORS, FIELD_SELECTORS].concat(), &|text| {
        let _labels = black_box(Selector::new(text, ""));
        let _fields = black_box(Selector::new("", text));
    });
}

#[test]
fn answering_requests_is_linear() {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(TestServer::start());
    let bodies = [run("\t"), run("- "), run("k№: v\n"), run("{\"a\":"), within("{", "\"k№\":1,", "\"z\":1}")];
    let shapes = [&bodies, &PODS[..6], &LABEL_SELECTORS[..3]].concat();
    check("answering_requests_is_linear", &shapes, &|text| {
        let encoded = percent_encode(text.as_bytes(), NON_ALPHANUMERIC);
        // A header has fewer characters than a body.
        let header: String = text.chars().filter(char::is_ascii_graphic).collect();
        let labels = format!("GET /pods?labelSelector={encoded}");
        let fields = format!("GET /pods?fieldSelector={encoded}");
        let other = format!("GET /pods?{encoded}");
        let pod = pod(text);
        let requests = [
            ("POST /pods", "application/yaml", text.as_bytes()),
            ("POST /pods", "application/json", pod.as_bytes()),
            ("DELETE /api/v1/namespaces/default/pods/a", "application/yaml", text.as_bytes()),
            ("DELETE /api/v1/namespaces/default/pods/a", "application/json", text.as_bytes()),
            (&labels, "", b""),
            (&fields, "", b""),
            (&other, &header, b""),
            ("POST /pods", &header, b"{}"),
        ];
        for (line, content_type, body) in requests {
            let headers = [("content-type", content_type), ("accept", content_type), ("range", content_type)];
            runtime.block_on(async { drop(server.ask_inside(line, &headers, body.to_vec()).await) });
        }
    });
    // One request of each kind reaches its handler.
    let reply = runtime.block_on(server.ask_inside("GET /pods", &[], ""));
    assert_eq!(serde_json::from_slice::<Value>(&reply.body).unwrap()["kind"], "PodList");
}

/// A text that repeats much by aliases is rejected: the work grows with its expansion.
#[test]
fn what_aliases_repeat_is_bounded() {
    let text = format!("- &a \"{}\\n\"\n{}", "x".repeat(100_000), "- *a\n".repeat(100_000));
    let error = yaml::to_json(&text).unwrap_err();
    assert!(error.detail.contains("anchors and aliases repeat more than 10485760 bytes"), "{error}");
    let nested = format!("{}\"{}\\n\"{}", "&a [".repeat(150), "x".repeat(100_000), "]".repeat(150));
    let error = yaml::to_json(&nested).unwrap_err();
    assert!(error.detail.contains("anchors and aliases repeat more than 10485760 bytes"), "{error}");
}

/// A strategic merge patch that has one container again and again merges its lists as often.
#[test]
fn what_a_patch_merges_again_is_bounded() {
    let args: Vec<&str> = vec!["x"; 10_000];
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "args": args}]}});
    let patched = |count: usize, fields: &dyn Fn(usize) -> Value| {
        let container = |number: usize| {
            let mut container = fields(number);
            container["name"] = "c".into();
            container
        };
        let patch = json!({"spec": {"containers": (0..count).map(container).collect::<Vec<_>>()}});
        let patch = Patch::parse(PatchType::Strategic, patch.to_string().as_bytes()).unwrap();
        patch.apply_to(pod.as_object().unwrap().clone(), &LastApplied::default())
    };
    let variable = |number: usize| json!({"env": [{"name": format!("e{number}")}]});
    let long = |number: usize| json!({"env": [{"name": "e".repeat(if number == 0 { 1 << 20 } else { 1 })}]});
    let deleted = |_: usize| json!({"$deleteFromPrimitiveList/args": ["y"]});
    let in_order = |_: usize| json!({"$setElementOrder/args": ["x"]});
    let cases: [(&dyn Fn(usize) -> Value, usize); 4] =
        [(&variable, 1000), (&long, 10), (&deleted, 50), (&in_order, 50)];
    for (fields, count) in cases {
        patched(count, fields).unwrap();
        let error = patched(3 * count, fields).expect_err("the lists are short");
        assert!(matches!(error, PatchError::TooLarge(_)), "{error}");
    }
}
