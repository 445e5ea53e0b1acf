//! What to do about each file: when it is read, when it is waited for, when it is gone. Pure: time is passed in.
//!
//! An event tells what a writer did, a stat only what is there. So a file that
//! was closed after writing or moved into place is read at once, and one that a
//! scan finds changed is read when two stats a quiet time apart agree. Nothing
//! is gone before its patience has run out.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use tokio::time::Instant;

/// What stat says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Seconds and nanoseconds since 1970, as are those below.
    pub(super) modified: (i64, i64),
    pub(super) changed: (i64, i64),
}

impl Stamp {
    /// Whether both were taken of the same content, as far as a stat can tell.
    fn agrees(&self, other: &Self) -> bool {
        let content = |stamp: &Self| (stamp.device, stamp.inode, stamp.size, stamp.modified);
        content(self) == content(other)
    }

    /// Whether a stat one quiet time ago would have said the same. The inode's
    /// change time tells it, which no tool can set; where the clock and the
    /// file system disagree, a file in the future has not rested.
    fn rested(&self, wall: Timestamp, quiet: Duration) -> bool {
        let changed = i128::from(self.changed.0) * 1_000_000_000 + i128::from(self.changed.1);
        wall.as_nanosecond() - changed > i128::try_from(quiet.as_nanos()).unwrap_or(i128::MAX)
    }
}

/// Which directory it is. The time of birth tells it from a later one that was
/// given the same inode number, on file systems that keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) born: Option<SystemTime>,
}

/// What stands at the source's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It could not be found out: nothing is held to be gone.
    Unknown,
    /// Nothing.
    Missing,
    /// One manifest.
    File,
    /// A directory of manifests.
    Directory(Identity),
}

/// What stands under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing, or nothing that could be a manifest.
    Nothing,
    /// A regular file, perhaps through a symbolic link.
    File(Stamp),
    /// Something that could not be looked at, and why.
    Unreadable(String),
}

/// Why a name is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It was closed after writing, moved here or linked here: it is complete.
    Complete,
    /// It was created, and whoever did it is probably still writing.
    Created,
    /// Its attributes changed, or something on the way to it.
    Touched,
    /// A scan of everything met it.
    Scan,
    /// It was to be looked at again now.
    Due,
}

/// What a look leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    Nothing,
    /// Read it, and say with [`Entries::read`] how that went.
    Read,
    /// Tell that it cannot be read.
    Refuse(String),
    /// Tell that it is gone.
    Remove,
}

/// How reading went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The whole of it, as it was at this stat.
    Whole(Stamp),
    /// It was written to meanwhile.
    Torn(Stamp),
    /// It was not there any more.
    Vanished,
    /// It could not be read.
    Failed,
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Instant,
    pub(super) wall: Timestamp,
}

/// How long is waited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For a file to come back, or to come to rest.
    pub(super) quiet: Duration,
    /// Between two scans of everything.
    pub(super) check: Duration,
    /// For a directory to come back.
    pub(super) grace: Duration,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Restored from an earlier run, and not met yet in this one.
    Restored,
    /// Read. The stat is kept if the file had come to rest by then; without it
    /// a second write in the same tick of the clock could not be told from the first.
    Read(Option<Stamp>),
    /// Could not be read.
    Failed,
    /// Perhaps being written: is looked at again when due.
    Unsettled { stamp: Stamp, due: Instant },
    /// Created and not closed. A scan believes it only if the scan before met it
    /// just the same: its closing may have been missed, or never come.
    Open { met: Option<Stamp> },
    /// Not there since then. What it gave is kept until its patience runs out.
    Gone { since: Instant },
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// The directory in which it was last seen.
    home: Option<Identity>,
}

/// All that is known of the files. The path itself, where it is a file, goes by the empty name.
#[derive(Debug)]
pub(super) struct Entries {
    patience: Patience,
    place: Place,
    /// Whether the directory has anything in it.
    populated: bool,
    /// Whether everything has been scanned once.
    scanned: bool,
    /// Whether a file that was restored has been met: then the directory is the
    /// one that the earlier run knew. One without any may be a bare mount point.
    recognised: bool,
    by_name: BTreeMap<OsString, Entry>,
    /// The names that are unsettled or gone.
    pending: BTreeSet<OsString>,
}

impl Entries {
    pub(super) fn new(patience: Patience) -> Self {
        Self {
            patience,
            place: Place::Unknown,
            populated: false,
            scanned: false,
            recognised: false,
            by_name: BTreeMap::new(),
            pending: BTreeSet::new(),
        }
    }

    /// Says that an earlier run knew a file. It is waited for as for one that was
    /// there just now.
    pub(super) fn restore(&mut self, name: &OsStr) {
        self.set(name, State::Restored);
    }

    /// Says how long it is between two scans from now on.
    pub(super) fn set_check(&mut self, check: Duration) {
        self.patience.check = check;
    }

    /// Says what stands at the path now.
    pub(super) fn set_place(&mut self, place: Place) {
        if self.place == place {
            return;
        }
        if matches!(place, Place::Missing | Place::File) {
            // If a directory comes back, it may have been given the inode of this one.
            self.by_name.values_mut().for_each(|entry| entry.home = None);
        }
        self.populated = false;
        self.place = place;
    }

    /// Whether everything has been scanned once.
    pub(super) fn is_scanned(&self) -> bool {
        self.scanned
    }

    /// How many files there are.
    pub(super) fn len(&self) -> usize {
        self.by_name.len() - self.pending.iter().filter(|name| self.is_gone(name)).count()
    }

    /// How many names are waited for: perhaps being written, or perhaps coming back.
    pub(super) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Whether a file is not there now, though what it gave may be kept for a while.
    pub(super) fn is_gone(&self, name: &OsStr) -> bool {
        matches!(self.by_name.get(name), Some(Entry { state: State::Gone { .. }, .. }))
    }

    /// Whether some file is still waited for to come to rest.
    pub(super) fn is_unsettled(&self) -> bool {
        let unsettled =
            |name| matches!(self.by_name.get(name), Some(Entry { state: State::Unsettled { .. }, .. }));
        self.pending.iter().any(unsettled)
    }

    /// Judges a look at one name.
    pub(super) fn look(&mut self, name: &OsStr, seen: Seen, why: Why, moment: Moment) -> Todo {
        match seen {
            Seen::Nothing => self.miss(name, moment.now),
            Seen::Unreadable(error) => {
                self.settle_in(name, State::Failed);
                Todo::Refuse(error)
            }
            Seen::File(stamp) => {
                let before = self.by_name.get(name).map(|entry| entry.state);
                match self.judge(before, stamp, why, moment) {
                    Judgement::Read => {
                        // Until it has been read it is as before, or else it is not known yet.
                        self.settle_in(name, before.unwrap_or(State::Read(None)));
                        Todo::Read
                    }
                    Judgement::Is(state) => {
                        self.settle_in(name, state);
                        Todo::Nothing
                    }
                }
            }
        }
    }

    fn judge(&self, before: Option<State>, stamp: Stamp, why: Why, moment: Moment) -> Judgement {
        use Judgement::{Is, Read};
        let unsettled = State::Unsettled { stamp, due: moment.now + self.patience.quiet };
        match (why, before) {
            (Why::Complete, _) | (Why::Scan | Why::Touched, Some(State::Failed)) => Read,
            (Why::Created, _) => Is(State::Open { met: None }),
            (Why::Scan, None | Some(State::Restored))
                if !self.scanned && stamp.rested(moment.wall, self.patience.quiet) =>
            {
                Read
            }
            (_, Some(same @ State::Read(Some(known)))) if known == stamp => Is(same),
            (Why::Touched, Some(State::Read(Some(known)))) if known.agrees(&stamp) => {
                Is(State::Read(Some(stamp)))
            }
            (Why::Touched, Some(open @ State::Open { .. })) => Is(open),
            (Why::Scan, Some(State::Open { met: Some(met) })) if met.agrees(&stamp) => Read,
            (Why::Scan, Some(State::Open { .. })) => Is(State::Open { met: Some(stamp) }),
            (Why::Scan | Why::Touched, Some(waiting @ State::Unsettled { .. })) => Is(waiting),
            (Why::Due, Some(State::Unsettled { stamp: then, .. })) if then.agrees(&stamp) => Read,
            _ => Is(unsettled),
        }
    }

    /// Says how reading went.
    pub(super) fn read(&mut self, name: &OsStr, reading: Reading, moment: Moment) {
        let waited_for = match self.by_name.get(name) {
            Some(Entry { state: State::Unsettled { stamp, due }, .. }) if *due <= moment.now => Some(*stamp),
            _ => None,
        };
        match reading {
            Reading::Whole(stamp) => {
                let rested = stamp.rested(moment.wall, self.patience.quiet)
                    || waited_for.is_some_and(|then| then.agrees(&stamp));
                self.set(name, State::Read(rested.then_some(stamp)));
            }
            Reading::Torn(stamp) => {
                self.set(name, State::Unsettled { stamp, due: moment.now + self.patience.quiet });
            }
            // It is told as gone by the look that finds its patience at an end.
            Reading::Vanished => self.set(name, State::Gone { since: moment.now }),
            Reading::Failed => self.set(name, State::Failed),
        }
    }

    /// Says that events may have been lost: whoever was writing may be done.
    pub(super) fn doubt(&mut self) {
        for entry in self.by_name.values_mut() {
            if matches!(entry.state, State::Open { .. }) {
                entry.state = State::Read(None);
            }
        }
    }

    /// Ends a scan of everything: whatever it did not meet is not there.
    pub(super) fn scanned(&mut self, met: &BTreeSet<OsString>, now: Instant) {
        if let (false, true, Place::Directory(here)) = (self.scanned, self.recognised, self.place) {
            for entry in self.by_name.values_mut() {
                entry.home.get_or_insert(here);
            }
        }
        self.scanned = true;
        let missed: Vec<OsString> =
            self.by_name.keys().filter(|name| !met.contains(*name)).cloned().collect();
        for name in missed {
            if !self.is_gone(&name) {
                self.set(&name, State::Gone { since: now });
            }
        }
    }

    /// The names to look at again by now.
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
            State::Unsettled { due, .. } => Some(due),
            State::Gone { since } => Some(since + self.patience_with(name, entry)?),
            State::Restored | State::Read(_) | State::Failed | State::Open { .. } => None,
        }
    }

    /// How long a name may be missing. `None`: for as long as the path cannot be looked at.
    ///
    /// A directory that vanished may be a mount on its way back, and an empty one
    /// in its place the bare mount point. Another one that has files is taken at
    /// its word by the time at which a scan would have found it in any case: it
    /// may still be being filled.
    fn patience_with(&self, name: &OsStr, entry: &Entry) -> Option<Duration> {
        let Patience { quiet, check, grace } = self.patience;
        match self.place {
            Place::Unknown => None,
            _ if name.is_empty() => Some(quiet),
            Place::Directory(here) if entry.home == Some(here) => Some(quiet),
            Place::Directory(_) if self.populated => Some(check.min(grace)),
            Place::Directory(_) | Place::Missing | Place::File => Some(grace),
        }
    }

    fn miss(&mut self, name: &OsStr, now: Instant) -> Todo {
        let Some(entry) = self.by_name.get(name) else { return Todo::Nothing };
        if !matches!(entry.state, State::Gone { .. }) {
            self.set(name, State::Gone { since: now });
        }
        if self.due_at(name).is_some_and(|due| due <= now) {
            self.by_name.remove(name);
            self.pending.remove(name);
            return Todo::Remove;
        }
        Todo::Nothing
    }

    /// Sets the state of a file that is there.
    fn settle_in(&mut self, name: &OsStr, state: State) {
        self.recognised |= matches!(self.by_name.get(name), Some(Entry { state: State::Restored, .. }));
        self.set(name, state);
        if let (Place::Directory(here), Some(entry)) = (self.place, self.by_name.get_mut(name)) {
            entry.home = Some(here);
            self.populated = true;
        }
    }

    fn set(&mut self, name: &OsStr, state: State) {
        if matches!(state, State::Unsettled { .. } | State::Gone { .. }) {
            self.pending.insert(name.to_owned());
        } else {
            self.pending.remove(name);
        }
        match self.by_name.get_mut(name) {
            Some(entry) => entry.state = state,
            None => drop(self.by_name.insert(name.to_owned(), Entry { state, home: None })),
        }
    }
}

enum Judgement {
    Read,
    Is(State),
}
