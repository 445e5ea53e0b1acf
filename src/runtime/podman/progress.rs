//! How far a pull is, from the lines that podman prints about it. Pure.

use std::fmt;

/// The progress of a pull.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// How many layers podman has begun to copy. It does not say how many there are before it has them all.
    layers: usize,
    step: Step,
}

#[derive(Debug, Default)]
enum Step {
    #[default]
    Begun,
    Copying,
    Copied,
    /// In podman's words.
    Other(String),
}

impl Progress {
    /// Takes over a line of podman.
    pub(super) fn note(&mut self, line: &str) {
        self.step = if line.starts_with("Copying blob ") {
            self.layers += 1;
            Step::Copying
        } else if line.starts_with("Copying config ") {
            Step::Copied
        } else {
            Step::Other(line.trim().to_owned())
        };
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.step, self.layers) {
            (Step::Begun, _) => Ok(()),
            (Step::Copying, layer) => write!(f, ": copying layer {layer}"),
            (Step::Copied, layers) => write!(f, ": {layers} layers copied"),
            (Step::Other(words), _) => write!(f, ": {words}"),
        }
    }
}
