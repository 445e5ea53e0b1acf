//! What there is after an installation.

use podmux_machine::machine::{Machine, package};

#[test]
fn a_machine_boots_and_a_package_is_installed() {
    let machine = Machine::boot();
    machine.install(&package());
    assert_eq!(machine.show("LoadState"), "loaded");
    assert_eq!(machine.ok("systemctl is-enabled podmux.service podmux.socket"), "enabled\nenabled\n");
}
