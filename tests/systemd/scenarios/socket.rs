//! The socket that systemd holds, and who waits at it.

use podmux_machine::{load::Load, machine::Machine, pods::pod};

#[test]
fn restarts_under_load_lose_no_request() {
    let machine = Machine::with_podmux();
    let load = Load::start(&machine);
    for _ in 0..5 {
        machine.restart();
        load.go_on(&machine);
    }
    let told = load.stop();
    assert_eq!(told.failures, [""; 0]);
    told.assert_kept(&machine);
    assert_eq!(machine.number("NRestarts"), 0);
}

#[test]
fn a_request_starts_a_service_that_is_stopped() {
    let machine = Machine::with_podmux();
    machine.post(&pod("before"));
    machine.ok("systemctl stop podmux.service 2>&1");
    assert_eq!(machine.is("inactive"), Ok(()));
    machine.post(&pod("wakes"));
    machine.wait_for("it is active", || machine.is_active());
    machine.wait_for_pods(&["before", "wakes"]);
}

#[test]
fn who_stops_the_socket_stops_the_service_and_nothing_starts_it() {
    let machine = Machine::with_podmux();
    machine.ok("systemctl stop podmux.socket 2>&1");
    machine.wait_for("the service is stopped, too", || machine.is("inactive"));
    assert!(machine.ask("GET", "/pods", b"").is_err());
    machine.ok("systemctl start podmux.service");
    machine.post(&pod("posted"));
}
