//! `systemctl reload`, good and bad.

use podmux_machine::{load::Load, machine::Machine, pods::pod};

/// A machine whose agent wants a token over TCP.
fn with_token(token: &str) -> Machine {
    let machine = Machine::with_podmux();
    write_token(&machine, token);
    machine.settings("tokenFile: /etc/podmux/token");
    machine.restart();
    assert_eq!(code(&machine, Some(token)), 200);
    assert_eq!(code(&machine, None), 401);
    machine
}

fn write_token(machine: &Machine, token: &str) {
    machine.write_as("/etc/podmux/token", 0o640, token);
    machine.ok("chgrp podmux /etc/podmux/token");
}

fn code(machine: &Machine, token: Option<&str>) -> u16 {
    machine.ask_tcp(token, "/pods").unwrap().code
}

#[test]
fn a_reload_takes_a_new_token_and_new_settings() {
    let machine = with_token("the-first-token-of-this-test");
    let agent = machine.agent();
    write_token(&machine, "the-second-token-of-this-test");
    machine.settings("verbose: 1");
    machine.ok("systemctl reload podmux.service");
    machine.wait_for("the new token is taken", || {
        match code(&machine, Some("the-second-token-of-this-test")) {
            200 => Ok(()),
            code => Err(code.to_string()),
        }
    });
    assert_eq!(code(&machine, Some("the-first-token-of-this-test")), 401);
    machine.wait_for("the log says so", || {
        let journal = machine.journal("--output=cat");
        if journal.contains("settings reloaded") { Ok(()) } else { Err(journal) }
    });
    assert_eq!(machine.agent(), agent, "the process is the same");
    assert_eq!(machine.is_active(), Ok(()));
}

#[test]
fn a_bad_reload_fails_says_why_and_changes_nothing() {
    let machine = with_token("the-token-of-this-test");
    machine.post(&pod("posted"));
    let agent = machine.agent();
    machine.settings("fileCheckFrequency: often");
    let reload = machine.run("systemctl reload podmux.service");
    assert_ne!(reload.code, 0);
    // systemctl itself can only name the place where it stands.
    assert!(reload.stderr.contains("journalctl"), "{reload:?}");
    let journal = machine.journal("--output=cat --priority=err");
    assert!(journal.contains("fileCheckFrequency") && journal.contains("often"), "{journal}");
    assert_eq!(machine.agent(), agent);
    assert_eq!(machine.is_active(), Ok(()));
    assert_eq!(code(&machine, Some("the-token-of-this-test")), 200);
    machine.wait_for_pods(&["posted"]);
    // The agent refuses it by itself, and the status and the metrics say so.
    machine.wait_for_status("of it", |status| status.contains("the new settings were refused"));
    assert!(successful(&machine).ends_with(" 0"), "{}", successful(&machine));
    assert_eq!(machine.agent(), agent);
    // Mended it is taken.
    let config = machine.read("/etc/podmux/config.yaml").replace("often", "10s");
    machine.write("/etc/podmux/config.yaml", config);
    machine.ok("systemctl reload podmux.service");
    machine.wait_for_status("of nothing wrong", |status| status == "1 pod");
    assert!(successful(&machine).ends_with(" 1"), "{}", successful(&machine));
}

/// The line of the metric that the alert goes by.
fn successful(machine: &Machine) -> String {
    let metrics = machine.ask("GET", "/metrics", b"").unwrap().text();
    let line = metrics.lines().find(|line| line.starts_with("podmux_config_last_reload_successful "));
    line.unwrap().to_owned()
}

#[test]
fn reloads_under_load_lose_no_request() {
    let machine = Machine::with_podmux();
    let load = Load::start(&machine);
    for _ in 0..3 {
        machine.ok("systemctl reload podmux.service");
        load.go_on(&machine);
    }
    let told = load.stop();
    assert_eq!(told.failures, [""; 0]);
    told.assert_kept(&machine);
}
