//! Builders and doubles that several tests use.

pub mod activated;
pub mod agent;
pub mod apiserver;
pub mod callgrind;
pub mod cluster;
pub mod dialogue;
pub mod exec;
pub mod files;
pub mod kubeconfig;
pub mod kubectl;
pub mod kubernetes;
pub mod logs;
pub mod man;
pub mod namespace;
pub mod node;
pub mod notify;
pub mod observed;
pub mod openapi_cut;
pub mod own_podman;
pub mod plain;
pub mod podman;
pub mod polled;
pub mod process;
pub mod promql;
pub mod proxy;
pub mod python;
pub mod random;
pub mod reader;
pub mod reflected;
pub mod registry;
pub mod relay;
pub mod screen;
pub mod script;
pub mod served;
pub mod server;
pub mod sinks;
pub mod state;
pub mod stream;
pub mod terminal;
pub mod tls;
pub mod unpacked;
pub mod web;

use std::{fs::File, io::Read as _, path::PathBuf};

/// The cases of one file of `tests/corpus/`.
pub fn corpus(name: &str) -> Vec<serde_json::Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let mut text = String::new();
    flate2::read::GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
