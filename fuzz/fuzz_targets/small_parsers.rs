//! Any text as a selector, a config file, a quantity, a time, a port or the name of an image.
//!
//! Nothing panics, each message is one line, and what is accepted is accepted again in its
//! canonical form.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use libfuzzer_sys::fuzz_target;
use podmux::{
    manifest::{self, Preparation, yaml},
    pod::{NodeName, SourceName},
    server::Selector,
};
use podmux_fuzz::bounded;
use serde_json::{Value, json};

fuzz_target!(|input: (u8, &str)| {
    let (parser, text) = input;
    bounded(text.len(), || match parser % 4 {
        0 => drop(Selector::new(text, "")),
        1 => drop(Selector::new("", text)),
        2 => drop(yaml::fields(text)),
        _ => fields(text),
    });
});

/// The text in the fields of a pod that have a syntax of their own.
fn fields(text: &str) {
    let paths = [
        "/spec/containers/0/resources/limits/cpu",
        "/spec/containers/0/image",
        "/spec/containers/0/ports/0/containerPort",
        "/metadata/creationTimestamp",
        "/spec/containers/0/livenessProbe/httpGet/port",
    ];
    for path in paths {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": "a", "creationTimestamp": null },
            "spec": { "containers": [{
                "name": "a",
                "image": "a",
                "ports": [{ "containerPort": 1 }],
                "resources": { "limits": { "cpu": 1 } },
                "livenessProbe": { "httpGet": { "port": 1 } },
            }] },
        });
        *pod.pointer_mut(path).unwrap() = text.into();
        if let Some(first) = decoded(&pod, path) {
            *pod.pointer_mut(path).unwrap() = first.clone();
            assert_eq!(decoded(&pod, path).as_ref(), Some(&first), "{path}: {text:?}");
        }
    }
}

/// The value at a path of the decoded pod; none if the pod is rejected.
fn decoded(pod: &Value, path: &str) -> Option<Value> {
    let node = NodeName::new("node1").unwrap();
    let preparation = Preparation { source: SourceName::Http, node, generate: None, namespace: None };
    match manifest::decode(pod.to_string().as_bytes(), &preparation) {
        Ok(manifest) => Value::from(manifest.pods[0].object().clone()).pointer(path).cloned(),
        Err(invalid) => {
            assert!(!invalid.to_string().contains('\n'), "the message must be one line: {invalid}");
            None
        }
    }
}
