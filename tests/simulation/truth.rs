//! What the sources of a run really have, apart from the agent.

use std::{
    array,
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use podmux::pod::SourceName;
use tokio::time::Instant;

use super::script::NAMES;

/// How long the agent may take to learn of a change while everything works.
pub const SLACK: Duration = Duration::from_secs(5);

/// How long the agent may take to read a manifest, also with slow threads.
const READS: Duration = Duration::from_secs(30);

/// What a source wants to run under a name; none if there is no pod.
pub type Image = Option<usize>;

/// What the API server has: the image and the UID of each pod.
pub type OfApi = [(Image, Option<String>); NAMES];

/// A pod of a source.
#[derive(Debug, Default)]
pub struct Known {
    /// What may be true: more than one if a write was not answered.
    pub possible: BTreeSet<Image>,
    /// Since when the pod is there for certain, whatever it runs.
    since: Option<Instant>,
    /// The UID, if the source gives it.
    uid: Option<String>,
    /// How often it was bound.
    bindings: usize,
    /// How many requests that may remove it are on their way.
    removals: usize,
    /// What it ever was.
    ever: BTreeSet<Image>,
    /// Whether its manifest is invalid, and the agent certainly runs the last valid one.
    is_kept: bool,
    /// How many writes are on their way.
    writes: usize,
    /// What a second manifest has wanted that is behind a first one.
    behind: BTreeSet<Image>,
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
    fn pods(&self) -> MutexGuard<'_, BTreeMap<(SourceName, String), Known>> {
        self.pods.lock().unwrap()
    }

    fn with<T>(&self, source: SourceName, n: usize, work: impl FnOnce(&mut Known) -> T) -> T {
        let mut pods = self.pods();
        let known = pods
            .entry((source, key(source, n)))
            .or_insert_with(|| Known { possible: BTreeSet::from([None]), ..Known::default() });
        let result = work(known);
        let is_certain = known.removals == 0 && (known.is_kept || !known.possible.contains(&None));
        known.since = is_certain.then(|| known.since.unwrap_or_else(Instant::now));
        result
    }

    /// This is what the source has now.
    pub fn set(&self, source: SourceName, n: usize, image: Image) {
        self.with(source, n, |known| {
            (known.possible, known.is_kept) = (BTreeSet::from([image]), false);
            known.ever.insert(image);
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
            self.with(SourceName::Http, n, |known| known.possible.clone_from(possible));
        }
    }

    /// A pod is bound to the node, or changed. Returns its UID, which is another one if it was gone.
    pub fn bound(&self, n: usize, v: usize) -> String {
        self.set(SourceName::Api, n, Some(v));
        self.with(SourceName::Api, n, |known| {
            known.bindings += usize::from(known.uid.is_none());
            known.uid.get_or_insert(format!("uid-a{n}-{}", known.bindings)).clone()
        })
    }

    /// A bound pod is being deleted.
    pub fn terminates(&self, n: usize) {
        self.set(SourceName::Api, n, None);
    }

    /// What the API server has now.
    pub fn of_api(&self) -> OfApi {
        array::from_fn(|n| {
            self.with(SourceName::Api, n, |known| {
                (known.possible.first().copied().flatten(), known.uid.clone())
            })
        })
    }

    /// The API server has this again.
    pub fn api_restored(&self, pods: &OfApi) {
        for (n, (image, uid)) in pods.iter().enumerate() {
            if self.with(SourceName::Api, n, |known| known.uid != *uid) {
                self.unbound(n);
            }
            self.set(SourceName::Api, n, *image);
            self.with(SourceName::Api, n, |known| known.uid.clone_from(uid));
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
                Answer::Refused => {}
            }
        });
    }

    pub fn possible(&self, source: SourceName, n: usize) -> BTreeSet<Image> {
        self.with(source, n, |known| known.possible.clone())
    }

    /// Whether a consumer may be told that a pod is gone, of which it was first told at that time: it is, or was
    /// meanwhile, or is another one, or another source may have its name.
    pub fn may_be_gone(&self, key: &str, uid: &str, told: Instant) -> bool {
        let pods = self.pods();
        let of_key = || pods.iter().filter(|((_, of), _)| of == key).map(|(_, known)| known);
        let is_wanted_by = |known: &&Known| known.ever.iter().any(Option::is_some);
        if of_key().filter(is_wanted_by).count() > 1 {
            return true;
        }
        of_key().all(|known| {
            let is_another = known.uid.as_ref().is_some_and(|of| of != uid);
            is_another || known.since.is_none_or(|since| since + SLACK > told)
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
        }
        &certain - &uncertain
    }

    /// What each name that any source has ever had may run: what the first of the sources wants that has it.
    pub fn keys(&self) -> BTreeMap<String, BTreeSet<Image>> {
        let mut keys = BTreeMap::new();
        for ((_, key), known) in self.pods().iter().rev() {
            let lower = keys.remove(key).unwrap_or_else(|| BTreeSet::from([None]));
            let mut possible = known.possible.clone();
            if possible.remove(&None) {
                possible.extend(lower);
            }
            keys.insert(key.clone(), possible);
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
