//! storm: placeholder
fn main() {}
