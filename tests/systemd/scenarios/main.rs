//! podmux's package on a real systemd: installed, supervised, reloaded, upgraded, taken away.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "tests fail by panicking")]

mod install;
