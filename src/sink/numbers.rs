//! The numbers of an update stream.

use std::{convert::Infallible, error::Error, future::ready};

/// The `seq` of one stream's updates: each number is higher than the one before and names
/// one update only.
///
/// [`Counter`] starts at 1 in every run. The agent's `db::Sequence` is durable.
pub trait Numbers: Send {
    /// Why no number can be reserved.
    type Error: Error + Send + Sync + 'static;

    /// The last number that was used, or 0.
    fn last(&self) -> u64;

    /// Makes sure that [`next`](Self::next) has a number. Cancel-safe.
    ///
    /// # Errors
    /// If no number can be reserved now.
    fn reserve(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// The next number; `None` if none is [reserved](Self::reserve).
    fn next(&mut self) -> Option<u64>;

    /// Gives back the numbers that are reserved and not used, at the end of the stream.
    ///
    /// # Errors
    /// If that cannot be stored: the next run skips these numbers.
    fn close(self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Numbers in memory: 1, 2, 3 in every run.
#[derive(Clone, Debug, Default)]
pub struct Counter(u64);

impl Numbers for Counter {
    type Error = Infallible;

    fn last(&self) -> u64 {
        self.0
    }

    fn reserve(&mut self) -> impl Future<Output = Result<(), Infallible>> + Send {
        ready(Ok(()))
    }

    fn next(&mut self) -> Option<u64> {
        self.0 += 1;
        Some(self.0)
    }

    fn close(self) -> impl Future<Output = Result<(), Infallible>> + Send {
        ready(Ok(()))
    }
}
