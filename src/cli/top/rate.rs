//! The rate of events in the last seconds.

use std::collections::VecDeque;

use jiff::Timestamp;

/// Over how many seconds the rate is taken.
const WINDOW: i64 = 10;

/// Counts events by the second.
#[derive(Clone, Debug, Default)]
pub struct Rate(VecDeque<(i64, usize)>);

impl Rate {
    /// Counts events that happen now.
    pub fn count(&mut self, events: usize, now: Timestamp) {
        let second = now.as_second();
        self.0.retain(|(counted, _)| is_recent(*counted, second));
        match self.0.back_mut() {
            Some((counted, sum)) if *counted == second => *sum = sum.saturating_add(events),
            _ => self.0.push_back((second, events)),
        }
    }

    /// Events a second.
    #[allow(clippy::cast_precision_loss, reason = "it is shown with one digit after the point")]
    pub fn per_second(&self, now: Timestamp) -> f64 {
        let recent = self.0.iter().filter(|(counted, _)| is_recent(*counted, now.as_second()));
        recent.fold(0.0, |sum, (_, events)| sum + *events as f64) / WINDOW as f64
    }
}

/// Whether a second is in the window. After a jump of the clock it is not.
fn is_recent(second: i64, now: i64) -> bool {
    (0..WINDOW).contains(&(now - second))
}
