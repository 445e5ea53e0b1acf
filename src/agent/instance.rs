//! The identity of an agent: what tells its streams and pods from those of other agents.

use std::{
    io,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest as _, Sha256};

use crate::{
    hex::hex,
    host::{Disk, Host, Open, OpenFile},
    kind::is_of_disk,
    pod::NodeName,
};

/// The id of the machine, which systemd makes at the first boot.
const MACHINE_ID: &str = "/etc/machine-id";
/// The longest machine id that is read, in bytes: it has 33.
const MAX_MACHINE_ID: u64 = 4096;
/// The most symbolic links that are followed, as in the kernel.
const MAX_LINKS: usize = 40;
/// The kernel's id of this boot, by which a marker is noticed that no reboot has removed.
const KERNEL_BOOT: &str = "/proc/sys/kernel/random/boot_id";
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
    let path = state_dir.map(|path| resolved(disk, path, MAX_LINKS));
    let mut digest = Sha256::new();
    digest.update(machine.trim_ascii());
    digest.update([0]);
    digest.update(path.unwrap_or_default().as_os_str().as_encoded_bytes());
    hex(&digest.finalize()[..DIGEST])
}

/// The path without symbolic links, also if what they lead to is not there now: it may be mounted later.
fn resolved(disk: &Disk, path: &Path, links: usize) -> PathBuf {
    if let Ok(canonical) = disk.canonical(path) {
        return canonical;
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return path.to_owned() };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match disk.read_link(path) {
        Ok(target) if links > 0 => resolved(disk, &parent.join(target), links - 1),
        _ => resolved(disk, parent, links).join(name),
    }
}

/// Locked by the agent of an instance.
const LOCK: &str = "lock";
/// The boot marker: a random id, which is lost when the machine stops, and the kernel's id of the boot.
const BOOT: &str = "boot";
/// The longest boot marker, in bytes: two UUIDs and a line end.
const BOOT_LENGTH: u64 = 73;

/// Why an instance cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another agent has it.
    #[error("another podmux runs the pods of this instance: it has locked {}; stop it, or choose another directory with --state-dir", .0.display())]
    InUse(PathBuf),
    /// Its files cannot be used.
    #[error("cannot use {}; give it to the user that podmux runs as, or set RUNTIME_DIRECTORY to another directory that a reboot empties", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

impl ClaimError {
    /// Whether it may pass without a change of the settings.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Io(_, error) if is_of_disk(error))
    }
}

/// An instance that this process has to itself, until this is dropped.
#[derive(Debug)]
pub struct Instance {
    /// The boot marker. Another one than before means that the machine was started again, so that none of the
    /// instance's processes is left.
    pub boot: String,
    /// When the machine was started, by its clock. None if that is not known.
    ///
    /// A clock that is set right after the boot, as on a machine without a battery, would move it behind the first
    /// containers: it is no later than the marker.
    pub booted: Option<Timestamp>,
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
        host.disk.check_private(&directory).map_err(failed)?;
        let lock = host.disk.open(&lock_path, Open::Create).map_err(failed)?;
        lock.lock().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => ClaimError::InUse(lock_path),
            _ => failed(error),
        })?;
        // Where it cannot be read the directory alone says it.
        let kernel = host.disk.read(Path::new(KERNEL_BOOT), BOOT_LENGTH).unwrap_or_default();
        let kernel = String::from_utf8_lossy(kernel.trim_ascii());
        let kept = host.disk.read(&path, BOOT_LENGTH).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        // An agent that was killed before it had written all of it has run no pod.
        let kept = kept.as_deref().and_then(|kept| kept.split_once('\n'));
        let is_same = |of: &str| of.is_empty() || kernel.is_empty() || of == kernel;
        if let Some((boot, _)) = kept.filter(|(_, of)| is_same(of)) {
            let booted = booted(host, Some(&path));
            return Ok(Self { boot: boot.to_owned(), booted, directory, _lock: lock });
        }
        let boot = host.random.uuid().to_string();
        let marker = host.disk.open(&path, Open::Create).map_err(failed)?;
        let text = format!("{boot}\n{kernel}");
        marker.set_len(0).and_then(|()| marker.write_at(0, text.as_bytes())).map_err(failed)?;
        Ok(Self { boot, booted: booted(host, None), directory, _lock: lock })
    }
}

/// When the machine was started: no later than this marker was written, if one of this boot was there.
fn booted(host: &Host, marker: Option<&Path>) -> Option<Timestamp> {
    // The unit hides /proc/uptime.
    let uptime = SignedDuration::from_secs(clock_gettime(ClockId::Boottime).tv_sec);
    let by_uptime = host.clock.now().checked_sub(uptime).ok()?;
    let written = marker.and_then(|path| Timestamp::from_second(host.disk.stamp(path).ok()?.modified.0).ok());
    Some(written.map_or(by_uptime, |written| written.min(by_uptime)))
}
