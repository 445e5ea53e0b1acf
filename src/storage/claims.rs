//! The claims of sources on names and UIDs, and the resolution of conflicts between them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use crate::pod::{Entry, PodKey, Rejection, RejectionReason, SourceName, Uid};

/// The claim of one source on the name and the UID of a pod.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) entry: Entry,
    /// Whether the claim is from a restored listing.
    pub(super) restored: bool,
    /// 0 for a claim of normal strength; a higher value loses against a lower one.
    ///
    /// A restored claim gets the next value when it is in conflict on arrival, or loses
    /// later. It then owns only what is free, because a restored listing never
    /// removes a pod. The value stays until the source syncs: if it depended on what the
    /// claim owns, the same claims could be resolved differently at different times.
    pub(super) weakness: u64,
}

impl Claim {
    fn key(&self) -> &PodKey {
        self.entry.pod().key()
    }

    fn uid(&self) -> &Uid {
        self.entry.pod().uid()
    }
}

/// The owners by key, and the rejected claims.
pub(super) type Resolution = (HashMap<PodKey, Entry>, BTreeMap<(SourceName, PodKey), Rejection>);

/// Resolves connected components of claims.
///
/// A restored claim that loses must become weaker than the owners of its name and its
/// UID, or it could displace them later. It may have displaced another claim before it
/// lost, so the claims are resolved again until none becomes weaker; another
/// call then gives the same result. `clock` rises with each weakening.
pub(super) fn resolve(claims: &mut [Claim], clock: &mut u64) -> Resolution {
    loop {
        let owners = owners(claims);
        let by_uid = best_by_uid(owners.values().copied());
        let mut weakened = Vec::new();
        for (index, claim) in claims.iter().enumerate().filter(|(_, claim)| claim.restored) {
            let rivals = [owners.get(claim.key()), by_uid.get(claim.uid())];
            let won = rivals[0].is_some_and(|owner| owner.entry == claim.entry);
            let weakness = rivals.iter().flatten().map(|owner| owner.weakness).max().unwrap_or(0);
            if !won && claim.weakness <= weakness {
                weakened.push(index);
            }
        }
        if weakened.is_empty() {
            let conflicts = conflicts(claims, &owners, &by_uid);
            return (owners.into_iter().map(|(key, owner)| (key, owner.entry.clone())).collect(), conflicts);
        }
        *clock += 1;
        for index in weakened {
            claims[index].weakness = *clock;
        }
    }
}

/// Assigns every name to one claim, so that no two owners have the same UID.
///
/// First each name goes to the best claim on it. Then, of the owners that share a UID, all
/// but the best lose their name to the next claim on it, until no UID is shared. A claim
/// that lost because of its UID stays lost: only a better claim can replace the UID's owner.
fn owners(claims: &[Claim]) -> HashMap<PodKey, &Claim> {
    let mut by_name: HashMap<PodKey, Vec<&Claim>> = HashMap::new();
    for claim in claims {
        by_name.entry(claim.key().clone()).or_default().push(claim);
    }
    // The best claim on a name is the last, so that it can be popped: file before http before url before api.
    for claims in by_name.values_mut() {
        claims.sort_by_key(|claim| Reverse((claim.weakness, claim.entry.source())));
    }
    loop {
        let best = || by_name.values().filter_map(|claims| claims.last().copied());
        let by_uid = best_by_uid(best());
        let is_beaten =
            |claim: &&Claim| by_uid.get(claim.uid()).is_some_and(|best| best.key() != claim.key());
        let losers: Vec<PodKey> = best().filter(is_beaten).map(|claim| claim.key().clone()).collect();
        if losers.is_empty() {
            return by_name.into_iter().filter_map(|(key, mut claims)| Some((key, claims.pop()?))).collect();
        }
        for key in losers {
            by_name.get_mut(&key).and_then(Vec::pop);
        }
    }
}

/// The best claim of those on each UID. The pod for which podmux derived the UID comes first: every other pod has copied
/// it. The API server comes next because it made its UIDs: a local pod with one of them is a copy of
/// `kubectl get -o yaml`.
fn best_by_uid<'c>(claims: impl Iterator<Item = &'c Claim>) -> HashMap<&'c Uid, &'c Claim> {
    let rank = |claim: &Claim| {
        let source = claim.entry.source();
        let is_given = !claim.entry.pod().has_derived_uid();
        (claim.weakness, is_given, source != SourceName::Api, source, claim.key().clone())
    };
    let mut best: HashMap<&Uid, &Claim> = HashMap::new();
    for claim in claims.filter(|claim| !claim.uid().is_empty()) {
        let other = best.entry(claim.uid()).or_insert(claim);
        if rank(claim) < rank(other) {
            *other = claim;
        }
    }
    best
}

/// The claims that lost: to the owner of the name or, under another name, of the UID.
fn conflicts(
    claims: &[Claim],
    owners: &HashMap<PodKey, &Claim>,
    by_uid: &HashMap<&Uid, &Claim>,
) -> BTreeMap<(SourceName, PodKey), Rejection> {
    let mut conflicts = BTreeMap::new();
    for claim in claims {
        let name_owner = owners.get(claim.key()).copied();
        if name_owner.is_some_and(|owner| owner.entry == claim.entry) {
            continue;
        }
        let uid_owner = by_uid.get(claim.uid()).copied().filter(|owner| owner.key() != claim.key());
        let name_conflict =
            name_owner.map(|owner| RejectionReason::Conflict { winner: owner.entry.source() });
        let uid_conflict = uid_owner.map(|owner| RejectionReason::UidInUse {
            winner: owner.entry.source(),
            holder: owner.key().clone(),
        });
        let Some(reason) = name_conflict.or(uid_conflict) else { continue };
        let (source, origin) = (claim.entry.source(), claim.entry.origin().clone());
        let rejection = Rejection { source, origin, pod: Some(claim.key().clone()), reason };
        conflicts.insert((source, claim.key().clone()), rejection);
    }
    conflicts
}
