//! THE HEART: resolves the sources' listings into one view, and two views into ordered updates. Pure.

mod merged;

pub use merged::{Merged, SourceState};
