//! The files on the host that containers need: those of their termination messages, of their probes and of their ends, and
//! paths of a hostPath.

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, fchmod, mkdirat, open, openat},
    io::Errno,
};

use crate::pod::Digest;

/// The longest termination message, in bytes, as with the kubelet.
const LONGEST_MESSAGE: u64 = 4096;

/// The file that a container writes its termination message to.
pub(super) fn message_file(directory: &Path, uid: &str, container: &str, restarts: u32) -> PathBuf {
    pod_directory(directory, uid).join(format!("{container}.{restarts}"))
}

/// The file with what the probes of a container have found, for the next agent.
pub(super) fn found_file(directory: &Path, uid: &str, container: &str) -> PathBuf {
    pod_directory(directory, uid).join(format!("{container}.probes"))
}

/// The file with what podman does not know of the end of a container, by its id.
pub(super) fn end_file(directory: &Path, uid: &str, id: &str) -> PathBuf {
    pod_directory(directory, uid).join(format!("{id}.end"))
}

/// The directory of a pod's files. A UID may be any text.
pub(super) fn pod_directory(directory: &Path, uid: &str) -> PathBuf {
    directory.join(Digest::of(&[uid.as_bytes()]).to_string())
}

/// Creates an empty file that every user of the container can write to, in place of what is there, and removes an old
/// one. It follows no link. It blocks.
pub(super) fn create_message_file(path: &Path, old: Option<&Path>) -> io::Result<()> {
    for unused in old.into_iter().chain([path]) {
        // It may be gone already.
        let _ = fs::remove_file(unused);
    }
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    File::create_new(path)?.set_permissions(Permissions::from_mode(0o666))
}

/// The message in a file: the end of it if it is long, as with the kubelet; empty if there is none. It blocks.
pub(super) fn read_message(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let begin = file.metadata()?.len().saturating_sub(LONGEST_MESSAGE);
        file.seek(SeekFrom::Start(begin))?;
        file.take(LONGEST_MESSAGE).read_to_end(&mut bytes)
    });
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Removes the files of a pod. It blocks.
pub(super) fn discard(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the files of all pods but these. It blocks.
pub(super) fn sweep(directory: &Path, kept: &HashSet<PathBuf>) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if !kept.contains(&path) {
            discard(&path)?;
        }
    }
    Ok(())
}

/// Makes sure that the path of a hostPath is of its type, and creates it if the type says so. A path without a
/// type is not checked, as with the kubelet, and becomes a directory if it is missing, as with containerd. It blocks.
pub(super) fn provide(path: &str, kind: &str) -> io::Result<()> {
    match provide_as(path, kind) {
        // podman says whether it can be used.
        Err(_) if kind.is_empty() => Ok(()),
        provided => provided,
    }
}

fn provide_as(path: &str, kind: &str) -> io::Result<()> {
    let (kind, is_created) =
        kind.strip_suffix("OrCreate").map_or((kind, kind.is_empty()), |kind| (kind, true));
    let found = match fs::metadata(path) {
        Err(error) if is_created && error.kind() == io::ErrorKind::NotFound => {
            return if kind == "File" {
                // Set in addition, because the service has a umask of 0077.
                File::create_new(path)?.set_permissions(Permissions::from_mode(0o644))
            } else {
                provide_directory(Path::new(path)).map(drop)
            };
        }
        found => found?.file_type(),
    };
    let is_right = match kind {
        "Directory" => found.is_dir(),
        "File" => found.is_file(),
        "Socket" => found.is_socket(),
        "CharDevice" => found.is_char_device(),
        "BlockDevice" => found.is_block_device(),
        _ => true,
    };
    if is_right { Ok(()) } else { Err(io::Error::other(format!("it is not a {kind}"))) }
}

/// Opens a directory. What is missing of its path is created, and gets the kubelet's mode by its descriptor, never by
/// its path: who can write to its parent may put a link in its place meanwhile.
fn provide_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = open(path, flags | OFlags::PATH, Mode::empty());
    let (Err(Errno::NOENT), Some(parent), Some(name)) = (&found, path.parent(), path.file_name()) else {
        return Ok(found?);
    };
    let parent = provide_directory(parent)?;
    let mode = Mode::from_raw_mode(0o755);
    let is_new = match mkdirat(&parent, name, mode) {
        // Another pod that mounts it was faster.
        Err(Errno::EXIST) => false,
        created => created.map(|()| true)?,
    };
    let directory = openat(&parent, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    if is_new {
        // The umask may have taken something away.
        fchmod(&directory, mode)?;
    }
    Ok(directory)
}
