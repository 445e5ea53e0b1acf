//! The quota of the posted pods.

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

/// The size of a pod in bytes.
pub(super) fn size(pod: &Pod) -> u64 {
    pod.text().len() as u64
}

/// A write would exceed the quota. Its text has the form of an API server's quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "exceeded quota: {flag}, requested: {requested}, used: {used}, limited: {limit}; delete posted pods, or start the agent with a higher --{flag}"
)]
pub struct QuotaExceeded {
    flag: &'static str,
    requested: u64,
    used: u64,
    limit: u64,
}

impl Config {
    /// Checks a new pod beside some pods of some bytes.
    pub(super) fn check_new(self, pods: u64, bytes: u64, pod: &Pod) -> Result<(), QuotaExceeded> {
        let (flag, requested, used, limit) = if pods >= self.max_pods {
            ("max-posted-pods", 1, pods, self.max_pods)
        } else if bytes + size(pod) > self.max_bytes {
            ("max-posted-bytes", size(pod), bytes, self.max_bytes)
        } else {
            return Ok(());
        };
        Err(QuotaExceeded { flag, requested, used, limit })
    }

    /// Checks a replacement.
    pub(super) fn check_replacement(self, used: u64, old: &Pod, new: &Pod) -> Result<(), QuotaExceeded> {
        let requested = size(new).saturating_sub(size(old));
        let is_small = size(new) <= size(old).max(ALWAYS);
        if is_small || used + requested <= self.max_bytes {
            return Ok(());
        }
        Err(QuotaExceeded { flag: "max-posted-bytes", requested, used, limit: self.max_bytes })
    }
}
