//! The machine under the agent: clock, random numbers, threads, disk and network, one type each.
//!
//! Everything that the agent takes from the machine comes through a [`Host`] that is passed
//! in, so that a test or a simulation can replace each part.

mod clock;
#[cfg(feature = "agent")]
mod disk;
#[cfg(feature = "agent")]
mod network;
mod random;
mod threads;

#[cfg(feature = "agent")]
pub use self::disk::{Attributes, Disk, FileKind, FileSystem, Open, OpenFile, Stamp};
#[cfg(feature = "agent")]
pub(crate) use self::network::Dial;
#[cfg(feature = "agent")]
pub use self::network::{Clients, Network};
pub use self::{
    clock::{Clock, Moment},
    random::Random,
    threads::{Cancelled, Threads},
};

/// The machine under the agent. Cheap to clone; the default is the real one.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The wall clock.
    pub clock: Clock,
    /// Random numbers.
    pub random: Random,
    /// Threads for work that blocks or takes long.
    pub threads: Threads,
    /// Files.
    #[cfg(feature = "agent")]
    pub disk: Disk,
    /// Connections to servers, and from clients.
    #[cfg(feature = "agent")]
    pub network: Network,
}

#[cfg(feature = "agent")]
impl Host {
    /// How many bytes of memory the machine has.
    pub fn memory(&self) -> i64 {
        let memory = rustix::system::sysinfo();
        i64::try_from(memory.totalram).unwrap_or(i64::MAX).saturating_mul(memory.mem_unit.into())
    }
}
