//! What the packaged agent takes from a machine, under systemd.
fn main() {}
