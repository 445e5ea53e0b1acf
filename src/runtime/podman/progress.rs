//! How far a pull is, from the lines that podman prints about it. Pure.

/// The progress of a pull.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// How many layers podman has begun to copy. It does not say how many there are before it has them all.
    layers: usize,
    /// What follows the name of the image: nothing at first, then a colon and the last step.
    pub(super) text: String,
}

impl Progress {
    /// Takes over a line of podman.
    pub(super) fn note(&mut self, line: &str) {
        self.text = if line.starts_with("Copying blob ") {
            self.layers += 1;
            format!(": copying layer {}", self.layers)
        } else if line.starts_with("Copying config ") {
            format!(": {} layers copied", self.layers)
        } else {
            // In podman's words.
            format!(": {}", line.trim())
        };
    }
}
