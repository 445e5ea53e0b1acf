//! The tests of the library without the program, which in the program's build are a part of `tests/it`.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::needless_raw_string_hashes,
    reason = "tests panic on failure, print what they skip, and are not a library"
)]

#[path = "../it/decode.rs"]
mod decode;
#[path = "../it/delivery.rs"]
mod delivery;
#[path = "../it/merge.rs"]
mod merge;
#[path = "../it/observed.rs"]
mod observed;
#[path = "../it/pod_workers.rs"]
mod pod_workers;
#[path = "../../examples/replay.rs"]
mod replay;
#[path = "../it/validation.rs"]
mod validation;
#[path = "../it/work_queue.rs"]
mod work_queue;
#[path = "../it/yaml.rs"]
mod yaml;

#[path = "../it/support"]
mod support {
    //! The parts of `tests/it/support` that need no agent.
    mod corpus;
    pub mod logs;
    pub mod random;
    pub mod script;
    pub mod sinks;
    pub mod stream;

    pub use self::corpus::corpus;
}
