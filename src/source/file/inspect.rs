//! Looking at names and paths, and reading manifests. All of it may block, but never waits for a writer.

use std::{
    ffi::{OsStr, OsString},
    io::{self, ErrorKind, Read as _},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use super::entries::{Cause, Found, Identity, Reading, Target};
use crate::{
    host::{Attributes, Disk, FileKind, Open},
    manifest::MAX_MANIFEST,
    pod::{InvalidManifest, Problem, RejectionReason, Stage},
};

/// Linux's own bound on the symbolic links in one path.
const MAX_LINKS: usize = 40;

/// What a name in a manifest directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    /// A manifest, whatever its extension.
    Manifest,
    /// A hidden file: the name begins with a dot.
    Hidden,
    /// A temporary file or a backup of an editor (kubernetes#136962), or another version that a package manager has left
    /// beside the file.
    Leftover,
}

/// Why a [`NameKind::Leftover`] is skipped.
pub(super) const LEFTOVER: &str = "an editor's, a package manager's or a backup file";

/// How such names end; those of package managers are from systemd's `hidden_or_backup_file`.
const LEFTOVERS: &str = "~ .swp .bak .backup .orig .tmp .dpkg-old .dpkg-new .dpkg-tmp .dpkg-dist .dpkg-bak .dpkg-backup \
                         .dpkg-remove .rpmnew .rpmsave .rpmorig .ucf-old .ucf-new .ucf-dist";

/// The link that the kubelet replaces when it updates a `ConfigMap` volume or another projected one.
pub(super) const VOLUME_LINK: &str = "..data";

impl NameKind {
    pub(super) fn of(name: &OsStr) -> Self {
        let name = name.as_encoded_bytes();
        if name.starts_with(b".") {
            Self::Hidden
        } else if LEFTOVERS.split(' ').any(|end| name.ends_with(end.as_bytes()))
            || name == b"4913"
            || (name.len() > 1 && name.starts_with(b"#") && name.ends_with(b"#"))
        {
            Self::Leftover
        } else {
            Self::Manifest
        }
    }

    pub(super) fn is_manifest(name: &OsStr) -> bool {
        Self::of(name) == Self::Manifest
    }
}

/// What is at a path, without opening it; and what it is if it exists and cannot be a manifest.
pub(super) fn inspect(disk: &Disk, path: &Path) -> (Found, Option<&'static str>) {
    let own = disk.attributes(path, false);
    let is_link = own.as_ref().is_ok_and(|own| own.kind == FileKind::Link);
    match if is_link { disk.attributes(path, true) } else { own } {
        Ok(Attributes { kind: FileKind::File, stamp, .. }) => (Found::File(stamp), None),
        Ok(Attributes { kind: FileKind::Directory, .. }) if is_link => {
            (Found::Nothing, Some("a link to a directory"))
        }
        Ok(attributes) => (Found::Nothing, Some(describe(attributes.kind))),
        Err(error) if is_missing(&error) => (Found::Nothing, is_link.then_some("a dangling symbolic link")),
        Err(error) => (Found::Unreadable(error.to_string()), None),
    }
}

/// Why a created path is checked. The creator of a regular file with one name is probably still writing to it.
/// A symbolic or hard link is complete at once. A hard link whose first name is gone has one name again, and its
/// inode was changed after its content.
pub(super) fn cause_of_creation(disk: &Disk, path: &Path) -> Cause {
    match disk.attributes(path, false) {
        Ok(Attributes { kind: FileKind::File, names: 1, stamp, .. }) => {
            if stamp.size > 0 && stamp.changed > stamp.modified { Cause::Touched } else { Cause::Created }
        }
        _ => Cause::Complete,
    }
}

/// How reading a manifest ended, and its text, or why it is rejected; none if it must be read again.
pub(super) type Read = (Reading, Option<Result<Vec<u8>, RejectionReason>>);

/// Reads a regular file, and nothing else.
///
/// Opening does not block even if a fifo has replaced the file, and the opened file is
/// inspected before it is read.
pub(super) fn read(disk: &Disk, path: &Path) -> Read {
    match try_read(disk, path) {
        Ok(read) => read,
        // The regular file has been removed, or replaced by a socket.
        Err(error)
            if is_missing(&error) || error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) =>
        {
            (Reading::Vanished, None)
        }
        Err(error) => (Reading::Failed, Some(Err(RejectionReason::Unreadable(error.to_string().into())))),
    }
}

fn try_read(disk: &Disk, path: &Path) -> io::Result<Read> {
    let mut file = disk.open(path, Open::ReadAtOnce)?;
    let Attributes { kind, stamp: before, .. } = file.attributes()?;
    if kind != FileKind::File {
        return Ok((Reading::Vanished, None));
    }
    if before.size > MAX_MANIFEST as u64 {
        return Ok((Reading::Complete(before), Some(Err(too_large(before.size)))));
    }
    let mut text = Vec::with_capacity(usize::try_from(before.size).unwrap_or_default() + 1);
    file.by_ref().take(MAX_MANIFEST as u64 + 1).read_to_end(&mut text)?;
    let after = file.attributes()?.stamp;
    if (before.size, before.modified) != (after.size, after.modified) {
        return Ok((Reading::Torn(after), None));
    }
    let text = if text.len() > MAX_MANIFEST { Err(too_large(after.size)) } else { Ok(text) };
    Ok((Reading::Complete(after), Some(text)))
}

fn too_large(size: u64) -> RejectionReason {
    let detail = format!("{size} bytes are too many for a manifest: {MAX_MANIFEST} at most; split the file");
    let problems = vec![Problem::error(detail)];
    RejectionReason::Invalid(Arc::new(InvalidManifest { stage: Stage::Decode, problems }))
}

/// A path with its symbolic links resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) target: Target,
    /// The path of the directory or file, free of links.
    pub(super) real: Option<PathBuf>,
    /// The paths, free of links, whose change may change the target: each link on the way,
    /// and the end or the first missing part.
    pub(super) hops: Vec<PathBuf>,
    /// Why the target is unknown.
    pub(super) error: Option<String>,
}

/// Resolves an absolute path and inspects its target.
pub(super) fn resolve(disk: &Disk, path: &Path) -> Resolved {
    let mut hops = Vec::new();
    let found = follow(disk, path, &mut hops).and_then(|real| Ok((disk.attributes(&real, false)?, real)));
    let (target, real, error) = match found {
        Ok((found, real)) => match found.kind {
            FileKind::File => (Target::File, Some(real), None),
            FileKind::Directory => (Target::Directory(identity(&found)), Some(real), None),
            other => {
                let error = format!("{}, neither a directory nor a file", describe(other));
                (Target::Unknown, None, Some(error))
            }
        },
        Err(error) if is_missing(&error) => (Target::Missing, None, None),
        Err(error) => (Target::Unknown, None, Some(error.to_string())),
    };
    Resolved { target, real, hops, error }
}

/// Follows an absolute path part by part, as the kernel does, and notes the hops of
/// [`Resolved`].
fn follow(disk: &Disk, path: &Path, hops: &mut Vec<PathBuf>) -> io::Result<PathBuf> {
    let mut real = PathBuf::from("/");
    let mut rest = parts(path);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            real.pop();
            continue;
        }
        let next = real.join(part);
        let attributes = disk.attributes(&next, false).inspect_err(|error| {
            // In the second case a file is where a directory should be.
            hops.push(if error.kind() == ErrorKind::NotADirectory { real.clone() } else { next.clone() });
        })?;
        if attributes.kind == FileKind::Link {
            links += 1;
            if links > MAX_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let target = disk.read_link(&next)?;
            hops.push(next);
            if target.is_absolute() {
                real = PathBuf::from("/");
            }
            rest.extend(parts(&target));
        } else {
            if rest.is_empty() {
                hops.push(next.clone());
            }
            real = next;
        }
    }
    Ok(real)
}

/// The parts of a path, the first one last.
fn parts(path: &Path) -> Vec<OsString> {
    let part = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(part).collect()
}

/// The identity of the directory at a path, if one is there.
pub(super) fn directory(disk: &Disk, path: &Path) -> Option<Identity> {
    let found = disk.attributes(path, false).ok()?;
    (found.kind == FileKind::Directory).then(|| identity(&found))
}

fn identity(attributes: &Attributes) -> Identity {
    Identity { inode: attributes.stamp.identity, born: attributes.born }
}

fn describe(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "a file",
        FileKind::Directory => "a directory",
        FileKind::Link => "a symbolic link",
        FileKind::Fifo => "a fifo",
        FileKind::Socket => "a socket",
        FileKind::Device => "a device",
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
