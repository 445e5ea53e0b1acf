//! The kubelet's own verdicts on pods that are not valid: the stage, the fields and the reasons.

use std::collections::BTreeSet;

use podmux::{
    manifest::{self, Preparation},
    pod::{InvalidManifest, NodeName, SourceName, Stage},
};
use serde_json::Value;

use crate::support::corpus;

/// What became of the cases of one file that decode.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    /// Accepted by both.
    accepted: usize,
    /// Refused by both's validation, for the same fields and reasons.
    same_causes: usize,
    /// Refused by both's validation, for other fields and reasons.
    other_causes: usize,
    /// Refused by both for what it refers to.
    reference: usize,
    /// Refused by the kubelet at the same or a later stage, and taken here so far.
    taken: usize,
    /// Refused by both before validation.
    earlier: usize,
}

pub type Causes = BTreeSet<(String, String)>;

/// The (field, reason) pairs that validation gave. Of a list the kubelet tells
/// the first bad item only, without its place.
pub fn causes(refusal: &InvalidManifest) -> Causes {
    let pair = |problem: &podmux::pod::Problem| {
        let field = problem.field.as_deref()?;
        let field = match field.strip_prefix("items[") {
            Some(rest) => rest.split_once("].")?.1,
            None => field,
        };
        Some((field.to_owned(), problem.reason?.to_owned()))
    };
    refusal.problems.iter().filter_map(pair).collect()
}

fn check(case: &Value, tally: &mut Tally) -> Result<(), String> {
    let source = if case["source"] == "file" { SourceName::File } else { SourceName::Url };
    let preparation =
        Preparation { source, node: NodeName::new("node1").unwrap(), generate: None, namespace: None };
    let result = manifest::read(case["data"].as_str().unwrap().as_bytes(), &preparation);
    let stage = case["stage"].as_str();
    match (stage, result) {
        (None, Ok(_)) => tally.accepted += 1,
        (None, Err(refusal)) => return Err(format!("refused, and the kubelet takes it: {refusal}")),
        (Some("validate"), Err(refusal)) if refusal.stage == Stage::Validate => {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let theirs: Causes = case["causes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|cause| (text(&cause["field"]), text(&cause["reason"])))
                .collect();
            let ours = causes(&refusal);
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
        (Some("reference"), Err(refusal)) if refusal.stage == Stage::Reference => tally.reference += 1,
        (Some("validate" | "reference"), Ok(_)) => {
            tally.taken += 1;
            println!("{} taken {} {}", case["id"], case["error"], case["causes"]);
        }
        (Some("validate"), Err(refusal)) if refusal.stage == Stage::Reference => tally.other_causes += 1,
        (Some("decode"), Err(refusal)) if refusal.stage == Stage::Decode => tally.earlier += 1,
        (Some("name"), Err(refusal)) if refusal.stage == Stage::Name => tally.earlier += 1,
        (_, Err(refusal)) => return Err(format!("{:?}: {refusal}", refusal.stage)),
        (_, Ok(_)) => return Err("taken".to_owned()),
    }
    Ok(())
}

/// The tally over a file. What was decided at another stage fails the test: above
/// all a case that the kubelet takes.
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
fn the_pods_of_the_corpus_are_refused_for_the_kubelets_reasons() {
    let tally = run("pods.jsonl.gz");
    let expected =
        Tally { accepted: 1633, same_causes: 2967, reference: 311, earlier: 371, ..Tally::default() };
    assert_eq!(tally, expected);
}

#[test]
fn the_texts_of_the_yaml_corpus_are_refused_for_the_kubelets_reasons() {
    let expected = Tally { accepted: 147, same_causes: 33, earlier: 265, ..Tally::default() };
    assert_eq!(run("yaml.jsonl.gz"), expected);
}

/// A prepared pod is a manifest too, of a POSTed pod: what the agent shows it takes.
#[test]
fn every_accepted_pod_of_the_corpus_is_accepted_again_as_it_was_prepared() {
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
