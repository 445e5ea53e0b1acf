//! What to do about one pod, from what is wanted, what runs and what is known of the sources. Pure.

use super::contract::ActualPod;
use crate::{
    pod::{Entry, Op, SourceName},
    storage::{Merged, SourceState},
};

/// What to do about a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision<'a> {
    /// It is as wanted, or what is there may not be touched.
    Nothing,
    /// To sync the wanted pod.
    Sync(&'a Entry, Op),
    /// To kill a pod first.
    Kill(&'a ActualPod),
    /// A pod is wanted and has to wait.
    Wait(Wait),
}

/// What a wanted pod waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A pod that was started for this source has the name, and the source has not synced.
    Source(SourceName),
    /// A pod of another instance has the name.
    OtherInstance,
    /// A pod with the same UID runs under another name.
    OtherName,
    /// Nothing: it is for another operating system than this node's, and is not started here.
    OtherSystem,
}

/// Decides what to do next about a key, by the rules of [`PodWorkers`](super::PodWorkers). `entry` is what the
/// view has under this key, with its [hash](super::runtime_hash), and `actual` is what runs.
///
/// `changed` is [`Update`](Op::Update) or [`Reconcile`](Op::Reconcile) if the wanted pod has changed since
/// it was synced and the runtime wants to receive each change. `replaces_pods` is
/// [what the runtime says](super::PodRuntime::replaces_pods).
pub fn decide<'a>(
    entry: Option<(&'a Entry, &str)>,
    view: &'a Merged,
    actual: &'a [ActualPod],
    changed: Option<Op>,
    replaces_pods: bool,
) -> Decision<'a> {
    let (entry, hash) = entry.unzip();
    // As with the kubelet, what has ended for its API server is not run again.
    let wanted = entry.filter(|entry| entry.pod().is_to_run());
    let runs_here = wanted.filter(|wanted| wanted.pod().is_for_linux());
    let is_wanted =
        |pod: &&ActualPod| pod.is_ours && runs_here.is_some_and(|wanted| *wanted.pod().uid() == pod.uid);
    let mut wait = None;
    for pod in actual.iter().filter(|pod| !is_wanted(pod)) {
        if may_kill(pod, entry, view) {
            return Decision::Kill(pod);
        }
        wait.get_or_insert(if pod.is_ours { Wait::Source(pod.source) } else { Wait::OtherInstance });
    }
    let Some(wanted) = wanted else { return Decision::Nothing };
    if let Some(wait) = wait {
        return Decision::Wait(wait);
    }
    if runs_here.is_none() {
        return Decision::Wait(Wait::OtherSystem);
    }
    let Some(pod) = actual.iter().find(is_wanted) else { return Decision::Sync(wanted, Op::Add) };
    let is_same = pod.source == wanted.source() && hash == Some(&*pod.hash);
    match changed {
        None if is_same && pod.is_complete => Decision::Nothing,
        // What a restored source has begun to create is completed; nothing else is changed for it.
        _ if !is_known(view, wanted.source()) && (!is_same || pod.is_complete) => Decision::Nothing,
        _ if pod.source != wanted.source() && !is_known(view, pod.source) => {
            Decision::Wait(Wait::Source(pod.source))
        }
        Some(op) if is_same && pod.is_complete => Decision::Sync(wanted, op),
        _ if replaces_pods && !is_same => Decision::Kill(pod),
        _ => Decision::Sync(wanted, Op::Update),
    }
}

/// Whether a pod that is not wanted may be killed: it is ours, the source that it was started for is known,
/// and it does not go only because a restored source has taken its name.
fn may_kill(pod: &ActualPod, entry: Option<&Entry>, view: &Merged) -> bool {
    let is_claimed = || {
        let claim = view.listing(pod.source).and_then(|listing| listing.get(&pod.key));
        claim.is_some_and(|claim| *claim.pod().uid() == pod.uid)
    };
    let because_of_known = entry.is_none_or(|entry| is_known(view, entry.source()));
    pod.is_ours && is_known(view, pod.source) && (because_of_known || !is_claimed())
}

/// Whether what a source wants is known: it has synced, or is not configured.
fn is_known(view: &Merged, source: SourceName) -> bool {
    view.state(source).is_none_or(|state| state == SourceState::Synced)
}
