//! `--dry-run` of `apply` and `delete`.

use clap::ValueEnum;

/// Whether the agent changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    /// Make the changes
    None,
    /// Let the agent check the request without making the changes
    Server,
}

impl DryRun {
    /// The query parameter.
    pub(super) fn query(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Server).then_some(("dryRun", "All"))
    }

    /// The end of each result line.
    pub(super) const fn note(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Server => " (server dry run)",
        }
    }
}
