//! How the podman runtime is written in the settings.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{Config, Podman};
use crate::{
    host::{FileKind, Host},
    kind::{Given, Kind, OpenError},
    runtime::opening::{OpenRuntime, Opening, RuntimeKind},
};

/// The entry of this runtime in the registry.
pub(in crate::runtime) const KIND: RuntimeKind = RuntimeKind {
    kind: Kind {
        name: "podman",
        syntax: "podman|podman=SOCKET",
        options: &[],
        shown: str::to_owned,
        accepts: |given| match socket(given) {
            Some(path) if !path.is_absolute() => {
                Err("podman=SOCKET needs an absolute path: podman=/run/podman/podman.sock".into())
            }
            _ => Ok(()),
        },
        check,
    },
    open,
};

/// The socket that is given.
fn socket(given: &Given) -> Option<PathBuf> {
    let target = given.target.as_deref()?;
    Some(target.strip_prefix("unix:").map_or(target, |path| path.strip_prefix("//").unwrap_or(path)).into())
}

/// The socket of podman's service: root's, or the user's.
fn default_socket(user_dir: Option<&Path>) -> PathBuf {
    user_dir.unwrap_or(Path::new("/run")).join("podman/podman.sock")
}

/// Whether the socket that is given is one. podman may be started later, so a start does not fail without it.
fn check(given: &Given, host: &Host) -> Result<(), OpenError> {
    let Some(path) = socket(given) else { return Ok(()) };
    let failed = |error| OpenError::Program(format!("podman={}", path.display()), error);
    match host.disk.attributes(&path, true).map_err(failed)?.kind {
        FileKind::Socket => Ok(()),
        _ => Err(failed(io::Error::other("it is not a socket"))),
    }
}

fn open(given: &Given, opening: Opening) -> OpenRuntime {
    let socket = socket(given).unwrap_or_else(|| default_socket(opening.user_dir.as_deref()));
    let mut config = Config::new(socket, opening.directory.join("podman"), opening.instance.clone());
    (config.boot, config.booted, config.host) = (opening.boot.clone(), opening.booted, opening.host.clone());
    opening.drive(Podman::new(config))
}
