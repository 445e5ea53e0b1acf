//! Finds the manifests that the arguments of `podmux validate` name.

use std::{
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use super::args::Args;
use crate::{
    cli::manifests::{describe, has_extension, is_stdin},
    source::file::{Contents, contents},
};

/// A manifest that is checked.
pub(super) struct Input {
    pub(super) path: PathBuf,
    /// Whether it is standard input or a pipe, which is read once, to its end.
    pub(super) is_stream: bool,
}

/// What one argument names, or one directory below it.
pub(super) struct Group {
    /// Whether the manifests are those of a directory, whose pods the agent publishes together.
    pub(super) is_directory: bool,
    pub(super) manifests: Vec<Input>,
    /// What is not a manifest, each with the reason.
    pub(super) skipped: Vec<(PathBuf, &'static str)>,
}

/// Lists the manifests of an argument. Nothing is opened.
pub(super) fn find(path: &Path, args: &Args) -> Result<Vec<Group>, String> {
    let one = |is_stream| {
        let manifests = vec![Input { path: path.to_owned(), is_stream }];
        vec![Group { is_directory: false, manifests, skipped: Vec::new() }]
    };
    if is_stdin(path) {
        return Ok(one(true));
    }
    let kind = path.metadata().map_err(|error| describe(&error))?.file_type();
    if kind.is_dir() {
        return if args.recursive { directories(path) } else { Ok(vec![directory(path)?]) };
    }
    // `<(command)` of a shell is a named pipe.
    if kind.is_file() || kind.is_fifo() {
        return Ok(one(kind.is_fifo()));
    }
    Err("neither a file nor a directory; pipe it into podmux validate -".to_owned())
}

/// The manifests of one directory, as the file source finds them.
fn directory(path: &Path) -> Result<Group, String> {
    let Contents { manifests, skipped } = contents(path).map_err(|error| describe(&error))?;
    let manifests = manifests.into_iter().map(|path| Input { path, is_stream: false }).collect();
    Ok(Group { is_directory: true, manifests, skipped })
}

/// The manifests of a directory and of those below it, by their extension.
fn directories(path: &Path) -> Result<Vec<Group>, String> {
    let mut groups = Vec::new();
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let mut group = directory(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let (manifests, others) =
            group.manifests.into_iter().partition(|input: &Input| has_extension(&input.path));
        group.manifests = manifests;
        group.skipped.extend(others.into_iter().map(|other| (other.path, "another extension")));
        // A symbolic link to a directory is not followed: it may lead to a parent.
        let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
        let (below, skipped): (Vec<_>, Vec<_>) = group
            .skipped
            .into_iter()
            .partition(|(path, reason)| *reason == "a directory" && is_directory(path));
        group.skipped = skipped;
        waiting.extend(below.into_iter().rev().map(|(path, _)| path));
        groups.push(group);
    }
    Ok(groups)
}
