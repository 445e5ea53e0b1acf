//! The example manifests: what the README runs is valid, without a word of warning.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use podmux::pod::{
    NodeName, Prepared, SourceName,
    decode::{Preparation, manifest},
};

/// The pods of every example, by file.
fn examples() -> BTreeMap<String, Vec<Prepared>> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("manifests");
    let preparation = Preparation { source: SourceName::File, node: NodeName::new("node1").unwrap() };
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let found = manifest(&fs::read(&path).unwrap(), &preparation)
            .unwrap_or_else(|refusal| panic!("{name}:{refusal}"));
        assert!(found.warnings.is_empty(), "{name}: {:?}", found.warnings);
        (name, found.pods)
    };
    fs::read_dir(directory).unwrap().map(|entry| read(entry.unwrap().path())).collect()
}

#[test]
fn the_examples_are_pods_that_a_reader_recognises() {
    let keys: BTreeSet<_> = examples().values().flatten().map(|pod| pod.key().to_string()).collect();
    let expected = [
        "default/web-node1",
        "edge/mqtt-broker-node1",
        "edge/mqtt-recorder-node1",
        "infra/registry-mirror-node1",
        "kube-system/etcd-node1",
        "kube-system/kube-apiserver-node1",
        "kube-system/kube-controller-manager-node1",
        "kube-system/kube-scheduler-node1",
        "monitoring/node-exporter-node1",
        "reports/report-api-node1",
    ];
    assert_eq!(keys, expected.map(str::to_owned).into());
}

#[test]
fn no_two_examples_claim_one_name_or_one_uid() {
    let pods: Vec<_> = examples().into_values().flatten().collect();
    let keys: BTreeSet<_> = pods.iter().map(Prepared::key).collect();
    let uids: BTreeSet<_> = pods.iter().map(Prepared::uid).collect();
    assert_eq!((keys.len(), uids.len()), (pods.len(), pods.len()));
}

/// A node without an API server cannot resolve them, and so no static pod may name them.
#[test]
fn no_example_refers_to_what_only_an_api_server_has() {
    let kinds = [
        "secret",
        "secretKeyRef",
        "secretRef",
        "imagePullSecrets",
        "configMap",
        "configMapKeyRef",
        "configMapRef",
        "serviceAccount",
        "serviceAccountName",
        "serviceAccountToken",
        "persistentVolumeClaim",
        "resourceClaims",
        "csi",
        "ephemeral",
    ];
    for (file, pods) in examples() {
        for pod in pods {
            let text = serde_json::to_string(pod.object()).unwrap();
            for kind in kinds {
                assert!(!text.contains(&format!("\"{kind}\":")), "{file}: {kind}");
            }
        }
    }
}

#[test]
fn the_api_server_is_as_large_as_the_benchmarks_want_it() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("manifests/kube-apiserver.yaml");
    let size = fs::metadata(path).unwrap().len();
    assert!((2_000..3_000).contains(&size), "{size} bytes");
}
