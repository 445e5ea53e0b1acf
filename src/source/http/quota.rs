//! The quota of the posted pods.

use std::fmt;

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
    pub(super) fn add(&mut self, bytes: u64) {
        self.pods += 1;
        self.bytes += bytes;
    }

    pub(super) fn subtract(&mut self, bytes: u64) {
        self.pods -= 1;
        self.bytes -= bytes;
    }
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
    /// Checks a new pod, or a replacement of a pod with `before` bytes, of a size in bytes.
    pub(super) fn check(self, used: Used, before: Option<u64>, bytes: u64) -> Result<(), QuotaExceeded> {
        let exceeded = |flag, requested, used, limit| Err(QuotaExceeded { flag, requested, used, limit });
        if before.is_none() && used.pods >= self.max_pods {
            return exceeded("max-posted-pods", 1, used.pods, self.max_pods);
        }
        let grows = match before {
            Some(before) => bytes > before.max(ALWAYS),
            None => true,
        };
        let more = bytes.saturating_sub(before.unwrap_or(0));
        if grows && used.bytes + more > self.max_bytes {
            return exceeded("max-posted-bytes", more, used.bytes, self.max_bytes);
        }
        Ok(())
    }
}
