//! `podmux get`: shows the state of a running agent in kubectl's formats.

use std::io;

use self::args::Resource;
use super::{
    connection::{Connection, block_on},
    failure::Failure,
};
use crate::{host::Host, settings::Environment, telemetry::colours};

mod args;
mod listed;
mod pods;
mod printer;
mod sinks;
mod sort;
mod sources;
pub(super) mod stream;
mod updates;
mod watch;

pub(super) use self::{
    args::Args,
    listed::next_attempt,
    pods::pods_of,
    sources::{detail, kept_for, more_problems, state_text, winner},
};

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    let names = args.names().map_err(Failure::Refused)?;
    args.check(&names).map_err(Failure::Refused)?;
    let host = Host::default();
    let connection = Connection::new(&args.connection, environment)?;
    let colour = colours(&io::stdout(), environment);
    block_on(async {
        match args.target.resource {
            Resource::Pods | Resource::Events => {
                let pods = pods::Pods::new(args, &names, &connection, host.clock.clone(), colour);
                if args.watch { watch::watch(pods, &host.random).await } else { pods.get().await }
            }
            Resource::Sources => sources::SOURCES.get(args, &names, &connection, &host.clock, colour).await,
            Resource::Sinks => sinks::SINKS.get(args, &names, &connection, &host.clock, colour).await,
            Resource::Updates => updates::get(args, &connection, &host.random, colour).await,
        }
    })
}
