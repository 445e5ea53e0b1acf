//! The file system, as far as the file source touches it. All of it may block, and nothing of it waits for a writer.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata},
    io::{self, ErrorKind, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

use super::entries::{Identity, Place, Seen, Stamp};
use crate::manifest::MAX_MANIFEST;

/// How many symbolic links are followed from one path: Linux's own bound.
const MAX_LINKS: usize = 40;

/// What a name in a manifest directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    /// A manifest, whatever its extension.
    Manifest,
    /// Begins with a dot.
    Hidden,
    /// What editors and backups leave behind (kubernetes#136962).
    Leftover,
}

impl NameKind {
    pub(super) fn of(name: &OsStr) -> Self {
        let name = name.as_encoded_bytes();
        let leftover = ["~", ".swp", ".bak", ".backup", ".orig", ".tmp"];
        if name.starts_with(b".") {
            Self::Hidden
        } else if leftover.iter().any(|end| name.ends_with(end.as_bytes()))
            || name == b"4913"
            || (name.len() > 1 && name.starts_with(b"#") && name.ends_with(b"#"))
        {
            Self::Leftover
        } else {
            Self::Manifest
        }
    }
}

/// A look at one path.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) seen: Seen,
    /// Whether the path is a symbolic link.
    pub(super) is_link: bool,
    /// What else it is, if it is there and cannot be a manifest.
    pub(super) other: Option<&'static str>,
}

/// Looks at a path without opening it.
pub(super) fn look(path: &Path) -> Look {
    let own = fs::symlink_metadata(path);
    let is_link = own.as_ref().is_ok_and(Metadata::is_symlink);
    let (seen, other) = match if is_link { fs::metadata(path) } else { own } {
        Ok(metadata) if metadata.is_file() => (Seen::File(stamp(&metadata)), None),
        Ok(metadata) => (Seen::Nothing, Some(kind(&metadata))),
        Err(error) if is_missing(&error) => (Seen::Nothing, is_link.then_some("a dangling symbolic link")),
        Err(error) => (Seen::Unreadable(error.to_string()), None),
    };
    Look { seen, is_link, other }
}

/// Whether what was created at a path is a plain file with one name, so that
/// its creator is probably still writing to it. A link is complete at once.
pub(super) fn is_being_made(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
}

/// What reading a manifest gave.
#[derive(Debug)]
pub(super) enum Text {
    Whole(Vec<u8>, Stamp),
    /// More than [`MAX_MANIFEST`] bytes.
    TooLarge(Stamp),
    /// It was written to meanwhile.
    Torn(Stamp),
    Vanished,
    Unreadable(String),
}

/// Reads a regular file and nothing else.
///
/// Opening does not block even if a fifo has taken the file's place, and what
/// was opened is looked at before it is read.
pub(super) fn read(path: &Path) -> Text {
    match try_read(path) {
        Ok(text) => text,
        // What was a regular file a moment ago is a socket or a fifo now, or is gone.
        Err(error)
            if is_missing(&error) || error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) =>
        {
            Text::Vanished
        }
        Err(error) => Text::Unreadable(error.to_string()),
    }
}

fn try_read(path: &Path) -> io::Result<Text> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut file = File::from(rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))?);
    let before = file.metadata()?;
    if !before.is_file() {
        return Ok(Text::Vanished);
    }
    if before.size() > MAX_MANIFEST as u64 {
        return Ok(Text::TooLarge(stamp(&before)));
    }
    let mut text = Vec::with_capacity(usize::try_from(before.size()).unwrap_or_default() + 1);
    file.by_ref().take(MAX_MANIFEST as u64 + 1).read_to_end(&mut text)?;
    let after = file.metadata()?;
    let same = (before.size(), before.mtime(), before.mtime_nsec())
        == (after.size(), after.mtime(), after.mtime_nsec());
    Ok(if !same {
        Text::Torn(stamp(&after))
    } else if text.len() > MAX_MANIFEST {
        Text::TooLarge(stamp(&after))
    } else {
        Text::Whole(text, stamp(&after))
    })
}

/// The names in a directory, but for `.` and `..`: all of them or an error.
pub(super) fn list(directory: &Path) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
}

/// Where a path leads, and on what that depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Each path, itself free of links, at which a change would lead elsewhere:
    /// the links on the way, and the end or the first part that is missing.
    pub(super) hops: Vec<PathBuf>,
    /// The end, free of links.
    pub(super) end: Result<PathBuf, Lost>,
}

/// Why a path leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    Missing,
    Error(String),
}

/// Follows an absolute path part by part, as the kernel does.
pub(super) fn route(path: &Path) -> Route {
    let mut hops = Vec::new();
    let end = follow(path, &mut hops)
        .map_err(|error| if is_missing(&error) { Lost::Missing } else { Lost::Error(error.to_string()) });
    Route { hops, end }
}

fn follow(path: &Path, hops: &mut Vec<PathBuf>) -> io::Result<PathBuf> {
    let mut real = PathBuf::from("/");
    let mut rest = parts(path);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            real.pop();
            continue;
        }
        let next = real.join(part);
        let metadata = fs::symlink_metadata(&next).inspect_err(|error| {
            // What stands in the way of a part is a file where a directory should be.
            hops.push(if error.kind() == ErrorKind::NotADirectory { real.clone() } else { next.clone() });
        })?;
        if metadata.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let target = fs::read_link(&next)?;
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

/// What stands at the source's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) place: Place,
    /// The directory's or file's path without links.
    pub(super) real: Option<PathBuf>,
    /// As of [`Route`].
    pub(super) hops: Vec<PathBuf>,
    /// Why the place is unknown.
    pub(super) trouble: Option<String>,
}

/// Finds out what stands at a path.
pub(super) fn inspect(path: &Path) -> Site {
    let Route { hops, end } = route(path);
    let unknown = |trouble: String| (Place::Unknown, None, Some(trouble));
    let (place, real, trouble) = match end {
        Err(Lost::Missing) => (Place::Missing, None, None),
        Err(Lost::Error(error)) => unknown(error),
        Ok(real) => match fs::symlink_metadata(&real) {
            Ok(metadata) if metadata.is_dir() => (Place::Directory(identity(&metadata)), Some(real), None),
            Ok(metadata) if metadata.is_file() => (Place::File, Some(real), None),
            Ok(metadata) => unknown(format!("{}, neither a directory nor a file", kind(&metadata))),
            Err(error) if is_missing(&error) => (Place::Missing, None, None),
            Err(error) => unknown(error.to_string()),
        },
    };
    Site { place, real, hops, trouble }
}

/// Which directory stands at a path, if one does.
pub(super) fn directory(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path).ok().filter(Metadata::is_dir).as_ref().map(identity)
}

fn identity(metadata: &Metadata) -> Identity {
    Identity { device: metadata.dev(), inode: metadata.ino(), born: metadata.created().ok() }
}

fn stamp(metadata: &Metadata) -> Stamp {
    Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt as _;
    let kind = metadata.file_type();
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a fifo"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
