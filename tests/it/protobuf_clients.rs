//! client-go with its defaults on the agent, and a real kube-apiserver's pods in JSON and in protobuf.

use std::{collections::BTreeMap, net::TcpListener};

use podmux::{
    manifest::protobuf::{self, MEDIA_TYPE},
    pod::Prepared,
    source::api::{
        json_splitter::{BodyShape, Part},
        splitter::Splitter,
    },
};
use serde_json::{Value, json};

use crate::{
    oracle::KNOWN,
    support::{
        cluster::Admin,
        kubernetes::{Apiserver, Worker},
        process::{Process, podmux_run},
        random::Random,
    },
};

fn pod() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}, "annotations": {"note": "é"}},
        "spec": {
            "containers": [{
                "name": "c", "image": "i:1", "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
                "livenessProbe": {"httpGet": {"path": "/", "port": "http"}},
                "env": [{"name": "A", "value": "b"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            }],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}],
        },
    })
}

/// What is compared of the answers of JSON and of protobuf: neither versions, times nor UIDs, and not the kinds, which
/// the items of a list have in JSON alone.
fn comparable(mut answers: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|name, value| {
                    !value.is_null()
                        && !matches!(
                            name.as_str(),
                            "uid"
                                | "resourceVersion"
                                | "creationTimestamp"
                                | "message"
                                | "kind"
                                | "apiVersion"
                        )
                        && !name.starts_with("kubernetes.io/config")
                });
                map.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut answers);
    answers
}

#[test]
fn client_go_with_its_defaults_creates_reads_changes_lists_watches_and_deletes_pods() {
    let directory = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{port}");
    let args = ["--listen", &*port.to_string(), "--anonymous-auth"];
    let agent = Process::start(&mut podmux_run(directory.path(), &args));
    agent.logs("started");
    let mut answers = BTreeMap::new();
    for form in ["", MEDIA_TYPE, "application/json"] {
        let Some(mut worker) = Worker::start(&url, form) else { return };
        answers.insert(form, comparable(worker.work(&pod())));
    }
    let answer = &answers[""];
    assert_eq!(answer["events"], json!(["ADDED", "MODIFIED", "DELETED"]));
    assert_eq!(answer["updated"]["metadata"]["labels"], json!({"changed": "yes"}));
    assert_eq!(answer["listed"]["items"].as_array().unwrap().len(), 1);
    assert_eq!(answer["read"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"], "http");
    let reasons = ["exists", "conflict", "invalid", "missing"].map(|name| answer[name]["reason"].clone());
    assert_eq!(reasons, ["AlreadyExists", "Conflict", "Invalid", "NotFound"]);
    assert_eq!(answers[""], answers["application/json"]);
    assert_eq!(answers[MEDIA_TYPE], answers["application/json"], "without JSON");
    agent.signal(rustix::process::Signal::TERM);
    agent.ends();
}

/// The pods of a list in protobuf.
fn split(body: &[u8]) -> Vec<Prepared> {
    let mut splitter = Splitter::new(true, BodyShape::List);
    let mut pods = Vec::new();
    for chunk in body.chunks(1000) {
        splitter.push(chunk);
        while let Some(part) = splitter.next().unwrap() {
            if let Part::Object(message) = part {
                pods.push(Prepared::from_server_protobuf(&message).unwrap());
            }
        }
    }
    splitter.finish().unwrap();
    pods
}

#[test]
fn a_real_kube_apiservers_pods_are_the_same_in_json_and_in_protobuf() {
    let Some(apiserver) = Apiserver::shared() else { return };
    let mut admin = Admin::of(apiserver);
    admin.namespace("forms");
    let path = "/api/v1/namespaces/forms/pods";
    let mut accepted = 0;
    for seed in 0..300 {
        let mut pod = KNOWN.pod(&mut Random::new(seed));
        pod["metadata"]["namespace"] = "forms".into();
        pod["metadata"]["name"] = format!("p{seed}").into();
        // The API server has neither a service account nor a priority class for it.
        if let Some(spec) = pod["spec"].as_object_mut() {
            let unknown = ["serviceAccountName", "serviceAccount", "priorityClassName", "priority"];
            spec.retain(|field, _| !unknown.contains(&field.as_str()));
        }
        accepted += usize::from(admin.post(path, &pod).is_ok());
    }
    assert!(accepted > 50, "{accepted}");
    let token = &apiserver.at.token;
    let ask = |accept: &str, path: &str| {
        let more = format!("Accept: {accept}\r\n");
        apiserver.at.connect_with(token, &more).unwrap().ask("GET", path, b"").unwrap().body
    };
    let json: Value = serde_json::from_slice(&ask("application/json", path)).unwrap();
    let of_json: Vec<Prepared> = json["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| Prepared::from_server(item.to_string().as_bytes()).unwrap())
        .collect();
    // Each write at this server is a new version of all lists, and other tests write there, too.
    admin.namespace("forms-later");
    let version = json["metadata"]["resourceVersion"].as_str().unwrap();
    let same = format!("{path}?resourceVersion={version}&resourceVersionMatch=Exact");
    let body = ask(MEDIA_TYPE, &same);
    assert_eq!(split(&body), of_json);
    assert_eq!(of_json.len(), accepted);
    let list = protobuf::decode(&body, "").unwrap();
    assert_eq!(list["metadata"], json["metadata"]);
}
