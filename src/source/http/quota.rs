//! The quota of the posted pods.

use std::fmt;

use crate::pod::Pod;

/// A replacement of at most this size in bytes is always accepted, so that pods can be mended
/// when the quota is used up. With the number of pods it bounds what replacements can add.
const ALWAYS: u64 = 16 << 10;

/// The quota of the posted pods, those that are being deleted included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of pods.
    pub max_pods: u64,
    /// The size of their JSON in bytes.
    pub max_bytes: u64,
}

impl Default for Config {
    /// 1,000 pods, 64 MiB.
    fn default() -> Self {
        Self { max_pods: 1000, max_bytes: 64 << 20 }
    }
}

/// What the posted pods use of the quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    pods: u64,
    bytes: u64,
}

impl Used {
    pub(super) fn add(&mut self, pod: &Pod) {
        self.pods += 1;
        self.bytes += size(pod);
    }

    pub(super) fn subtract(&mut self, pod: &Pod) {
        self.pods -= 1;
        self.bytes -= size(pod);
    }
}

/// What a write can have at most: with more it exceeds the quota, even if all its pods are
/// replacements.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    quota: Config,
    posted: Used,
    write: Used,
}

impl Room {
    pub(super) fn new<'p>(quota: Config, posted: impl Iterator<Item = &'p Pod>) -> Self {
        let mut used = Used::default();
        posted.for_each(|pod| used.add(pod));
        Self { quota, posted: used, write: Used::default() }
    }

    /// Takes the next pod of the write, of a size in bytes.
    ///
    /// # Errors
    /// If the write certainly exceeds the quota.
    pub fn take(&mut self, size: u64) -> Result<(), QuotaExceeded> {
        let Self { quota, posted, write } = self;
        write.pods += 1;
        write.bytes += size;
        let (flag, requested, used, limit) = if write.pods > quota.max_pods.max(posted.pods) {
            ("max-posted-pods", write.pods, posted.pods, quota.max_pods)
        } else if write.bytes > quota.max_bytes.max(posted.bytes) + ALWAYS * write.pods {
            ("max-posted-bytes", write.bytes, posted.bytes, quota.max_bytes)
        } else {
            return Ok(());
        };
        Err(QuotaExceeded { flag, requested, used, limit })
    }
}

fn size(pod: &Pod) -> u64 {
    pod.text().len() as u64
}

/// A write would exceed the quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaExceeded {
    flag: &'static str,
    requested: u64,
    used: u64,
    limit: u64,
}

impl fmt::Display for QuotaExceeded {
    /// The form of an API server's quota.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flag, requested, used, limit } = self;
        write!(
            f,
            "exceeded quota: {flag}, requested: {requested}, used: {used}, limited: {limit}; \
             delete posted pods, or start the agent with a higher --{flag}"
        )
    }
}

impl Config {
    /// Checks a new pod.
    pub(super) fn check_new(self, used: Used, pod: &Pod) -> Result<(), QuotaExceeded> {
        let (flag, requested, used, limit) = if used.pods >= self.max_pods {
            ("max-posted-pods", 1, used.pods, self.max_pods)
        } else if used.bytes + size(pod) > self.max_bytes {
            ("max-posted-bytes", size(pod), used.bytes, self.max_bytes)
        } else {
            return Ok(());
        };
        Err(QuotaExceeded { flag, requested, used, limit })
    }

    /// Checks a replacement.
    pub(super) fn check_replacement(self, used: Used, old: &Pod, new: &Pod) -> Result<(), QuotaExceeded> {
        let requested = size(new).saturating_sub(size(old));
        let is_small = size(new) <= size(old).max(ALWAYS);
        if is_small || used.bytes + requested <= self.max_bytes {
            return Ok(());
        }
        let flag = "max-posted-bytes";
        Err(QuotaExceeded { flag, requested, used: used.bytes, limit: self.max_bytes })
    }
}
