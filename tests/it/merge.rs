//! The merge gives the same updates as the kubelet's own code, for each history of the corpus. It knows derived UIDs.

use jiff::Timestamp;
use podmux::{
    manifest::{self, Preparation},
    pod::{Listing, ListingBuilder, NodeName, Origin, Prepared, SourceName},
    storage::PodStorage,
};
use serde_json::json;

use crate::{replay, support::corpus};

#[test]
fn every_history_of_the_corpus_gives_the_kubelets_updates() {
    let cases = corpus("merge.jsonl.gz");
    assert_eq!(cases.len(), 600);
    for case in cases {
        let expected: Vec<Vec<replay::Line>> = case["steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| serde_json::from_value(step["updates"].clone()).unwrap())
            .collect();
        let id = case["id"].clone();
        let replayed = replay::replay(serde_json::from_value(case).unwrap()).unwrap();
        for (step, (ours, kubelets)) in replayed.steps.iter().zip(&expected).enumerate() {
            assert_eq!(ours, kubelets, "history {id}, step {step}");
        }
        assert_eq!(replayed.steps.len(), expected.len());
    }
}

#[test]
fn no_other_pod_takes_the_uid_that_was_derived_for_a_pod() {
    let listing = |source, pods| {
        let mut builder = ListingBuilder::new(source);
        builder.put(&Origin::from("origin"), pods, Timestamp::UNIX_EPOCH);
        builder.listing()
    };
    let merged = |listings: &[&Listing]| {
        let mut storage = PodStorage::new(&SourceName::ALL);
        for listing in listings {
            drop(storage.apply(listing));
        }
        storage.merged().iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>()
    };
    let text =
        "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c, image: i}]}}";
    let node = NodeName::new("node1").unwrap();
    let preparation = Preparation { source: SourceName::Url, node, generate: None, namespace: None };
    let derived = manifest::read(text.as_bytes(), &preparation).unwrap().pods;
    let uid = derived[0].uid().to_owned();
    let with_uid =
        |name| vec![Prepared::from_value(json!({"metadata": {"name": name, "uid": uid}})).unwrap()];
    let (file, api) = (with_uid("copy"), with_uid("x"));
    let [file, url, api] = [(SourceName::File, file), (SourceName::Url, derived), (SourceName::Api, api)]
        .map(|(source, pods)| listing(source, pods));
    for order in [[&file, &url, &api], [&api, &file, &url], [&url, &api, &file]] {
        assert_eq!(merged(&order), ["default/web-node1"]);
    }
    // The manifest of a copy has the UID.
    assert_eq!(merged(&[&file, &api]), ["default/x"]);
}
