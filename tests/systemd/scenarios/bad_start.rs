//! Starts that fail: one line with the reason, and no restart loop. And starts with something that may mend itself.

use std::{
    io::Read as _,
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};

use podmux_machine::{client::ADDRESS, machine::Machine, pods::pod};
use redb::{Database, TableDefinition};
use sha2::{Digest as _, Sha256};

/// How many times a waiting client may start the service: the limit of podmux.socket, and
/// the manual start.
const STARTS: usize = 21;

/// Starts the service, which must fail for this reason: exit code 2, no restart, one line in
/// the journal, and the same line in the status.
fn fails_to_start(machine: &Machine, reason: &str) {
    machine.ok("systemctl stop podmux.service 2>&1");
    machine.ok("journalctl --sync --rotate --vacuum-time=1s 2>&1");
    assert_ne!(machine.run("systemctl start podmux.service").code, 0);
    assert_failed(machine, reason);
    let errors = machine.journal("--output=cat --priority=err --identifier=podmux");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains(reason), "{errors}");
    let status = machine.run("systemctl status --no-pager podmux.service").stdout;
    let line = status.lines().find(|line| line.trim_start().starts_with("Status:"));
    assert!(line.is_some_and(|line| line.contains(reason)), "{status}");
}

/// Checks that the service has failed and is not restarted.
fn assert_failed(machine: &Machine, reason: &str) {
    assert_eq!(machine.is("failed"), Ok(()));
    assert_eq!((&*machine.show("Result"), &*machine.show("ExecMainStatus")), ("exit-code", "2"));
    assert_eq!(machine.number("NRestarts"), 0);
    let status = machine.show("StatusText");
    assert!(status.contains(reason), "{status}");
}

/// Starts the service, which must run and have this reason in its status.
fn starts_without(machine: &Machine, reason: &str) {
    machine.ok("systemctl start podmux.service");
    machine.wait_for("the reason in the status", || {
        let status = machine.show("StatusText");
        if status.contains(reason) { Ok(()) } else { Err(status) }
    });
    assert_eq!(machine.is_active(), Ok(()));
    assert_eq!(machine.number("NRestarts"), 0);
}

/// Checks that the service starts again and has its pods.
fn starts_again(machine: &Machine, pods: &[&str]) {
    machine.ok("systemctl start podmux.service");
    machine.wait_for_pods(pods);
}

#[test]
fn a_state_directory_of_a_newer_version_is_left_as_it_is() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.ok("systemctl stop podmux.service 2>&1 && cp /var/lib/podmux/state.redb /root/");
    make_newer(&machine);
    let before = machine.ok("sha256sum /var/lib/podmux/state.redb");
    fails_to_start(&machine, "/var/lib/podmux/state.redb was written by a newer podmux: format 99");
    assert_eq!(machine.ok("sha256sum /var/lib/podmux/state.redb"), before);
    // A copy of the old state directory works again.
    machine.ok("cat /root/state.redb >/var/lib/podmux/state.redb");
    starts_again(&machine, &["posted"]);
}

/// Changes the number of the format.
fn make_newer(machine: &Machine) {
    let database = Database::open(machine.path("/var/lib/podmux/state.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let mut digest = Sha256::new();
    for part in ["meta", "format", "99"] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let value = [&digest.finalize()[..8], b"99"].concat();
    {
        let mut meta = transaction.open_table(TableDefinition::<&[u8], &[u8]>::new("meta")).unwrap();
        meta.insert(&b"format"[..], &*value).unwrap();
    }
    transaction.commit().unwrap();
}

#[test]
fn a_full_disk_rejects_only_writes_and_is_in_the_answer() {
    let machine = Machine::with_podmux();
    machine.ok("systemctl stop podmux.service 2>&1");
    machine.ok("mount -t tmpfs -o size=4m,mode=0700,uid=podmux,gid=podmux tmpfs /var/lib/podmux");
    machine.run("dd if=/dev/zero of=/var/lib/podmux/filler bs=4k");
    starts_without(&machine, "/var/lib/podmux");
    machine.ok("rm /var/lib/podmux/filler && systemctl reload podmux.service");
    machine.wait_for("the state is open", || {
        let status = machine.show("StatusText");
        if status.contains("/var/lib/podmux") { Err(status) } else { Ok(()) }
    });
    machine.post(&pod("posted"));
    machine.run("dd if=/dev/zero of=/var/lib/podmux/filler bs=4k");
    let mut kept = vec!["posted".to_owned()];
    machine.wait_for("a post is rejected because of the full disk", || {
        let name = format!("large-{}", kept.len());
        let mut large = pod(&name);
        large["metadata"]["annotations"] = serde_json::json!({"large": "x".repeat(100_000)});
        let body = large.to_string();
        let answer = machine.ask("POST", "/pods", body.as_bytes()).map_err(|error| error.to_string())?;
        if answer.code == 507 {
            return Ok(());
        }
        assert_eq!(answer.code, 201, "{}", answer.text());
        kept.push(name);
        Err(format!("{} are stored", kept.len()))
    });
    assert_eq!(machine.is_active(), Ok(()));
    kept.sort();
    assert_eq!(machine.pods().into_keys().collect::<Vec<_>>(), kept);
    machine.ok("rm /var/lib/podmux/filler");
    machine.post(&pod("second"));
    machine.restart();
    kept.push("second".to_owned());
    machine.wait_for_pods(&kept);
}

#[test]
fn a_read_only_file_system_is_waited_for() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.ok("systemctl stop podmux.service 2>&1");
    machine.ok("cp -a /var/lib/podmux /root/kept && mount -t tmpfs tmpfs /var/lib/podmux && \
         chown podmux:podmux /var/lib/podmux && chmod 0700 /var/lib/podmux && \
         cp -a /root/kept/. /var/lib/podmux/ && mount -o remount,ro /var/lib/podmux");
    starts_without(&machine, "ead-only file system");
    // The mount in the service's own namespace stays read-only until it is restarted.
    machine.ok("mount -o remount,rw /var/lib/podmux");
    machine.restart();
    machine.wait_for_pods(&["posted"]);
}

#[test]
fn a_port_in_use_is_waited_for() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.ok("systemctl stop podmux.service 2>&1");
    let other = machine.within(|| TcpListener::bind(ADDRESS).unwrap());
    starts_without(&machine, ADDRESS);
    machine.wait_for_pods(&["posted"]);
    drop(other);
    machine.wait_for("the address is served", || {
        machine.within(|| TcpStream::connect(ADDRESS)).map(drop).map_err(|error| error.to_string())
    });
}

#[test]
fn an_unreadable_token_is_an_error() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.write_as("/etc/podmux/token", 0o600, "a-token-that-is-root's");
    machine.settings("tokenFile: /etc/podmux/token");
    fails_to_start(&machine, "/etc/podmux/token");
    machine.ok("chgrp podmux /etc/podmux/token && chmod 0640 /etc/podmux/token");
    starts_again(&machine, &["posted"]);
}

/// Checks the settings without a start.
const CHECK: &str = "systemd-run --pipe --wait -q -p User=podmux -p EnvironmentFile=-/etc/default/podmux \
    -E STATE_DIRECTORY=/var/lib/podmux /usr/bin/podmux run --check --config /etc/podmux/config.yaml";

#[test]
fn an_invalid_setting_is_an_error() {
    let machine = Machine::with_podmux();
    machine.settings("fileCheckFrequency: often");
    fails_to_start(&machine, "fileCheckFrequency");
    // The command of README.md finds the same error without a start.
    let checked = machine.run(CHECK);
    assert_eq!(checked.code, 2, "{checked:?}");
    assert!(checked.stderr.contains("fileCheckFrequency"), "{checked:?}");
    let corrected = machine.read("/etc/podmux/config.yaml").replace("often", "10s");
    machine.write("/etc/podmux/config.yaml", corrected);
    machine.ok(CHECK);
    // It reads the variables too.
    let variables = machine.read("/etc/default/podmux");
    machine.variables("PODMUX_FILE_CHECK_FREQUENCY=seldom");
    let checked = machine.run(CHECK);
    assert!(checked.code == 2 && checked.stderr.contains("seldom"), "{checked:?}");
    machine.write("/etc/default/podmux", variables);
    starts_again(&machine, &[]);
}

#[test]
fn a_waiting_client_does_not_cause_a_restart_loop() {
    let machine = Machine::with_podmux();
    // On a slow machine so many starts take more than a minute.
    let limit = "[Socket]\nTriggerLimitIntervalSec=10min\n";
    machine.write("/etc/systemd/system/podmux.socket.d/test.conf", limit);
    machine.ok("systemctl daemon-reload");
    machine.post(&pod("posted"));
    machine.settings("fileCheckFrequency: often");
    fails_to_start(&machine, "fileCheckFrequency");
    // It waits until systemd closes the connection.
    let mut client = UnixStream::connect(machine.socket()).unwrap();
    client.set_read_timeout(Some(Duration::from_mins(10))).unwrap();
    match client.read(&mut [0]) {
        Ok(read) => assert_eq!(read, 0),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    assert!(machine.socket_is("failed"), "the socket is closed");
    assert_failed(&machine, "fileCheckFrequency");
    let journal = machine.journal("--output=cat --priority=err --identifier=podmux");
    assert!(journal.lines().count() <= STARTS, "{journal}");
    // A manual start starts both.
    let corrected = machine.read("/etc/podmux/config.yaml").replace("often", "10s");
    machine.write("/etc/podmux/config.yaml", corrected);
    starts_again(&machine, &["posted"]);
    assert!(machine.socket_is("active"));
}
