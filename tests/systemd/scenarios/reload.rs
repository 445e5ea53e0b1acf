//! `systemctl reload`, with valid and invalid settings.

use podmux_machine::{
    load::Load,
    machine::{Machine, RELOAD_FAILED},
    pods::pod,
};

/// A machine whose agent requires a token over TCP.
fn with_token(token: &str) -> Machine {
    let machine = Machine::with_podmux();
    write_token(&machine, token);
    machine.settings("tokenFile: /etc/podmux/token");
    machine.restart();
    assert_eq!(code(&machine, token), 200);
    assert_eq!(code(&machine, "another"), 401);
    machine
}

fn write_token(machine: &Machine, token: &str) {
    machine.write_as("/etc/podmux/token", 0o640, token);
    machine.ok("chgrp podmux /etc/podmux/token");
}

fn code(machine: &Machine, token: &str) -> u16 {
    machine.code_over_tcp(token)
}

#[test]
fn a_reload_applies_a_new_token_and_new_settings() {
    let machine = with_token("the-first-token-of-this-test");
    let agent = machine.agent();
    write_token(&machine, "the-second-token-of-this-test");
    machine.settings("verbose: 1");
    machine.ok("systemctl reload podmux.service");
    machine.wait_for("the new token is accepted", || match code(&machine, "the-second-token-of-this-test") {
        200 => Ok(()),
        code => Err(code.to_string()),
    });
    assert_eq!(code(&machine, "the-first-token-of-this-test"), 401);
    machine.wait_for_reload();
    assert_eq!(machine.agent(), agent, "the process is the same");
    assert_eq!(machine.is_active(), Ok(()));
}

#[test]
fn a_reload_of_invalid_settings_fails_with_the_reason_and_changes_nothing() {
    let machine = with_token("the-token-of-this-test");
    machine.post(&pod("posted"));
    let agent = machine.agent();
    machine.settings("fileCheckFrequency: often");
    let reload = machine.run("systemctl reload podmux.service");
    assert_ne!(reload.code, 0);
    // systemctl itself refers to the journal.
    assert!(reload.stderr.contains("journalctl"), "{reload:?}");
    let journal = machine.journal("--output=cat --priority=err");
    assert!(journal.contains("fileCheckFrequency") && journal.contains("often"), "{journal}");
    assert_eq!(machine.agent(), agent);
    assert_eq!(machine.is_active(), Ok(()));
    assert_eq!(code(&machine, "the-token-of-this-test"), 200);
    machine.wait_for_pods(&["posted"]);
    // The error is also in the status and in the metrics.
    machine.wait_for_status("has the error", |status| status.contains(RELOAD_FAILED));
    assert!(successful(&machine).ends_with(" 0"), "{}", successful(&machine));
    assert_eq!(machine.agent(), agent);
    // After a correction the reload succeeds.
    let config = machine.read("/etc/podmux/config.yaml").replace("often", "10s");
    machine.write("/etc/podmux/config.yaml", config);
    machine.ok("systemctl reload podmux.service");
    machine.wait_for_status("has no error", |status| status == "1 pod");
    assert!(successful(&machine).ends_with(" 1"), "{}", successful(&machine));
}

/// The metric that the alert uses.
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
        load.continues(&machine);
    }
    let result = load.stop();
    assert_eq!(result.failures, [""; 0]);
    result.assert_pods_kept(&machine);
}
