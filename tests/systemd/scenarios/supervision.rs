//! An agent that is stuck or dies is restarted.

use podmux_machine::{load::Load, machine::Machine, pods::pod};
use rustix::process::{Signal, kill_process};

#[test]
fn a_frozen_agent_is_restarted_by_the_watchdog_and_has_its_pods() {
    let machine = Machine::with_podmux();
    machine.drop_in("test", "[Service]\nWatchdogSec=10s\nRestartSec=100ms\n");
    machine.restart();
    machine.write("/etc/podmux/manifests/web.yaml", pod("web").to_string());
    machine.post(&pod("posted"));
    machine.wait_for_pods(&["posted", "web-node1"]);
    kill_process(machine.agent().unwrap(), Signal::STOP).unwrap();
    machine.wait_for("it was restarted once", || match machine.number("NRestarts") {
        1 => machine.is_active(),
        restarts => Err(format!("{restarts} restarts")),
    });
    machine.wait_for_pods(&["posted", "web-node1"]);
    let journal = machine.journal("--output=cat");
    assert!(journal.contains("Watchdog timeout (limit 10s)!"), "{journal}");
    // It is not restarted again.
    assert_eq!(machine.number("NRestarts"), 1);
}

#[test]
fn an_agent_that_is_killed_under_load_is_restarted_with_all_acknowledged_pods() {
    let machine = Machine::with_podmux();
    machine.drop_in("test", "[Service]\nRestartSec=100ms\n");
    let load = Load::start(&machine);
    for kills in 1..=5 {
        kill_process(machine.agent().unwrap(), Signal::KILL).unwrap();
        machine.wait_for("it was restarted", || match machine.number("NRestarts") {
            restarts if restarts == kills => machine.is_active(),
            restarts => Err(format!("{restarts} restarts")),
        });
        load.continues(&machine);
    }
    load.stop().assert_pods_kept(&machine);
    assert_eq!(machine.ok("systemctl is-active podmux.socket"), "active\n");
}
