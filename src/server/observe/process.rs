//! The metrics of the process, `process_…`, under the names of all Prometheus clients.

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

use super::gauges::{set, set_time};

/// A registry of the current values.
///
/// Only `/proc/self` is read: systemd's `ProcSubset=pid` hides the rest. A value that cannot
/// be read is left out. Reading does not block: these files are in memory.
pub(super) fn registry(started: Timestamp) -> Registry {
    let mut registry = Registry::with_prefix("process");
    let cpu = Counter::<f64, AtomicU64>::default();
    cpu.inc_by(cpu_seconds());
    let help = "Processor time spent in user and kernel mode, in seconds";
    registry.register_with_unit("cpu", help, Unit::Seconds, cpu);
    let help = "When the process started, in seconds since 1970";
    set_time(&mut registry, "start_time", help, started);
    if let Some(bytes) = resident() {
        let memory = Gauge::<u64, AtomicU64>::default();
        memory.set(bytes);
        let help = "The resident memory, in bytes";
        registry.register_with_unit("resident_memory", help, Unit::Bytes, memory);
    }
    if let Ok(open) = open_files() {
        set(&mut registry, "open_fds", "How many file descriptors are open", open);
    }
    // Absent without a limit.
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        set(&mut registry, "max_fds", "How many file descriptors may be open", limit);
    }
    registry
}

/// The processor time of all threads, including those that have ended.
fn cpu_seconds() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let duration = jiff::SignedDuration::new(spent.tv_sec, i32::try_from(spent.tv_nsec).unwrap_or_default());
    duration.as_secs_f64()
}

/// The resident memory in bytes.
fn resident() -> Option<u64> {
    // The second number is the resident memory, in pages.
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let resident: u64 = pages.split_ascii_whitespace().nth(1)?.parse().ok()?;
    resident.checked_mul(page_size().try_into().ok()?)
}

fn open_files() -> io::Result<u64> {
    let open = fs::read_dir("/proc/self/fd")?.count();
    // One of them is the directory that is being read.
    Ok(open.saturating_sub(1) as u64)
}
