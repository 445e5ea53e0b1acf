//! Durable numbers, from the database.

use super::numbers::Numbers;
use crate::db::{DbError, Sequence};

impl Numbers for Sequence {
    type Error = DbError;

    fn last(&self) -> u64 {
        self.last()
    }

    async fn reserve(&mut self) -> Result<(), DbError> {
        self.ready().await
    }

    fn next(&mut self) -> Option<u64> {
        self.take()
    }

    async fn close(self) -> Result<(), DbError> {
        self.close().await
    }
}
