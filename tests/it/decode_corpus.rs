//! The kubelet's own verdicts: what its code took and refused, and the pods that it made of it.

use podmux::{
    manifest::{self, Preparation},
    pod::{NodeName, Prepared, SourceName, Stage},
};
use serde_json::Value;

use crate::support::corpus;

/// What became of the cases of one file.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    /// Accepted by both, and the pod is the same.
    same_pod: usize,
    /// Refused by both at the same stage.
    refused: usize,
    /// Refused by the kubelet later than decoding, and taken here so far.
    later: usize,
}

/// A pod as both sides compare it: through the typed decode, without what each
/// side derives in its own way (the hash, a UID that was not given) and without
/// managedFields, which podmux drops.
pub fn comparable(mut pod: Value, given_uid: bool) -> Value {
    let metadata = pod["metadata"].as_object_mut().unwrap();
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.remove("kubernetes.io/config.hash");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    metadata.remove("managedFields");
    if !given_uid {
        metadata.remove("uid");
    }
    let typed: k8s_openapi::api::core::v1::Pod = serde_json::from_value(pod).unwrap();
    serde_json::to_value(typed).unwrap()
}

fn check(case: &Value, tally: &mut Tally) -> Result<(), String> {
    let source = if case["source"] == "file" { SourceName::File } else { SourceName::Url };
    let preparation =
        Preparation { source, node: NodeName::new("node1").unwrap(), generate: None, namespace: None };
    let result = manifest::decode(case["data"].as_str().unwrap().as_bytes(), &preparation);
    match (case["stage"].as_str(), result) {
        (None, Ok(ours)) => {
            let theirs = case["pods"].as_array().unwrap();
            if ours.pods.len() != theirs.len() {
                return Err(format!("{} pods, where the kubelet has {}", ours.pods.len(), theirs.len()));
            }
            let ours: Vec<Value> = ours
                .pods
                .iter()
                .zip(theirs)
                .map(|(pod, their)| comparable(object(pod), their["metadata"].get("uid").is_some()))
                .collect();
            let theirs: Vec<Value> = theirs.iter().map(|pod| comparable(pod.clone(), true)).collect();
            if ours != theirs {
                return Err(format!("ours   {}\ntheirs {}", ours[0], theirs[0]));
            }
            tally.same_pod += 1;
        }
        (Some("decode"), Err(refusal)) if refusal.stage == Stage::Decode => tally.refused += 1,
        (Some("name"), Err(refusal)) if refusal.stage == Stage::Name => tally.refused += 1,
        (Some("validate" | "reference"), Ok(_)) => tally.later += 1,
        (stage, Ok(_)) => {
            return Err(format!("taken, but the kubelet refused it at {stage:?}: {}", case["error"]));
        }
        (stage, Err(refusal)) => {
            return Err(format!("{:?}: {refusal}; the kubelet's stage is {stage:?}", refusal.stage));
        }
    }
    Ok(())
}

pub fn object(pod: &Prepared) -> Value {
    pod.object().clone().into()
}

fn run(file: &str) -> Tally {
    let mut tally = Tally::default();
    let failures: Vec<String> = corpus(file)
        .iter()
        .filter_map(|case| {
            check(case, &mut tally).err().map(|why| format!("{}: {why}\n{}", case["id"], case["data"]))
        })
        .collect();
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures[..failures.len().min(4)].join("\n\n")
    );
    println!("{file}: {tally:?}");
    tally
}

#[test]
fn every_text_of_the_yaml_corpus_is_read_as_the_kubelet_reads_it() {
    assert_eq!(run("yaml.jsonl.gz"), Tally { same_pod: 147, refused: 265, later: 33 });
}

#[test]
fn every_pod_of_the_corpus_comes_out_as_the_kubelet_prepares_it() {
    assert_eq!(run("pods.jsonl.gz"), Tally { same_pod: 1633, refused: 371, later: 3278 });
}
