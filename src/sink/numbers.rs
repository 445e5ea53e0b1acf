//! The numbers of an update stream.

use std::{convert::Infallible, error::Error, future::ready, sync::Arc};

/// The `seq` of one stream's updates: each number is higher than the one before and names
/// one update only.
///
/// [`Counter`] starts at 1 in every run. The agent's `db::Sequence` never repeats a number.
pub trait Numbers: Send {
    /// Why no number can be reserved.
    type Error: Error + Send + Sync + 'static;

    /// Makes sure that [`next`](Self::next) has a number. Cancel-safe.
    ///
    /// # Errors
    /// If no number can be reserved now.
    fn reserve(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// The next number, which is [reserved](Self::reserve).
    fn next(&mut self) -> u64;

    /// The id of the run, if the numbers continue those of earlier ones.
    fn run(&self) -> Option<Arc<str>>;
}

/// Numbers in memory: 1, 2, 3 in every run.
#[derive(Clone, Debug, Default)]
pub struct Counter(u64);

impl Numbers for Counter {
    type Error = Infallible;

    fn reserve(&mut self) -> impl Future<Output = Result<(), Infallible>> + Send {
        ready(Ok(()))
    }

    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    fn run(&self) -> Option<Arc<str>> {
        None
    }
}
