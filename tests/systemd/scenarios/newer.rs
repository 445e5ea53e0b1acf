//! Features of a newer systemd: Debian 13 has 257.

use podmux_machine::{
    load::Load,
    machine::{Machine, RELOAD_FAILED, RELOADED, package},
    pods::pod,
};
use rustix::process::{Signal, kill_process};

use crate::drop_ins::KUBECONFIG;

fn newer_with(drop_in: &str) -> Machine {
    let machine = Machine::boot_newer();
    machine.install(&package());
    // The files that kubernetes.conf and webhook.conf name, for servers that do not exist.
    machine.ok("install -d -m 0700 /etc/podmux/secrets");
    machine.write_as("/etc/podmux/secrets/kubeconfig", 0o600, KUBECONFIG);
    machine.write_as("/etc/podmux/webhook-token", 0o600, "the-token-of-this-test");
    machine.packaged_drop_in(drop_in);
    machine.restart();
    machine
}

#[test]
fn a_reload_ends_with_the_notification_of_the_agent() {
    let machine = newer_with("notify-reload");
    assert_eq!(machine.show("Type"), "notify-reload");
    machine.post(&pod("posted"));
    let agent = machine.agent();
    machine.settings("verbose: 1");
    machine.ok("systemctl reload podmux.service");
    // With this drop-in `systemctl reload` waits for the agent.
    let journal = machine.journal("--output=cat");
    assert!(journal.contains(RELOADED), "{journal}");
    assert_eq!(machine.agent(), agent);
    machine.settings("fileCheckFrequency: often");
    assert_ne!(machine.run("systemctl reload podmux.service").code, 0);
    let journal = machine.journal("--output=cat --priority=err");
    assert!(journal.contains("fileCheckFrequency"), "{journal}");
    machine.wait_for_status("has the error", |status| status.contains(RELOAD_FAILED));
    assert_eq!(machine.agent(), agent);
    assert_eq!(machine.is_active(), Ok(()));
    machine.wait_for_pods(&["posted"]);
}

#[test]
fn notify_reload_works_with_credentials() {
    let machine = newer_with("kubernetes");
    let examples = "/usr/share/doc/podmux/examples/drop-ins";
    let drop_in =
        machine.read(&format!("{examples}/notify-reload.conf")).replace("\n#ExecReload=", "\nExecReload=");
    machine.drop_in("notify-reload", &drop_in);
    machine.restart();
    assert_eq!(machine.show("Type"), "notify-reload");
    machine.reloads_valid_and_invalid_settings();
}

#[test]
fn a_reload_with_the_webhook_reads_the_token() {
    newer_with("webhook").reloads_valid_and_invalid_settings();
}

#[test]
fn an_agent_that_dies_repeatedly_is_restarted_with_growing_delays() {
    let machine = newer_with("restart-steps");
    machine.drop_in("test", "[Service]\nRestartSec=50ms\nRestartMaxDelaySec=1min\n");
    machine.restart();
    assert_eq!(machine.show("RestartSteps"), "8");
    machine.post(&pod("posted"));
    let mut delays = Vec::new();
    for kills in 1..=3 {
        kill_process(machine.agent().unwrap(), Signal::KILL).unwrap();
        machine.wait_for("it was restarted", || match machine.number("NRestarts") {
            restarts if restarts == kills => machine.is_active(),
            restarts => Err(format!("{restarts} restarts")),
        });
        // systemctl prints a time span such as 1min 2s.
        let delay = machine.ok("busctl get-property org.freedesktop.systemd1 \
             /org/freedesktop/systemd1/unit/podmux_2eservice org.freedesktop.systemd1.Service RestartUSecNext");
        delays.push(delay.trim().strip_prefix("t ").unwrap().parse::<u64>().unwrap());
    }
    machine.wait_for_pods(&["posted"]);
    assert!(delays[0] < delays[1] && delays[1] < delays[2], "{delays:?}");
}

#[test]
fn the_package_works_with_the_newer_systemd() {
    let machine = Machine::boot_newer();
    machine.install(&package());
    assert_eq!(machine.is_active(), Ok(()));
    let load = Load::start(&machine);
    machine.restart();
    load.continues(&machine);
    machine.ok("systemctl reload podmux.service");
    load.continues(&machine);
    let result = load.stop();
    assert_eq!(result.failures, [""; 0]);
    result.assert_pods_kept(&machine);
    machine.ok("dpkg --purge podmux");
    assert!(!machine.exists("/var/lib/podmux") && !machine.exists("/etc/podmux"));
}
