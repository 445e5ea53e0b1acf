//! Any bytes as a manifest, for every source that reads manifests.
//!
//! Beyond not panicking: what is wrong stands at a place that the text has, and
//! an accepted pod, read again from its own text, is accepted and the same.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use libfuzzer_sys::fuzz_target;
use podmux::pod::{
    NodeName, Prepared, Problem, Severity, SourceName,
    decode::{Manifest, Preparation, manifest},
};
use serde_json::{Map, Value};

fuzz_target!(|text: &[u8]| {
    for source in [SourceName::File, SourceName::Http, SourceName::Url] {
        match read(text, source) {
            Ok(Manifest { pods, warnings }) => {
                stand_in(text, &warnings);
                assert!(warnings.iter().all(|warning| warning.severity == Severity::Warning));
                pods.iter().for_each(again);
            }
            Err(refusal) => {
                stand_in(text, &refusal.problems);
                assert!(refusal.problems.iter().any(|problem| problem.severity == Severity::Error));
                assert!(!refusal.to_string().contains('\n'), "a log's line is one line: {refusal}");
            }
        }
    }
});

fn read(text: &[u8], source: SourceName) -> Result<Manifest, podmux::pod::Refusal> {
    manifest(text, &Preparation { source, node: NodeName::new("node1").unwrap() })
}

/// Every position is one that an editor can go to: the line exists, and the
/// column is at most one past its end.
fn stand_in(text: &[u8], problems: &[Problem]) {
    // Only a text that is UTF-8 has lines of characters.
    let Ok(text) = std::str::from_utf8(text) else { return };
    let lines: Vec<_> = lines(text);
    for problem in problems {
        if let Some((line, column)) = problem.position {
            let length = lines.get(line as usize - 1).map(|line| line.chars().count());
            // A position at the very end may be that of the line after the last.
            let length = length.unwrap_or_else(|| {
                assert!(line as usize == lines.len() + 1, "{problem:?} is below the text");
                0
            });
            assert!(column >= 1 && column as usize <= length + 1, "{problem:?} is right of its line");
        }
    }
}

/// Lines as YAML 1.2 breaks them: LF, CR or both.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive(['\n', '\r'])
        .fold(Vec::new(), |mut lines: Vec<(usize, usize)>, piece| {
            let begin = lines.last().map_or(0, |line| line.1);
            let end = begin + piece.len();
            match lines.last_mut() {
                Some(last) if piece == "\n" && text[..begin].ends_with('\r') => last.1 = end,
                _ => lines.push((begin, end)),
            }
            lines
        })
        .into_iter()
        .map(|(begin, end)| &text[begin..end])
        .collect()
}

/// A prepared pod is a manifest too, of a POSTed pod: those keep their names.
fn again(pod: &Prepared) {
    let second = one(pod);
    // The hash is that of what was written, and the second time the defaults were written.
    assert_eq!(unhashed(pod.object()), unhashed(second.object()));
    let third = one(&second);
    assert_eq!(second.object(), third.object());
}

fn one(pod: &Prepared) -> Prepared {
    let text = serde_json::to_vec(pod.object()).unwrap();
    let mut pods = match read(&text, SourceName::Http) {
        Ok(manifest) => manifest.pods,
        Err(refusal) => panic!("{refusal} in {}", String::from_utf8_lossy(&text)),
    };
    assert_eq!(pods.len(), 1);
    pods.remove(0)
}

fn unhashed(pod: &Map<String, Value>) -> Map<String, Value> {
    let mut pod = pod.clone();
    if let Some(annotations) = pod.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations")) {
        let Value::Object(annotations) = annotations else { panic!("{annotations} for annotations") };
        annotations.remove("kubernetes.io/config.hash");
    }
    pod
}
