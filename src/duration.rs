//! Durations as Go and the kubelet write them: `20s`, `1m30s`, `500ms`, `1.5h`.

use std::{fmt, ops::RangeInclusive, time::Duration};

/// A unit's name and its length in nanoseconds, in Go's order of size.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The number of digits after the point that are read.
const MAX_FRACTION: usize = 18;

/// Reads a duration within bounds.
///
/// # Errors
/// What is wrong with it, without the place where it was given.
pub(crate) fn read(text: &str, bounds: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let Some(duration) = parse(text) else {
        let number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        return Err(if number {
            format!("{text:?} has no unit: write {text}s for seconds, or use ms, m or h")
        } else {
            format!("{text:?} is not a duration: write it like 20s, 1m30s, 500ms or 1h")
        });
    };
    if bounds.contains(&duration) {
        Ok(duration)
    } else {
        Err(format!("{text:?} is out of bounds: {} to {}", Short(*bounds.start()), Short(*bounds.end())))
    }
}

/// Whether Go's `time.ParseDuration` reads it.
pub(crate) fn is_duration(text: &str) -> bool {
    let size = parse(text.strip_prefix(['-', '+']).unwrap_or(text));
    size.is_some_and(|size| i64::try_from(size.as_nanos()).is_ok())
}

/// Go's `time.ParseDuration` without a sign; `None` if it is not a duration or too long for 64 bits.
fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos: u64 = 0;
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(number_len);
        let unit_len = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
        nanos = nanos.checked_add(count(number, *size)?)?;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::from_nanos(nanos))
}

/// A decimal number of units in nanoseconds, rounded down.
fn count(number: &str, size: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Further digits are less than a nanosecond.
    let (fraction, rest) = fraction.split_at(fraction.len().min(MAX_FRACTION));
    if rest.contains('.') {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    u64::try_from(digits.checked_mul(size.into())? / scale).ok()
}

/// Shows a duration in the largest unit that needs no fraction.
struct Short(Duration);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let (name, size) = UNITS
            .iter()
            .rev()
            .find(|(_, size)| nanos > 0 && nanos.is_multiple_of(u128::from(*size)))
            .unwrap_or(&("s", 1_000_000_000));
        write!(f, "{}{name}", nanos / u128::from(*size))
    }
}
