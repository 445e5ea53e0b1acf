//! How the exec runtime is written in the settings.

use std::{io, ops::RangeInclusive, path::Path, time::Duration};

use rustix::fs::{Access, access};

use super::{Config, Exec};
use crate::{
    duration,
    host::Host,
    kind::{Given, Kind, KindOption, OpenError},
    runtime::opening::{OpenRuntime, Opening, RuntimeKind},
};

/// The longest and the shortest `timeout`.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(1);

/// The entry of this runtime in the registry.
pub(in crate::runtime) const KIND: RuntimeKind = RuntimeKind {
    kind: Kind {
        name: "exec",
        syntax: "exec=PROGRAM",
        options: &[KindOption {
            name: "timeout",
            value: "DURATION",
            help: "The longest time of a call of the program, 2m by default; a stop or a restart has the pod's grace in addition",
        }],
        shown: str::to_owned,
        accepts: |given| config(given).map(drop),
        check,
    },
    open,
};

fn config(given: &Given) -> Result<Config, String> {
    let program = given.target.as_deref().unwrap_or_default();
    if !program.contains('/') {
        return Err("exec=PROGRAM needs the path of a program, with a slash: exec=/usr/local/bin/NAME".into());
    }
    let mut config = Config::new(program);
    if let Some(timeout) = given.options.get("timeout") {
        config.timeout = duration::read(timeout, &TIMEOUTS).map_err(|error| format!("timeout: {error}"))?;
    }
    Ok(config)
}

/// Whether the program is there. It may be installed later, so a start does not fail without it.
fn check(given: &Given, host: &Host) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::Program(format!("exec={}", program(given)), error);
    if !host.disk.is_file(Path::new(program(given))).map_err(failed)? {
        return Err(failed(io::Error::other("it is not a file")));
    }
    access(program(given), Access::EXEC_OK).map_err(|error| failed(error.into()))
}

fn program(given: &Given) -> &str {
    given.target.as_deref().unwrap_or_default()
}

fn open(given: &Given, opening: Opening) -> OpenRuntime {
    // It was accepted.
    let config = config(given).unwrap_or_else(|_| Config::new(program(given)));
    let (directory, state) = (opening.directory.join("exec"), opening.state.clone());
    let exec = Exec::new(config, directory, state, &opening.boot, opening.host.clone());
    opening.drive(exec)
}
