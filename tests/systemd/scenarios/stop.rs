//! Stopping the service while a sink is stuck.

use std::time::Duration;

use podmux_machine::{
    machine::{Machine, PATIENCE},
    pods::pod,
};
use serde_json::json;

/// A machine whose sink is a full pipe that is open but never read.
fn with_stuck_sink(drop_in: &str) -> Machine {
    let machine = Machine::with_podmux();
    machine.packaged_drop_in("output-file");
    machine.drop_in("test", drop_in);
    machine.ok("systemctl stop podmux.service 2>&1");
    machine.ok("install -d -o podmux -g podmux -m 0750 /var/log/podmux && mkfifo --mode=0660 /var/log/podmux/updates.jsonl && \
         chown podmux:podmux /var/log/podmux/updates.jsonl");
    machine
        .ok("systemd-run --quiet --unit=reader sh -c 'exec sleep infinity <>/var/log/podmux/updates.jsonl'");
    machine.ok("systemctl start podmux.service");
    // A line that is longer than the pipe's buffer.
    let mut large = pod("large");
    large["metadata"]["annotations"] = json!({"large": "x".repeat(200_000)});
    machine.post(&large);
    machine
}

#[test]
fn a_stop_that_waits_for_a_sink_is_not_killed_within_the_grace() {
    // Without a request for more time systemd would kill it after a second.
    let machine = with_stuck_sink("[Service]\nTimeoutStopSec=1s\n");
    // This stop waits for the sink too, and fails; the start after it succeeds. The grace is long enough to see the
    // status on a slow machine.
    machine.settings("shutdownGrace: 20s");
    machine.ok("systemctl stop podmux.service 2>&1");
    machine.ok("systemctl start podmux.service");
    machine.post(&pod("posted"));
    machine.ok("systemctl stop --no-block podmux.service");
    machine.wait_for("the status names the sink", || {
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
    // It ended with an exit code, not by a signal.
    assert_eq!(machine.show("ExecMainCode"), "1", "{}", machine.show("Result"));
    assert!(!machine.journal("--output=cat").contains("SIGKILL"));
    // Acknowledged pods are restored.
    machine.drop_in("output-file", "");
    machine.ok("systemctl start podmux.service");
    machine.wait_for_pods(&["large", "posted"]);
}

#[test]
fn a_stuck_sink_does_not_trip_the_watchdog() {
    let machine = with_stuck_sink("[Service]\nWatchdogSec=10s\n");
    let keep_alive = || machine.number("WatchdogTimestampMonotonic");
    let mut last = keep_alive();
    // Three keep-alives take longer than the watchdog's timeout.
    for _ in 0..4 {
        last = machine.wait_for("a keep-alive is sent", || match keep_alive() {
            now if now > last => Ok(now),
            now => Err(now.to_string()),
        });
    }
    assert_eq!(machine.number("NRestarts"), 0);
    // Posts and reads work.
    machine.post(&pod("posted"));
    machine.wait_for_pods(&["large", "posted"]);
    // A sink counts as stuck after half a minute.
    machine.wait_up_to(
        PATIENCE + Duration::from_secs(30),
        "the status names the stuck sink",
        || match machine.show("StatusText") {
            status if status.contains("sink jsonl") && status.contains("busy with one update since") => {
                Ok(())
            }
            status => Err(status),
        },
    );
}

#[test]
fn a_normal_stop_is_no_failure() {
    let machine = Machine::with_podmux();
    machine.post(&pod("posted"));
    machine.ok("systemctl stop podmux.service 2>&1");
    assert_eq!(machine.is("inactive"), Ok(()));
    assert_eq!((&*machine.show("Result"), &*machine.show("ExecMainStatus")), ("success", "0"));
    assert_eq!(machine.show("StatusText"), "stopped");
    assert_eq!(machine.journal("--output=cat --priority=warning"), "");
}
