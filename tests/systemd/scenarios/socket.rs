//! The socket of systemd and its clients.

use podmux_machine::{load::Load, machine::Machine, pods::pod};

#[test]
fn restarts_under_load_lose_no_request() {
    let machine = Machine::with_podmux();
    let load = Load::start(&machine);
    for _ in 0..5 {
        machine.restart();
        load.continues(&machine);
    }
    let result = load.stop();
    assert_eq!(result.failures, [""; 0]);
    result.assert_pods_kept(&machine);
    assert_eq!(machine.number("NRestarts"), 0);
}

#[test]
fn a_request_starts_a_stopped_service() {
    let machine = Machine::with_podmux();
    machine.post(&pod("before"));
    machine.ok("systemctl stop podmux.service 2>&1");
    assert_eq!(machine.is("inactive"), Ok(()));
    machine.post(&pod("wakes"));
    machine.wait_for("it is active", || machine.is_active());
    machine.wait_for_pods(&["before", "wakes"]);
}

#[test]
fn stopping_the_socket_stops_the_service_for_good() {
    let machine = Machine::with_podmux();
    machine.ok("systemctl stop podmux.socket 2>&1");
    machine.wait_for("the service is stopped too", || machine.is("inactive"));
    assert!(machine.ask("GET", "/pods", b"").is_err());
    machine.ok("systemctl start podmux.service");
    machine.post(&pod("posted"));
}
