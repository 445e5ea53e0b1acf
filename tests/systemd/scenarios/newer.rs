//! What a newer systemd can do more: Debian 13 has 257.

use podmux_machine::{
    load::Load,
    machine::{Machine, package},
    pods::pod,
};
use rustix::process::{Signal, kill_process};

use crate::drop_ins::KUBECONFIG;

fn newer_with(drop_in: &str) -> Machine {
    let machine = Machine::boot_newer();
    machine.install(&package());
    // What kubernetes.conf names; of a server that is not there.
    machine.ok("install -d -m 0700 /etc/podmux/secrets");
    machine.write_as("/etc/podmux/secrets/kubeconfig", 0o600, KUBECONFIG);
    machine.packaged_drop_in(drop_in);
    machine.restart();
    machine
}

#[test]
fn a_reload_is_over_when_the_agent_says_so() {
    let machine = newer_with("notify-reload");
    assert_eq!(machine.show("Type"), "notify-reload");
    machine.post(&pod("posted"));
    let agent = machine.agent();
    machine.settings("verbose: 1");
    machine.ok("systemctl reload podmux.service");
    // No waiting here: that is what the drop-in is for.
    let journal = machine.journal("--output=cat");
    assert!(journal.contains("settings reloaded"), "{journal}");
    assert_eq!(machine.agent(), agent);
    machine.settings("fileCheckFrequency: often");
    assert_ne!(machine.run("systemctl reload podmux.service").code, 0);
    let journal = machine.journal("--output=cat --priority=err");
    assert!(journal.contains("fileCheckFrequency"), "{journal}");
    // The signal was sent, too.
    machine.wait_for_status("of it", |status| status.contains("the new settings were refused"));
    assert_eq!(machine.agent(), agent);
    assert_eq!(machine.is_active(), Ok(()));
    machine.wait_for_pods(&["posted"]);
}

#[test]
fn a_reload_that_is_told_goes_with_credentials() {
    let machine = newer_with("kubernetes");
    let examples = "/usr/share/doc/podmux/examples/drop-ins";
    let told =
        machine.read(&format!("{examples}/notify-reload.conf")).replace("\n#ExecReload=", "\nExecReload=");
    machine.drop_in("notify-reload", &told);
    machine.restart();
    assert_eq!(machine.show("Type"), "notify-reload");
    machine.reloads_well_and_badly();
}

#[test]
fn an_agent_that_dies_again_and_again_is_started_less_and_less_often() {
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
        // systemctl would write it as 1min 2s.
        let delay = machine.ok("busctl get-property org.freedesktop.systemd1 \
             /org/freedesktop/systemd1/unit/podmux_2eservice org.freedesktop.systemd1.Service RestartUSecNext");
        delays.push(delay.trim().strip_prefix("t ").unwrap().parse::<u64>().unwrap());
    }
    machine.wait_for_pods(&["posted"]);
    assert!(delays[0] < delays[1] && delays[1] < delays[2], "{delays:?}");
}

#[test]
fn the_package_works_on_it_as_on_the_older_one() {
    let machine = Machine::boot_newer();
    machine.install(&package());
    assert_eq!(machine.is_active(), Ok(()));
    let load = Load::start(&machine);
    machine.restart();
    load.go_on(&machine);
    machine.ok("systemctl reload podmux.service");
    load.go_on(&machine);
    let told = load.stop();
    assert_eq!(told.failures, [""; 0]);
    told.assert_kept(&machine);
    machine.ok("dpkg --purge podmux");
    assert!(!machine.exists("/var/lib/podmux") && !machine.exists("/etc/podmux"));
}
