//! The identity of an agent: what tells its streams and pods from those of other agents.

use std::{
    io,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::{
    hex::hex,
    host::{Disk, Host, Open, OpenFile},
    pod::NodeName,
};

/// The id of the machine, which systemd makes at the first boot.
const MACHINE_ID: &str = "/etc/machine-id";
/// The longest machine id that is read, in bytes: it has 33.
const MAX_MACHINE_ID: u64 = 4096;
/// The number of bytes of the digest that are enough.
const DIGEST: usize = 8;

/// A digest of the machine and its state directory, or of the node's name if there is neither. It
/// blocks.
///
/// A state directory that is lost and made again is the same one, and a copy is another one.
pub(super) fn instance(disk: &Disk, state_dir: Option<&Path>, node: &NodeName) -> String {
    // The file is empty in many images.
    let machine = disk.read(Path::new(MACHINE_ID), MAX_MACHINE_ID).ok();
    let machine = machine.filter(|id| state_dir.is_some() && !id.trim_ascii().is_empty());
    let machine = machine.unwrap_or_else(|| node.as_str().as_bytes().to_vec());
    // A directory that does not exist yet has only the path that was given.
    let path = state_dir.map(|path| disk.canonical(path).unwrap_or_else(|_| path.to_owned()));
    let mut digest = Sha256::new();
    digest.update(machine.trim_ascii());
    digest.update([0]);
    digest.update(path.unwrap_or_default().as_os_str().as_encoded_bytes());
    hex(&digest.finalize()[..DIGEST])
}

/// Locked by the agent of an instance.
const LOCK: &str = "lock";
/// The boot marker: a random id, which is lost when the machine stops.
const BOOT: &str = "boot";
/// The length of a boot marker, in bytes: a UUID.
const BOOT_LENGTH: u64 = 36;
/// Why an instance cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another agent has it.
    #[error("another podmux runs the pods of this instance: it has locked {}; stop it", .0.display())]
    InUse(PathBuf),
    /// Its files cannot be used.
    #[error("cannot use {}; give it to the user that podmux runs as, or set RUNTIME_DIRECTORY to another directory", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// An instance that this process has to itself, until this is dropped.
#[derive(Debug)]
pub struct Instance {
    /// The boot marker. Another one than before means that the machine was started again, so that none of the
    /// instance's processes is left.
    pub boot: String,
    /// Where its files of this boot are.
    pub directory: PathBuf,
    _lock: Box<dyn OpenFile>,
}

impl Instance {
    /// Locks an instance in a directory that a reboot empties, and reads its boot marker or makes one. It blocks.
    ///
    /// # Errors
    /// If another agent has it, or the files cannot be used.
    pub fn claim(host: &Host, runtime_dir: &Path, instance: &str) -> Result<Self, ClaimError> {
        let directory = runtime_dir.join(instance);
        let (lock_path, path) = (directory.join(LOCK), directory.join(BOOT));
        let failed = |error| ClaimError::Io(directory.clone(), error);
        host.disk.create_dir(&directory).map_err(failed)?;
        let lock = host.disk.open(&lock_path, Open::Create).map_err(failed)?;
        lock.lock().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => ClaimError::InUse(lock_path),
            _ => failed(error),
        })?;
        let kept = host.disk.read(&path, BOOT_LENGTH).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        // An agent that was killed before it had written all of it has run no pod.
        if let Some(boot) = kept.filter(|boot| boot.len() as u64 == BOOT_LENGTH) {
            return Ok(Self { boot, directory, _lock: lock });
        }
        let boot = host.random.uuid().to_string();
        let marker = host.disk.open(&path, Open::Create).map_err(failed)?;
        marker.set_len(0).and_then(|()| marker.write_at(0, boot.as_bytes())).map_err(failed)?;
        Ok(Self { boot, directory, _lock: lock })
    }
}
