//! `Display` of the types that are a text.

use super::{NodeName, Op, Origin, PodKey, SourceName, UpdateSource};

macro_rules! shown_as_str {
    ($($name:ident),+) => {$(
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    )+};
}

shown_as_str!(NodeName, Op, Origin, PodKey, SourceName, UpdateSource);
