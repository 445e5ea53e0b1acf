//! The doors in: each source turns a part of the world into whole listings.

pub mod file;
