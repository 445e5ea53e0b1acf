//! The removal of the package.

use std::collections::BTreeSet;

use podmux_machine::{
    machine::{Machine, package},
    pods::pod,
};

/// All files of the machine, except those of the kernel, systemd and the package manager.
fn files(machine: &Machine) -> BTreeSet<String> {
    let files = machine.ok("find / -xdev \\( \
         -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /root/podmux.deb \
         -o -path /var/log/journal -o -path /var/lib/systemd/catalog -o -path /var/lib/dpkg \
         -o -path /var/lib/logrotate -o -path /var/log/dpkg.log -o -path /var/log/alternatives.log -o -path /var/tmp \
         \\) -prune -o -print; find /run -xdev -path '*podmux*'");
    // Backups of the tools that change users.
    let copies = ["/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-"];
    files.lines().filter(|file| !copies.contains(file)).map(str::to_owned).collect()
}

fn users(machine: &Machine) -> String {
    machine.ok("sort /etc/passwd && sort /etc/group && cut -d: -f1 /etc/shadow | sort")
}

#[test]
fn a_removal_keeps_the_state_and_a_new_installation_has_its_pods() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.settings("fileCheckFrequency: 11s");
    machine.ok("dpkg --remove podmux");
    assert!(machine.exists("/var/lib/podmux/state.redb"));
    assert!(machine.read("/etc/podmux/config.yaml").contains("fileCheckFrequency: 11s"));
    assert!(!machine.exists("/usr/bin/podmux") && !machine.exists("/run/podmux/podmux.sock"));
    let processes = machine.ok("ps -e -o comm=");
    assert!(!processes.lines().any(|name| name == "podmux"), "{processes}");
    assert_eq!(machine.ok("systemctl --failed --plain --no-legend"), "");
    machine.install(&package());
    machine.wait_for("podmux.service is active", || machine.is_active());
    machine.wait_for_pods(&["posted"]);
    assert!(machine.read("/etc/podmux/config.yaml").contains("fileCheckFrequency: 11s"));
    assert_eq!(machine.ok("systemctl is-enabled podmux.service podmux.socket"), "enabled\nenabled\n");
}

#[test]
fn a_purge_leaves_nothing_behind() {
    let machine = Machine::boot();
    let before = (files(&machine), users(&machine));
    machine.install(&package());
    machine.wait_for("podmux.service is active", || machine.is_active());
    machine.packaged_drop_in("output-file");
    machine.packaged_drop_in("credential-plugins");
    machine.restart();
    machine.write("/etc/podmux/manifests/web.yaml", pod("web").to_string());
    machine.post(&pod("posted"));
    machine.wait_for_pods(&["posted", "web-node1"]);
    machine.ok("logrotate --force /etc/logrotate.d/podmux");
    machine.ok("dpkg --purge podmux");
    let after = (files(&machine), users(&machine));
    let left = after.0.difference(&before.0).collect::<Vec<_>>();
    assert!(left.is_empty(), "left behind: {left:?}");
    let gone = before.0.difference(&after.0).collect::<Vec<_>>();
    assert!(gone.is_empty(), "removed too: {gone:?}");
    assert_eq!(before.1, after.1);
    assert_eq!(machine.ok("systemctl --failed --plain --no-legend"), "");
    assert_eq!(machine.ok("systemctl list-unit-files --plain --no-legend 'podmux*'; true"), "");
}

#[test]
fn a_purge_empties_a_state_directory_that_is_a_mount_point() {
    let machine = Machine::boot();
    machine.ok("mkdir /var/lib/podmux && mount -t tmpfs tmpfs /var/lib/podmux");
    machine.install(&package());
    machine.post(&pod("posted"));
    machine.ok("dpkg --purge podmux");
    assert_eq!(machine.ok("ls -A /var/lib/podmux"), "");
    assert_eq!(machine.run("getent passwd podmux").code, 2);
}
