//! Long random histories, and a storm of changes. A target of its own, because `tests/library` has it too.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    reason = "tests panic on failure, print what they do, and are not a library"
)]

mod merge;
mod storm;

#[path = "../it/support"]
mod support {
    //! The parts of `tests/it/support` that these tests need.
    pub mod namespace;
    pub mod random;
}
