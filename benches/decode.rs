//! What a manifest costs from its text to the prepared and validated pod.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a benchmark fails by panicking, and is nobody's library"
)]

use divan::{Bencher, counter::BytesCount};
use podmux::{
    pod::{NodeName, SourceName, decode::Preparation, yaml},
    validation::manifest,
};

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

fn decode(bencher: Bencher<'_, '_>, text: &str) {
    let preparation = Preparation {
        source: SourceName::File,
        node: NodeName::new("node1").unwrap(),
        generate: None,
        namespace: None,
    };
    bencher
        .counter(BytesCount::of_str(text))
        .bench(|| manifest(divan::black_box(text).as_bytes(), &preparation).unwrap());
}

#[divan::bench(name = "decode-yaml")]
fn decode_yaml(bencher: Bencher<'_, '_>) {
    decode(bencher, APISERVER);
}

#[divan::bench(name = "decode-json")]
fn decode_json(bencher: Bencher<'_, '_>) {
    decode(bencher, &yaml::to_json(APISERVER).unwrap().to_string());
}

fn main() {
    divan::main();
}
