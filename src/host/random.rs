//! Random numbers.

use std::sync::{Arc, Mutex, PoisonError};

use rand::{
    Rng as _, SeedableRng as _,
    rngs::{StdRng, SysRng},
};
use uuid::{Builder, Uuid};

/// A cryptographically secure generator of random numbers. Cheap to clone: clones share
/// its state. The default is seeded by the operating system.
#[derive(Clone, Debug)]
pub struct Random(Arc<Mutex<StdRng>>);

impl Random {
    /// A generator that gives the same numbers for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// Fills a buffer.
    pub fn fill(&self, bytes: &mut [u8]) {
        // A panic under the lock leaves no state that matters.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(bytes);
    }

    /// A number from 0 to 1.
    pub fn fraction(&self) -> f64 {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
    }

    /// A random UUID (version 4).
    pub fn uuid(&self) -> Uuid {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        Builder::from_random_bytes(bytes).into_uuid()
    }
}

impl Default for Random {
    /// # Panics
    /// If the operating system has no random numbers.
    fn default() -> Self {
        let rng = StdRng::try_from_rng(&mut SysRng).expect("the operating system has random numbers");
        Self(Arc::new(Mutex::new(rng)))
    }
}
