//! What several parts of the warnings have in common.

/// The most pairs of ports of a pod, and of paths of a volume, that are reported. There may be as many as the
/// square of their number.
pub(super) const MAX_PAIRS: usize = 200;

/// The longest label, in bytes.
pub(super) const MAX_LABEL: usize = 63;
