//! Any bytes as a manifest, for every source that reads manifests.
//!
//! Nothing panics, every problem has a position in the text, and an accepted pod, read again
//! from its own text, is accepted unchanged.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use libfuzzer_sys::fuzz_target;
use podmux::{
    manifest::{self, Manifest, Preparation},
    pod::{NodeName, Prepared, Problem, Severity, SourceName},
};
use podmux_fuzz::{bounded, is_position_in};
use serde_json::{Map, Value};

/// More than the text that aliases may make, in bytes.
const LARGEST_EXPANSION: usize = 100 << 10;

fuzz_target!(|text: &[u8]| {
    for source in [SourceName::File, SourceName::Http, SourceName::Url] {
        // An alias repeats what the text has once, within a bound of its own.
        let length = if text.contains(&b'*') { LARGEST_EXPANSION } else { text.len() };
        match bounded(length, || read(text, source)) {
            Ok(Manifest { pods, warnings, .. }) => {
                stand_in(text, &warnings);
                assert!(warnings.iter().all(|warning| warning.severity == Severity::Warning));
                pods.iter().for_each(again);
            }
            Err(invalid) => {
                stand_in(text, &invalid.problems);
                assert!(invalid.problems.iter().any(|problem| problem.severity == Severity::Error));
                assert!(!invalid.to_string().contains('\n'), "the message must be one line: {invalid}");
            }
        }
    }
});

fn read(text: &[u8], source: SourceName) -> Result<Manifest, podmux::pod::InvalidManifest> {
    manifest::read(
        text,
        &Preparation { source, node: NodeName::new("node1").unwrap(), generate: None, namespace: None },
    )
}

fn stand_in(text: &[u8], problems: &[Problem]) {
    // Only UTF-8 text has positions in characters.
    if let Ok(text) = std::str::from_utf8(text) {
        assert!(problems.iter().all(|problem| is_position_in(text, problem)), "{problems:?}");
    }
}

/// A prepared pod is a valid manifest of a POSTed pod, which keeps its name.
fn again(pod: &Prepared) {
    let second = one(pod);
    // The hash differs, because the second text has the defaults.
    assert_eq!(unhashed(pod.object()), unhashed(second.object()));
    let third = one(&second);
    assert_eq!(second.object(), third.object());
}

fn one(pod: &Prepared) -> Prepared {
    let text = serde_json::to_vec(pod.object()).unwrap();
    let mut pods = match read(&text, SourceName::Http) {
        Ok(manifest) => manifest.pods,
        Err(invalid) => panic!("{invalid} in {}", String::from_utf8_lossy(&text)),
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
