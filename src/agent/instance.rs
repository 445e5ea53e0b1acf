//! The identity of an agent: what tells its streams from those of other agents.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::{hex::hex, host::Disk, pod::NodeName};

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
