//! The blocking half of the file source: checks paths, reads manifests and edits the listing.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::{OsStr, OsString},
    io, mem,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    config::{Config, OnInvalid, Timings},
    entries::{Action, Cause, Delays, Entries, Target},
    inspect::{self, Resolved},
    load::{Loaded, load, load_all, time},
    names::{LEFTOVER, NameKind},
    watch::{Change, ChangeQueue, Changes, Interest, Watch},
};
use crate::{
    host::Host,
    manifest::{Manifest, Preparation},
    outage::Outage,
    pod::{Listing, ListingBuilder, Origin, Pod, PodKey, Prepared, RejectionReason, SourceName},
    source::status::SourceFailing,
};

/// How often the watches are set again because the path changed meanwhile. The next scan does the rest.
const MAX_WATCH_ATTEMPTS: usize = 8;
/// The most manifests in memory that are read and not in the listing yet.
const READ_AT_ONCE: usize = 512;
/// The most skipped files that are logged.
const MAX_SKIPPED_LOGGED: usize = 1_000;
/// For how many quiet times the first listing waits for unstable files.
const FIRST_WAITS: u32 = 10;
/// The most directories with targets of links that are watched. A scan finds changes in the others.
const MAX_LINKED_DIRECTORIES: usize = 256;

/// The result of a step.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The listing, if it must be published.
    pub(super) listing: Option<Listing>,
    /// The pods of the files whose pods changed, by absolute path.
    pub(super) changed: Vec<(Origin, Vec<Arc<Pod>>)>,
    /// When a file must be checked again.
    pub(super) next_due: Option<Instant>,
    /// Whether a scan is needed.
    pub(super) wants_scan: bool,
    /// Whether no file is unstable.
    pub(super) stable: bool,
    /// When the step scanned, if it did.
    pub(super) scanned: Option<Timestamp>,
    /// Why nothing can be watched.
    pub(super) polling: Option<Arc<str>>,
    /// What is wrong with the path.
    pub(super) failing: Option<SourceFailing>,
    /// The number of files.
    pub(super) files: usize,
    /// The number of unstable or missing files.
    pub(super) waiting: usize,
    /// The number of rejected files and pods.
    pub(super) rejected: usize,
}

/// The state of the source.
#[derive(Debug)]
pub(super) struct Worker {
    host: Host,
    config: Config,
    timings: Timings,
    preparation: Preparation,
    /// The path of the settings, absolute.
    path: PathBuf,
    builder: ListingBuilder,
    entries: Entries,
    /// For each manifest that is a symbolic link: the paths below the directory that it leads through.
    links: BTreeMap<OsString, BTreeSet<PathBuf>>,
    watch: Watch,
    resolved: Option<Resolved>,
    polling: Outage,
    watch_again_at: Option<Instant>,
    wants_scan: bool,
    scanned: Option<Timestamp>,
    outage: Outage,
    /// Whether the listing changed since it was last published.
    is_changed: bool,
    changed: Vec<(Origin, Vec<Arc<Pod>>)>,
    began: Option<Instant>,
    published: bool,
    rejected: usize,
    skipped: HashSet<OsString>,
    conflicts: BTreeMap<(Origin, Option<PodKey>), RejectionReason>,
}

impl Worker {
    pub(super) fn new(
        config: Config,
        preparation: Preparation,
        path: PathBuf,
        queue: Arc<ChangeQueue>,
    ) -> Self {
        let timings = Timings::default();
        Self {
            host: Host::default(),
            path,
            builder: ListingBuilder::new(SourceName::File),
            entries: Entries::new(delays(&config, timings)),
            links: BTreeMap::new(),
            watch: Watch::new(queue),
            resolved: None,
            polling: Outage::default(),
            watch_again_at: None,
            wants_scan: false,
            scanned: None,
            outage: Outage::default(),
            is_changed: false,
            changed: Vec::new(),
            began: None,
            published: false,
            rejected: 0,
            skipped: HashSet::new(),
            conflicts: BTreeMap::new(),
            config,
            timings,
            preparation,
        }
    }

    /// Changes the delays. Only before anything was restored or checked.
    pub(super) fn set_timings(&mut self, timings: Timings) {
        self.timings = timings;
        self.entries = Entries::new(delays(&self.config, timings));
    }

    pub(super) fn set_host(&mut self, host: Host) {
        self.host = host;
    }

    /// Adds the manifests of an earlier run. Returns their listing, if there are any, and the
    /// origins that are not below this source's path.
    pub(super) fn restore(
        &mut self,
        restored: impl Iterator<Item = (Origin, Vec<Prepared>)>,
    ) -> (Option<Listing>, Vec<Origin>) {
        let (now, mut others) = (self.host.clock.now(), Vec::new());
        for (path, pods) in restored {
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

    /// Applies the settings that may change while the source runs, also to manifests that are
    /// invalid already.
    pub(super) fn retune(&mut self, Config { check_frequency, on_invalid, pod_security, .. }: Config) {
        let before = mem::replace(&mut self.config.on_invalid, on_invalid);
        self.config.check_frequency = check_frequency;
        self.entries.set_check(check_frequency);
        if mem::replace(&mut self.config.pod_security, pod_security) != pod_security {
            self.entries.forget_content();
        }
        if before == on_invalid || on_invalid == OnInvalid::Keep {
            return;
        }
        let origins: Vec<Origin> = self.builder.origins().cloned().collect();
        for origin in origins {
            let Some(rejection) = self.builder.rejection(&origin) else { continue };
            let reason = rejection.reason.clone();
            if matches!(reason, RejectionReason::Invalid(_)) {
                self.builder.remove(&origin);
                self.note_changed(self.name_at(&origin).to_owned().as_os_str());
                self.builder.reject(&origin, reason);
            }
        }
    }

    /// Handles changes, scans if asked to or if the path leads elsewhere than before, and
    /// checks the files that are due. Ends early when stopped.
    pub(super) fn step(&mut self, changes: &Changes, scan: bool, stop: &CancellationToken) -> Outcome {
        self.began.get_or_insert_with(Instant::now);
        self.wants_scan = changes.lost;
        let resolved = inspect::resolve(&self.host.disk, &self.path);
        let replaced = self.is_replaced(changes);
        // The event that says that a file is complete may be among the lost ones.
        let lossy = changes.lost || replaced;
        let moved = self.resolved.as_ref() != Some(&resolved) || replaced;
        if moved || lossy {
            self.entries.events_lost();
        }
        for (path, change) in &changes.paths {
            if *change != Change::Touched {
                self.watch.forget(path);
            } else if resolved.real.as_ref() == Some(path) {
                // The directory may have become readable.
                self.wants_scan |= matches!(resolved.target, Target::Directory(_));
            }
        }
        if scan || moved {
            self.scan(resolved, stop);
        }
        self.handle(changes, lossy, stop);
        let waiting = self.entries.waiting();
        for name in self.entries.due(Instant::now()) {
            if stop.is_cancelled() {
                break;
            }
            self.check_and_load(&name, Cause::Due);
        }
        self.log_removal(waiting);
        self.outcome()
    }

    fn outcome(&mut self) -> Outcome {
        Outcome {
            listing: self.listing(),
            changed: mem::take(&mut self.changed),
            next_due: self.entries.next_due(),
            wants_scan: self.wants_scan,
            scanned: self.scanned.take(),
            stable: !self.entries.is_unstable(),
            polling: self.polling.error(),
            // Errors of single manifests are in the listing.
            failing: SourceFailing::of(&self.outage, false),
            files: self.entries.len(),
            waiting: self.entries.waiting(),
            rejected: self.rejected,
        }
    }

    /// The listing, if it changed. The first one waits a little for unstable files.
    fn listing(&mut self) -> Option<Listing> {
        if !self.entries.is_scanned() {
            return None;
        }
        if !self.published {
            let until = self.began? + self.timings.quiet * FIRST_WAITS;
            if self.entries.is_unstable() && Instant::now() < until {
                return None;
            }
        } else if !self.is_changed {
            return None;
        }
        self.published = true;
        self.is_changed = false;
        let listing = self.builder.listing();
        self.rejected = listing.rejections().count();
        self.log_conflicts(&listing);
        Some(listing)
    }

    /// Whether the directory may be another one now, even if it looks the same.
    fn is_replaced(&self, changes: &Changes) -> bool {
        let Some(Resolved { target: Target::Directory(_), real: Some(real), .. }) = &self.resolved else {
            return false;
        };
        changes.paths.get(real).is_some_and(|change| *change != Change::Touched)
    }

    /// Checks every file.
    fn scan(&mut self, resolved: Resolved, stop: &CancellationToken) {
        let was_missing = matches!(self.resolved, Some(Resolved { target: Target::Missing, .. }));
        let resolved = self.set_watches(resolved);
        self.wants_scan = false;
        self.scanned = Some(self.host.clock.now());
        self.resolved = Some(resolved.clone());
        self.entries.set_target(resolved.target);
        let names = match (resolved.target, &resolved.real) {
            (Target::File, _) => BTreeSet::from([OsString::new()]),
            (Target::Directory(_), Some(directory)) => match inspect::list(&self.host.disk, directory) {
                Ok(names) => self.manifests(names),
                // It vanished just now: the next step resolves the path again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.wants_scan = true;
                    return;
                }
                Err(error) => {
                    self.entries.set_target(Target::Unknown);
                    return self.log_error(Some(error.to_string()));
                }
            },
            (Target::Unknown, _) => return self.log_error(resolved.error),
            _ => BTreeSet::new(),
        };
        if resolved.target != Target::Missing {
            self.log_error(None);
        } else if !was_missing {
            self.log_error(Some(self.missing()));
        }
        self.links.retain(|name, _| names.contains(name));
        if self.check_all(&names, stop) {
            self.entries.scanned(&names, Instant::now());
        }
    }

    fn missing(&self) -> String {
        if self.builder.origins().next().is_none() {
            return "the path does not exist; its manifests are read when it appears".to_owned();
        }
        format!("the path no longer exists; its pods are kept for {:?}", self.timings.missing_grace)
    }

    fn manifests(&mut self, mut names: BTreeSet<OsString>) -> BTreeSet<OsString> {
        names.retain(|name| {
            let kind = NameKind::of(name);
            if kind == NameKind::Leftover {
                self.log_skipped(name, LEFTOVER);
            }
            kind == NameKind::Manifest
        });
        names
    }

    /// Watches what the path depends on. The path is resolved again after that, so that no
    /// change before the watch is missed.
    fn set_watches(&mut self, mut resolved: Resolved) -> Resolved {
        let now = Instant::now();
        if self.watch_again_at.is_some_and(|at| now < at) {
            return resolved;
        }
        for _ in 0..MAX_WATCH_ATTEMPTS {
            let hops: BTreeSet<&PathBuf> = self.links.values().flatten().collect();
            let parents: BTreeSet<&Path> = hops.iter().filter_map(|hop| hop.parent()).collect();
            let mut wanted: BTreeSet<PathBuf> =
                parents.into_iter().take(MAX_LINKED_DIRECTORIES).map(Path::to_owned).collect();
            wanted.extend(resolved.hops.iter().filter_map(|hop| hop.parent()).map(Path::to_owned));
            let directory = resolved.real.clone().filter(|_| matches!(resolved.target, Target::Directory(_)));
            wanted.extend(directory.clone());
            // A watched directory may itself be moved or removed.
            let paths = hops.into_iter().chain(&resolved.hops).chain(&resolved.real).chain(&wanted);
            self.watch.set_interest(Interest { directory, paths: paths.cloned().collect() });
            if let Err(error) = self.watch.set(&self.host.disk, &wanted) {
                self.watch_again_at = Some(now + self.config.check_frequency);
                self.entries.events_lost();
                self.log_polling(Some(&error));
                return resolved;
            }
            let after = inspect::resolve(&self.host.disk, &self.path);
            if after == resolved {
                break;
            }
            resolved = after;
        }
        self.watch_again_at = None;
        self.log_polling(None);
        resolved
    }

    /// Checks the files that changes concern.
    fn handle(&mut self, changes: &Changes, lossy: bool, stop: &CancellationToken) {
        let mut checks = BTreeSet::new();
        for (path, change) in &changes.paths {
            let change = if lossy && *change == Change::Created { Change::Touched } else { *change };
            checks.extend(self.name_in_place(path).map(|name| (path, name, change)));
        }
        for (name, hops) in &self.links {
            for path in hops {
                if let Some((path, change)) = changes.paths.get_key_value(path) {
                    let change = if lossy && *change == Change::Created { Change::Touched } else { *change };
                    checks.insert((path, name.clone(), change));
                }
            }
        }
        for (path, name, change) in checks {
            if stop.is_cancelled() {
                break;
            }
            let cause = match change {
                Change::Created if inspect::is_being_written(&self.host.disk, path) => Cause::Created,
                Change::Created | Change::Complete => Cause::Complete,
                Change::Touched | Change::Gone => Cause::Touched,
            };
            self.check_and_load(&name, cause);
        }
    }

    /// The name of the manifest at a path, if the source reads that path.
    fn name_in_place(&self, path: &Path) -> Option<OsString> {
        let resolved = self.resolved.as_ref()?;
        match (resolved.target, resolved.real.as_deref()?) {
            (Target::File, file) if file == path => Some(OsString::new()),
            (Target::Directory(_), directory) if path.parent() == Some(directory) => {
                path.file_name().filter(|name| NameKind::is_manifest(name)).map(OsStr::to_owned)
            }
            _ => None,
        }
    }

    /// Checks every name, and reads manifests on several threads. Returns false if it was
    /// stopped before the end.
    fn check_all(&mut self, names: &BTreeSet<OsString>, stop: &CancellationToken) -> bool {
        let mut names = names.iter().peekable();
        while names.peek().is_some() {
            let (mut to_read, mut paths) = (Vec::new(), Vec::new());
            for name in names.by_ref().take(READ_AT_ONCE) {
                if stop.is_cancelled() {
                    return false;
                }
                if let Some(path) = self.check(name, Cause::Scan) {
                    to_read.push(name);
                    paths.push(path);
                }
            }
            let loaded = load_all(&self.host, &paths, &self.preparation, self.config.pod_security);
            for (name, loaded) in to_read.into_iter().zip(loaded) {
                self.apply(name, loaded);
            }
        }
        true
    }

    /// Checks one name, and reads its manifest if needed.
    fn check_and_load(&mut self, name: &OsStr, cause: Cause) {
        if let Some(path) = self.check(name, cause) {
            let loaded = load(&self.host, &path, &self.preparation, self.config.pod_security);
            self.apply(name, loaded);
        }
    }

    /// Checks one name. Returns its path if its manifest must be read. Every way to notice a
    /// change ends here.
    fn check(&mut self, name: &OsStr, cause: Cause) -> Option<PathBuf> {
        let path = self.path_of(name);
        let mut inspected = inspect::inspect(&self.host.disk, &path);
        if !inspected.is_link {
            self.links.remove(name);
        } else if !name.is_empty() && self.follow(name, &path) {
            // The target may have changed before it was watched.
            inspected = inspect::inspect(&self.host.disk, &path);
        }
        if let Some(other) = inspected.other {
            self.log_skipped(name, other);
        }
        match self.entries.check(name, inspected.found, cause, time(&self.host)) {
            Action::Nothing => {}
            Action::Read => return Some(path),
            Action::Reject(error) => self.reject(name, RejectionReason::Unreadable(error.into())),
            Action::Remove => self.remove(name),
        }
        None
    }

    /// Resolves a link and watches its way below the directory. Returns whether a path or
    /// directory is watched now that was not watched before.
    fn follow(&mut self, name: &OsStr, path: &Path) -> bool {
        let Some(root) = path.parent() else { return false };
        let mut hops = Vec::new();
        // A link that leads nowhere has hops, too.
        drop(inspect::follow(&self.host.disk, path, &mut hops));
        let inside = |part: &&Path| part.starts_with(root) && *part != root && *part != path;
        let ancestors = |hop: &'_ PathBuf| {
            let parts = hop.ancestors().take_while(|part| *part != root).filter(inside);
            parts.map(Path::to_owned).collect::<Vec<_>>()
        };
        let hops: BTreeSet<PathBuf> = hops.iter().flat_map(ancestors).collect();
        let unwatched = self.watch.len() < MAX_LINKED_DIRECTORIES
            && hops
                .iter()
                .filter_map(|hop| hop.parent())
                .any(|directory| self.watch.misses(&self.host.disk, directory));
        let moved = self.links.get(name) != Some(&hops);
        if moved {
            self.watch.add_interest(hops.iter().cloned());
            self.links.insert(name.to_owned(), hops);
        }
        if let (true, Some(resolved)) = (unwatched, self.resolved.clone()) {
            self.set_watches(resolved);
        }
        moved || unwatched
    }

    fn apply(&mut self, name: &OsStr, loaded: Loaded) {
        self.entries.read(name, loaded.reading, loaded.at);
        match loaded.manifest {
            Some(Ok(manifest)) => self.accept(name, manifest),
            Some(Err(reason)) => self.reject(name, reason),
            None => {}
        }
    }

    fn accept(&mut self, name: &OsStr, manifest: Manifest) {
        let origin = self.origin(name);
        let recovered = self.builder.rejection(&origin).is_some();
        let pods = manifest.pods.len();
        if self.builder.put(&origin, manifest.pods, self.host.clock.now()) {
            self.note_changed(name);
        } else if self.entries.is_scanned() {
            return;
        }
        for warning in manifest.warnings {
            warn!(source = "file", path = %origin, %warning, "manifest warning");
        }
        if recovered {
            info!(source = "file", path = %origin, pods, "manifest recovered");
        } else {
            debug!(source = "file", path = %origin, pods, "manifest accepted");
        }
    }

    fn reject(&mut self, name: &OsStr, reason: RejectionReason) {
        let origin = self.origin(name);
        if self.builder.rejection(&origin).is_some_and(|before| before.reason == reason) {
            return;
        }
        if matches!(reason, RejectionReason::Invalid(_)) && self.config.on_invalid == OnInvalid::Remove {
            self.builder.remove(&origin);
            self.note_changed(name);
        }
        let error = reason.to_string();
        self.builder.reject(&origin, reason);
        self.is_changed = true;
        let pods_kept = self.builder.pods_of(&origin);
        warn!(source = "file", path = %origin, pods_kept, %error, "manifest rejected");
    }

    fn remove(&mut self, name: &OsStr) {
        let origin = self.origin(name);
        if self.builder.remove(&origin) {
            self.note_changed(name);
            debug!(source = "file", path = %origin, "manifest removed");
        }
    }

    /// The manifest's path below the path of the settings. Bytes that are not UTF-8 are
    /// written as `\xff`.
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

    /// Notes that the pods of a file changed. A path that is not UTF-8 is not kept for the
    /// next start.
    fn note_changed(&mut self, name: &OsStr) {
        self.is_changed = true;
        let path = if name.is_empty() { self.path.clone() } else { self.path.join(name) };
        if let Some(path) = path.to_str() {
            self.changed.push((Origin::from(path), self.builder.found(&self.origin(name)).to_vec()));
        }
    }

    /// The name of the manifest with this absolute path.
    fn name_of(&self, path: &Path) -> Option<OsString> {
        let name = path.file_name().filter(|_| path.parent() == Some(&self.path));
        match name {
            Some(name) if NameKind::is_manifest(name) => Some(name.to_owned()),
            _ if path == self.path => Some(OsString::new()),
            _ => None,
        }
    }

    fn path_of(&self, name: &OsStr) -> PathBuf {
        let real = self.resolved.as_ref().and_then(|resolved| resolved.real.as_ref()).unwrap_or(&self.path);
        if name.is_empty() { real.clone() } else { real.join(name) }
    }
}

/// The log.
impl Worker {
    fn log_error(&mut self, error: Option<String>) {
        let path = self.config.path.display();
        match error {
            Some(error) if self.outage.failed(&error, self.host.clock.now()) => {
                warn!(source = "file", %path, %error, "source failed");
            }
            Some(error) => debug!(source = "file", %path, %error, "source failed"),
            None if self.outage.recovered().is_some() => info!(source = "file", %path, "source recovered"),
            None => {}
        }
    }

    /// Logs that the pods of a vanished directory were removed after the grace time.
    fn log_removal(&self, waiting: usize) {
        let files = waiting.saturating_sub(self.entries.waiting());
        if files > 0 && matches!(self.resolved, Some(Resolved { target: Target::Missing, .. })) {
            let path = self.config.path.display();
            warn!(source = "file", %path, files, "path still missing, its pods are removed");
        }
    }

    fn log_polling(&mut self, error: Option<&str>) {
        match error {
            Some(error) if self.polling.failed(error, self.host.clock.now()) => {
                warn!(source = "file", %error, "watch failed, scanning every second");
            }
            Some(error) => debug!(source = "file", %error, "watch failed, scanning every second"),
            None if self.polling.recovered().is_some() => info!(source = "file", "watch recovered"),
            None => {}
        }
    }

    fn log_skipped(&mut self, name: &OsStr, reason: &str) {
        if self.skipped.len() < MAX_SKIPPED_LOGGED && self.skipped.insert(name.to_owned()) {
            info!(source = "file", path = %self.origin(name), %reason, "file skipped");
        }
    }

    /// Logs pods that conflict with another pod of the source. While a file is renamed, both
    /// of its names are known for a moment; that is not a conflict.
    fn log_conflicts(&mut self, listing: &Listing) {
        let mut conflicts = BTreeMap::new();
        for rejection in listing.rejections() {
            let (RejectionReason::DuplicateName { winner } | RejectionReason::DuplicateUid { winner, .. }) =
                &rejection.reason
            else {
                continue;
            };
            if self.is_missing(winner) || self.is_missing(&rejection.origin) {
                continue;
            }
            let key = (rejection.origin.clone(), rejection.pod.clone());
            if self.conflicts.get(&key) != Some(&rejection.reason) {
                let pod = rejection.pod.as_ref().map(tracing::field::display);
                warn!(source = "file", path = %rejection.origin, pod, error = %rejection.reason, "conflict found");
            }
            conflicts.insert(key, rejection.reason.clone());
        }
        for (path, pod) in self.conflicts.keys().filter(|key| !conflicts.contains_key(key)) {
            let pod = pod.as_ref().map(tracing::field::display);
            info!(source = "file", %path, pod, "conflict resolved");
        }
        self.conflicts = conflicts;
    }

    fn is_missing(&self, origin: &Origin) -> bool {
        self.entries.is_missing(self.name_at(origin))
    }
}

fn delays(config: &Config, timings: Timings) -> Delays {
    Delays { quiet: timings.quiet, check: config.check_frequency, grace: timings.missing_grace }
}
