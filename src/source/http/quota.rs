//! The quota of the posted pods.

use super::applied::Applied;
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

/// What a write can have at most: with more it exceeds the quota, even if all its pods are
/// replacements.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    quota: Config,
    /// The posted pods, and those of the write: their number and their bytes.
    posted: (u64, u64),
    write: (u64, u64),
}

impl Room {
    /// Beside some posted pods of some bytes.
    pub(super) fn new(quota: Config, pods: u64, bytes: u64) -> Self {
        Self { quota, posted: (pods, bytes), write: (0, 0) }
    }

    /// Takes the next pod of the write, of a size in bytes.
    ///
    /// # Errors
    /// If the write certainly exceeds the quota.
    pub fn take(&mut self, size: u64) -> Result<(), QuotaExceeded> {
        let Self { quota, posted, write } = self;
        *write = (write.0 + 1, write.1 + size);
        let (flag, requested, used, limit) = if write.0 > quota.max_pods.max(posted.0) {
            ("max-posted-pods", write.0, posted.0, quota.max_pods)
        } else if write.1 > quota.max_bytes.max(posted.1) + ALWAYS * write.0 {
            ("max-posted-bytes", write.1, posted.1, quota.max_bytes)
        } else {
            return Ok(());
        };
        Err(QuotaExceeded { flag, requested, used, limit })
    }
}

/// The size of a pod in bytes, with what field managers applied.
pub(super) fn size(pod: &Pod, applied: &Applied) -> u64 {
    pod.text().len() as u64 + applied.size()
}

/// A write would exceed the quota. Its text has the form of an API server's quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "exceeded quota: {flag}, requested: {requested}, used: {used}, limited: {limit}; delete posted pods, or raise --{flag}, which takes effect at a reload"
)]
pub struct QuotaExceeded {
    flag: &'static str,
    requested: u64,
    used: u64,
    limit: u64,
}

impl Config {
    /// Checks a new pod of a size beside some pods of some bytes.
    pub(super) fn check_new(self, pods: u64, bytes: u64, size: u64) -> Result<(), QuotaExceeded> {
        let (flag, requested, used, limit) = if pods >= self.max_pods {
            ("max-posted-pods", 1, pods, self.max_pods)
        } else if bytes + size > self.max_bytes {
            ("max-posted-bytes", size, bytes, self.max_bytes)
        } else {
            return Ok(());
        };
        Err(QuotaExceeded { flag, requested, used, limit })
    }

    /// Checks a replacement of an old size by a new one.
    pub(super) fn check_replacement(self, used: u64, old: u64, new: u64) -> Result<(), QuotaExceeded> {
        let requested = new.saturating_sub(old);
        let is_small = new <= old.max(ALWAYS);
        if is_small || used + requested <= self.max_bytes {
            return Ok(());
        }
        Err(QuotaExceeded { flag: "max-posted-bytes", requested, used, limit: self.max_bytes })
    }
}
