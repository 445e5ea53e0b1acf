//! Who has a name or a UID when several sources want it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use crate::pod::{Entry, PodKey, Rejection, RejectionReason, SourceName, Uid};

/// A source's wish for one pod.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) entry: Entry,
    /// Only known from an earlier run.
    pub(super) restored: bool,
    /// 0 for a claim in full strength. A restored one that was stood against
    /// when it came, or beaten since, is the weaker the later that was: it takes
    /// what is free, but displaces nobody, for a restored listing never removes.
    /// It stays so until its source speaks: a strength that came and went with
    /// what it holds would decide the same claims now so and now otherwise.
    pub(super) weakness: u64,
}

impl Claim {
    fn key(&self) -> &PodKey {
        self.entry.pod().key()
    }

    fn uid(&self) -> &Uid {
        self.entry.pod().uid()
    }

    /// Lower has the name: file before http before url before api.
    fn name_rank(&self) -> (u64, SourceName) {
        (self.weakness, self.entry.source())
    }

    /// Lower has the UID: the API server made its UIDs, a local pod that has
    /// one of them is a copy of `kubectl get -o yaml`.
    fn uid_rank(&self) -> (u64, bool, SourceName) {
        (self.weakness, self.entry.source() != SourceName::Api, self.entry.source())
    }
}

/// The winners by key, and the losers with the reason.
pub(super) type Verdict = (HashMap<PodKey, Entry>, BTreeMap<(PodKey, SourceName), Rejection>);

/// Decides claims that hang together by name or UID.
///
/// A restored claim that loses must be weaker than whoever holds its name or its
/// UID, or it could come back at their cost. And it may have beaten another
/// claim before it lost. So what it decided is decided again without its old
/// strength, until no claim is weakened; deciding once more then changes nothing.
/// `clock` rises with each weakening.
pub(super) fn resolve(claims: &mut [Claim], clock: &mut u64) -> Verdict {
    loop {
        let winners = contest(claims);
        let by_uid = best_by_uid(winners.values().copied());
        let mut weakened = Vec::new();
        for (index, claim) in claims.iter().enumerate().filter(|(_, claim)| claim.restored) {
            let holders = [winners.get(claim.key()), by_uid.get(claim.uid())];
            let won = holders[0].is_some_and(|winner| winner.entry == claim.entry);
            let held = holders.iter().flatten().map(|holder| holder.weakness).max().unwrap_or(0);
            if !won && claim.weakness <= held {
                weakened.push(index);
            }
        }
        if weakened.is_empty() {
            let lost = losers(claims, &winners, &by_uid);
            return (winners.into_iter().map(|(key, winner)| (key, winner.entry.clone())).collect(), lost);
        }
        *clock += 1;
        for index in weakened {
            claims[index].weakness = *clock;
        }
    }
}

/// First every name goes to the best claim on it. Then, where holders of
/// different names have one UID, all but the best of them lose their name to
/// the next claim on it, until nobody shares a UID. A claim that lost its UID
/// stays lost: whoever holds the UID can only be replaced by a better one.
fn contest(claims: &[Claim]) -> HashMap<PodKey, &Claim> {
    let mut by_name: HashMap<PodKey, Vec<&Claim>> = HashMap::new();
    for claim in claims {
        by_name.entry(claim.key().clone()).or_default().push(claim);
    }
    // Sorted so that the best claim on a name stands last, to be popped.
    for claims in by_name.values_mut() {
        claims.sort_by_key(|claim| Reverse(claim.name_rank()));
    }
    loop {
        let holders = || by_name.values().filter_map(|claims| claims.last().copied());
        let by_uid = best_by_uid(holders());
        let beaten = |claim: &&Claim| by_uid.get(claim.uid()).is_some_and(|best| best.key() != claim.key());
        let losers: Vec<PodKey> = holders().filter(beaten).map(|claim| claim.key().clone()).collect();
        if losers.is_empty() {
            return by_name.into_iter().filter_map(|(key, mut claims)| Some((key, claims.pop()?))).collect();
        }
        for key in losers {
            by_name.get_mut(&key).and_then(Vec::pop);
        }
    }
}

/// Of several holders of one UID the best one, by UID.
fn best_by_uid<'c>(holders: impl Iterator<Item = &'c Claim>) -> HashMap<&'c Uid, &'c Claim> {
    let rank = |claim: &Claim| (claim.uid_rank(), claim.key().clone());
    let mut best: HashMap<&Uid, &Claim> = HashMap::new();
    for claim in holders.filter(|claim| !claim.uid().is_empty()) {
        let held = best.entry(claim.uid()).or_insert(claim);
        if rank(claim) < rank(held) {
            *held = claim;
        }
    }
    best
}

/// Who lost, and to whom: to the holder of the name or, under another name, of the UID.
fn losers(
    claims: &[Claim],
    winners: &HashMap<PodKey, &Claim>,
    by_uid: &HashMap<&Uid, &Claim>,
) -> BTreeMap<(PodKey, SourceName), Rejection> {
    let mut lost = BTreeMap::new();
    for claim in claims {
        let name_holder = winners.get(claim.key()).copied();
        if name_holder.is_some_and(|winner| winner.entry == claim.entry) {
            continue;
        }
        let uid_holder = by_uid.get(claim.uid()).copied().filter(|winner| winner.key() != claim.key());
        let by_name = name_holder.map(|held| RejectionReason::Conflict { winner: held.entry.source() });
        let by_holder = uid_holder.map(|held| RejectionReason::UidInUse {
            winner: held.entry.source(),
            holder: held.key().clone(),
        });
        let Some(reason) = by_name.or(by_holder) else { continue };
        let (source, origin) = (claim.entry.source(), claim.entry.origin().clone());
        let rejection = Rejection { source, origin, pod: Some(claim.key().clone()), reason };
        lost.insert((claim.key().clone(), source), rejection);
    }
    lost
}
