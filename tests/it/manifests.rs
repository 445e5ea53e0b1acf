//! The example manifests, which the README uses, are valid without a warning, and the agent runs them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use podmux::{
    manifest::{self, Preparation},
    pod::{NodeName, Prepared, SourceName},
};
use rustix::process::Signal;

use crate::support::process::{Process, podmux, podmux_run};

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("manifests")
}

/// The pods of every example, by file.
fn examples() -> BTreeMap<String, Vec<Prepared>> {
    let preparation = Preparation {
        source: SourceName::File,
        node: NodeName::new("node1").unwrap(),
        generate: None,
        namespace: None,
    };
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let found = manifest::read(&fs::read(&path).unwrap(), &preparation)
            .unwrap_or_else(|invalid| panic!("{name}:{invalid}"));
        assert!(found.warnings.is_empty(), "{name}: {:?}", found.warnings);
        (name, found.pods)
    };
    fs::read_dir(directory()).unwrap().map(|entry| read(entry.unwrap().path())).collect()
}

#[test]
fn the_examples_have_well_known_names() {
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
fn no_two_examples_have_the_same_name_or_uid() {
    let pods: Vec<_> = examples().into_values().flatten().collect();
    let keys: BTreeSet<_> = pods.iter().map(Prepared::key).collect();
    let uids: BTreeSet<_> = pods.iter().map(Prepared::uid).collect();
    assert_eq!((keys.len(), uids.len()), (pods.len(), pods.len()));
}

/// A node without an API server cannot resolve such references, so static pods may not have them.
#[test]
fn no_example_refers_to_api_objects() {
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
fn the_example_api_server_has_the_size_for_the_benchmarks() {
    let size = fs::metadata(directory().join("kube-apiserver.yaml")).unwrap().len();
    assert!((2_000..3_000).contains(&size), "{size} bytes");
}

/// The first command of the README.
#[test]
fn the_agent_adds_every_example_in_one_update() {
    let agent = Process::start(&mut podmux_run(&directory(), &[]));
    let pods: usize = examples().values().map(Vec::len).sum();
    let held = agent.holds("every example", |held| held.pods.len() == pods);
    assert_eq!(held.heard, [format!("1 ADD file {pods}")]);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}

#[test]
fn validate_reports_nothing_about_the_examples() {
    let directory = directory();
    let output = podmux(&["validate", "--strict", directory.to_str().unwrap()]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}
