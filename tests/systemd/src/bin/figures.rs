//! Measures the packaged agent under systemd: start, idle, size of the binary.
//!
//! `tests/systemd/run --figures [SECONDS]`, on an otherwise idle machine.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a benchmark panics on failure and uses the real clock"
)]

use std::{collections::BTreeMap, env, fs, thread, time::Duration};

use podmux_machine::{
    apiserver::Apiserver,
    machine::{Machine, package},
    pods::{list, pod},
    web::Web,
};
use rustix::process::Pid;

/// The kubelet's default limit of pods on a node.
const PODS: usize = 110;

/// The number of measured starts.
const STARTS: usize = 20;

/// How long to wait after the start: tokio keeps idle threads for blocking work for ten seconds.
const SETTLE: Duration = Duration::from_secs(15);

/// Longer than the file source waits for the end of a write (100 ms).
const SETTLED: Duration = Duration::from_millis(500);

fn main() {
    let seconds = env::args().nth(1).map_or(60, |seconds| seconds.parse().unwrap());
    let machine = Machine::boot();
    machine.install(&package());
    let program = fs::metadata(machine.path("/usr/bin/podmux")).unwrap().len();
    let package = fs::metadata(package()).unwrap().len();
    println!("{:<24} {:.1} MiB   package {:.1} MiB", "binary", mebibytes(program), mebibytes(package));
    starts(&machine);
    idle(&machine, seconds);
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / 1024.0
}

/// Measures the time from the start of the process to READY, as systemd records it, and the part
/// before the program is executed (namespaces and mounts).
fn starts(machine: &Machine) {
    for number in 0..PODS {
        let name = format!("pod-{number:03}");
        machine.write(&format!("/etc/podmux/manifests/{name}.yaml"), pod(&name).to_string());
    }
    thread::sleep(SETTLED);
    print(&format!("start/{PODS}, to READY"), &started(machine));
    // With Type=exec the start of this program ends when it is executed.
    let other = "[Service]\nType=exec\nWatchdogSec=0\nExecStart=\nExecStart=/bin/sleep infinity\n";
    machine.drop_in("other-program", other);
    print("of that, the sandbox", &started(machine));
    machine.ok("rm /etc/systemd/system/podmux.service.d/other-program.conf");
    machine.ok("systemctl daemon-reload");
}

/// The durations of several starts in microseconds, sorted.
fn started(machine: &Machine) -> Vec<u64> {
    let times = (0..STARTS).map(|_| {
        machine.restart();
        machine.number("ActiveEnterTimestampMonotonic") - machine.number("ExecMainStartTimestampMonotonic")
    });
    let mut times = times.collect::<Vec<_>>();
    times.sort_unstable();
    times
}

fn print(name: &str, times: &[u64]) {
    let milliseconds = |micros: u64| micros as f64 / 1000.0;
    println!(
        "{name:<24} p50 {:.1} ms   least {:.1} ms   most {:.1} ms   {STARTS} starts",
        milliseconds(times[STARTS / 2]),
        milliseconds(times[0]),
        milliseconds(times[STARTS - 1]),
    );
}

/// Measures the idle agent: half of the pods are files, half come from an API server, and a URL
/// is polled.
fn idle(machine: &Machine, seconds: u64) {
    let apiserver = Apiserver::start(machine);
    for number in 0..PODS / 2 {
        machine.ok(&format!("rm /etc/podmux/manifests/pod-{number:03}.yaml"));
        apiserver.bind(&format!("bound-{number:03}"), "node1");
    }
    machine.ok("install -d -m 0700 /etc/podmux/secrets");
    machine.write_as("/etc/podmux/secrets/kubeconfig", 0o600, apiserver.kubeconfig());
    machine.packaged_drop_in("kubernetes");
    let web = Web::serve(machine, list(&[]));
    machine.variables(&format!("PODMUX_MANIFEST_URL={}", web.url));
    machine.restart();
    machine.wait_for("all pods are there", || match machine.pods().len() {
        PODS => Ok(()),
        pods => Err(pods.to_string()),
    });
    thread::sleep(SETTLE);
    let agent = machine.agent().unwrap();
    let (cpu, wakeups) = (machine.number("CPUUsageNSec"), wakeups_of(agent));
    thread::sleep(Duration::from_secs(seconds));
    let cpu = machine.number("CPUUsageNSec") - cpu;
    let wakeups: u64 = wakeups_of(agent)
        .into_iter()
        .map(|(thread, count)| count - wakeups.get(&thread).copied().unwrap_or(0))
        .sum();
    println!(
        "{:<24} {:.3} % of a core   {:.1} wake-ups/s   RssAnon {:.1} MiB   RSS {:.1} MiB   {} threads   {seconds} s",
        "idle, under systemd",
        cpu as f64 / 1e9 / seconds as f64 * 100.0,
        wakeups as f64 / seconds as f64,
        status(agent, "RssAnon:") as f64 / 1024.0,
        status(agent, "VmRSS:") as f64 / 1024.0,
        status(agent, "Threads:"),
    );
}

fn status(agent: Pid, field: &str) -> u64 {
    number(&fs::read_to_string(format!("/proc/{}/status", agent.as_raw_nonzero())).unwrap(), field)
}

fn number(status: &str, field: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    value.split_whitespace().next().unwrap().parse().unwrap()
}

/// The number of voluntary sleeps of each thread; each one ends with a wake-up.
fn wakeups_of(agent: Pid) -> BTreeMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{}/task", agent.as_raw_nonzero())).unwrap();
    let counts = threads.filter_map(|thread| {
        let thread = thread.unwrap();
        // The thread may have ended.
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        Some((thread.file_name().into_string().unwrap(), number(&status, "voluntary_ctxt_switches:")))
    });
    counts.collect()
}
