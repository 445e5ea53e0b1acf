//! `$(NAME)` in the texts of containers.

use std::{cell::Cell, collections::BTreeMap};

/// How many bytes the values of variables may add to the texts of a pod. It is what a process can usually be started with
/// (`execve(2)`); without a bound ten short variables that refer to each other have gigabytes.
const MOST: usize = 2 << 20;

/// Expands the texts of one pod.
#[derive(Debug)]
pub(super) struct Expansion {
    /// How many bytes may still be added. None after more were wanted.
    left: Cell<Option<usize>>,
}

impl Expansion {
    pub(super) fn new() -> Self {
        Self { left: Cell::new(Some(MOST)) }
    }

    /// Whether the values of variables have more than [`MOST`] bytes. Not all texts are expanded then.
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

    fn has_room(&self, bytes: usize) -> bool {
        self.left.set(self.left.get().and_then(|left| left.checked_sub(bytes)));
        !self.is_exceeded()
    }
}
