//! Registers single values as gauges.

use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use prometheus_client::{
    metrics::gauge::Gauge,
    registry::{Registry, Unit},
};

/// A gauge of a fractional number.
pub(super) type FloatGauge = Gauge<f64, AtomicU64>;

/// Registers a whole number.
pub(super) fn set(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Gauge::<u64, AtomicU64>::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

/// Registers a time.
pub(super) fn set_time(registry: &mut Registry, name: &str, help: &str, time: Timestamp) {
    let gauge = FloatGauge::default();
    gauge.set(unix_seconds(time));
    registry.register_with_unit(name, help, Unit::Seconds, gauge);
}

/// The seconds since the Unix epoch.
pub(super) fn unix_seconds(time: Timestamp) -> f64 {
    time.duration_since(Timestamp::UNIX_EPOCH).as_secs_f64()
}
