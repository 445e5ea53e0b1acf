//! How many machines there are at once.

use std::sync::{Condvar, Mutex};

/// Each is a whole system with its own load; more would measure the host's patience.
const MACHINES: usize = 2;

static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

/// A place for a machine, given back when it is dropped.
pub struct Slot;

impl Slot {
    /// Waits until one is free.
    pub fn take() -> Self {
        let taken = TAKEN.lock().unwrap();
        *GIVEN_BACK.wait_while(taken, |taken| *taken == MACHINES).unwrap() += 1;
        Self
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap() -= 1;
        GIVEN_BACK.notify_one();
    }
}
