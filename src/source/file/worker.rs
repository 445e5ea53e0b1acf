//! One step of the file source at a time, on a thread that may block: looks, reads, and edits the listing.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::{OsStr, OsString},
    io, mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    config::{Config, OnInvalid, Timings},
    disk::{self, NameKind, Site},
    entries::{Entries, Moment, Patience, Place, Todo, Why},
    links::Links,
    load::{Loaded, load, load_all},
    watch::{Inbox, Interest, News, Watch, What},
};
use crate::{
    manifest::{MAX_MANIFEST, Manifest, Preparation},
    pod::{
        Listing, ListingBuilder, Origin, Pod, PodKey, Prepared, Problem, Refusal, RejectionReason, Severity,
        SourceName, Stage,
    },
};

/// How often arming is tried again because the path changed meanwhile; the next scan does the rest.
const MAX_ARMINGS: usize = 8;
/// How many manifests are held at once between being read and being taken.
const READ_AT_ONCE: usize = 512;
/// How many names it is remembered of that they were noted as skipped.
const MAX_NOTED: usize = 1_000;
/// For how many quiet times the first listing waits for files that are being written.
const FIRST_WAITS: u32 = 10;

/// How many directories with links' targets are watched. The targets in others are left to the scan.
const MAX_TARGETS: usize = 256;

/// What a step led to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The listing, if it is to be pushed.
    pub(super) listing: Option<Listing>,
    /// Whose pods are others now, for the last good: by absolute path.
    pub(super) good: Vec<(Origin, Vec<Arc<Pod>>)>,
    /// When some file is to be looked at again.
    pub(super) next_due: Option<Instant>,
    /// Whether something calls for a scan of everything.
    pub(super) wants_scan: bool,
    /// Whether every file had come to rest.
    pub(super) settled: bool,
    /// When everything was scanned, if it was.
    pub(super) scanned: Option<Timestamp>,
    /// Why there is no watch, if there is none.
    pub(super) polling: Option<Arc<str>>,
    /// What is wrong with the path, if something is.
    pub(super) trouble: Option<Arc<str>>,
    /// How many files there are.
    pub(super) files: usize,
    /// How many files are waited for.
    pub(super) waiting: usize,
    /// How many files or pods were not taken.
    pub(super) rejected: usize,
}

/// Everything that the source knows.
#[derive(Debug)]
pub(super) struct Worker {
    config: Config,
    timings: Timings,
    preparation: Preparation,
    /// The path of the settings, absolute.
    path: PathBuf,
    builder: ListingBuilder,
    entries: Entries,
    links: Links,
    watch: Watch,
    site: Option<Site>,
    polling: Option<Arc<str>>,
    watch_again_at: Option<Instant>,
    wants_scan: bool,
    scanned: Option<Timestamp>,
    trouble: Option<Arc<str>>,
    changed: bool,
    good: Vec<(Origin, Vec<Arc<Pod>>)>,
    began: Option<Instant>,
    handed_out: bool,
    rejected: usize,
    noted: HashSet<OsString>,
    duplicates: BTreeMap<(Origin, Option<PodKey>), RejectionReason>,
}

impl Worker {
    pub(super) fn new(config: Config, preparation: Preparation, path: PathBuf, inbox: Arc<Inbox>) -> Self {
        let timings = Timings::default();
        Self {
            path,
            builder: ListingBuilder::new(SourceName::File),
            entries: Entries::new(patience(&config, timings)),
            links: Links::default(),
            watch: Watch::new(inbox),
            site: None,
            polling: None,
            watch_again_at: None,
            wants_scan: false,
            scanned: None,
            trouble: None,
            changed: false,
            good: Vec::new(),
            began: None,
            handed_out: false,
            rejected: 0,
            noted: HashSet::new(),
            duplicates: BTreeMap::new(),
            config,
            timings,
            preparation,
        }
    }

    /// Sets the delays. Only before anything was restored or read.
    pub(super) fn set_timings(&mut self, timings: Timings) {
        self.timings = timings;
        self.entries = Entries::new(patience(&self.config, timings));
    }

    /// Takes what was good in an earlier run for what is there, until it has been
    /// looked at. Gives the listing of it, if there is any, and the origins
    /// that are none of this path's.
    pub(super) fn restore(
        &mut self,
        good: impl Iterator<Item = (Origin, Vec<Prepared>)>,
    ) -> (Option<Listing>, Vec<Origin>) {
        let (now, mut others) = (crate::clock::now(), Vec::new());
        for (path, pods) in good {
            match self.name_of(Path::new(path.as_str())) {
                Some(name) => {
                    self.entries.restore(&name);
                    self.builder.put(&self.origin(&name), pods, now);
                }
                None => others.push(path),
            }
        }
        let listing = self.builder.restored_listing();
        ((!listing.is_empty()).then_some(listing), others)
    }

    /// Takes over what may change while the source runs. Manifests that are
    /// invalid already are treated by the new rule at once.
    pub(super) fn retune(&mut self, check_frequency: Duration, on_invalid: OnInvalid) {
        let before = mem::replace(&mut self.config.on_invalid, on_invalid);
        self.config.check_frequency = check_frequency;
        self.entries.set_check(check_frequency);
        if before == on_invalid || on_invalid == OnInvalid::Keep {
            return;
        }
        let origins: Vec<Origin> = self.builder.origins().cloned().collect();
        for origin in origins {
            let Some(refusal) = self.builder.refusal(&origin) else { continue };
            let reason = refusal.reason.clone();
            if matches!(reason, RejectionReason::Refused(_)) {
                self.builder.remove(&origin);
                self.note_good(self.name_at(&origin).to_owned().as_os_str());
                self.builder.refuse(&origin, reason);
                self.changed = true;
            }
        }
    }

    /// Takes news in, scans everything if asked to or if the path leads
    /// elsewhere than before, and looks again at what is due. Ends early when stopped.
    pub(super) fn step(&mut self, news: News, scan: bool, stop: &CancellationToken) -> Outcome {
        self.began.get_or_insert_with(Instant::now);
        self.wants_scan = news.lost;
        let site = disk::inspect(&self.path);
        // Whether the event that says that a file is complete may be among the lost ones.
        let lossy = news.lost || self.is_replaced(&news);
        let moved = self.site.as_ref() != Some(&site) || self.is_replaced(&news);
        if moved || lossy {
            self.entries.doubt();
        }
        for (path, what) in &news.paths {
            if *what != What::Touched {
                self.watch.forget(path);
            } else if site.real.as_ref() == Some(path) {
                // It may have become readable.
                self.wants_scan |= matches!(site.place, Place::Directory(_));
            }
        }
        if scan || moved {
            self.scan(site, stop);
        }
        let mut paths: Vec<(PathBuf, What)> = news.paths.into_iter().collect();
        paths.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (path, what) in paths {
            if stop.is_cancelled() {
                break;
            }
            self.heed(&path, if lossy && what == What::Created { What::Touched } else { what });
        }
        let kept = self.entries.waiting();
        for name in self.entries.due(Instant::now()) {
            if stop.is_cancelled() {
                break;
            }
            self.look(&name, Why::Due);
        }
        self.tell_removal(kept);
        self.outcome()
    }

    fn outcome(&mut self) -> Outcome {
        Outcome {
            listing: self.listing(),
            good: mem::take(&mut self.good),
            next_due: self.entries.next_due(),
            wants_scan: self.wants_scan,
            scanned: self.scanned.take(),
            settled: !self.entries.is_unsettled(),
            polling: self.polling.clone(),
            trouble: self.trouble.clone(),
            files: self.entries.len(),
            waiting: self.entries.waiting(),
            rejected: self.rejected,
        }
    }

    /// The listing, if it changed. The first one waits a little for files that are just being written.
    fn listing(&mut self) -> Option<Listing> {
        if !self.entries.is_scanned() {
            return None;
        }
        if !self.handed_out {
            let until = self.began? + self.timings.quiet * FIRST_WAITS;
            if self.entries.is_unsettled() && Instant::now() < until {
                return None;
            }
        } else if !self.changed {
            return None;
        }
        self.handed_out = true;
        self.changed = false;
        let listing = self.builder.listing();
        self.rejected = listing.rejections().count();
        self.tell_duplicates(&listing);
        Some(listing)
    }

    /// Whether the directory may be another one now, even if it looks the same.
    fn is_replaced(&self, news: &News) -> bool {
        let directory = self.site.as_ref().and_then(|site| site.real.as_ref());
        let what = directory.and_then(|directory| news.paths.get(directory));
        let is_directory = matches!(self.site, Some(Site { place: Place::Directory(_), .. }));
        is_directory && what.is_some_and(|what| *what != What::Touched)
    }

    /// Looks at everything.
    fn scan(&mut self, site: Site, stop: &CancellationToken) {
        let was_missing = matches!(self.site, Some(Site { place: Place::Missing, .. }));
        let site = self.arm(site);
        self.wants_scan = false;
        self.scanned = Some(crate::clock::now());
        self.site = Some(site.clone());
        self.entries.set_place(site.place);
        let names = match (site.place, &site.real) {
            (Place::File, _) => BTreeSet::from([OsString::new()]),
            (Place::Directory(_), Some(directory)) => match disk::list(directory) {
                Ok(names) => self.manifests(names),
                // Gone since it was looked at just now: the next step sees that.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.wants_scan = true;
                    return;
                }
                Err(error) => {
                    self.entries.set_place(Place::Unknown);
                    return self.tell_trouble(Some(error.to_string()));
                }
            },
            (Place::Unknown, _) => return self.tell_trouble(site.trouble),
            _ => BTreeSet::new(),
        };
        if site.place != Place::Missing {
            self.tell_trouble(None);
        } else if !was_missing {
            self.tell_trouble(Some(self.missing()));
        }
        self.links.keep(&names);
        if self.look_at_all(&names, stop) {
            self.entries.scanned(&names, Instant::now());
        }
    }

    fn missing(&self) -> String {
        if self.builder.origins().next().is_none() {
            return "does not exist; it is taken up when it appears".to_owned();
        }
        format!("has vanished; what it gave is kept for {:?}", self.timings.missing_grace)
    }

    fn manifests(&mut self, mut names: BTreeSet<OsString>) -> BTreeSet<OsString> {
        names.retain(|name| match NameKind::of(name) {
            NameKind::Manifest => true,
            NameKind::Hidden => false,
            NameKind::Leftover => {
                self.note(name, "what an editor or a backup left behind");
                false
            }
        });
        names
    }

    /// Watches what the path depends on. What is found between two looks that
    /// agree, with the watch in between, is not missed later.
    fn arm(&mut self, mut site: Site) -> Site {
        let now = Instant::now();
        if self.watch_again_at.is_some_and(|at| now < at) {
            return site;
        }
        for _ in 0..MAX_ARMINGS {
            let mut wanted: BTreeSet<PathBuf> = self.links.directories().take(MAX_TARGETS).collect();
            wanted.extend(site.hops.iter().filter_map(|hop| hop.parent()).map(Path::to_owned));
            let directory = site.real.clone().filter(|_| matches!(site.place, Place::Directory(_)));
            wanted.extend(directory.clone());
            // What is watched matters itself too: it may be moved or removed.
            let paths =
                self.links.paths().chain(&site.hops).chain(&site.real).chain(&wanted).cloned().collect();
            self.watch.mind(Interest { directory, paths });
            if let Err(error) = self.watch.arm(&wanted) {
                self.watch_again_at = Some(now + self.config.check_frequency);
                self.entries.doubt();
                self.tell_polling(Some(error));
                return site;
            }
            let after = disk::inspect(&self.path);
            if after == site {
                break;
            }
            site = after;
        }
        self.watch_again_at = None;
        self.tell_polling(None);
        site
    }

    /// Looks at what one event speaks of.
    fn heed(&mut self, path: &Path, what: What) {
        let Some(site) = &self.site else { return };
        let mut names = self.links.through(path);
        match (site.place, &site.real) {
            (Place::File, Some(file)) if file == path => names.push(OsString::new()),
            (Place::Directory(_), Some(directory)) if path.parent() == Some(directory) => {
                let manifest = |name: &&OsStr| NameKind::of(name) == NameKind::Manifest;
                names.extend(path.file_name().filter(manifest).map(OsStr::to_owned));
            }
            _ => {}
        }
        let why = match what {
            What::Created if disk::is_being_made(path) => Why::Created,
            What::Created | What::Complete => Why::Complete,
            What::Touched | What::Gone => Why::Touched,
        };
        for name in names {
            self.look(&name, why);
        }
    }

    /// Looks at every name, and reads on all cores what is to be read. Returns
    /// false if it was stopped before the end.
    fn look_at_all(&mut self, names: &BTreeSet<OsString>, stop: &CancellationToken) -> bool {
        let mut names = names.iter().peekable();
        while names.peek().is_some() {
            let (mut to_read, mut paths) = (Vec::new(), Vec::new());
            for name in names.by_ref().take(READ_AT_ONCE) {
                if stop.is_cancelled() {
                    return false;
                }
                if let Some(path) = self.judge(name, Why::Scan) {
                    to_read.push(name);
                    paths.push(path);
                }
            }
            for (name, loaded) in to_read.into_iter().zip(load_all(&paths, &self.preparation)) {
                self.take(name, loaded);
            }
        }
        true
    }

    /// Looks at one name and does what follows.
    fn look(&mut self, name: &OsStr, why: Why) {
        if let Some(path) = self.judge(name, why) {
            let loaded = load(&path, &self.preparation);
            self.take(name, loaded);
        }
    }

    /// Looks at one name and does what follows but for reading, to which it
    /// gives the path: the one way in which files are found, whatever gave the occasion.
    fn judge(&mut self, name: &OsStr, why: Why) -> Option<PathBuf> {
        let path = self.path_of(name);
        let mut look = disk::look(&path);
        if !look.is_link {
            self.links.forget(name);
        } else if !name.is_empty() && self.follow(name, &path) {
            // Its target may have changed before it was watched.
            look = disk::look(&path);
        }
        if let Some(other) = look.other {
            self.note(name, other);
        }
        match self.entries.look(name, look.seen, why, moment()) {
            Todo::Nothing => {}
            Todo::Read => return Some(path),
            Todo::Refuse(error) => self.refuse(name, RejectionReason::Unreadable(error.into())),
            Todo::Remove => self.remove(name),
        }
        None
    }

    /// Finds out where a link leads and watches that, as far as it is in the
    /// tree. Returns whether anything was not watched before.
    fn follow(&mut self, name: &OsStr, path: &Path) -> bool {
        let Some(root) = path.parent() else { return false };
        let in_tree = |part: &&Path| part.starts_with(root) && *part != root && *part != path;
        let hops: BTreeSet<PathBuf> = disk::route(path)
            .hops
            .iter()
            .flat_map(|hop| {
                hop.ancestors().take_while(|part| *part != root).filter(in_tree).map(Path::to_owned)
            })
            .collect();
        let unwatched = self.watch.len() < MAX_TARGETS
            && hops.iter().filter_map(|hop| hop.parent()).any(|directory| self.watch.misses(directory));
        let fresh = self.links.set(name, hops);
        let moved = !fresh.is_empty();
        self.watch.mind_also(fresh);
        if let (true, Some(site)) = (unwatched, self.site.clone()) {
            self.arm(site);
        }
        moved || unwatched
    }

    /// Does what follows from reading a manifest.
    fn take(&mut self, name: &OsStr, loaded: Loaded) {
        self.entries.read(name, loaded.reading, loaded.at);
        match loaded.verdict {
            Some(Ok(manifest)) => self.accept(name, manifest),
            Some(Err(reason)) => self.refuse(name, reason),
            None => {}
        }
    }

    fn accept(&mut self, name: &OsStr, manifest: Manifest) {
        let origin = self.origin(name);
        let mended = self.builder.refusal(&origin).is_some();
        let pods = manifest.pods.len();
        if self.builder.put(&origin, manifest.pods, crate::clock::now()) {
            self.changed = true;
            self.note_good(name);
        } else if self.entries.is_scanned() {
            return;
        }
        for warning in manifest.warnings {
            warn!(source = "file", path = %origin, "{origin}:{warning}");
        }
        if mended {
            info!(source = "file", path = %origin, pods, "recovered: the manifest is good again");
        } else {
            debug!(source = "file", path = %origin, pods, "the manifest was taken");
        }
    }

    fn refuse(&mut self, name: &OsStr, reason: RejectionReason) {
        let origin = self.origin(name);
        let news = self.builder.refusal(&origin).is_none_or(|before| before.reason != reason);
        if !news {
            return;
        }
        let text = match &reason {
            RejectionReason::Refused(refusal) if is_positioned(refusal) => format!("{origin}:{refusal}"),
            reason => format!("{origin}: {reason}"),
        };
        let invalid = matches!(reason, RejectionReason::Refused(_));
        if invalid && self.config.on_invalid == OnInvalid::Remove {
            self.builder.remove(&origin);
            self.note_good(name);
        }
        self.builder.refuse(&origin, reason);
        self.changed = true;
        let kept = self.builder.pods_of(&origin);
        let what = if invalid { "the manifest was refused" } else { "the manifest cannot be read" };
        warn!(source = "file", path = %origin, pods_kept = kept, error = %text, "{what}");
    }

    fn remove(&mut self, name: &OsStr) {
        let origin = self.origin(name);
        if self.builder.remove(&origin) {
            self.changed = true;
            self.note_good(name);
            debug!(source = "file", path = %origin, "the manifest is gone");
        }
    }

    /// The manifest's path as the source was given it, with bytes that are no text written as `\xff`.
    fn origin(&self, name: &OsStr) -> Origin {
        let given = &self.config.path;
        let path = if name.is_empty() { given.clone() } else { given.join(name) };
        let mut text = String::new();
        for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
            text.push_str(chunk.valid());
            text.push_str(&chunk.invalid().escape_ascii().to_string());
        }
        Origin::from(text.as_str())
    }

    fn name_at<'o>(&self, origin: &'o Origin) -> &'o OsStr {
        let path = Path::new(origin.as_str());
        if path == self.config.path { OsStr::new("") } else { path.file_name().unwrap_or_default() }
    }

    /// Notes for the last good what a file gives now. A path that is no text is not kept.
    fn note_good(&mut self, name: &OsStr) {
        let path = if name.is_empty() { self.path.clone() } else { self.path.join(name) };
        if let Some(path) = path.to_str() {
            self.good.push((Origin::from(path), self.builder.found(&self.origin(name)).to_vec()));
        }
    }

    /// The name under which a file goes that has this absolute path.
    fn name_of(&self, path: &Path) -> Option<OsString> {
        let name = path.file_name().filter(|_| path.parent() == Some(&self.path));
        match name {
            Some(name) if NameKind::of(name) == NameKind::Manifest => Some(name.to_owned()),
            _ if path == self.path => Some(OsString::new()),
            _ => None,
        }
    }

    fn path_of(&self, name: &OsStr) -> PathBuf {
        let real = self.site.as_ref().and_then(|site| site.real.as_ref()).unwrap_or(&self.path);
        if name.is_empty() { real.clone() } else { real.join(name) }
    }
}

/// What is said to people: loud once, then quiet, then "recovered".
impl Worker {
    fn tell_trouble(&mut self, trouble: Option<String>) {
        let path = self.config.path.display();
        match (&self.trouble, &trouble) {
            (before, Some(now)) if before.as_deref() != Some(now) => {
                warn!(source = "file", %path, "{path} {now}");
            }
            (Some(_), None) => info!(source = "file", %path, "recovered: {path} can be read"),
            _ => {}
        }
        self.trouble = trouble.map(Arc::from);
    }

    /// Tells that a directory that stayed away has lost what it gave.
    fn tell_removal(&mut self, kept: usize) {
        let removed = kept.saturating_sub(self.entries.waiting());
        if removed > 0 && matches!(self.site, Some(Site { place: Place::Missing, .. })) {
            let path = self.config.path.display();
            warn!(source = "file", %path, files = removed, "{path} did not come back; what it gave is removed");
        }
    }

    fn tell_polling(&mut self, why: Option<String>) {
        match (&self.polling, &why) {
            (before, Some(now)) if before.as_deref() != Some(now) => {
                warn!(source = "file", error = %now, "cannot watch for changes; everything is looked at each second");
            }
            (Some(_), None) => info!(source = "file", "recovered: watching for changes again"),
            _ => {}
        }
        self.polling = why.map(Arc::from);
    }

    fn note(&mut self, name: &OsStr, what: &str) {
        if self.noted.len() < MAX_NOTED && self.noted.insert(name.to_owned()) {
            info!(source = "file", path = %self.origin(name), "skipped: {what}");
        }
    }

    /// Tells of pods that another one shadows. A file that was renamed is there
    /// twice for a moment; that is no duplicate.
    fn tell_duplicates(&mut self, listing: &Listing) {
        let mut duplicates = BTreeMap::new();
        for rejection in listing.rejections() {
            let (RejectionReason::DuplicateName { winner } | RejectionReason::DuplicateUid { winner, .. }) =
                &rejection.reason
            else {
                continue;
            };
            if self.is_gone(winner) || self.is_gone(&rejection.origin) {
                continue;
            }
            let key = (rejection.origin.clone(), rejection.pod.clone());
            if self.duplicates.get(&key) != Some(&rejection.reason) {
                let pod = rejection.pod.as_ref().map(tracing::field::display);
                warn!(source = "file", path = %rejection.origin, pod, error = %rejection.reason, "a pod was refused");
            }
            duplicates.insert(key, rejection.reason.clone());
        }
        for (path, pod) in self.duplicates.keys().filter(|key| !duplicates.contains_key(key)) {
            let pod = pod.as_ref().map(tracing::field::display);
            info!(source = "file", %path, pod, "recovered: no other pod stands in its way");
        }
        self.duplicates = duplicates;
    }

    fn is_gone(&self, origin: &Origin) -> bool {
        self.entries.is_gone(self.name_at(origin))
    }
}

fn patience(config: &Config, timings: Timings) -> Patience {
    Patience { quiet: timings.quiet, check: config.check_frequency, grace: timings.missing_grace }
}

pub(super) fn moment() -> Moment {
    Moment { now: Instant::now(), wall: crate::clock::now() }
}

fn is_positioned(refusal: &Refusal) -> bool {
    let mut errors = refusal.problems.iter().filter(|problem| problem.severity == Severity::Error);
    errors.next().is_some_and(|problem| problem.position.is_some())
}

pub(super) fn too_large(size: u64) -> Refusal {
    let detail = format!("{size} bytes are too many for a manifest: {MAX_MANIFEST} at most; split the file");
    Refusal { stage: Stage::Decode, problems: vec![Problem::error(detail)] }
}
