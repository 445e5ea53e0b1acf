//! The blocking half of the file source: checks paths, reads manifests and edits the listing.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ffi::{OsStr, OsString},
    io, mem,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Unit;
use tokio::{sync::watch as level, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    config::{Config, OnInvalid, Timings},
    entries::{Action, Cause, Entries, Target},
    inspect::{self, LEFTOVER, NameKind, Resolved, VOLUME_LINK},
    load::{Accepted, Loaded, Loader, WORTH_A_THREAD, time},
    watch::{Change, Changes, Interest, Watch},
};
use crate::{
    grouped::counted,
    host::Host,
    manifest::Preparation,
    outage::Outage,
    pod::{Listing, ListingBuilder, Origin, Pod, PodKey, RejectionReason},
    source::{KeptManifest, ScanProgress, control::Conflicts},
};

/// The most manifests in memory that are read and not in the listing yet.
const READ_AT_ONCE: usize = 512;
/// The most skipped files that are logged.
const MAX_SKIPPED_LOGGED: usize = 1_000;
/// The most manifests that are shown as gone.
const MAX_KEPT_SHOWN: usize = 100;
/// For how many quiet times the first listing waits for unstable or missing files.
const FIRST_WAITS: u32 = 10;

/// The result of a step.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The listing, if it must be published.
    pub(super) listing: Option<Listing>,
    /// The pods of the files whose pods changed, by absolute path.
    pub(super) changed: Vec<(Origin, Vec<Arc<Pod>>)>,
    /// The directory, as a later run recognises it, if it is another one than before.
    pub(super) directory: Option<String>,
    /// When a file must be checked again, or a conflict may have to be shown.
    pub(super) next_due: Option<Instant>,
    /// Whether a scan is needed.
    pub(super) wants_scan: bool,
    /// Whether no file is unstable or just missing, and no conflict hidden.
    pub(super) stable: bool,
    /// Whether the step scanned.
    pub(super) scanned: bool,
    /// Why nothing can be watched.
    pub(super) polling: Option<Arc<str>>,
    /// The manifests that are gone and whose pods are kept for a while.
    pub(super) kept: Vec<KeptManifest>,
    /// What the source is doing, for people.
    pub(super) detail: String,
    /// Whether everything was read, or what is wrong with the path. `None` if that is not known
    /// anew. Errors of single manifests are in the listing.
    pub(super) result: Option<Result<(), String>>,
}

/// The state of the source.
pub(super) struct Worker {
    pub(super) host: Host,
    config: Config,
    preparation: Preparation,
    /// The path of the settings, absolute.
    path: PathBuf,
    pub(super) builder: ListingBuilder,
    pub(super) entries: Entries,
    watch: Watch,
    resolved: Option<Resolved>,
    polling: Outage,
    watch_again_at: Option<Instant>,
    /// What the next outcome contains so far.
    outcome: Outcome,
    /// Whether the listing changed since it was last published.
    is_changed: bool,
    /// Since when manifests lack pods that they had, which may have moved to files that are not read yet.
    lost_since: Option<Instant>,
    /// What was last reported of the path since the last scan.
    reported: Option<Result<(), String>>,
    /// The manifests whose pods were removed after their grace time, and that are not logged yet.
    expired: usize,
    began: Option<Instant>,
    published: bool,
    rejected: usize,
    skipped: HashSet<OsString>,
    conflicts: Conflicts,
    /// How far a long first scan is.
    scanning: level::Sender<Option<ScanProgress>>,
}

impl Worker {
    pub(super) fn new(
        config: Config,
        preparation: Preparation,
        path: PathBuf,
        watch: Watch,
        scanning: level::Sender<Option<ScanProgress>>,
    ) -> Self {
        Self {
            host: Host::default(),
            path,
            builder: ListingBuilder::new(preparation.source),
            entries: Entries::new(Timings::default(), config.check_frequency),
            watch,
            resolved: None,
            polling: Outage::default(),
            watch_again_at: None,
            outcome: Outcome::default(),
            is_changed: false,
            lost_since: None,
            reported: None,
            expired: 0,
            began: None,
            published: false,
            rejected: 0,
            skipped: HashSet::new(),
            conflicts: Conflicts::default(),
            scanning,
            config,
            preparation,
        }
    }

    /// Changes the delays. Only before anything was restored or checked.
    pub(super) fn set_timings(&mut self, timings: Timings) {
        self.entries = Entries::new(timings, self.config.check_frequency);
    }

    /// Adds the pods of a manifest of an earlier run. Returns false if the manifest is not one
    /// of this source.
    pub(super) fn restore(&mut self, path: &Origin, pods: Vec<Arc<Pod>>) -> bool {
        let Some(name) = name_below(&self.path, Path::new(path.as_str())) else { return false };
        self.entries.restore(&name);
        let origin = self.origin(&name);
        self.builder.put_published(&origin, pods);
        // They are not known before the manifest is read.
        self.builder.set_lines(&origin, &[]);
        true
    }

    /// Applies the settings that may change while the source runs, also to manifests that are
    /// invalid already.
    pub(super) fn retune(&mut self, Config { check_frequency, on_invalid, pod_security, .. }: Config) {
        self.entries.check = check_frequency;
        let path = self.config.path.clone();
        let before =
            mem::replace(&mut self.config, Config { path, check_frequency, on_invalid, pod_security });
        if before.pod_security != pod_security {
            self.entries.forget_content();
        }
        if before.on_invalid == on_invalid || on_invalid == OnInvalid::Keep {
            return;
        }
        let names: Vec<OsString> = self.entries.names().cloned().collect();
        for name in names {
            let reason =
                self.builder.rejection(&self.origin(&name)).map(|rejection| rejection.reason.clone());
            if let Some(reason) = reason {
                self.reject(&name, reason);
            }
        }
    }

    /// Handles changes, scans if asked to or if the path leads elsewhere than before, and
    /// checks the files that are due. Ends early when stopped.
    pub(super) fn step(&mut self, changes: &Changes, scan: bool, stop: &CancellationToken) -> Outcome {
        self.began.get_or_insert_with(Instant::now);
        self.outcome.wants_scan = changes.lost;
        let resolved = inspect::resolve(&self.host.disk, &self.path);
        let mut replaced = self.is_replaced(changes);
        for (path, change) in &changes.paths {
            // A volume's manifests are links through this one.
            self.outcome.wants_scan |= path.ends_with(VOLUME_LINK) && *change != Change::Touched;
            if *change != Change::Touched {
                replaced |= self.watch.forget(path);
            } else if resolved.real.as_ref() == Some(path) {
                // The directory may have become readable.
                self.outcome.wants_scan |= matches!(resolved.target, Target::Directory(_));
            }
        }
        // The event that says that a file is complete may be among the lost ones.
        let lossy = changes.lost || replaced;
        let moved = self.resolved.as_ref() != Some(&resolved) || replaced;
        if moved || lossy {
            self.entries.events_lost();
        }
        if scan || moved {
            self.scan(resolved, stop);
        }
        self.handle(changes, lossy, stop);
        for name in self.entries.due(Instant::now()) {
            if stop.is_cancelled() {
                break;
            }
            self.check_and_load(&name, Cause::Due);
        }
        self.log_expired();
        self.outcome()
    }

    /// Whether the directory is watched, published, and the same as before: a change of a manifest in it needs
    /// [`step_directly`](Self::step_directly) alone.
    pub(super) fn is_watching(&self) -> bool {
        let Some(Resolved { target: Target::Directory(identity), real: Some(real), .. }) = &self.resolved
        else {
            return false;
        };
        let is_watched = self.published && self.polling.error().is_none();
        is_watched && inspect::directory(&self.host.disk, real) == Some(*identity)
    }

    /// Handles changes of manifests in the directory.
    pub(super) fn step_directly(&mut self, changes: &Changes) -> Outcome {
        self.handle(changes, false, &CancellationToken::new());
        self.outcome()
    }

    fn outcome(&mut self) -> Outcome {
        self.entries.note_emptied();
        let listing = self.listing();
        let result = self.path_result();
        if self.outcome.result.is_none() && result.is_some() && result != self.reported {
            self.outcome.result.clone_from(&result);
            self.reported = result;
        }
        Outcome {
            listing,
            directory: self.entries.new_directory(),
            stable: !self.entries.is_unstable() && self.outcome.next_due.is_none(),
            next_due: self.entries.next_due().into_iter().chain(self.outcome.next_due).min(),
            polling: self.polling.error(),
            detail: self.detail(),
            kept: self.kept(),
            ..mem::take(&mut self.outcome)
        }
    }

    /// The first manifests that are gone and whose pods are kept for a while.
    fn kept(&self) -> Vec<KeptManifest> {
        let (now, wall) = (Instant::now(), self.host.clock.now());
        let until = |end: Instant| {
            let end = wall.checked_add(end.saturating_duration_since(now)).ok()?;
            end.round(Unit::Second).ok()
        };
        let kept = self.entries.kept().map(|(name, end)| {
            let origin = self.origin(name);
            KeptManifest { pods: self.builder.pods_of(&origin), origin, until: end.and_then(until) }
        });
        kept.filter(|kept| kept.pods > 0).take(MAX_KEPT_SHOWN).collect()
    }

    /// What the source is doing, for people.
    fn detail(&self) -> String {
        let polling = self.polling.error();
        let how = polling.map_or("watching".to_owned(), |why| format!("scanning every second: {why}"));
        let mut counts = vec![counted(self.entries.len(), "manifest")];
        for (count, what) in [(self.rejected, "rejected"), (self.entries.waiting(), "pending")] {
            counts.extend((count > 0).then(|| format!("{count} {what}")));
        }
        format!("{how}; {}", counts.join(", "))
    }

    /// The listing, if it changed. The first one waits a little for unstable files, and for missing ones to come back.
    fn listing(&mut self) -> Option<Listing> {
        if !self.entries.is_scanned {
            return None;
        }
        if self.is_changed || self.outcome.scanned {
            self.drop_superseded();
        }
        if !self.published {
            let until = self.began? + self.entries.timings.quiet * FIRST_WAITS;
            if self.entries.is_unstable() && Instant::now() < until {
                return None;
            }
        } else if !self.is_changed || self.waits_for_lost_pods() {
            return None;
        }
        self.lost_since = None;
        self.published = true;
        let mut listing = self.builder.listing();
        // A pod has two files for a moment when a file is renamed, or is written beside another one that it replaces
        // (`sed -i`): each of both times is at most the quiet time.
        self.outcome.next_due = self.conflicts.hide_new(&mut listing, self.entries.timings.quiet * 2);
        self.is_changed = self.outcome.next_due.is_some();
        self.rejected = listing.rejections().count();
        self.conflicts.log(&listing);
        Some(listing)
    }

    /// Whether pods that are lost may be in files that are unstable: two files may just have been swapped.
    fn waits_for_lost_pods(&self) -> bool {
        let until = self.lost_since.map(|since| since + self.entries.timings.quiet * 2);
        until.is_some_and(|until| Instant::now() < until) && self.entries.is_unstable()
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
        self.outcome.wants_scan = false;
        let resolved = self.set_watches(resolved);
        self.outcome.scanned = true;
        self.resolved = Some(resolved.clone());
        self.entries.set_target(resolved.target);
        let names = match (resolved.target, &resolved.real) {
            (Target::File, _) => BTreeSet::from([OsString::new()]),
            (Target::Directory(_), Some(directory)) => match self.host.disk.list(directory) {
                Ok(names) => self.manifests(names.into_iter().collect()),
                // It vanished just now: the next step resolves the path again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.outcome.wants_scan = true;
                    return;
                }
                Err(error) => {
                    self.entries.set_target(Target::Unknown);
                    self.outcome.result = Some(Err(error.to_string()));
                    return;
                }
            },
            (Target::Unknown, _) => {
                self.outcome.result = resolved.error.map(Err);
                return;
            }
            _ => BTreeSet::new(),
        };
        self.reported = None;
        let began = Instant::now();
        if self.check_all(&names, stop) {
            self.entries.scanned(&names, began, Instant::now());
        }
    }

    /// What is wrong with the path, if anything. `None` if that is not known, or depends on a file that may return
    /// within the quiet time, as the first listing does.
    fn path_result(&self) -> Option<Result<(), String>> {
        let grace = self.entries.timings.missing_grace;
        let is_kept = self.entries.kept().next().is_some();
        let has_pods = |name| self.builder.pods_of(&self.origin(name)) > 0;
        let error = match self.entries.target {
            Target::Unknown => return None,
            Target::Missing if is_kept => {
                format!("the path no longer exists; its pods are kept for {grace:?}")
            }
            Target::Missing if self.entries.waiting() > 0 => return None,
            Target::Missing => "the path does not exist; its manifests are read when it appears".to_owned(),
            Target::Directory(_)
                if self.entries.is_emptied() && self.entries.kept().any(|(name, _)| has_pods(name)) =>
            {
                format!(
                    "the directory is empty (is its file system mounted?); its pods are kept for {grace:?}"
                )
            }
            Target::Directory(_) | Target::File => return self.published.then_some(Ok(())),
        };
        Some(Err(error))
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

    /// Watches what the path depends on. The path is resolved again after that: if it
    /// has changed before the watch, another scan follows.
    fn set_watches(&mut self, resolved: Resolved) -> Resolved {
        let now = Instant::now();
        if self.watch_again_at.is_some_and(|at| now < at) {
            return resolved;
        }
        let mut wanted: BTreeSet<PathBuf> =
            resolved.hops.iter().filter_map(|hop| hop.parent()).map(Path::to_owned).collect();
        let directory = resolved.real.clone().filter(|_| matches!(resolved.target, Target::Directory(_)));
        wanted.extend(directory.clone());
        // A watched directory may itself be moved or removed.
        let paths = resolved.hops.iter().chain(&resolved.real).chain(&wanted).cloned().collect();
        self.watch.set_interest(Interest { directory, paths });
        let error = self.watch.set(&self.host.disk, &wanted).err();
        let wall = self.host.clock.now();
        self.polling.log("file", "watch", error.as_deref(), wall);
        if error.is_some() {
            self.watch_again_at = Some(now + self.config.check_frequency);
            self.entries.events_lost();
            return resolved;
        }
        self.watch_again_at = None;
        let after = inspect::resolve(&self.host.disk, &self.path);
        self.outcome.wants_scan |= after != resolved;
        after
    }

    /// Checks the files that changes concern.
    fn handle(&mut self, changes: &Changes, lossy: bool, stop: &CancellationToken) {
        for (path, change) in &changes.paths {
            if stop.is_cancelled() {
                break;
            }
            let Some(name) = self.name_in_place(path) else { continue };
            let cause = match change {
                Change::Created if lossy => Cause::Touched,
                Change::Created => inspect::cause_of_creation(&self.host.disk, path),
                Change::Complete => Cause::Complete,
                Change::Touched | Change::Gone => Cause::Touched,
            };
            self.check_and_load(&name, cause);
        }
    }

    /// The name of the manifest at a path, if the source reads that path.
    fn name_in_place(&self, path: &Path) -> Option<OsString> {
        let resolved = self.resolved.as_ref()?;
        let name = name_below(resolved.real.as_deref()?, path)?;
        (name.is_empty() == (resolved.target == Target::File)).then_some(name)
    }

    /// Checks every name, and reads manifests on several threads. Returns false if it was
    /// stopped before the end.
    fn check_all(&mut self, names: &BTreeSet<OsString>, stop: &CancellationToken) -> bool {
        let total = names.len();
        let is_long = !self.entries.is_scanned && total > READ_AT_ONCE;
        let mut names = names.iter().peekable();
        while names.peek().is_some() {
            if is_long {
                self.scanning.send_replace(Some(ScanProgress { done: total - names.len(), total }));
            }
            let mut to_read = Vec::new();
            for name in names.by_ref().take(READ_AT_ONCE) {
                if stop.is_cancelled() {
                    return false;
                }
                if let Some(path) = self.check(name, Cause::Scan) {
                    to_read.push((name, path, self.origin(name)));
                }
            }
            let with = self.loader();
            let loaded =
                self.host.threads.map(&to_read, WORTH_A_THREAD, |(_, path, origin)| with.load(path, origin));
            for ((name, _, origin), loaded) in to_read.into_iter().zip(loaded) {
                self.apply(name, &origin, loaded);
            }
        }
        true
    }

    /// Checks one name, and reads its manifest if needed.
    fn check_and_load(&mut self, name: &OsStr, cause: Cause) {
        if let Some(path) = self.check(name, cause) {
            let origin = self.origin(name);
            let loaded = self.loader().load(&path, &origin);
            self.apply(name, &origin, loaded);
        }
    }

    fn loader(&self) -> Loader<'_> {
        let Self { host, preparation, builder, config, .. } = self;
        Loader { host, preparation, level: config.pod_security, builder }
    }

    /// Checks one name. Returns its path if its manifest must be read. Every way to notice a
    /// change ends here.
    fn check(&mut self, name: &OsStr, cause: Cause) -> Option<PathBuf> {
        let path = self.path_of(name);
        let (found, other) = inspect::inspect(&self.host.disk, &path);
        // The path itself is resolved again: it may be a directory by now.
        if let Some(other) = other.filter(|_| !name.is_empty()) {
            self.log_skipped(name, other);
        }
        match self.entries.check(name, found, cause, time(&self.host)) {
            Action::Nothing => {}
            Action::Read => return Some(path),
            Action::Reject(error) => self.reject(name, RejectionReason::Unreadable(error.into())),
            Action::Remove { kept } => self.remove(name, kept),
        }
        None
    }

    fn apply(&mut self, name: &OsStr, origin: &Origin, loaded: Loaded) {
        self.entries.read(name, loaded.reading, loaded.at);
        match loaded.manifest {
            Some(Ok(accepted)) => self.accept(name, origin, accepted),
            Some(Err(reason)) => self.reject(name, reason),
            None => {}
        }
    }

    fn accept(&mut self, name: &OsStr, origin: &Origin, accepted: Accepted) {
        let Accepted { pods, lines, warnings } = accepted;
        let recovered = self.builder.rejection(origin).is_some();
        let count = pods.len();
        let keys: HashSet<&PodKey> = pods.iter().map(|pod| pod.key()).collect();
        if self.builder.found(origin).iter().any(|pod| !keys.contains(pod.key())) {
            self.lost_since.get_or_insert_with(Instant::now);
        }
        let is_changed = self.builder.put_published(origin, pods);
        self.is_changed |= self.builder.set_lines(origin, &lines);
        if is_changed {
            self.note_changed(name);
        } else if self.entries.is_scanned {
            return;
        }
        for warning in warnings {
            warn!(source = "file", path = %origin, %warning, "manifest warning");
        }
        if recovered {
            info!(source = "file", path = %origin, pods = count, "manifest recovered");
        } else {
            debug!(source = "file", path = %origin, pods = count, "manifest accepted");
        }
    }

    /// Drops the pods of manifests that are gone that present ones have, too: pods are kept while no manifest wants
    /// them.
    fn drop_superseded(&mut self) {
        let kept: Vec<OsString> = self.entries.kept().map(|(name, _)| name.to_owned()).collect();
        let missing: HashSet<Origin> = self.entries.missing().map(|name| self.origin(name)).collect();
        let mut wanted: HashMap<PodKey, bool> = HashMap::new();
        for name in kept {
            let gone = self.origin(&name);
            let mut pods = self.builder.found(&gone).to_vec();
            pods.retain(|pod| {
                let is_wanted = || self.builder.claimants(pod).any(|origin| !missing.contains(origin));
                !*wanted.entry(pod.key().clone()).or_insert_with(is_wanted)
            });
            if pods.len() < self.builder.pods_of(&gone) {
                // The lines of the rest are not known any more.
                let lines: &[u32] = if pods.is_empty() { &[1] } else { &[] };
                self.builder.put_published(&gone, pods);
                self.builder.set_lines(&gone, lines);
                self.note_changed(&name);
            }
        }
    }

    fn reject(&mut self, name: &OsStr, reason: RejectionReason) {
        let origin = self.origin(name);
        let removes =
            matches!(reason, RejectionReason::Invalid(_)) && self.config.on_invalid == OnInvalid::Remove;
        if removes && self.builder.pods_of(&origin) > 0 {
            self.builder.remove(&origin);
            self.note_changed(name);
        } else if self.builder.rejection(&origin).is_some_and(|before| before.reason == reason) {
            return;
        }
        let error = reason.to_string();
        self.builder.reject(&origin, reason);
        self.is_changed = true;
        let pods_kept = self.builder.pods_of(&origin);
        warn!(source = "file", path = %origin, pods_kept, %error, "manifest rejected");
    }

    /// Removes the pods of a manifest. `kept`: after its grace time.
    fn remove(&mut self, name: &OsStr, kept: bool) {
        let origin = self.origin(name);
        self.expired += usize::from(kept && self.builder.pods_of(&origin) > 0);
        if self.builder.remove(&origin) {
            self.note_changed(name);
            debug!(source = "file", path = %origin, "manifest removed");
        }
    }

    /// The manifest's path below the path of the settings. Bytes that are not UTF-8 are
    /// written as `\xff`, and a backslash as two where the two could be confused.
    fn origin(&self, name: &OsStr) -> Origin {
        let path = path_below(&self.config.path, name);
        if let Some(text) = path.to_str().filter(|text| !text.contains("\\x")) {
            return Origin::from(text);
        }
        let mut text = String::new();
        for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
            text.push_str(&chunk.valid().replace('\\', r"\\"));
            text.push_str(&chunk.invalid().escape_ascii().to_string());
        }
        Origin::from(text.as_str())
    }

    /// Notes that the pods of a file changed. A path that is not UTF-8 is not kept for the
    /// next start.
    fn note_changed(&mut self, name: &OsStr) {
        self.is_changed = true;
        if let Some(path) = path_below(&self.path, name).to_str() {
            self.outcome.changed.push((Origin::from(path), self.builder.found(&self.origin(name)).to_vec()));
        }
    }

    fn path_of(&self, name: &OsStr) -> PathBuf {
        let real = self.resolved.as_ref().and_then(|resolved| resolved.real.as_ref()).unwrap_or(&self.path);
        path_below(real, name)
    }
}

/// The log.
impl Worker {
    /// Logs that pods were removed after their grace time.
    fn log_expired(&mut self) {
        let files = mem::take(&mut self.expired);
        if files > 0 {
            let path = self.config.path.display();
            warn!(source = "file", %path, files, "manifests still missing, their pods are removed");
        }
    }

    fn log_skipped(&mut self, name: &OsStr, reason: &str) {
        if self.skipped.len() < MAX_SKIPPED_LOGGED && self.skipped.insert(name.to_owned()) {
            info!(source = "file", path = %self.origin(name), %reason, "file skipped");
        }
    }
}

/// The name of the manifest with this path, if it is `base` or in that directory.
fn name_below(base: &Path, path: &Path) -> Option<OsString> {
    if path == base {
        return Some(OsString::new());
    }
    let name = path.file_name().filter(|name| path.parent() == Some(base) && NameKind::is_manifest(name));
    name.map(OsStr::to_owned)
}

/// The path of the manifest with this name.
fn path_below(base: &Path, name: &OsStr) -> PathBuf {
    if name.is_empty() { base.to_owned() } else { base.join(name) }
}
