//! What the process itself costs: `process_…`, under the names that every Prometheus client gives it.

use std::{fs, io, sync::atomic::AtomicU64};

use jiff::Timestamp;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::{Registry, Unit},
};
use rustix::{
    param::page_size,
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

use super::metrics::{Level, seconds, set};

/// Everything that can be known, as it is now.
///
/// Of `/proc` only `/proc/self` is read, for there is no more of it under systemd's
/// `ProcSubset=pid`; where not even that is to be had, only what needs it is missing. It is
/// memory, not a disk: whoever reads it does not wait.
pub(in crate::server) fn registry(started: Timestamp) -> Registry {
    let mut registry = Registry::with_prefix("process");
    let cpu = Counter::<f64, AtomicU64>::default();
    cpu.inc_by(cpu_seconds());
    let help = "Processor time spent in user and kernel mode";
    registry.register_with_unit("cpu", help, Unit::Seconds, cpu);
    let start = Level::default();
    start.set(seconds(started));
    registry.register_with_unit("start_time", "When it was started, since 1970", Unit::Seconds, start);
    if let Some(bytes) = resident() {
        let memory = Gauge::<u64, AtomicU64>::default();
        memory.set(bytes);
        registry.register_with_unit("resident_memory", "Memory that is resident", Unit::Bytes, memory);
    }
    if let Ok(open) = open_files() {
        set(&mut registry, "open_fds", "Files and connections that are open", open);
    }
    // One that has no limit needs no number.
    if let Some(most) = getrlimit(Resource::Nofile).current {
        set(&mut registry, "max_fds", "How many files and connections may be open", most);
    }
    registry
}

/// Of all threads, those that have ended too.
fn cpu_seconds() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let duration = jiff::SignedDuration::new(spent.tv_sec, i32::try_from(spent.tv_nsec).unwrap_or_default());
    duration.as_secs_f64()
}

/// In bytes.
fn resident() -> Option<u64> {
    // In pages: all of it, then what is resident.
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let resident: u64 = pages.split_ascii_whitespace().nth(1)?.parse().ok()?;
    resident.checked_mul(page_size().try_into().ok()?)
}

fn open_files() -> io::Result<u64> {
    let open = fs::read_dir("/proc/self/fd")?.count();
    // One of them is the directory that is being read.
    Ok(open.saturating_sub(1) as u64)
}
