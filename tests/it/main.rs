//! What podmux promises, one file a behaviour.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, says what it ran, and is nobody's library"
)]

mod decode;
mod decode_corpus;
mod support;
mod yaml;
