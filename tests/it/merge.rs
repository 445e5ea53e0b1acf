//! The merge gives the same updates as the kubelet's own code, for each history of the corpus.

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
