//! The corpus of manifests that the kubelet's own code accepted or rejected, and its prepared pods.

use podmux::{
    manifest::{self, Preparation},
    pod::{NodeName, Prepared, SourceName, Stage},
};
use serde_json::Value;

use crate::support::corpus;

/// The results of the cases of one file.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    /// Accepted by both, and the pod is the same.
    same_pod: usize,
    /// Rejected by both at the same stage.
    rejected: usize,
    /// Rejected by the kubelet after decoding, and accepted by decoding here.
    later: usize,
}

/// The form of a pod in which both sides are compared: decoded to the typed struct, without
/// what each side derives differently (the hash, a UID that was not given) and
/// without managedFields, which podmux drops.
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
        (Some("decode"), Err(invalid)) if invalid.stage == Stage::Decode => tally.rejected += 1,
        (Some("name"), Err(invalid)) if invalid.stage == Stage::Name => tally.rejected += 1,
        (Some("validate" | "reference"), Ok(_)) => tally.later += 1,
        (stage, Ok(_)) => {
            return Err(format!("accepted, but the kubelet rejected it at {stage:?}: {}", case["error"]));
        }
        (stage, Err(invalid)) => {
            return Err(format!("{:?}: {invalid}; the kubelet's stage is {stage:?}", invalid.stage));
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
fn the_yaml_corpus_is_read_as_by_the_kubelet() {
    assert_eq!(run("yaml.jsonl.gz"), Tally { same_pod: 147, rejected: 265, later: 33 });
}

#[test]
fn the_pods_of_the_corpus_are_prepared_as_by_the_kubelet() {
    assert_eq!(run("pods.jsonl.gz"), Tally { same_pod: 1633, rejected: 371, later: 3278 });
}
