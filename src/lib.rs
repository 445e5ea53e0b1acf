//! podmux: pods from every source of a node, as one ordered stream of updates.

pub mod clock;
pub mod mux;
pub mod pod;
pub mod source;
pub mod storage;
