//! podmux: pods from every source of a node, as one ordered stream of updates.

pub mod agent;
pub mod cli;
pub mod clock;
pub mod mux;
pub mod pod;
pub mod settings;
pub mod sink;
pub mod source;
pub mod storage;
pub mod supervise;
pub mod telemetry;
