//! The levels of the Pod Security Standards.

/// A level of the Pod Security Standards: what a pod may have. Each level allows less than
/// the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecurityLevel {
    /// Everything.
    #[default]
    Privileged,
    /// Nothing that is known to give privileges on the host.
    Baseline,
    /// What current best practice of hardening demands.
    Restricted,
}

impl SecurityLevel {
    /// The name in Kubernetes: `privileged`, `baseline` or `restricted`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}
