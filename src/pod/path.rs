//! The way to a field of a manifest, and where in the text it leads.

use std::fmt;

use super::node::{Data, Node};

/// The way to a value, from the outermost step; it lives on the stack.
///
/// Its `Display` is the API's: `spec.containers[0].name`, `metadata.labels[app]`.
#[derive(Clone, Copy, Debug)]
pub struct FieldPath<'a> {
    parent: Option<&'a FieldPath<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl FieldPath<'static> {
    /// The way to the whole.
    pub const ROOT: Self = Self { parent: None, step: Step::Root };
}

impl<'a> FieldPath<'a> {
    /// The way on to a field.
    #[must_use]
    pub fn field(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Field(name) }
    }

    /// The way on to an item of a list, counted from 0.
    #[must_use]
    pub fn index(&'a self, index: usize) -> Self {
        Self { parent: Some(self), step: Step::Index(index) }
    }

    /// The way on to the value of a key in a map.
    #[must_use]
    pub fn key(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Key(key) }
    }

    /// Where in a text the value stands that the path leads to from a node. A
    /// path that leads beyond what was written leads to the last value on the way.
    pub(super) fn at(&self, root: &Node<'_>) -> usize {
        self.walk(root).map_or_else(|at| at, |node| node.at)
    }

    fn walk<'n, 't>(&self, root: &'n Node<'t>) -> Result<&'n Node<'t>, usize> {
        let Some(parent) = self.parent else { return Ok(root) };
        let node = parent.walk(root)?;
        let next = match (self.step, &node.data) {
            (Step::Field(key) | Step::Key(key), Data::Map(_)) => node.get(key),
            (Step::Index(index), Data::List(items)) => items.get(index),
            _ => None,
        };
        next.ok_or(node.at)
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Field(name) => {
                let inner = self.parent.is_some_and(|parent| !matches!(parent.step, Step::Root));
                write!(f, "{}{}", if inner { "." } else { "" }, name.escape_debug())
            }
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{}]", key.escape_debug()),
        }
    }
}
