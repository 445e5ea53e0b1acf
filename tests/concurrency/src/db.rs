//! A database for the allocator of numbers: it stores the ceiling, and takes time for it.

use crate::shuttled::std::sync::{Arc, Mutex};

pub use self::{error::DbError, sound::Sequence};

#[path = "../../../src/db/table.rs"]
pub mod table;

pub mod error {
    //! The database of this test never fails.

    #[derive(Clone, Debug, thiserror::Error)]
    #[error("ended")]
    pub enum DbError {}
}

pub mod writer {
    //! The database.

    use super::{
        error::DbError,
        table::{Change, Value},
    };
    use crate::shuttled::std::sync::{Arc, Mutex};

    /// The stored ceiling.
    #[derive(Clone, Debug, Default)]
    pub struct Db(Arc<Mutex<u64>>);

    impl Db {
        pub async fn commit(&self, changes: Vec<Change>) -> Result<(), DbError> {
            shuttle::future::yield_now().await;
            let numbers = changes.iter().filter_map(|change| change.value.as_ref().map(Value::bytes));
            let numbers = numbers.map(|bytes| String::from_utf8(bytes).unwrap().parse::<u64>().unwrap());
            *self.0.lock().unwrap() = numbers.max().unwrap();
            shuttle::future::yield_now().await;
            Ok(())
        }

        pub fn ceiling(&self) -> u64 {
            *self.0.lock().unwrap()
        }
    }
}

macro_rules! generated {
    ($($module:ident $file:literal)*) => { $(
        pub mod $module {
            pub use self::sequence::Sequence;
            use super::{error, table, writer};

            mod sequence {
                include!(concat!(env!("OUT_DIR"), "/", $file));
            }
        }
    )* };
}

generated!(sound "sequence.rs" in_two_steps "sequence_in_two_steps.rs" too_early "sequence_too_early.rs");
