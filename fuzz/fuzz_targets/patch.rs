//! Any text as a patch of each type.
//!
//! Nothing panics. A merge patch and an apply patch have no effect when they are applied again, and a patched pod
//! is not nested deeper than a text may be.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use podmux::manifest::patch::{LastApplied, Patch, PatchType};
use podmux_fuzz::bounded;
use serde_json::{Map, Value, json};

/// A pod with lists of each kind.
static POD: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "namespace": "default", "labels": {"a": "b"}, "finalizers": ["a/b", "c/d"]},
        "spec": {
            "containers": [
                {"name": "c", "image": "i", "args": ["x", "y"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                {"name": "d", "ports": [{"containerPort": 80}, {"containerPort": 81}]},
            ],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "hostPath": {"path": "/"}}],
            "tolerations": [{"key": "k", "operator": "Exists"}],
        },
    });
    pod.as_object().unwrap().clone()
});

/// A text of a JSON patch may allocate as much as one of this length: it can copy 3 MiB with a few operations.
const COPIES: usize = 100 << 10;

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, text) = input;
    let kind = PatchType::ALL[usize::from(choice) % PatchType::ALL.len()];
    let repeats = kind == PatchType::Json || text.contains(&b'*');
    let length = if repeats { text.len().max(COPIES) } else { text.len() };
    bounded(length, || {
        let Ok(patch) = Patch::parse(kind, text) else { return };
        let own = patch.config().cloned().unwrap_or_default();
        let Ok(patched) = patch.apply_to(POD.clone(), &LastApplied::default()) else { return };
        assert!(depth(&patched.clone().into()) <= 202, "{patched:?}");
        if matches!(kind, PatchType::Merge | PatchType::Apply) {
            let again = patch.apply_to(patched.clone(), &LastApplied { own: vec![own], others: Vec::new() });
            // A list that was absent may have items without the merge key, which only validation rejects.
            assert!(kind == PatchType::Apply || again.is_ok(), "{again:?}");
            assert!(again.is_err() || again.as_ref() == Ok(&patched), "{again:?}");
        }
    });
});

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}
