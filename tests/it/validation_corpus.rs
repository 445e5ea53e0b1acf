//! The corpus of pods that the kubelet's own code rejected: the stage, the fields and the reasons.

use std::collections::BTreeSet;

use podmux::{
    manifest::{self, Preparation},
    pod::{InvalidManifest, NodeName, SourceName, Stage},
};
use serde_json::Value;

use crate::support::corpus;

/// The results of the cases of one file.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    /// Accepted by both.
    accepted: usize,
    /// Rejected by both at validation, for the same fields and reasons.
    same_causes: usize,
    /// Rejected by both at validation, for other fields and reasons.
    other_causes: usize,
    /// Rejected by both for its references.
    reference: usize,
    /// Rejected by the kubelet at the same or a later stage, and accepted here.
    taken: usize,
    /// Rejected by both before validation.
    earlier: usize,
}

pub type Causes = BTreeSet<(String, String)>;

/// The (field, reason) pairs of the problems. Of a list the kubelet reports only the first
/// invalid item, without its index.
pub fn causes(invalid: &InvalidManifest) -> Causes {
    let pair = |problem: &podmux::pod::Problem| {
        let field = problem.field.as_deref()?;
        let field = match field.strip_prefix("items[") {
            Some(rest) => rest.split_once("].")?.1,
            None => field,
        };
        Some((field.to_owned(), problem.reason?.to_owned()))
    };
    invalid.problems.iter().filter_map(pair).collect()
}

fn check(case: &Value, tally: &mut Tally) -> Result<(), String> {
    let source = if case["source"] == "file" { SourceName::File } else { SourceName::Url };
    let preparation =
        Preparation { source, node: NodeName::new("node1").unwrap(), generate: None, namespace: None };
    let result = manifest::read(case["data"].as_str().unwrap().as_bytes(), &preparation);
    let stage = case["stage"].as_str();
    match (stage, result) {
        (None, Ok(_)) => tally.accepted += 1,
        (None, Err(invalid)) => return Err(format!("rejected, but the kubelet accepts it: {invalid}")),
        (Some("validate"), Err(invalid)) if invalid.stage == Stage::Validate => {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let theirs: Causes = case["causes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|cause| (text(&cause["field"]), text(&cause["reason"])))
                .collect();
            let ours = causes(&invalid);
            if ours == theirs {
                tally.same_causes += 1;
            } else {
                tally.other_causes += 1;
                let (more, fewer) = (ours.difference(&theirs), theirs.difference(&ours));
                println!(
                    "{} more {:?} fewer {:?}",
                    case["id"],
                    more.collect::<Vec<_>>(),
                    fewer.collect::<Vec<_>>()
                );
            }
        }
        (Some("reference"), Err(invalid)) if invalid.stage == Stage::Reference => tally.reference += 1,
        (Some("validate" | "reference"), Ok(_)) => {
            tally.taken += 1;
            println!("{} taken {} {}", case["id"], case["error"], case["causes"]);
        }
        (Some("validate"), Err(invalid)) if invalid.stage == Stage::Reference => tally.other_causes += 1,
        (Some("decode"), Err(invalid)) if invalid.stage == Stage::Decode => tally.earlier += 1,
        (Some("name"), Err(invalid)) if invalid.stage == Stage::Name => tally.earlier += 1,
        (_, Err(invalid)) => return Err(format!("{:?}: {invalid}", invalid.stage)),
        (_, Ok(_)) => return Err("taken".to_owned()),
    }
    Ok(())
}

/// The results of a file. A different stage fails the test, in particular for a case that
/// the kubelet accepts.
fn run(file: &str) -> Tally {
    let mut tally = Tally::default();
    let failures: Vec<String> = corpus(file)
        .iter()
        .filter_map(|case| {
            let why = check(case, &mut tally).err()?;
            Some(format!("{} ({}): {why}\n{}", case["id"], case["stage"], case["data"]))
        })
        .collect();
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures[..failures.len().min(10)].join("\n\n")
    );
    println!("{file}: {tally:?}");
    tally
}

#[test]
fn the_pods_of_the_corpus_are_rejected_for_the_kubelets_reasons() {
    let tally = run("pods.jsonl.gz");
    let expected =
        Tally { accepted: 1633, same_causes: 2967, reference: 311, earlier: 371, ..Tally::default() };
    assert_eq!(tally, expected);
}

#[test]
fn the_yaml_corpus_is_rejected_for_the_kubelets_reasons() {
    let expected = Tally { accepted: 147, same_causes: 33, earlier: 265, ..Tally::default() };
    assert_eq!(run("yaml.jsonl.gz"), expected);
}

/// A prepared pod is a valid manifest of a POSTed pod: the agent accepts its own output.
#[test]
fn every_prepared_pod_of_the_corpus_is_accepted_unchanged() {
    let mut again = 0;
    for case in corpus("pods.jsonl.gz").iter().filter(|case| case["stage"].is_null()) {
        let mut preparation = Preparation {
            source: SourceName::File,
            node: NodeName::new("node1").unwrap(),
            generate: None,
            namespace: None,
        };
        let first = manifest::read(case["data"].as_str().unwrap().as_bytes(), &preparation).unwrap();
        preparation.source = SourceName::Http;
        for pod in &first.pods {
            let text = serde_json::to_vec(pod.object()).unwrap();
            let second =
                manifest::read(&text, &preparation).unwrap_or_else(|why| panic!("{}: {why}", case["id"]));
            again += second.pods.len();
        }
    }
    assert_eq!(again, 1633);
}
