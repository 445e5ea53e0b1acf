//! A limit of the machines that run at once.

use std::sync::{Condvar, Mutex};

/// Each is a whole system with its own load.
const MACHINES: usize = 2;

static USED: Mutex<usize> = Mutex::new(0);
static RELEASED: Condvar = Condvar::new();

/// One of the places for machines; dropping it frees the place.
pub struct Slot;

impl Slot {
    /// Waits for a free place.
    pub fn take() -> Self {
        let used = USED.lock().unwrap();
        *RELEASED.wait_while(used, |used| *used == MACHINES).unwrap() += 1;
        Self
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *USED.lock().unwrap() -= 1;
        RELEASED.notify_one();
    }
}
