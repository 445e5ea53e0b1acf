//! The embedded database: the state that outlives the process.
//!
//! It stores values under keys in a few tables and does not interpret them: the owner of a
//! table defines its values. Everything is read when the database is opened. After that it is
//! only written, by one [`Writer`], in one order.
//!
//! # Guarantees
//!
//! * `Ok` of [`Db::commit`] means that all its changes are on disk. An error means that none
//!   of them is, now or after a restart. (One gap: a disk that failed to sync, and then
//!   accepts no writes until the process is killed, may have all changes of the failed commit.)
//! * After a kill or a power cut, every acknowledged commit is there, and every other one is
//!   there as a whole or not at all.
//! * A damaged file is rejected with [`OpenError`] and left as it is, or, if the damage is
//!   outside the used parts, gives exactly the acknowledged commits. One exception: damage to
//!   the very last commit of a process that was killed within `SEAL_AFTER` of it looks like a
//!   power cut during that commit, and gives the commits before it.
//! * One process at a time uses a state directory.
//!
//! # The file
//!
//! `state.redb` in the state directory is a redb database with a table for each [`Table`] and
//! one for itself: the number of the format and the identity of the directory. redb has a checksum
//! for every page, and verifies them when it opens the file. It has two commit slots and may fall
//! back from one to the other. So that a fallback loses nothing, an empty commit (the seal) follows
//! the last one, and both slots have the same content.
//!
//! A newer podmux reads the files of older ones: each change of the format is a step in
//! [`UPGRADES`]. An older podmux rejects the files of newer ones.

mod directory;
mod error;
mod file;
mod format;
mod sequence;
mod table;
mod writer;

pub use redb::StorageBackend;

pub use self::{
    directory::{open, open_on},
    error::{DbError, Flaw, OpenError},
    format::{UPGRADES, Upgrade},
    sequence::Sequence,
    table::{Change, Stored, Table, Tables, Value},
    writer::{Db, Writer},
};
