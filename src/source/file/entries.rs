//! The state of each manifest file: when it is read, when its pods are removed. Pure: time is passed in.
//!
//! An event says what a writer did, a stat only what is there now. So a file that was closed
//! after writing or moved into place is read at once. A file that a scan finds changed is
//! read when two stats, a quiet time apart, agree. The pods of a missing file are removed
//! when its grace time has passed.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use tokio::time::Instant;

use super::config::Timings;
use crate::host::Stamp;

/// Whether two stamps are of the same content. Attributes may have changed in between.
fn same_content(a: &Stamp, b: &Stamp) -> bool {
    let content = |stamp: &Stamp| (stamp.identity, stamp.size, stamp.modified);
    content(a) == content(b)
}

/// Whether a stat one quiet time ago would have been the same. The inode's change time
/// shows this, which no tool can set. A change time in the future is not stable: the clock
/// and the file system disagree.
fn is_stable(stamp: &Stamp, wall: Timestamp, quiet: Duration) -> bool {
    let changed = i128::from(stamp.changed.0) * 1_000_000_000 + i128::from(stamp.changed.1);
    wall.as_nanosecond() - changed > i128::try_from(quiet.as_nanos()).unwrap_or(i128::MAX)
}

/// Identifies a directory. The time of birth distinguishes it from a later one with the
/// same inode number, on file systems that record it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The device and the inode.
    pub(super) inode: (u64, u64),
    pub(super) born: Option<SystemTime>,
}

impl Identity {
    /// The directory as a later run of the agent recognises it. The number of its device may be another one then. None if
    /// another file system may have a directory with this inode and time of birth: it has no such time, or none but whole
    /// seconds, as in a root that `mkfs` made.
    pub(super) fn lasting(&self) -> Option<String> {
        let born = self.born?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        (born.subsec_nanos() > 0).then(|| format!("{}-{}", self.inode.1, born.as_nanos()))
    }
}

/// What is at the source's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Target {
    /// It cannot be looked at: no file counts as removed.
    #[default]
    Unknown,
    Missing,
    /// One manifest.
    File,
    /// A directory of manifests.
    Directory(Identity),
}

/// What is under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, or nothing that can be a manifest.
    Nothing,
    /// A regular file, perhaps through a symbolic link.
    File(Stamp),
    /// It cannot be looked at: the error.
    Unreadable(String),
}

/// Why a name is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It was closed after writing, or moved or linked into place: it is complete.
    Complete,
    /// It was created. Its creator is probably still writing to it.
    Created,
    /// Its attributes changed, or something on the way to it.
    Touched,
    /// A scan met it.
    Scan,
    /// Its delay has passed.
    Due,
}

/// What to do after a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Read the file and report the result with [`Entries::read`].
    Read,
    /// Reject the file as unreadable.
    Reject(String),
    /// Remove the pods of the file. Whether they were kept for longer than the quiet time.
    Remove {
        kept: bool,
    },
}

/// How reading a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// It was read as it was at this stat.
    Complete(Stamp),
    /// It was written to meanwhile.
    Torn(Stamp),
    Vanished,
    Failed,
}

/// The time on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) now: Instant,
    pub(super) wall: Timestamp,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Restored from an earlier run and not found yet in this one.
    Restored,
    /// Read. The stamp is kept if the file was stable by then. Without it, a second write
    /// in the same tick of the file system's clock would go unnoticed.
    Read(Option<Stamp>),
    /// It could not be read.
    Failed,
    /// It may be being written: it is checked again when due.
    Unstable { stamp: Stamp, due: Instant },
    /// Created and not closed. A scan reads it only if the scan before met the same
    /// content: the event of its closing may be lost or never come.
    Open { met: Option<Stamp> },
    /// Missing since then. Its pods are kept until its grace time has passed.
    Missing { since: Instant },
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// The directory in which it was last found.
    directory: Option<Identity>,
}

/// All known files, by name. If the source's path is a file, its name is empty.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) timings: Timings,
    /// The time between two scans.
    pub(super) check: Duration,
    pub(super) target: Target,
    /// When the newest manifest of the directory appeared in it, if it contains any.
    populated_at: Option<Instant>,
    /// Whether a scan has completed.
    pub(super) is_scanned: bool,
    /// The directory of the earlier run, as it was saved.
    pub(super) earlier: Option<String>,
    /// Whether it is there, or a restored file has been found: then the directory is the one of the earlier
    /// run. Another one without any may be a bare mount point.
    recognised: bool,
    by_name: BTreeMap<OsString, Entry>,
    /// The names that are unstable or missing.
    pending: BTreeSet<OsString>,
}

impl Entries {
    pub(super) fn new(timings: Timings, check: Duration) -> Self {
        Self { timings, check, ..Self::default() }
    }

    /// Adds a file of an earlier run. It has the same grace time as one that was there just now.
    pub(super) fn restore(&mut self, name: &OsStr) {
        self.set(name, State::Restored);
    }

    /// Sets what is at the source's path.
    pub(super) fn set_target(&mut self, target: Target) {
        if self.target == target {
            return;
        }
        if matches!(target, Target::Missing | Target::File) {
            // A directory that returns may have the inode of this one.
            self.by_name.values_mut().for_each(|entry| entry.directory = None);
        }
        self.populated_at = None;
        self.target = target;
        let found = self.lasting_directory();
        self.recognised |= found.is_some() && found == self.earlier;
    }

    /// The directory, as a later run recognises it.
    fn lasting_directory(&self) -> Option<String> {
        if let Target::Directory(here) = self.target { here.lasting() } else { None }
    }

    /// The directory to be saved, if it is another one than before. An empty one may be a bare mount point.
    pub(super) fn new_directory(&mut self) -> Option<String> {
        let found = self.lasting_directory().filter(|_| self.is_scanned && !self.is_emptied());
        let new = found.filter(|found| self.earlier.as_ref() != Some(found))?;
        self.earlier = Some(new.clone());
        Some(new)
    }

    /// The number of files.
    pub(super) fn len(&self) -> usize {
        self.by_name.len() - self.missing().count()
    }

    /// The number of files that are unstable or missing.
    pub(super) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Whether a file is missing, though its pods may be kept for a while.
    fn is_missing(&self, name: &OsStr) -> bool {
        matches!(self.by_name.get(name), Some(Entry { state: State::Missing { .. }, .. }))
    }

    /// The names of missing files.
    pub(super) fn missing(&self) -> impl Iterator<Item = &OsString> {
        self.pending.iter().filter(|name| self.is_missing(name))
    }

    /// Whether the directory contains no manifest.
    pub(super) fn is_emptied(&self) -> bool {
        self.populated_at.is_none()
    }

    /// Notes that the directory contains no manifest any more.
    pub(super) fn note_emptied(&mut self) {
        let is_here = |entry: &Entry| {
            matches!(self.target, Target::Directory(here) if entry.directory == Some(here))
                && !matches!(entry.state, State::Missing { .. })
        };
        if self.populated_at.is_some() && !self.by_name.values().any(is_here) {
            self.populated_at = None;
        }
    }

    /// The names of all files, also of missing ones.
    pub(super) fn names(&self) -> impl Iterator<Item = &OsString> {
        self.by_name.keys()
    }

    /// Whether a file is unstable, or missing for less than the quiet time.
    pub(super) fn is_unstable(&self) -> bool {
        self.pending.iter().any(|name| !self.is_kept(name))
    }

    /// Decides what to do about a name.
    pub(super) fn check(&mut self, name: &OsStr, found: Found, cause: Cause, time: Time) -> Action {
        match found {
            Found::Nothing => self.miss(name, time.now),
            Found::Unreadable(error) => {
                self.set_present(name, State::Failed, time.now);
                Action::Reject(error)
            }
            Found::File(stamp) => {
                let before = self.by_name.get(name).map(|entry| entry.state);
                let decided = self.decide(before, stamp, cause, time);
                // Until it has been read it keeps its state; a new file is not known yet.
                self.set_present(name, decided.or(before).unwrap_or(State::Read(None)), time.now);
                if decided.is_some() { Action::Nothing } else { Action::Read }
            }
        }
    }

    /// The new state of a file, or `None` if it must be read.
    fn decide(&self, before: Option<State>, stamp: Stamp, cause: Cause, time: Time) -> Option<State> {
        let unstable = State::Unstable { stamp, due: time.now + self.timings.quiet };
        match (cause, before) {
            (Cause::Complete, _) | (Cause::Scan | Cause::Touched, Some(State::Failed)) => None,
            (Cause::Created, _) => Some(State::Open { met: None }),
            (Cause::Scan, None | Some(State::Restored))
                if !self.is_scanned && is_stable(&stamp, time.wall, self.timings.quiet) =>
            {
                None
            }
            (_, Some(same @ State::Read(Some(known)))) if known == stamp => Some(same),
            (Cause::Touched, Some(open @ State::Open { .. })) => Some(open),
            (Cause::Scan, Some(State::Open { met: Some(met) })) if same_content(&met, &stamp) => None,
            (Cause::Scan, Some(State::Open { .. })) => Some(State::Open { met: Some(stamp) }),
            (Cause::Scan | Cause::Touched, Some(waiting @ State::Unstable { .. })) => Some(waiting),
            (Cause::Due, Some(State::Unstable { stamp: then, .. })) if same_content(&then, &stamp) => None,
            _ => Some(unstable),
        }
    }

    /// Notes how reading a file ended.
    pub(super) fn read(&mut self, name: &OsStr, reading: Reading, time: Time) {
        let waited_for = match self.by_name.get(name) {
            Some(Entry { state: State::Unstable { stamp, due }, .. }) if *due <= time.now => Some(*stamp),
            _ => None,
        };
        match reading {
            Reading::Complete(stamp) => {
                let stable = is_stable(&stamp, time.wall, self.timings.quiet)
                    || waited_for.is_some_and(|then| same_content(&then, &stamp));
                self.set(name, State::Read(stable.then_some(stamp)));
            }
            Reading::Torn(stamp) => {
                self.set(name, State::Unstable { stamp, due: time.now + self.timings.quiet });
            }
            // The check after its grace time removes it.
            Reading::Vanished => self.set(name, State::Missing { since: time.now }),
            Reading::Failed => self.set(name, State::Failed),
        }
    }

    /// Notes that events may be lost, among them that an open file was closed.
    pub(super) fn events_lost(&mut self) {
        self.forget(|state| matches!(state, State::Open { .. }));
    }

    /// Has the next scan read every file again.
    pub(super) fn forget_content(&mut self) {
        self.forget(|state| matches!(state, State::Read(_)));
    }

    fn forget(&mut self, is_concerned: fn(&State) -> bool) {
        for entry in self.by_name.values_mut().filter(|entry| is_concerned(&entry.state)) {
            entry.state = State::Read(None);
        }
    }

    /// Ends a scan: the files that it did not meet are missing. The files that it found changed or missing are due
    /// together, however long it took: those of a volume change in one step.
    pub(super) fn scanned(&mut self, met: &BTreeSet<OsString>, began: Instant, now: Instant) {
        if let (false, true, Target::Directory(here)) = (self.is_scanned, self.recognised, self.target) {
            for entry in self.by_name.values_mut() {
                entry.directory.get_or_insert(here);
            }
        }
        let quiet = self.timings.quiet;
        // The first listing waits for unstable files, but not for long.
        for entry in self.by_name.values_mut().filter(|_| self.is_scanned) {
            match &mut entry.state {
                // One that waited before keeps its time, or scans would postpone it again and again.
                State::Unstable { due, .. } if *due >= began + quiet => *due = now + quiet,
                State::Missing { since } if *since >= began => *since = now,
                _ => {}
            }
        }
        self.is_scanned = true;
        let missed: Vec<OsString> =
            self.by_name.keys().filter(|name| !met.contains(*name)).cloned().collect();
        for name in missed {
            if !self.is_missing(&name) {
                self.set(&name, State::Missing { since: now });
            }
        }
    }

    /// The names of missing files that are kept for longer than the quiet time, with the end of their grace.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&OsStr, Option<Instant>)> {
        let kept = self.pending.iter().filter(|name| self.is_kept(name));
        kept.map(|name| (name.as_os_str(), self.due_at(name)))
    }

    /// Whether a file is missing, and kept for longer than the quiet time.
    pub(super) fn is_kept(&self, name: &OsStr) -> bool {
        let Some(Entry { state: State::Missing { since }, .. }) = self.by_name.get(name) else {
            return false;
        };
        self.due_at(name).is_none_or(|end| end > *since + self.timings.quiet)
    }

    /// The names that are due.
    pub(super) fn due(&self, now: Instant) -> Vec<OsString> {
        let due = |name: &&OsString| self.due_at(name).is_some_and(|due| due <= now);
        self.pending.iter().filter(due).cloned().collect()
    }

    /// When the next name is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pending.iter().filter_map(|name| self.due_at(name)).min()
    }

    fn due_at(&self, name: &OsStr) -> Option<Instant> {
        let entry = self.by_name.get(name)?;
        match entry.state {
            State::Unstable { due, .. } => Some(due),
            State::Missing { since } => self.end_of_grace(name, entry, since),
            State::Restored | State::Read(_) | State::Failed | State::Open { .. } => None,
        }
    }

    /// Until when a file may be missing. `None`: until the path can be looked at again.
    ///
    /// A vanished directory may be a mount that returns, and an empty one in its place the
    /// bare mount point. Another directory that contains manifests replaces the old one when no
    /// manifest has been added to it for the time between two scans: until then it may still be being filled.
    fn end_of_grace(&self, name: &OsStr, entry: &Entry, since: Instant) -> Option<Instant> {
        let Timings { quiet, missing_grace: grace } = self.timings;
        let end = since + grace;
        match self.target {
            Target::Unknown => None,
            _ if name.is_empty() => Some(since + quiet),
            Target::Directory(here) if entry.directory == Some(here) => Some(since + quiet),
            Target::Directory(_) => {
                Some(self.populated_at.map_or(end, |at| end.min(at.max(since) + self.check)))
            }
            Target::Missing | Target::File => Some(end),
        }
    }

    fn miss(&mut self, name: &OsStr, now: Instant) -> Action {
        let Some(entry) = self.by_name.get(name) else { return Action::Nothing };
        if !matches!(entry.state, State::Missing { .. }) {
            self.set(name, State::Missing { since: now });
        }
        if self.due_at(name).is_some_and(|due| due <= now) {
            let kept = self.is_kept(name);
            self.by_name.remove(name);
            self.pending.remove(name);
            return Action::Remove { kept };
        }
        Action::Nothing
    }

    /// Sets the state of a file that exists.
    fn set_present(&mut self, name: &OsStr, state: State, now: Instant) {
        self.recognised |= matches!(self.by_name.get(name), Some(Entry { state: State::Restored, .. }));
        self.set(name, state);
        if let (Target::Directory(here), Some(entry)) = (self.target, self.by_name.get_mut(name))
            && (entry.directory.replace(here) != Some(here) || self.populated_at.is_none())
        {
            self.populated_at = Some(now);
        }
    }

    fn set(&mut self, name: &OsStr, state: State) {
        if matches!(state, State::Unstable { .. } | State::Missing { .. }) {
            self.pending.insert(name.to_owned());
        } else {
            self.pending.remove(name);
        }
        match self.by_name.get_mut(name) {
            Some(entry) => entry.state = state,
            None => drop(self.by_name.insert(name.to_owned(), Entry { state, directory: None })),
        }
    }
}
