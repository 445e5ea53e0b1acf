//! Starts that cannot work: one line that says why, and no loop.

use std::{io::Read as _, net::TcpListener, os::unix::net::UnixStream, time::Duration};

use podmux_machine::{client::ADDRESS, machine::Machine, pods::pod};
use redb::{Database, TableDefinition};
use sha2::{Digest as _, Sha256};

/// How often a client that waits at the socket may start the service: what podmux.socket
/// says, and the one that it was started by hand.
const STARTS: usize = 21;

/// Starts the service, which must refuse for this reason: exit code 2, no restart, one
/// line of it in the journal and the same in the status.
fn refused(machine: &Machine, reason: &str) {
    machine.ok("systemctl stop podmux.service 2>&1");
    machine.ok("journalctl --sync --rotate --vacuum-time=1s 2>&1");
    assert_ne!(machine.run("systemctl start podmux.service").code, 0);
    assert_refused(machine, reason);
    let errors = machine.journal("--output=cat --priority=err --identifier=podmux");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains(reason), "{errors}");
    let status = machine.run("systemctl status --no-pager podmux.service").stdout;
    let line = status.lines().find(|line| line.trim_start().starts_with("Status:"));
    assert!(line.is_some_and(|line| line.contains(reason)), "{status}");
}

/// That it has failed for good.
fn assert_refused(machine: &Machine, reason: &str) {
    assert_eq!(machine.is("failed"), Ok(()));
    assert_eq!((&*machine.show("Result"), &*machine.show("ExecMainStatus")), ("exit-code", "2"));
    assert_eq!(machine.number("NRestarts"), 0);
    let status = machine.show("StatusText");
    assert!(status.contains(reason), "{status}");
}

/// What was wrong is mended: it starts, and has its pods.
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
    refused(&machine, "/var/lib/podmux/state.redb was written by a newer podmux: format 99");
    assert_eq!(machine.ok("sha256sum /var/lib/podmux/state.redb"), before);
    // What was acknowledged is kept for the newer one, or a copy that is put back.
    machine.ok("cat /root/state.redb >/var/lib/podmux/state.redb");
    starts_again(&machine, &["posted"]);
}

/// As a program would do whose format has another number.
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
fn a_disk_without_space_is_said_and_refuses_only_what_needs_space() {
    let machine = Machine::with_podmux();
    machine.ok("systemctl stop podmux.service 2>&1");
    machine.ok("mount -t tmpfs -o size=4m,mode=0700,uid=podmux,gid=podmux tmpfs /var/lib/podmux");
    machine.run("dd if=/dev/zero of=/var/lib/podmux/filler bs=4k");
    refused(&machine, "/var/lib/podmux");
    machine.ok("rm /var/lib/podmux/filler && systemctl start podmux.service");
    machine.post(&pod("posted"));
    machine.run("dd if=/dev/zero of=/var/lib/podmux/filler bs=4k");
    let mut kept = vec!["posted".to_owned()];
    machine.wait_for("a post is refused for want of space", || {
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
fn a_file_system_that_cannot_be_written_is_said() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.ok("systemctl stop podmux.service 2>&1");
    machine.ok("cp -a /var/lib/podmux /root/kept && mount -t tmpfs tmpfs /var/lib/podmux && \
         chown podmux:podmux /var/lib/podmux && chmod 0700 /var/lib/podmux && \
         cp -a /root/kept/. /var/lib/podmux/ && mount -o remount,ro /var/lib/podmux");
    refused(&machine, "ead-only file system");
    machine.ok("mount -o remount,rw /var/lib/podmux");
    starts_again(&machine, &["posted"]);
}

#[test]
fn a_port_in_use_is_said() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.ok("systemctl stop podmux.service 2>&1");
    let other = machine.within(|| TcpListener::bind(ADDRESS).unwrap());
    refused(&machine, ADDRESS);
    drop(other);
    starts_again(&machine, &["posted"]);
}

#[test]
fn a_token_that_cannot_be_read_is_said() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.write_as("/etc/podmux/token", 0o600, "a-token-that-is-root's");
    machine.settings("tokenFile: /etc/podmux/token");
    refused(&machine, "/etc/podmux/token");
    machine.ok("chgrp podmux /etc/podmux/token && chmod 0640 /etc/podmux/token");
    starts_again(&machine, &["posted"]);
}

/// Asks whether a start would be refused.
const ASK: &str = "systemd-run --pipe --wait -q -p User=podmux -p EnvironmentFile=-/etc/default/podmux \
    -E STATE_DIRECTORY=/var/lib/podmux /usr/bin/podmux run --check --config /etc/podmux/config.yaml";

#[test]
fn a_setting_that_cannot_be_used_is_said() {
    let machine = Machine::with_podmux();
    machine.settings("fileCheckFrequency: often");
    refused(&machine, "fileCheckFrequency");
    // The same is said without a start, by what README.md has for it.
    let asked = machine.run(ASK);
    assert_eq!(asked.code, 2, "{asked:?}");
    assert!(asked.stderr.contains("fileCheckFrequency"), "{asked:?}");
    let mended = machine.read("/etc/podmux/config.yaml").replace("often", "10s");
    machine.write("/etc/podmux/config.yaml", mended);
    machine.ok(ASK);
    // It knows the variables, too.
    let variables = machine.read("/etc/default/podmux");
    machine.variables("PODMUX_FILE_CHECK_FREQUENCY=seldom");
    let asked = machine.run(ASK);
    assert!(asked.code == 2 && asked.stderr.contains("seldom"), "{asked:?}");
    machine.write("/etc/default/podmux", variables);
    starts_again(&machine, &[]);
}

#[test]
fn a_client_that_waits_makes_no_loop_of_a_start_that_is_refused() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.settings("fileCheckFrequency: often");
    refused(&machine, "fileCheckFrequency");
    // It waits until it is told that nobody comes, which it is.
    let mut client = UnixStream::connect(machine.socket()).unwrap();
    client.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    match client.read(&mut [0]) {
        Ok(read) => assert_eq!(read, 0),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    assert!(machine.socket_is("failed"), "the socket is closed");
    assert_refused(&machine, "fileCheckFrequency");
    let journal = machine.journal("--output=cat --priority=err --identifier=podmux");
    assert!(journal.lines().count() <= STARTS, "{journal}");
    // Who starts it again has both.
    let mended = machine.read("/etc/podmux/config.yaml").replace("often", "10s");
    machine.write("/etc/podmux/config.yaml", mended);
    starts_again(&machine, &["posted"]);
    assert!(machine.socket_is("active"));
}
