//! The receiver of the problems that validation finds.

use crate::pod::{FieldPath, Problem, Stage};

/// Receives the problems of a pod. The decoder of a manifest implements it, because only
/// the decoder knows the positions of fields in the text.
pub trait Report {
    /// Reports an error, which rejects the pod at a stage. The problem is made only if it is
    /// kept: of the errors of a text, the first hundred are.
    fn error(&mut self, stage: Stage, path: &FieldPath<'_>, problem: &dyn Fn() -> Problem);

    /// Reports what the author of the pod probably did not mean.
    fn warning(&mut self, path: &FieldPath<'_>, problem: &dyn Fn() -> Problem);

    /// Whether the text has an empty list or map at a path. A prepared pod does not
    /// distinguish it from an absent one, and some rules of the API do.
    fn is_given_empty(&mut self, path: &FieldPath<'_>) -> bool;
}
