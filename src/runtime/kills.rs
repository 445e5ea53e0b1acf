//! How many pods are killed at once, and the keys that wait for it. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::pod::PodKey;

/// Why a pod is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// No pod of its name is wanted.
    Removal,
    /// Another pod of its name, or the same one with a changed spec, is synced next.
    Replacement,
}

/// The kills of each purpose, with a bound each.
///
/// A removal counts until its call has ended, a replacement until its new pod was synced. So a change of many pods
/// never takes down more of them than the bound at once.
#[derive(Debug)]
pub(super) struct Kills<R> {
    removals: Lane<R>,
    replacements: Lane<R>,
}

#[derive(Debug)]
struct Lane<R> {
    bound: usize,
    begun: HashSet<PodKey>,
    /// The keys that wait, the most important one first.
    waiting: BTreeSet<(R, PodKey)>,
    /// The rank of each of them.
    ranks: HashMap<PodKey, R>,
}

impl<R: Clone + Ord> Kills<R> {
    /// At most so many of each at once.
    pub(super) fn new(removals: usize, replacements: usize) -> Self {
        Self { removals: Lane::new(removals), replacements: Lane::new(replacements) }
    }

    /// Begins a kill, or lets its key wait. Returns whether it has begun.
    pub(super) fn begin(&mut self, key: &PodKey, purpose: Purpose, rank: R) -> bool {
        match purpose {
            Purpose::Removal => {
                self.replacements.begun.remove(key);
                self.removals.begin(key, rank)
            }
            Purpose::Replacement => self.replacements.begin(key, rank),
        }
    }

    /// Ends the kill of a key: it does not count any more.
    pub(super) fn end(&mut self, key: &PodKey) {
        self.removals.begun.remove(key);
        self.replacements.begun.remove(key);
    }

    /// Ends a removal. A replacement goes on until its new pod was synced.
    pub(super) fn end_removal(&mut self, key: &PodKey) {
        self.removals.begun.remove(key);
    }

    /// Forgets that a key waits: it is decided anew.
    pub(super) fn forget(&mut self, key: &PodKey) {
        self.removals.forget(key);
        self.replacements.forget(key);
    }

    /// Takes out the most important waiting key of each purpose that has a place.
    pub(super) fn next(&mut self) -> impl Iterator<Item = (R, PodKey)> + use<R> {
        [self.removals.next(), self.replacements.next()].into_iter().flatten()
    }
}

impl<R: Clone + Ord> Lane<R> {
    fn new(bound: usize) -> Self {
        Self { bound, begun: HashSet::new(), waiting: BTreeSet::new(), ranks: HashMap::new() }
    }

    fn begin(&mut self, key: &PodKey, rank: R) -> bool {
        if self.begun.len() < self.bound || self.begun.contains(key) {
            self.begun.insert(key.clone());
            return true;
        }
        self.forget(key);
        self.ranks.insert(key.clone(), rank.clone());
        self.waiting.insert((rank, key.clone()));
        false
    }

    fn forget(&mut self, key: &PodKey) {
        if let Some(rank) = self.ranks.remove(key) {
            self.waiting.remove(&(rank, key.clone()));
        }
    }

    fn next(&mut self) -> Option<(R, PodKey)> {
        if self.begun.len() >= self.bound {
            return None;
        }
        let (rank, key) = self.waiting.pop_first()?;
        self.ranks.remove(&key);
        Some((rank, key))
    }
}
