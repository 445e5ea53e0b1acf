//! Who has a name or a UID when several sources want it.

use std::collections::{BTreeMap, HashMap};

use crate::pod::{Entry, PodKey, Rejection, RejectionReason, SourceName, Uid};

/// A source's wish for one pod.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) entry: Entry,
    /// Only restored from an earlier run, and not what consumers have now: it
    /// takes what is free, but displaces nobody, for a restored listing never removes.
    pub(super) provisional: bool,
}

impl Claim {
    fn key(&self) -> &PodKey {
        self.entry.pod().key()
    }

    fn uid(&self) -> &Uid {
        self.entry.pod().uid()
    }

    /// Lower has the name: file before http before url before api.
    fn name_rank(&self) -> (bool, SourceName) {
        (self.provisional, self.entry.source())
    }

    /// Lower has the UID: the API server made its UIDs, a local pod that has
    /// one of them is a copy of `kubectl get -o yaml`.
    fn uid_rank(&self) -> (bool, bool, SourceName) {
        (self.provisional, self.entry.source() != SourceName::Api, self.entry.source())
    }
}

/// The winners by key, and the losers with the reason.
pub(super) type Verdict = (HashMap<PodKey, Entry>, BTreeMap<(PodKey, SourceName), Rejection>);

/// Decides claims that hang together by name or UID.
///
/// First every name goes to the best claim on it. Then, where holders of
/// different names have one UID, all but the best of them lose their name to
/// the next claim on it, until nobody shares a UID. A claim that lost its UID
/// stays lost: whoever holds the UID can only be replaced by a better one.
pub(super) fn resolve(claims: Vec<Claim>) -> Verdict {
    let mut by_name: HashMap<PodKey, Vec<Claim>> = HashMap::new();
    for claim in claims {
        by_name.entry(claim.key().clone()).or_default().push(claim);
    }
    let mut lost = BTreeMap::new();
    // Sorted so that the best claim on a name stands last, to be popped.
    for claims in by_name.values_mut() {
        claims.sort_by_key(|claim| std::cmp::Reverse(claim.name_rank()));
    }
    loop {
        let mut losers = uid_losers(&by_name);
        if losers.is_empty() {
            break;
        }
        losers.sort_by(|a, b| a.0.cmp(&b.0));
        for (key, reason) in losers {
            if let Some(loser) = by_name.get_mut(&key).and_then(Vec::pop) {
                lost.insert((key, loser.entry.source()), reject(&loser, reason));
            }
        }
    }
    let mut winners = HashMap::new();
    for (key, mut claims) in by_name {
        let Some(winner) = claims.pop() else { continue };
        for loser in claims {
            let reason = RejectionReason::Conflict { winner: winner.entry.source() };
            lost.insert((key.clone(), loser.entry.source()), reject(&loser, reason));
        }
        winners.insert(key, winner.entry);
    }
    (winners, lost)
}

/// The names whose holders have a UID that a better holder of another name has.
fn uid_losers(by_name: &HashMap<PodKey, Vec<Claim>>) -> Vec<(PodKey, RejectionReason)> {
    let holders = || by_name.values().filter_map(|claims| claims.last()).filter(|c| !c.uid().is_empty());
    let mut best: HashMap<&Uid, &Claim> = HashMap::new();
    for claim in holders() {
        let rank = |claim: &Claim| (claim.uid_rank(), claim.key().clone());
        let held = best.entry(claim.uid()).or_insert(claim);
        if rank(claim) < rank(held) {
            *held = claim;
        }
    }
    holders()
        .filter_map(|claim| {
            let winner = best.get(claim.uid()).filter(|winner| winner.key() != claim.key())?;
            let (source, holder) = (winner.entry.source(), winner.key().clone());
            Some((claim.key().clone(), RejectionReason::UidInUse { winner: source, holder }))
        })
        .collect()
}

fn reject(loser: &Claim, reason: RejectionReason) -> Rejection {
    Rejection {
        source: loser.entry.source(),
        origin: loser.entry.origin().clone(),
        pod: Some(loser.key().clone()),
        reason,
    }
}
