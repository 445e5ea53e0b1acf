//! Reads and writes times as Go does.

use jiff::{SignedDuration, civil};
use serde_json::Value;

/// Reads a time as Go's `time.Parse(time.RFC3339, …)` does and writes it as
/// `metav1.Time` does: UTC, whole seconds, and null for Go's zero time.
/// Returns none if the text is not such a time.
pub(super) fn canonical(text: &str) -> Option<Value> {
    let mut rest = text;
    let date = date(&mut rest, 2)?;
    // Go accepts an hour of one digit.
    let hour = after(&mut rest, "T").and_then(|()| number(&mut rest, 1, 2))?;
    let minute = after(&mut rest, ":").and_then(|()| number(&mut rest, 2, 2))?;
    let second = after(&mut rest, ":").and_then(|()| number(&mut rest, 2, 2))?;
    let fraction = fraction(&mut rest);
    let offset = offset(&mut rest)?;
    if !rest.is_empty() || second > 59 {
        return None;
    }
    let small = |n: i32| i8::try_from(n).ok();
    let time = civil::Time::new(small(hour)?, small(minute)?, small(second)?, 0).ok()?;
    let utc = date.to_datetime(time).checked_sub(SignedDuration::from_secs(offset)).ok()?;
    if utc == civil::date(1, 1, 1).at(0, 0, 0, 0) && !fraction {
        return Some(Value::Null);
    }
    let (date, time) = (utc.date(), utc.time());
    let (sign, year) = (if date.year() < 0 { "-" } else { "" }, date.year().abs());
    let (month, day) = (date.month(), date.day());
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    Some(format!("{sign}{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z").into())
}

/// Consumes a date whose month and day have a minimum of digits.
fn date(rest: &mut &str, least: usize) -> Option<civil::Date> {
    let year = number(rest, 4, 4)?;
    let month = after(rest, "-").and_then(|()| number(rest, least, 2))?;
    let day = after(rest, "-").and_then(|()| number(rest, least, 2))?;
    civil::Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()
}

/// Consumes a number with a minimum and maximum of digits.
fn number(rest: &mut &str, least: usize, most: usize) -> Option<i32> {
    let digits = rest.bytes().take(most).take_while(u8::is_ascii_digit).count();
    if digits < least {
        return None;
    }
    let (number, after) = rest.split_at(digits);
    *rest = after;
    number.parse().ok()
}

fn after(rest: &mut &str, prefix: &str) -> Option<()> {
    *rest = rest.strip_prefix(prefix)?;
    Some(())
}

/// Consumes a fraction of a second, after a point or a comma. Returns whether it is not zero.
fn fraction(rest: &mut &str) -> bool {
    let Some(after) = rest.strip_prefix(['.', ',']) else { return false };
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return false;
    }
    *rest = &after[digits..];
    // Go keeps nanoseconds.
    after[..digits.min(9)].bytes().any(|digit| digit != b'0')
}

/// Consumes `Z` or `+hh:mm`, in seconds east of Greenwich. Go accepts hours to 24 and minutes to 60.
fn offset(rest: &mut &str) -> Option<i64> {
    if after(rest, "Z").is_some() {
        return Some(0);
    }
    let sign = if after(rest, "-").is_some() { -1 } else { after(rest, "+").map(|()| 1)? };
    let hours = number(rest, 2, 2).filter(|hours| *hours <= 24)?;
    let minutes = after(rest, ":").and_then(|()| number(rest, 2, 2)).filter(|minutes| *minutes <= 60)?;
    Some(sign * i64::from(hours * 3600 + minutes * 60))
}

/// Whether go-yaml v2 accepts a text as a `!!timestamp`: a date, or a date and a
/// time, with one or two digits in a part.
pub(super) fn is_yaml_timestamp(text: &str) -> bool {
    let mut rest = text;
    if date(&mut rest, 1).is_none() {
        return false;
    }
    if rest.is_empty() {
        return true;
    }
    let zoned = rest.starts_with(['T', 't']);
    let mut time = || {
        rest = rest.strip_prefix(['T', 't', ' '])?;
        let hour = number(&mut rest, 1, 2)?;
        let minute = after(&mut rest, ":").and_then(|()| number(&mut rest, 1, 2))?;
        let second = after(&mut rest, ":").and_then(|()| number(&mut rest, 1, 2))?;
        fraction(&mut rest);
        if zoned {
            offset(&mut rest)?;
        }
        Some(hour < 24 && minute < 60 && second < 60 && rest.is_empty())
    };
    time().unwrap_or(false)
}
