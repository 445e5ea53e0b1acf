//! Stopping, with sinks that do not want to.

use std::time::Duration;

use podmux_machine::{
    machine::{Machine, PATIENCE},
    pods::pod,
};
use serde_json::json;

/// A machine whose sink is a pipe that somebody holds and nobody reads, and which is full.
fn with_hanging_sink(drop_in: &str) -> Machine {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("output-file");
    machine.drop_in("test", drop_in);
    machine.ok("systemctl stop podmux.service 2>&1");
    machine.ok("install -d -o podmux -g podmux -m 0750 /var/log/podmux && mkfifo --mode=0660 /var/log/podmux/updates.jsonl && \
         chown podmux:podmux /var/log/podmux/updates.jsonl");
    machine
        .ok("systemd-run --quiet --unit=reader sh -c 'exec sleep infinity <>/var/log/podmux/updates.jsonl'");
    machine.ok("systemctl start podmux.service");
    // A line that is longer than a pipe takes.
    let mut large = pod("large");
    large["metadata"]["annotations"] = json!({"large": "x".repeat(200_000)});
    machine.post(&large);
    machine
}

#[test]
fn a_stop_that_waits_for_a_sink_says_so_and_is_not_killed_before_the_grace_is_over() {
    // Without being asked for more time systemd would kill it after a second.
    let machine = with_hanging_sink("[Service]\nTimeoutStopSec=1s\n");
    // That stop waits for the sink, too, and is a failure; the start after it is none.
    machine.settings("shutdownGrace: 5s");
    machine.ok("systemctl stop podmux.service 2>&1");
    machine.ok("systemctl start podmux.service");
    machine.post(&pod("posted"));
    machine.ok("systemctl stop --no-block podmux.service");
    machine.wait_for("the status tells what it waits for", || {
        match (machine.show("ActiveState"), machine.show("StatusText")) {
            (state, status)
                if state == "deactivating"
                    && status.starts_with("stopping: waiting for")
                    && status.contains("sink jsonl") =>
            {
                Ok(())
            }
            seen => Err(format!("{seen:?}")),
        }
    });
    machine.wait_for("it is stopped", || machine.is("inactive").or_else(|_| machine.is("failed")));
    // It ended by itself: with a code, not by a signal.
    assert_eq!(machine.show("ExecMainCode"), "1", "{}", machine.show("Result"));
    assert!(!machine.journal("--output=cat").contains("SIGKILL"));
    // What was acknowledged is there again.
    machine.drop_in("output-file", "");
    machine.ok("systemctl start podmux.service");
    machine.wait_for_pods(&["large", "posted"]);
}

#[test]
fn a_sink_that_hangs_does_not_get_the_agent_killed() {
    let machine = with_hanging_sink("[Service]\nWatchdogSec=2s\n");
    let fed = || machine.number("WatchdogTimestampMonotonic");
    let mut last = fed();
    // Three signs of life are more than one limit of the watchdog.
    for _ in 0..4 {
        last = machine.wait_for("the watchdog is fed", || match fed() {
            now if now > last => Ok(now),
            now => Err(now.to_string()),
        });
    }
    assert_eq!(machine.number("NRestarts"), 0);
    // Posts are taken, reads are fresh.
    machine.post(&pod("posted"));
    machine.wait_for_pods(&["large", "posted"]);
    // What is said of it, after the half minute that a slow sink is given.
    machine.wait_up_to(PATIENCE + Duration::from_secs(30), "the status tells of the sink", || match machine
        .show("StatusText")
    {
        status if status.contains("sink jsonl") && status.contains("busy with one update since") => Ok(()),
        status => Err(status),
    });
}

#[test]
fn a_stop_is_told_and_leaves_no_failure() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.ok("systemctl stop podmux.service 2>&1");
    assert_eq!(machine.is("inactive"), Ok(()));
    assert_eq!((&*machine.show("Result"), &*machine.show("ExecMainStatus")), ("success", "0"));
    assert_eq!(machine.show("StatusText"), "stopped");
    assert_eq!(machine.journal("--output=cat --priority=warning"), "");
}
