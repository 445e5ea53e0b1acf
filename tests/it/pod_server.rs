//! Pods from an API server are kept unchanged, and rejected where Go's decoder rejects them.

use podmux::{manifest::ServerPodError, pod::Prepared};
use serde_json::{Value, json};

use crate::support::corpus;

fn web() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "7"},
        "spec": {"containers": [{"name": "c", "image": "i:1"}], "nodeName": "node"},
        "status": {"phase": "Pending"},
    })
}

/// The pod with another value at a path, which is created if it is missing.
fn with(path: &str, value: &Value) -> Value {
    let mut pod = web();
    let mut place = &mut pod;
    for step in path.split('/') {
        place = match step.parse::<usize>() {
            Ok(index) => {
                if place.is_null() {
                    *place = json!([null]);
                }
                &mut place[index]
            }
            Err(_) => &mut place[step],
        };
    }
    *place = value.clone();
    pod
}

fn read(pod: &Value) -> Result<Prepared, ServerPodError> {
    Prepared::from_server(pod.to_string().as_bytes())
}

fn rejected(text: &[u8]) -> (Option<String>, String) {
    let error = Prepared::from_server(text).unwrap_err();
    (error.key.as_ref().map(ToString::to_string), error.to_string())
}

#[test]
fn every_pod_that_the_kubelet_prepared_is_kept_unchanged() {
    let mut pods = 0;
    for case in ["pods.jsonl.gz", "yaml.jsonl.gz"].into_iter().flat_map(corpus) {
        for pod in case["pods"].as_array().into_iter().flatten() {
            let text = pod.to_string();
            let ours =
                Prepared::from_server(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert_eq!(ours, Prepared::from_json(text.as_bytes()).unwrap(), "{text}");
            pods += 1;
        }
    }
    assert!(pods > 1_700, "{pods} pods");
}

#[test]
fn a_field_with_a_wrong_type_is_reported_with_its_pod() {
    let cases = [
        ("spec/containers", json!("x"), "spec.containers: must be a list, but is a string"),
        ("spec/containers/0", json!([]), "spec.containers[0]: must be a map, but is a list"),
        ("spec", json!([]), "spec: must be a map, but is a list"),
        (
            "spec/priority",
            json!("1"),
            "spec.priority: must be an integer of 32 bits, but is the string \"1\"",
        ),
        ("spec/priority", json!(3_000_000_000_u32), "spec.priority: must be an integer of 32 bits"),
        ("spec/priority", json!(1.5), "spec.priority: must be an integer of 32 bits, but is the number 1.5"),
        (
            "spec/hostNetwork",
            json!(1),
            "spec.hostNetwork: must be a boolean, true or false, but is the number 1",
        ),
        ("spec/nodeName", json!(1), "spec.nodeName: must be a string, but is a number"),
        ("spec/overhead/cpu", json!("many"), "spec.overhead[cpu]: must be a quantity"),
        ("spec/overhead/cpu", json!([]), "spec.overhead[cpu]: must be a quantity"),
        (
            "spec/containers/0/livenessProbe/httpGet/port",
            json!(true),
            "spec.containers[0].livenessProbe.httpGet.port: must be an integer of 32 bits or a string",
        ),
        ("metadata/labels", json!("x"), "metadata.labels: must be a map, but is a string"),
        ("metadata/labels/a", json!(1), "metadata.labels[a]: must be a string, but is a number"),
        ("metadata/uid", json!(1), "metadata.uid: must be a string, but is a number"),
        ("metadata/deletionTimestamp", json!("soon"), "metadata.deletionTimestamp: must be a time like"),
        (
            "metadata/deletionGracePeriodSeconds",
            json!("30"),
            "metadata.deletionGracePeriodSeconds: must be an integer",
        ),
        ("status/conditions", json!({}), "status.conditions: must be a list, but is a map"),
        (
            "status/conditions/0/lastTransitionTime",
            json!(5),
            "status.conditions[0].lastTransitionTime: must be a time",
        ),
        ("kind", json!("Node"), "kind: \"Node\" is given; Pod is expected"),
        ("apiVersion", json!("v2"), "apiVersion: \"v2\" is given; v1 is expected"),
        ("kind", json!({}), "kind: must be a string, but is a map"),
    ];
    for (path, value, expected) in cases {
        let (key, error) = rejected(with(path, &value).to_string().as_bytes());
        assert_eq!(key.as_deref(), Some("shop/web"), "{path} {value}: {error}");
        assert!(error.starts_with(expected), "{path} {value}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn an_object_that_is_not_a_pod_has_no_key() {
    let cases = [
        ("", "1:1: the text ends inside a value"),
        ("{\"metadata\": {\"name\": \"a\"}", "1:27: the text ends inside a value"),
        ("[]", "a pod is expected, but this is a list"),
        ("null", "a pod is expected, but this is null"),
        ("{} {}", "1:4: unexpected text after the end of the value"),
        ("{}", "metadata.name: must be a non-empty string"),
        (r#"{"metadata": {"name": ""}}"#, "metadata.name: must be a non-empty string"),
        (r#"{"metadata": {"name": 1, "namespace": "x"}}"#, "metadata.name: must be a string"),
        (r#"{"metadata": {"name": "a", "namespace": 1}}"#, "metadata.namespace: must be a string"),
        (r#"{"metadata": {"managedFields": [{"#, "1:34: the text ends inside a value"),
        (r#"{"metadata": {"managedFields": "x\"#, "1:35: the text ends inside a value"),
        (r#"{"metadata": {"managedFields": x}}"#, "1:32: a value is missing here"),
    ];
    for (text, expected) in cases {
        let (key, error) = rejected(text.as_bytes());
        assert_eq!(key, None, "{text}");
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    let deep = format!("{{\"spec\": {}", "[".repeat(100_000));
    assert!(rejected(deep.as_bytes()).1.contains("nested more than 200 levels deep"));
}

#[test]
fn an_absent_namespace_is_the_default() {
    for namespace in [r#""namespace": null,"#, r#""namespace": "","#, ""] {
        let valid = format!(r#"{{"metadata": {{{namespace} "name": "a"}}}}"#);
        assert_eq!(Prepared::from_server(valid.as_bytes()).unwrap().key().as_str(), "default/a");
        let bad = format!(r#"{{"metadata": {{{namespace} "name": "a"}}, "spec": 1}}"#);
        assert_eq!(rejected(bad.as_bytes()).0.as_deref(), Some("default/a"));
    }
}

#[test]
fn what_go_accepts_is_accepted() {
    let cases = [
        ("spec/containers", Value::Null),
        ("spec", Value::Null),
        ("status", json!({})),
        ("metadata/labels/a", Value::Null),
        ("spec/overhead/cpu", json!(1)),
        ("spec/overhead/cpu", json!(0.5)),
        ("spec/overhead/cpu", json!("1e3")),
        ("spec/containers/0/ports/0/containerPort", json!(99_999)),
        ("spec/containers/0/livenessProbe/httpGet/port", json!("http")),
        ("metadata/creationTimestamp", json!("2026-01-02T03:04:05.5+02:00")),
        ("spec/restartPolicy", json!("Sometimes")),
        ("kind", Value::Null),
    ];
    for (path, value) in cases {
        let pod = with(path, &value);
        let ours = read(&pod).unwrap_or_else(|error| panic!("{path} {value}: {error}"));
        assert_eq!(ours, Prepared::from_value(pod).unwrap(), "{path} {value}");
    }
}

#[test]
fn unknown_fields_are_kept() {
    for value in [json!(1), json!("x"), json!([1, {"a": [null]}]), json!({"a": 1.5}), json!(u64::MAX)] {
        for path in ["newer", "spec/newer", "spec/containers/0/newer", "status/newer", "metadata/newer"] {
            let pod = with(path, &value);
            let ours = read(&pod).unwrap();
            assert_eq!(ours, Prepared::from_value(pod).unwrap());
            assert_eq!(
                Value::from(ours.object().clone()).pointer(&format!("/{path}")),
                Some(&value),
                "{path}"
            );
        }
    }
}

#[test]
fn only_managed_fields_are_skipped_unread() {
    let fields = [
        json!([{"fieldsV1": {"f:metadata": {"f:labels": {"k:{\"a\\\\\":\"]}\"}": {}}}}, "time": "no time"}]),
        json!("x\\\"}]"),
        json!({"a": "}"}),
        json!([]),
        json!(1),
        Value::Null,
    ];
    for fields in fields {
        let pod = with("metadata/managedFields", &fields);
        let ours = read(&pod).unwrap_or_else(|error| panic!("{fields}: {error}"));
        assert_eq!(ours, read(&web()).unwrap(), "{fields}");
    }
    for path in
        ["managedFields", "status/managedFields", "status/metadata/managedFields", "metadata/x/managedFields"]
    {
        let ours = read(&with(path, &json!([1]))).unwrap();
        assert!(Value::from(ours.object().clone()).pointer(&format!("/{path}")).is_some(), "{path}");
    }
}

#[test]
fn strings_are_read_as_by_go() {
    let text = r#"{"metadata":{"name":"web","namespace":"shop","annotations":{"\u0061\n\"":"\u00e4\ud83d\ude00 \\ \/"}}}"#;
    let pod = Prepared::from_server(text.as_bytes()).unwrap();
    assert_eq!(pod.annotation("a\n\""), Some("ä😀 \\ /"));
    // A byte that is not UTF-8 does not reject the pod.
    let mut bytes = web().to_string().replace("i:1", "i:#").into_bytes();
    let hash = bytes.iter().position(|byte| *byte == b'#').unwrap();
    bytes[hash] = 0xff;
    let pod = Prepared::from_server(&bytes).unwrap();
    assert_eq!(pod.object()["spec"]["containers"][0]["image"], "i:\u{fffd}");
    // The last of two equal keys is used.
    let twice = r#"{"metadata":{"name":"a","name":"b"},"spec":{"x":1,"x":2}}"#;
    let pod = Prepared::from_server(twice.as_bytes()).unwrap();
    assert_eq!((pod.key().as_str(), &pod.object()["spec"]), ("default/b", &json!({"x": 2})));
}
