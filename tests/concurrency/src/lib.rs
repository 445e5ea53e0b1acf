//! The parts of podmux that share state between tasks, under shuttle: it runs the tasks on one thread, and chooses at
//! each lock, atomic and wake-up which of them goes on.
//!
//! build.rs makes the modules of podmux's sources. Each promise is also checked of a variant with one deliberate
//! fault, and shuttle has to find it.
#![cfg(test)]
#![allow(
    dead_code,
    unused_imports,
    unused_mut,
    unreachable_pub,
    reason = "the modules are of another crate, which uses all of them"
)]

mod db;
mod promises;
mod watch;

#[path = "../../../src/backoff.rs"]
mod backoff;
#[path = "../../../src/error_chain.rs"]
mod error_chain;
#[path = "../../../src/outage.rs"]
mod outage;

// The pure modules.
use podmux::{host, pod, runtime, storage};

/// What `use std::…` and `use tokio::…` mean in the modules.
mod shuttled {
    pub mod std {
        pub use ::std::*;
        pub mod sync {
            pub use ::std::sync::*;
            pub use shuttle::sync::{Mutex, MutexGuard, atomic};
        }
    }

    pub mod tokio {
        pub use ::tokio::*;
        pub mod sync {
            pub(crate) use crate::watch;
            pub use ::tokio::sync::*;
        }
    }
}

macro_rules! generated {
    ($($name:ident)*) => { $(
        mod $name {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
        }
    )* };
}

generated!(mux mux_that_looks_twice work_queue work_queue_that_loses_a_wake_up history history_that_looks_first);
