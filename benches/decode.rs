//! The cost of reading a manifest: from the text to the prepared and validated pod.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark fails by panicking, and is not a library")]

use divan::{Bencher, counter::BytesCount};
use podmux::{
    manifest::{self, Preparation, yaml},
    pod::{NodeName, Prepared, SourceName},
};
use serde_json::{Map, Value, json};

/// A kube-apiserver's static pod as kubeadm writes it, 2 kB and more.
const APISERVER: &str = "\
apiVersion: v1
kind: Pod
metadata:
  annotations:
    kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: 192.0.2.10:6443
  labels:
    component: kube-apiserver
    tier: control-plane
  name: kube-apiserver
  namespace: kube-system
spec:
  containers:
  - command:
    - kube-apiserver
    - --advertise-address=192.0.2.10
    - --allow-privileged=true
    - --authorization-mode=Node,RBAC
    - --client-ca-file=/etc/kubernetes/pki/ca.crt
    - --enable-admission-plugins=NodeRestriction
    - --etcd-cafile=/etc/kubernetes/pki/etcd/ca.crt
    - --etcd-certfile=/etc/kubernetes/pki/apiserver-etcd-client.crt
    - --etcd-keyfile=/etc/kubernetes/pki/apiserver-etcd-client.key
    - --etcd-servers=https://127.0.0.1:2379
    - --secure-port=6443
    - --service-account-issuer=https://kubernetes.default.svc.cluster.local
    - --service-account-key-file=/etc/kubernetes/pki/sa.pub
    - --service-account-signing-key-file=/etc/kubernetes/pki/sa.key
    - --service-cluster-ip-range=10.96.0.0/12
    image: registry.k8s.io/kube-apiserver:v1.36.3
    imagePullPolicy: IfNotPresent
    livenessProbe:
      failureThreshold: 8
      httpGet: {host: 192.0.2.10, path: /livez, port: 6443, scheme: HTTPS}
      initialDelaySeconds: 10
      periodSeconds: 10
      timeoutSeconds: 15
    name: kube-apiserver
    readinessProbe:
      failureThreshold: 3
      httpGet: {host: 192.0.2.10, path: /readyz, port: 6443, scheme: HTTPS}
      periodSeconds: 1
      timeoutSeconds: 15
    resources:
      requests:
        cpu: 250m
    volumeMounts:
    - mountPath: /etc/ssl/certs
      name: ca-certs
      readOnly: true
    - mountPath: /etc/kubernetes/pki
      name: k8s-certs
      readOnly: true
  hostNetwork: true
  priority: 2000001000
  priorityClassName: system-node-critical
  securityContext:
    seccompProfile:
      type: RuntimeDefault
  volumes:
  - hostPath:
      path: /etc/ssl/certs
      type: DirectoryOrCreate
    name: ca-certs
  - hostPath:
      path: /etc/kubernetes/pki
      type: DirectoryOrCreate
    name: k8s-certs
";

fn preparation() -> Preparation {
    Preparation {
        source: SourceName::File,
        node: NodeName::new("node1").unwrap(),
        generate: None,
        namespace: None,
    }
}

fn decode(bencher: Bencher<'_, '_>, text: &str) {
    let preparation = preparation();
    bencher
        .counter(BytesCount::of_str(text))
        .bench(|| manifest::read(divan::black_box(text).as_bytes(), &preparation).unwrap());
}

/// The running pod as an API server has it: with defaults, a status, and managedFields
/// for every field.
fn served() -> String {
    let pods = manifest::read(APISERVER.as_bytes(), &preparation()).unwrap().pods;
    let mut pod: Value = pods[0].object().clone().into();
    let times =
        json!({"lastProbeTime": null, "lastTransitionTime": "2026-01-02T03:04:05Z", "status": "True"});
    let condition = |kind: &str| {
        let mut condition = times.clone();
        condition["type"] = kind.into();
        condition
    };
    let kinds = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    pod["metadata"]["resourceVersion"] = "123456".into();
    pod["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z".into();
    pod["status"] = json!({
        "phase": "Running",
        "qosClass": "Burstable",
        "startTime": "2026-01-02T03:04:05Z",
        "hostIP": "192.0.2.10",
        "hostIPs": [{"ip": "192.0.2.10"}],
        "podIP": "192.0.2.10",
        "podIPs": [{"ip": "192.0.2.10"}],
        "conditions": kinds.map(condition),
        "containerStatuses": [{
            "name": "kube-apiserver",
            "image": "registry.k8s.io/kube-apiserver:v1.36.3",
            "imageID": format!("registry.k8s.io/kube-apiserver@sha256:{}", "0".repeat(64)),
            "containerID": format!("containerd://{}", "0".repeat(64)),
            "ready": true,
            "restartCount": 1,
            "started": true,
            "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
            "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-02T03:04:05Z", "reason": "Error"}},
        }],
    });
    let manager = |name: &str, part: &Value| {
        let head =
            json!({"apiVersion": "v1", "manager": name, "operation": "Update", "fieldsType": "FieldsV1"});
        let mut entry = head;
        entry["time"] = "2026-01-02T03:04:05Z".into();
        entry["fieldsV1"] = owned(part);
        entry
    };
    let status = json!({"status": pod["status"]});
    let spec = json!({"metadata": pod["metadata"], "spec": pod["spec"]});
    pod["metadata"]["managedFields"] = json!([manager("kubelet", &spec), manager("kubelet", &status)]);
    pod.to_string()
}

/// The fields of a value in the form of managedFields.
fn owned(value: &Value) -> Value {
    let mut fields = Map::new();
    match value {
        Value::Object(map) => {
            fields.insert(".".to_owned(), json!({}));
            fields.extend(map.iter().map(|(name, value)| (format!("f:{name}"), owned(value))));
        }
        Value::Array(items) => {
            let item = |item: &Value| (format!("k:{}", json!({"name": item["name"]})), owned(item));
            fields.extend(items.iter().map(item));
        }
        _ => {}
    }
    fields.into()
}

#[divan::bench(name = "decode-yaml")]
fn decode_yaml(bencher: Bencher<'_, '_>) {
    decode(bencher, APISERVER);
}

#[divan::bench(name = "decode-json")]
fn decode_json(bencher: Bencher<'_, '_>) {
    decode(bencher, &yaml::to_json(APISERVER).unwrap().to_string());
}

#[divan::bench(name = "decode-server")]
fn decode_server(bencher: Bencher<'_, '_>) {
    let text = served();
    bencher
        .counter(BytesCount::of_str(&text))
        .bench(|| Prepared::from_server(divan::black_box(&text).as_bytes()).unwrap());
}

/// Decoding without the check of the types, to measure that check.
#[divan::bench(name = "decode-server-unchecked")]
fn decode_server_unchecked(bencher: Bencher<'_, '_>) {
    let text = served();
    bencher
        .counter(BytesCount::of_str(&text))
        .bench(|| Prepared::from_json(divan::black_box(&text).as_bytes()).unwrap());
}

fn main() {
    divan::main();
}
