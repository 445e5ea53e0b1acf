//! From one version of the package to the next.

use podmux_machine::{
    load::Load,
    machine::{Machine, package, package_before},
    pods::pod,
};

/// A machine with the previous version.
fn with_version_before() -> Machine {
    let machine = Machine::boot();
    machine.install(&package_before());
    machine.wait_for("podmux.service is active", || machine.is_active());
    machine
}

fn enabled(machine: &Machine) -> String {
    machine.run("systemctl is-enabled podmux.service podmux.socket").stdout
}

#[test]
fn an_upgrade_keeps_pods_and_edits_and_loses_no_request() {
    let machine = with_version_before();
    machine.write("/etc/podmux/manifests/web.yaml", pod("web").to_string());
    machine.post(&pod("posted"));
    machine.wait_for_pods(&["posted", "web-node1"]);
    machine.settings("fileCheckFrequency: 11s");
    let (agent, before) = (machine.agent(), machine.ok("dpkg-query --show --showformat='${Version}' podmux"));
    assert!(machine.read("/etc/default/podmux").contains("This line is gone in the next version."));
    let load = Load::start(&machine);
    machine.install(&package());
    load.continues(&machine);
    let result = load.stop();
    assert_eq!(result.failures, [""; 0]);
    result.assert_pods_kept(&machine);
    assert_ne!(machine.ok("dpkg-query --show --showformat='${Version}' podmux"), before);
    assert_ne!(machine.agent(), agent, "it was restarted");
    assert_eq!(machine.is_active(), Ok(()));
    assert_eq!(machine.number("NRestarts"), 0);
    let pods = machine.pods();
    assert!(pods.contains_key("posted") && pods.contains_key("web-node1"));
    // A changed configuration file stays; an unchanged one is replaced.
    assert!(machine.read("/etc/podmux/config.yaml").contains("fileCheckFrequency: 11s"));
    assert!(!machine.read("/etc/default/podmux").contains("This line is gone in the next version."));
    assert_eq!(enabled(&machine), "enabled\nenabled\n");
}

#[test]
fn an_upgrade_does_not_enable_disabled_units() {
    let machine = with_version_before();
    machine.ok("systemctl disable --now podmux.service podmux.socket 2>&1");
    machine.install(&package());
    assert_eq!(enabled(&machine), "disabled\ndisabled\n");
    assert_eq!(machine.is("inactive"), Ok(()));
    assert_eq!(machine.run("systemctl is-active podmux.socket").stdout, "inactive\n");
}

#[test]
fn an_upgrade_leaves_masked_units_masked() {
    let machine = with_version_before();
    machine.ok("systemctl mask --now podmux.service 2>&1");
    machine.install(&package());
    assert!(enabled(&machine).starts_with("masked\n"));
    assert_eq!(machine.is("inactive"), Ok(()));
}

#[test]
fn an_upgrade_does_not_start_stopped_units() {
    let machine = with_version_before();
    machine.ok("systemctl stop podmux.service podmux.socket 2>&1");
    machine.install(&package());
    assert_eq!(machine.is("inactive"), Ok(()));
    assert_eq!(enabled(&machine), "enabled\nenabled\n");
}

#[test]
fn a_downgrade_keeps_the_pods() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.install(&package_before());
    machine.wait_for("podmux.service is active", || machine.is_active());
    machine.wait_for_pods(&["posted"]);
}
