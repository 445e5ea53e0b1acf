//! The examples in the documentation of podmux, which `build.rs` has gathered.
#![doc = include_str!(concat!(env!("OUT_DIR"), "/examples.md"))]
