//! The state after an installation.

use std::fs;

use podmux_machine::{
    machine::{Machine, package},
    pods::pod,
};

/// The socket asks no questions, TCP asks everybody.
#[test]
fn members_of_the_group_have_a_kubeconfig_and_other_users_nothing() {
    let machine = Machine::with_podmux();
    let with_group = |group: &str, command: &str| {
        let user = format!("setpriv --reuid=65534 --regid={group} --clear-groups");
        machine.run(&format!("cd / && {user} podmux {command}"))
    };
    let config = with_group("podmux", "kubeconfig");
    assert_eq!(config.code, 0, "{config:?}");
    assert!(config.stdout.contains("server: https://127.0.0.1:10240\n"), "{}", config.stdout);
    assert_eq!(with_group("podmux", "get pods -A").code, 0);
    let token = machine.read("/var/lib/podmux/auth/token");
    assert!(config.stdout.contains(token.trim()));
    assert_eq!((machine.code_over_tcp(&token), machine.code_over_tcp("wrong")), (200, 401));
    for command in ["kubeconfig", "get pods -A", "get pods -A --server https://127.0.0.1:10240"] {
        let refused = with_group("65534", command);
        assert_eq!((refused.code, &*refused.stdout), (1, ""), "{command}: {refused:?}");
    }
    let plain = with_group("65534", "get pods -A --server http://127.0.0.1:10240");
    assert_eq!((plain.code, &*plain.stdout), (1, ""), "{plain:?}");
}

#[test]
fn a_fresh_installation_is_active_ready_and_enabled() {
    let machine = Machine::boot();
    machine.install(&package());
    // The installation waited until the service was ready.
    assert_eq!(machine.is_active(), Ok(()));
    assert_eq!(machine.show("Type"), "notify");
    assert_eq!(machine.show("SubState"), "running");
    assert_eq!(machine.number("NRestarts"), 0);
    machine.wait_for_status("has the number of pods", |status| status == "0 pods");
    assert_eq!(machine.ok("systemctl is-enabled podmux.service podmux.socket"), "enabled\nenabled\n");
    assert_eq!(machine.ok("systemctl is-active podmux.socket"), "active\n");
    assert_eq!(machine.ok("systemctl is-system-running"), "running\n");
}

#[test]
fn files_and_processes_have_the_right_owners_and_rights() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.wait_for("the certificate is made", || {
        machine.exists("/var/lib/podmux/auth/server.crt").then_some(()).ok_or_else(String::new)
    });
    let files = machine.ok("stat --format='%a %U:%G %n' /etc/podmux /etc/podmux/config.yaml \
         /etc/podmux/manifests /etc/default/podmux /run/podmux /run/podmux/podmux.sock \
         /usr/bin/podmux /var/lib/podmux /var/lib/podmux/* /var/lib/podmux/auth/*");
    assert_eq!(
        files,
        "755 root:root /etc/podmux\n\
         644 root:root /etc/podmux/config.yaml\n\
         755 root:root /etc/podmux/manifests\n\
         644 root:root /etc/default/podmux\n\
         755 root:root /run/podmux\n\
         660 root:podmux /run/podmux/podmux.sock\n\
         755 root:root /usr/bin/podmux\n\
         700 podmux:podmux /var/lib/podmux\n\
         700 podmux:podmux /var/lib/podmux/auth\n\
         600 podmux:podmux /var/lib/podmux/lock\n\
         600 podmux:podmux /var/lib/podmux/state.redb\n\
         600 podmux:podmux /var/lib/podmux/auth/ca.crt\n\
         600 podmux:podmux /var/lib/podmux/auth/ca.key\n\
         600 podmux:podmux /var/lib/podmux/auth/read-token\n\
         600 podmux:podmux /var/lib/podmux/auth/server.crt\n\
         600 podmux:podmux /var/lib/podmux/auth/server.key\n\
         600 podmux:podmux /var/lib/podmux/auth/token\n"
    );
    let user = machine.ok("getent passwd podmux");
    assert!(user.trim_end().ends_with(":/:/usr/sbin/nologin"), "{user}");
    let agent = machine.agent().unwrap().as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{agent}/status")).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let number = user.split(':').nth(2).unwrap();
    assert_eq!(field("Uid:").split_whitespace().collect::<Vec<_>>(), [number; 4]);
    assert_eq!(field("Groups:"), user.split(':').nth(3).unwrap());
    for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(capabilities), "0000000000000000", "{capabilities}");
    }
    assert_eq!((&*field("NoNewPrivs:"), &*field("Seccomp:")), ("1", "2"));
}

#[test]
fn only_members_of_the_group_may_use_the_socket() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.ok("useradd --groups podmux friend && useradd stranger");
    let listed = machine.ok("runuser --user friend -- podmux get pods --output name");
    assert_eq!(listed, "pod/posted\n");
    let rejected = machine.run("runuser --user stranger -- podmux get pods --output name");
    assert_ne!(rejected.code, 0);
    assert!(rejected.stderr.contains("no permission to use the socket"), "{rejected:?}");
}

#[test]
fn a_manifest_directory_keeps_its_restricted_mode() {
    let machine = Machine::with_podmux();
    machine.ok("chgrp podmux /etc/podmux/manifests && chmod 0750 /etc/podmux/manifests");
    // A boot and an upgrade run this.
    machine.ok("systemd-tmpfiles --create");
    machine.install(&package());
    let mode = machine.ok("stat --format='%a %U:%G' /etc/podmux/manifests");
    assert_eq!(mode, "750 root:podmux\n");
    machine.write("/etc/podmux/manifests/web.yaml", pod("web").to_string());
    machine.wait_for_pods(&["web-node1"]);
}

#[test]
fn a_package_installed_before_the_first_boot_starts_with_it() {
    let machine = Machine::boot_installed();
    machine.wait_for("podmux.service is active", || machine.is_active());
    assert!(machine.socket_is("active"));
    let directory = machine.ok("stat --format='%a %U:%G' /run/podmux");
    assert_eq!(directory, "755 root:root\n");
    machine.post(&pod("posted"));
    machine.wait_for_pods(&["posted"]);
    assert_eq!(machine.number("NRestarts"), 0);
    // The socket is active before the service.
    let (socket, service) = (
        machine.ok("systemctl show --property=ActiveEnterTimestampMonotonic --value podmux.socket"),
        machine.ok("systemctl show --property=InactiveExitTimestampMonotonic --value podmux.service"),
    );
    let (socket, service): (u64, u64) = (socket.trim().parse().unwrap(), service.trim().parse().unwrap());
    assert!(socket <= service, "{socket} {service}");
}

#[test]
fn an_installation_has_manual_pages_and_examples() {
    let machine = Machine::boot();
    machine.install(&package());
    let files = machine.ok("dpkg --listfiles podmux");
    for file in [
        "/usr/share/man/man1/podmux.1.gz",
        "/usr/share/man/man1/podmux-run.1.gz",
        "/usr/share/bash-completion/completions/podmux",
        "/usr/share/doc/podmux/examples/drop-ins/output-file.conf",
        "/etc/logrotate.d/podmux",
    ] {
        assert!(files.lines().any(|line| line == file), "{file} is not in {files}");
    }
    // No file differs from its checksum.
    assert_eq!(machine.ok("dpkg --verify podmux"), "");
    // The unit's documentation exists.
    let documents = machine.ok("systemctl show --property=Documentation --value podmux.service");
    for file in documents.split_whitespace().filter_map(|name| name.strip_prefix("file://")) {
        assert!(files.lines().any(|line| line == file), "{file} is not there");
    }
}
