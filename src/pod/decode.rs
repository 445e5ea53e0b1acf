//! From a manifest's text to prepared pods.

use super::{NodeName, Prepared, Problem, Refusal, SourceName};

/// The largest manifest that is read, in bytes (the kubelet's bound for a URL's body).
pub const MAX_MANIFEST: usize = 10 * 1024 * 1024;

/// For whom a manifest is prepared.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// The source that read it: `File`, `Http` or `Url`.
    pub source: SourceName,
    /// This node.
    pub node: NodeName,
}

/// What a manifest gave.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Its pods, prepared, in the order of the text; at least one, unless the
    /// text is an explicit empty list.
    pub pods: Vec<Prepared>,
    /// What its author probably did not mean: unknown fields, duplicate keys.
    pub warnings: Vec<Problem>,
}

/// Reads a manifest: a Pod, a PodList, a List or several YAML documents, in YAML or JSON.
///
/// # Errors
/// All that is wrong with it. A manifest is taken whole or not at all.
pub fn manifest(text: &[u8], preparation: &Preparation) -> Result<Manifest, Refusal> {
    let _ = (text, preparation);
    unimplemented!()
}
