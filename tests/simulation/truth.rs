//! What the sources of a run really have, apart from the agent.

use std::{
    array,
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use podmux::pod::{Pod, SourceName};
use serde_json::Value;
use tokio::time::Instant;

use super::script::{NAMES, Tuning};

/// How long the agent may take to learn of a change while everything works.
pub const SLACK: Duration = Duration::from_secs(5);

/// How long the agent may take to read a manifest, also with slow threads.
const READS: Duration = Duration::from_secs(30);

/// In this time new settings are in effect, also with slow threads.
const RELOADS: Duration = Duration::from_secs(10);

/// What a source wants to run under a name; none if there is no pod.
pub type Image = Option<usize>;

/// What the API server has of a pod.
#[derive(Debug, Default)]
pub struct Bound {
    possible: BTreeSet<Image>,
    uid: Option<String>,
    is_forbidden: bool,
    has_ended: bool,
}

/// What the API server has.
pub type OfApi = [Bound; NAMES];

/// What identifies a pod, and its generation and version in an answer.
#[derive(Clone, Debug)]
struct Shown {
    uid: String,
    generation: Value,
    version: String,
}

/// The number of the pods of the manifests and of the URL that may have the same UID.
pub const SHARED: usize = 1;

/// A pod of a source.
#[derive(Debug, Default)]
pub struct Known {
    /// What may be true: more than one if a write was not answered.
    pub possible: BTreeSet<Image>,
    /// Since when the pod is there for certain, whatever it runs.
    since: Option<Instant>,
    /// When it may have gone that was there; none if it never may.
    went: Option<Instant>,
    /// When what it may be last changed.
    changed: Option<Instant>,
    /// The UID, if the source gives it.
    uid: Option<String>,
    /// What it ever was with each UID.
    of_uids: BTreeMap<String, BTreeSet<Image>>,
    /// How often it was bound.
    bindings: usize,
    /// How many requests that may remove it are on their way.
    removals: usize,
    /// What it ever was.
    ever: BTreeSet<Image>,
    /// Whether its manifest is invalid, and the agent certainly runs the last valid one.
    is_kept: bool,
    /// Whether the API server has one that may not run, so that the one before stays if the agent has read it.
    is_forbidden: bool,
    /// Whether the API server shows that it has ended.
    has_ended: bool,
    /// When the API server last forgot that it had ended.
    resumed: Option<Instant>,
    /// What the last answer to a write had.
    shown: Option<Shown>,
    /// The versions of earlier answers, before a change of the pod, and the UIDs of earlier pods.
    old_versions: BTreeSet<String>,
    old_uids: BTreeSet<String>,
    /// How many writes are on their way.
    writes: usize,
    /// What a second manifest has wanted that is behind a first one.
    behind: BTreeSet<Image>,
}

impl Known {
    /// It may be all that it ever was with its UID.
    fn add_all_of_uid(&mut self) {
        let of_uid = self.uid.as_ref().and_then(|uid| self.of_uids.get(uid));
        self.possible.extend(of_uid.into_iter().flatten());
    }
}

/// One of two manifests that may have a pod of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    First,
    Twin,
}

/// The manifests of a name.
#[derive(Clone, Copy, Debug, Default)]
struct Files {
    is_first_there: bool,
    is_first_broken: bool,
    /// What the first one wants if it is valid, and what the twin wants.
    first: Image,
    twin: Image,
}

/// What all sources have.
#[derive(Debug, Default)]
pub struct Truth {
    pods: Mutex<BTreeMap<(SourceName, String), Known>>,
    files: Mutex<[Files; NAMES]>,
    /// The source that is not configured.
    without: Mutex<Option<SourceName>>,
    /// The settings that a reload has changed, and when.
    tunings: Mutex<Vec<(Instant, Tuning)>>,
    shares_uid: bool,
}

/// The key of a pod: that of its source and number. Some names are wanted by two sources, one by three.
pub fn key(source: SourceName, n: usize) -> String {
    match (source, n) {
        (SourceName::File, _) | (SourceName::Http | SourceName::Url, 3) => format!("default/f{n}-node"),
        (SourceName::Url, _) => format!("default/u{n}-node"),
        (SourceName::Api, _) | (SourceName::Http, 2) => format!("default/a{n}"),
        (SourceName::Http, _) => format!("default/h{n}"),
    }
}

/// Whether another source has the name of a posted pod, too.
pub fn is_contended(n: usize) -> bool {
    n >= 2
}

/// The name of a pod, as its source has it.
pub fn name(source: SourceName, n: usize) -> String {
    let key = key(source, n);
    let name = key.strip_prefix("default/").unwrap();
    let is_static = matches!(source, SourceName::File | SourceName::Url);
    if is_static { name.strip_suffix("-node").unwrap() } else { name }.to_owned()
}

pub fn image(v: usize) -> String {
    format!("i:{v}")
}

impl Truth {
    pub fn new(shares_uid: bool) -> Self {
        Self { shares_uid, ..Self::default() }
    }

    fn pods(&self) -> MutexGuard<'_, BTreeMap<(SourceName, String), Known>> {
        self.pods.lock().unwrap()
    }

    fn with<T>(&self, source: SourceName, n: usize, work: impl FnOnce(&mut Known) -> T) -> T {
        let mut pods = self.pods();
        let known = pods
            .entry((source, key(source, n)))
            .or_insert_with(|| Known { possible: BTreeSet::from([None]), ..Known::default() });
        let before = known.possible.clone();
        let result = work(known);
        if known.possible != before {
            known.changed = Some(Instant::now());
        }
        let is_configured = *self.without.lock().unwrap() != Some(source);
        let is_certain =
            is_configured && known.removals == 0 && (known.is_kept || !known.possible.contains(&None));
        known.since = is_certain.then(|| known.since.unwrap_or_else(Instant::now));
        if !is_certain && before.iter().any(Option::is_some) {
            known.went = Some(Instant::now());
        }
        result
    }

    /// All sources but this one are configured from now on.
    pub fn configured(&self, without: Option<SourceName>) {
        let before = mem::replace(&mut *self.without.lock().unwrap(), without);
        for source in [before, without].into_iter().flatten() {
            (0..NAMES).for_each(|n| self.with(source, n, |known| known.since = None));
        }
    }

    /// These settings are read from now on.
    pub fn tuned(&self, tuning: Tuning) {
        self.tunings.lock().unwrap().push((Instant::now(), tuning));
    }

    /// The settings that are read.
    pub fn tuning(&self) -> Tuning {
        self.tunings.lock().unwrap().last().map_or_else(Tuning::default, |(_, tuning)| *tuning)
    }

    /// Whether the agent may still have other settings, if it runs.
    pub fn may_have_old_tuning(&self) -> bool {
        self.tunings.lock().unwrap().last().is_some_and(|(at, _)| at.elapsed() <= RELOADS)
    }

    /// How many pods could be posted at some time since then: the least and the most.
    pub fn limits_since(&self, begun: Instant) -> (usize, usize) {
        let tunings = self.tunings.lock().unwrap();
        let before = tunings.iter().rposition(|(at, _)| *at + RELOADS < begun);
        let first = before.map_or_else(Tuning::default, |last| tunings[last].1);
        let later = tunings[before.map_or(0, |last| last + 1)..].iter().map(|(_, tuning)| tuning.max_posted);
        let all = later.chain([first.max_posted]);
        (all.clone().min().unwrap(), all.max().unwrap())
    }

    /// How many posted pods there are beside one, at least and at most.
    pub fn posted_beside(&self, n: Option<usize>) -> (usize, usize) {
        let others = (0..NAMES).filter(|other| Some(*other) != n);
        let counted = others.map(|n| {
            self.with(SourceName::Http, n, |known| {
                let is_certain = known.writes == 0 && !known.possible.contains(&None);
                let may_be = known.writes > 0 || known.possible.iter().any(Option::is_some);
                (usize::from(is_certain), usize::from(may_be))
            })
        });
        counted.fold((0, 0), |(least, most), (certain, possible)| (least + certain, most + possible))
    }

    /// The key of the other pod that wants the UID of the pod of this key, if there is one.
    fn rival(&self, key: &str) -> Option<String> {
        let [file, url] = [SourceName::File, SourceName::Url].map(|source| self::key(source, SHARED));
        let is_shared = self.shares_uid;
        [(&file, &url), (&url, &file)]
            .into_iter()
            .find(|(one, _)| is_shared && *one == key)
            .map(|(_, other)| other.clone())
    }

    /// This is what the source has now.
    pub fn set(&self, source: SourceName, n: usize, image: Image) {
        self.with(source, n, |known| {
            known.possible = BTreeSet::from([image]);
            (known.is_kept, known.is_forbidden, known.has_ended) = (false, false, false);
            known.ever.insert(image);
            if let Some(uid) = &known.uid {
                known.of_uids.entry(uid.clone()).or_default().insert(image);
            }
        });
    }

    /// A manifest is written or removed.
    pub fn put_file(&self, file: File, n: usize, image: Image) {
        let (before, now) = {
            let files = &mut self.files.lock().unwrap()[n];
            let before = *files;
            match file {
                File::First => {
                    (files.is_first_there, files.is_first_broken) = (image.is_some(), false);
                    files.first = image;
                }
                File::Twin => files.twin = image,
            }
            (before, *files)
        };
        if file == File::Twin && now.is_first_there {
            // It is in effect only if the agent has never read the first one.
            self.with(SourceName::File, n, |known| {
                known.behind.insert(image);
                if now.is_first_broken && !known.is_kept {
                    known.possible.insert(image);
                }
            });
            return;
        }
        // The pod of another manifest is another pod.
        if before.is_first_there != now.is_first_there {
            self.set(SourceName::File, n, None);
        }
        self.set(SourceName::File, n, now.first.or(now.twin));
    }

    /// What the clients have posted, as far as it is known.
    pub fn posted(&self) -> [BTreeSet<Image>; NAMES] {
        array::from_fn(|n| {
            self.with(SourceName::Http, n, |known| {
                let mut possible = known.possible.clone();
                if known.writes > 0 {
                    possible.extend(known.ever.iter().copied().chain([None]));
                }
                possible
            })
        })
    }

    /// The agent has this again of what was posted.
    pub fn posted_again(&self, posted: &[BTreeSet<Image>; NAMES]) {
        for (n, possible) in posted.iter().enumerate() {
            self.set(SourceName::Http, n, None);
            self.with(SourceName::Http, n, |known| {
                known.possible.clone_from(possible);
                // A version of then may be that of now.
                (known.shown, known.old_versions, known.old_uids) = Default::default();
            });
        }
    }

    /// The answer to an acknowledged write has this pod.
    pub fn shown(&self, n: usize, pod: &Value) {
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (uid, version) = (text("uid"), text("resourceVersion"));
        let now = Shown { uid, generation: pod["metadata"]["generation"].clone(), version };
        self.with(SourceName::Http, n, |known| {
            let Some(before) = known.shown.replace(now.clone()) else { return };
            // Its status gives it another version, too, and is no reason to refuse the one before.
            if before.uid != now.uid || before.generation != now.generation {
                known.old_versions.insert(before.version);
            }
            if before.uid != now.uid {
                known.old_uids.insert(before.uid);
            }
        });
    }

    /// The last version that a posted pod no longer has.
    pub fn old_version(&self, n: usize) -> Option<String> {
        self.with(SourceName::Http, n, |known| known.old_versions.last().cloned())
    }

    /// A UID that the pods of this name no longer have.
    pub fn old_uid(&self, n: usize) -> Option<String> {
        self.with(SourceName::Http, n, |known| known.old_uids.last().cloned())
    }

    /// The UID of a pod that is bound or changed, which is another one if it was gone.
    pub fn uid_of_bound(&self, n: usize) -> String {
        self.with(SourceName::Api, n, |known| {
            known.bindings += usize::from(known.uid.is_none());
            known.uid.get_or_insert(format!("uid-a{n}-{}", known.bindings)).clone()
        })
    }

    /// A bound pod is being deleted.
    pub fn terminates(&self, n: usize) {
        self.set(SourceName::Api, n, None);
    }

    /// Whether a bound pod is certainly one that may run.
    pub fn is_running(&self, n: usize) -> bool {
        self.with(SourceName::Api, n, |known| !known.is_forbidden && !known.possible.contains(&None))
    }

    /// A bound pod has ended.
    pub fn ended(&self, n: usize) {
        self.with(SourceName::Api, n, |known| known.has_ended = true);
    }

    /// Whether the bound pod with this UID has ended.
    pub fn has_ended(&self, uid: &str) -> bool {
        self.pods().values().any(|known| known.has_ended && known.uid.as_deref() == Some(uid))
    }

    /// Whether the bound pod with this UID, which runs since that time, has ended, or had before its API server forgot it.
    pub fn may_have_ended(&self, uid: &str, since: Instant) -> bool {
        let resumed = |known: &Known| known.resumed.is_some_and(|resumed| resumed >= since);
        self.has_ended(uid)
            || self.pods().values().any(|known| known.uid.as_deref() == Some(uid) && resumed(known))
    }

    /// A bound pod is one that may not run. The one before stays, if the agent has read it.
    pub fn forbidden(&self, n: usize) {
        self.with(SourceName::Api, n, |known| {
            known.is_forbidden = true;
            known.possible.insert(None);
            known.add_all_of_uid();
        });
    }

    /// A bound pod that may not run is allowed now, or one is bound that may run because everything is allowed.
    pub fn allowed(&self, n: usize, image: Image) {
        let has_ended = self.with(SourceName::Api, n, |known| known.has_ended);
        self.set(SourceName::Api, n, image);
        self.with(SourceName::Api, n, |known| known.has_ended = has_ended);
    }

    /// A source tells only now what has changed since that time, one change after the other.
    pub fn told_late(&self, source: SourceName, changed_since: Instant) {
        for n in 0..NAMES {
            self.with(source, n, |known| {
                known.since.take_if(|_| known.changed.is_some_and(|changed| changed >= changed_since));
            });
        }
    }

    /// Whether the bound pod with this UID is one that may not run, in place of which an earlier one stays.
    pub fn is_kept(&self, uid: &str) -> bool {
        self.pods().values().any(|known| known.is_forbidden && known.uid.as_deref() == Some(uid))
    }

    /// What the API server has now.
    pub fn of_api(&self) -> OfApi {
        array::from_fn(|n| {
            self.with(SourceName::Api, n, |known| Bound {
                possible: known.possible.clone(),
                uid: known.uid.clone(),
                is_forbidden: known.is_forbidden,
                has_ended: known.has_ended,
            })
        })
    }

    /// The API server has this again.
    pub fn api_restored(&self, pods: &OfApi) {
        for (n, bound) in pods.iter().enumerate() {
            let is_same = self.with(SourceName::Api, n, |known| known.uid == bound.uid);
            if !is_same {
                self.unbound(n);
            }
            self.with(SourceName::Api, n, |known| {
                (known.possible, known.uid) = (bound.possible.clone(), bound.uid.clone());
                known.is_forbidden = bound.is_forbidden;
                if known.has_ended != bound.has_ended {
                    known.resumed = known.has_ended.then(Instant::now);
                    (known.has_ended, known.since) = (bound.has_ended, None);
                }
                if bound.is_forbidden {
                    // An agent that has not read the server since may have any of them.
                    known.add_all_of_uid();
                }
            });
        }
    }

    /// A pod is no longer bound to the node.
    pub fn unbound(&self, n: usize) {
        self.set(SourceName::Api, n, None);
        self.with(SourceName::Api, n, |known| known.uid = None);
    }

    /// A manifest is invalid: the pod of a valid one stays that the agent has read, which has had since that time
    /// to read it.
    pub fn broken(&self, n: usize, reads_since: Option<Instant>) {
        {
            let files = &mut self.files.lock().unwrap()[n];
            if !files.is_first_there {
                return;
            }
            files.is_first_broken = true;
        }
        self.with(SourceName::File, n, |known| {
            let read = known.since.zip(reads_since).is_some_and(|(a, b)| a.max(b) + READS < Instant::now());
            known.is_kept |= read;
            known.possible.extend(known.ever.iter().copied().chain([None]));
            if !known.is_kept {
                known.possible.extend(&known.behind);
            }
        });
    }

    /// The agent ends. What it has read and not saved is lost to it.
    pub fn agent_ended(&self) {
        for n in 0..NAMES {
            let is_broken = self.files.lock().unwrap()[n].is_first_broken;
            self.with(SourceName::File, n, |known| {
                known.is_kept = false;
                if is_broken {
                    known.possible.extend(known.ever.iter().chain(&known.behind).copied().chain([None]));
                }
            });
        }
    }

    /// A write begins. It may have an effect before it is answered.
    pub fn begins(&self, n: usize, removes: bool, wrote: Image) {
        self.with(SourceName::Http, n, |known| {
            known.removals += usize::from(removes);
            known.writes += 1;
            known.ever.insert(wrote);
        });
    }

    /// A write has ended: with what it wrote if it was acknowledged, or if that is not known.
    pub fn ends(&self, n: usize, removes: bool, wrote: Image, answer: Answer) {
        self.with(SourceName::Http, n, |known| {
            known.removals -= usize::from(removes);
            known.writes -= 1;
            match answer {
                Answer::Acknowledged => known.possible = BTreeSet::from([wrote]),
                Answer::Unknown => drop(known.possible.insert(wrote)),
                Answer::Refused => return,
            }
            // It may have changed more than the image.
            known.changed = Some(Instant::now());
        });
    }

    pub fn possible(&self, source: SourceName, n: usize) -> BTreeSet<Image> {
        self.with(source, n, |known| known.possible.clone())
    }

    /// Whether a consumer may be told that a pod is gone, of which it was first told at that time: it is, or was
    /// meanwhile, or is another one, or another source may have its name.
    pub fn may_be_gone(&self, key: &str, uid: &str, told: Instant) -> bool {
        let pods = self.pods();
        let pods = &*pods;
        let of = |of: String| pods.iter().filter(move |((_, key), _)| *key == of).map(|(_, known)| known);
        let is_wanted_by = |known: &&Known| known.ever.iter().any(Option::is_some);
        let rival = self.rival(key).into_iter().flat_map(of);
        if of(key.to_owned()).chain(rival).filter(is_wanted_by).count() > 1 {
            return true;
        }
        of(key.to_owned()).all(|known| {
            let is_another = known.uid.as_ref().is_some_and(|of| of != uid);
            is_another || known.since.is_none_or(|since| known.went.is_some() && since + SLACK > told)
        })
    }

    /// Whether a source may want to run this as this pod, or has wanted something else since that time.
    pub fn may_want(&self, source: SourceName, pod: &Pod, image: Image, since: Instant) -> bool {
        let pods = self.pods();
        let Some(known) = pods.get(&(source, pod.key().to_string())) else { return false };
        let is_it = known.uid.as_ref().is_none_or(|uid| **uid == **pod.uid());
        is_it && known.possible.contains(&image)
            || known.writes > 0
            || known.changed.is_some_and(|changed| changed >= since)
    }

    /// Whether a source of this name may want something else than this image, or may have wanted it since that time.
    pub fn may_have_changed(&self, key: &str, image: Image, since: Instant) -> bool {
        let pods = self.pods();
        let mut of_key = pods.iter().filter(|((_, of), _)| of == key).map(|(_, known)| known);
        of_key.any(|known| {
            let is_this = known.possible.len() == 1 && known.possible.contains(&image);
            !is_this || known.writes > 0 || known.changed.is_some_and(|changed| changed + SLACK > since)
        })
    }

    /// The pods that have been there for so long for certain, in each source that ever had a pod of the name: the agent may
    /// never have read the one of another source.
    pub fn certain_for(&self, time: Duration) -> BTreeSet<String> {
        let (mut certain, mut uncertain) = (BTreeSet::new(), BTreeSet::new());
        for ((_, key), known) in &*self.pods() {
            if known.since.is_some_and(|since| since.elapsed() > time) {
                certain.insert(key.clone());
            } else if known.ever.iter().any(Option::is_some) {
                uncertain.insert(key.clone());
            }
            if known.ever.iter().any(Option::is_some) {
                uncertain.extend(self.rival(key));
            }
        }
        &certain - &uncertain
    }

    /// What each name that any source has ever had may run: what the first of the sources wants that has it.
    pub fn keys(&self) -> BTreeMap<String, BTreeSet<Image>> {
        let mut keys = BTreeMap::new();
        let without = *self.without.lock().unwrap();
        for ((source, key), known) in self.pods().iter().rev() {
            let lower = keys.remove(key).unwrap_or_else(|| BTreeSet::from([None]));
            let is_configured = without != Some(*source);
            let mut possible = if is_configured { known.possible.clone() } else { BTreeSet::from([None]) };
            if possible.remove(&None) {
                possible.extend(lower);
            }
            keys.insert(key.clone(), possible);
        }
        // The manifests have the UID before the URL.
        let [file, url] = [SourceName::File, SourceName::Url].map(|source| self::key(source, SHARED));
        if let Some(owner) = keys.get(&file).filter(|_| self.shares_uid).cloned()
            && let Some(possible) = keys.get_mut(&url)
            && owner.iter().any(Option::is_some)
        {
            possible.insert(None);
            if !owner.contains(&None) {
                *possible = BTreeSet::from([None]);
            }
        }
        keys
    }
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Acknowledged,
    /// It had no effect.
    Refused,
    /// It may have happened.
    Unknown,
}
