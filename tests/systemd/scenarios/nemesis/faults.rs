//! The faults. Each lasts for a while and then heals itself; several may occur at once.

use std::{
    fs,
    process::{Child, Command, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use podmux_machine::{machine::variable, random::Random};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    World, lock,
    workload::{MANIFESTS, Version, create, delete, pod, spec_of},
};

/// The file with the offset of the agent's clock, as libfaketime reads it.
pub const CLOCK: &str = "/etc/podmux/clock";
/// No offset.
pub const TRUE: &str = "+0";
/// The offset at the start: that the clock goes back later is seen in the stream.
pub const AHEAD: &str = "+1h";
/// What the clock jumps by.
const JUMPS: [&str; 6] = ["+30d", "-30d", "+1h", "-1h", "+70", "-70"];
/// How long a call of the disk takes while it is slow: one that must reach it, and another one.
const SLOW: [&str; 2] =
    ["inject=fsync,fdatasync,pwrite64:delay_enter=300000", "inject=openat,rename,unlink:delay_enter=20000"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGSTOP, and later SIGCONT.
    AgentStops,
    AgentKilled,
    /// By `systemctl restart`.
    AgentRestarts,
    ClockJumps,
    /// The kernel's queue of the directory's changes, while manifests change.
    QueueOverflows,
    DiskSlow,
    /// Writes are on their way to the disk.
    KilledOnSlowDisk,
    /// The kube-apiserver hangs.
    ServerStops,
    /// All connections to it break, and it changes pods meanwhile.
    ServerUnreachable,
    /// It starts again with a compacted etcd, so that the agent's version has expired.
    ServerKilled,
    PodmanKilled,
    /// podman's service hangs.
    PodmanStops,
    /// podman's service and socket are away, and a container ends meanwhile.
    PodmanRestarts,
}

impl Fault {
    pub const ALL: [Self; 13] = [
        Self::AgentStops,
        Self::AgentKilled,
        Self::AgentRestarts,
        Self::ClockJumps,
        Self::QueueOverflows,
        Self::DiskSlow,
        Self::KilledOnSlowDisk,
        Self::ServerStops,
        Self::ServerUnreachable,
        Self::ServerKilled,
        Self::PodmanKilled,
        Self::PodmanStops,
        Self::PodmanRestarts,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::AgentStops => "agent stops",
            Self::AgentKilled => "agent killed",
            Self::AgentRestarts => "agent restarts",
            Self::ClockJumps => "clock jumps",
            Self::QueueOverflows => "queue overflows",
            Self::DiskSlow => "disk slow",
            Self::KilledOnSlowDisk => "agent killed on a slow disk",
            Self::ServerStops => "API server stops",
            Self::ServerUnreachable => "API server unreachable",
            Self::ServerKilled => "API server killed",
            Self::PodmanKilled => "podman killed",
            Self::PodmanStops => "podman stops",
            Self::PodmanRestarts => "podman restarts",
        }
    }
}

/// What only one fault at a time may do.
#[derive(Default)]
pub struct Faults {
    /// Stop the agent: the first SIGCONT would wake it for all.
    stopping: Mutex<()>,
    /// Trace the agent.
    tracing: Mutex<()>,
    /// Stop or start the unit of the agent.
    restarting: Mutex<()>,
    /// Stop or start podman's units.
    podman: Mutex<()>,
    /// Change the pod of the API server that only faults change; its name.
    missed: Mutex<Option<String>>,
}

/// How long a fault lasts is a part of what is simulated.
fn last(random: &mut Random) {
    thread::sleep(Duration::from_millis(300 + random.below(2700) as u64));
}

impl Faults {
    pub fn occur(&self, world: &World, kind: Fault, mut random: Random) {
        let random = &mut random;
        // One may begin while another is in effect.
        last(random);
        world.note(kind.name(), "begins");
        match kind {
            Fault::AgentStops => self.while_agent_stops(world, || last(random)),
            Fault::AgentKilled => self.kill_agent(world),
            Fault::AgentRestarts => {
                let _alone = lock(&self.restarting);
                // It fails if the agent is killed meanwhile.
                world.machine.run("systemctl restart podmux.service");
                agent(world);
            }
            Fault::ClockJumps => {
                for _ in 0..2 {
                    let by = *random.pick(&JUMPS);
                    world.detail("clock", by);
                    world.machine.write(CLOCK, by);
                    last(random);
                }
                world.machine.write(CLOCK, TRUE);
            }
            Fault::QueueOverflows => self.while_agent_stops(world, || overflow(world)),
            Fault::DiskSlow => self.while_disk_is_slow(world, || last(random)),
            Fault::KilledOnSlowDisk => self.while_disk_is_slow(world, || {
                last(random);
                self.kill_agent(world);
            }),
            Fault::ServerStops => {
                // It may be about to start again.
                let Some(server) = world.apiserver.process() else { return };
                while_stopped(server, || last(random));
            }
            Fault::ServerUnreachable => {
                world.relay.cut();
                self.miss(world);
                last(random);
                world.relay.mend();
            }
            Fault::ServerKilled => {
                world.relay.cut();
                self.miss(world);
                world.apiserver.command("kill");
                world.apiserver.command("compact");
                last(random);
                world.apiserver.command("start");
                world.relay.mend();
            }
            Fault::PodmanKilled => {
                let _alone = lock(&self.podman);
                // Without its containers.
                world.machine.run("systemctl kill --kill-whom=main -s KILL podman.service");
            }
            Fault::PodmanStops => {
                let _alone = lock(&self.podman);
                let Some(podman) = world.machine.main_process("podman.service") else { return };
                while_stopped(podman, || last(random));
            }
            Fault::PodmanRestarts => {
                let _alone = lock(&self.podman);
                let container = fresh_container(world);
                // Masked: an agent that is started meanwhile would start the socket, and cancel this.
                world.machine.ok("systemctl mask --runtime podman.socket");
                world.machine.ok("systemctl stop podman.socket podman.service");
                world.machine.ok(&format!("kill -9 {container}"));
                last(random);
                world.machine.ok("systemctl unmask --runtime podman.socket && systemctl start podman.socket");
            }
        }
        world.detail(kind.name(), "is over");
    }

    fn while_agent_stops(&self, world: &World, work: impl FnOnce()) {
        let _alone = lock(&self.stopping);
        while_stopped(agent(world), work);
    }

    /// Creates a pod at the API server and deletes the one before, which no worker does: the agent misses both.
    pub fn miss(&self, world: &World) {
        let mut missed = lock(&self.missed);
        if let Some(before) = missed.take() {
            delete(world, &before);
        }
        let number = world.number();
        let name = format!("missed-{number}");
        // The server may hang.
        let is_created = create(world, &name, Version { label: number, spec: number });
        world.detail("missed", &format!("{name}, created: {is_created}"));
        *missed = Some(name);
    }

    fn kill_agent(&self, world: &World) {
        let _alone = lock(&self.restarting);
        let killed = agent(world);
        // It may just have ended.
        let _ = kill_process(killed, Signal::KILL);
        world.machine.wait_for("another agent runs", || match world.machine.agent() {
            Some(agent) if agent != killed => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    fn while_disk_is_slow(&self, world: &World, work: impl FnOnce()) {
        let _alone = lock(&self.tracing);
        let agent = agent(world);
        let process = agent.as_raw_nonzero().to_string();
        let mut strace = Command::new(variable("PODMUX_STRACE"));
        strace.args([
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "trace=fsync,fdatasync,pwrite64,openat,rename,unlink",
        ]);
        strace.args(SLOW.iter().flat_map(|slow| ["-e", slow])).args(["-p", &process]);
        let mut strace = strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        world.machine.wait_for("the agent is traced", || {
            let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            // It may just have ended.
            if status.is_empty() || !status.contains("TracerPid:\t0\n") { Ok(()) } else { Err(status) }
        });
        work();
        end(&mut strace);
    }
}

/// Ends strace, which lets the agent go on as before.
fn end(strace: &mut Child) {
    // It ends with the agent.
    let _ = kill_process(Pid::from_child(strace), Signal::TERM);
    strace.wait().unwrap();
}

/// The process of the agent, as soon as it runs.
fn agent(world: &World) -> Pid {
    world.machine.wait_for("the agent runs", || world.machine.agent().ok_or_else(|| "it does not".to_owned()))
}

/// Stops a process meanwhile.
fn while_stopped(process: Pid, work: impl FnOnce()) {
    // It may end at any time.
    let _ = kill_process(process, Signal::STOP);
    work();
    let _ = kill_process(process, Signal::CONT);
}

/// Makes more changes than the kernel's queue takes, and then some of manifests, of which no event is left.
fn overflow(world: &World) {
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let most: usize = most.trim().parse().unwrap();
    let noise = world.machine.path(&format!("{MANIFESTS}/.noise"));
    // Created, closed, removed.
    for _ in 0..=most / 3 {
        fs::write(&noise, "").unwrap();
        fs::remove_file(&noise).unwrap();
    }
    write(world, "overflow");
}

/// Writes the manifest of a new pod, and returns its number.
fn write(world: &World, name: &str) -> String {
    let number = world.number();
    let version = Version { label: number, spec: number };
    world.machine.write(&format!("{MANIFESTS}/{name}.yaml"), pod(name, version).to_string());
    number.to_string()
}

/// The process of a container that has just been started for the first time.
fn fresh_container(world: &World) -> String {
    let number = write(world, "ends");
    world.machine.wait_for("the container runs", || {
        let output = world.machine.run("podman ps --filter label=podmux.name=ends-node1 --format json");
        let containers: Vec<Value> =
            serde_json::from_str(&output.stdout).map_err(|error| error.to_string())?;
        let found = containers.iter().find(|container| spec_of(&container["Command"]) == number);
        found.map(|container| container["Pid"].to_string()).ok_or(output.stdout)
    })
}
