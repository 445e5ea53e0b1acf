//! Ages and durations as kubectl writes them: the shorter the time, the finer the unit.

use jiff::{SignedDuration, Timestamp};

/// The time since `since`; `<unknown>` without one.
pub fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or_else(|| "<unknown>".to_owned(), |since| duration(now.duration_since(since)))
}

/// A duration for users: `90s`, `5m30s`, `2h5m`, `3d4h`, `1y20d`.
///
/// One second in the future counts as now, because clocks differ; more is `<invalid>`, as
/// in kubectl.
pub fn duration(duration: SignedDuration) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let seconds = duration.as_secs();
    // Short durations have a second, finer unit.
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        _ if seconds < 2 * MINUTE => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two(seconds, (MINUTE, "m"), (1, "s")),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two(seconds, (HOUR, "h"), (MINUTE, "m")),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(seconds, (DAY, "d"), (HOUR, "h")),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(seconds, (YEAR, "y"), (DAY, "d")),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// A duration in a unit, and the rest in a finer unit unless it is 0.
fn two(seconds: i64, (unit, name): (i64, &str), (finer, finer_name): (i64, &str)) -> String {
    match seconds % unit / finer {
        0 => format!("{}{name}", seconds / unit),
        rest => format!("{}{name}{rest}{finer_name}", seconds / unit),
    }
}
