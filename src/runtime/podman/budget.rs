//! What podman's containers repeat of a pod: the values of `$(NAME)`, and what the pod has once.

use std::{cell::Cell, collections::BTreeMap};

use serde_json::Value;

/// How many bytes of a pod its containers may repeat. It is what a process can usually be started with (`execve(2)`);
/// without a bound ten short variables that refer to each other have gigabytes, and so have the groups of many containers.
const MOST: usize = 2 << 20;

/// Bounds what the containers of one pod repeat.
#[derive(Debug)]
pub(super) struct Budget {
    /// How many bytes may still be repeated. None after more were wanted.
    left: Cell<Option<usize>>,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { left: Cell::new(Some(MOST)) }
    }

    /// Whether more than [`MOST`] bytes were wanted. The translation is not complete then.
    pub(super) fn is_exceeded(&self) -> bool {
        self.left.get().is_none()
    }

    /// Replaces `$(NAME)` by the value of a variable, and `$$` by `$`, as the kubelet does
    /// (`third_party/forked/golang/expansion`). What refers to no variable stays as it is.
    pub(super) fn expand(&self, text: &str, variables: &BTreeMap<String, String>) -> String {
        // Behind the last one no reference ends: each would be looked for up to the end.
        let (text, after) = text.split_at(text.rfind(')').map_or(0, |at| at + 1));
        let (mut expanded, mut rest) = (String::new(), text);
        while let Some(at) = rest.find('$') {
            expanded.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                expanded.push('$');
                rest = after;
            } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
                match variables.get(name).filter(|value| self.has_room(value.len())) {
                    Some(value) => expanded.push_str(value),
                    None => expanded.extend(["$(", name, ")"]),
                }
                rest = after;
            } else {
                expanded.push('$');
            }
        }
        expanded + rest + &after.replace("$$", "$")
    }

    /// The texts of a list, up to the first one that there is no room for.
    pub(super) fn list(&self, texts: impl Iterator<Item = String>) -> Vec<Value> {
        texts.take_while(|text| self.has_room(text.len() + size_of::<Value>())).map(Value::from).collect()
    }

    /// Whether so many bytes may be repeated, which are counted.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.left.set(self.left.get().and_then(|left| left.checked_sub(bytes)));
        !self.is_exceeded()
    }
}
