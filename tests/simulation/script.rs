//! What happens in a run: changes of the sources, and faults.

use std::fmt;

use podmux::{mux::Notify, pod::SourceName};

use super::{
    clients::{Half, How, Several, Trial},
    manifest_url::Serves,
};
use crate::support::random::Random;

/// The names of the pods of a source, in one run.
pub const NAMES: usize = 4;
/// How many steps most scripts have at most, and how many one in a hundred has.
const STEPS: usize = 40;
const LONG: usize = 1_000;

/// One change or fault. A pod is `n`, and what it runs is `v`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A manifest is written in one step.
    PutFile {
        n: usize,
        v: usize,
    },
    /// A manifest is overwritten with something that is none.
    BreakFile {
        n: usize,
    },
    RemoveFile {
        n: usize,
    },
    /// A second manifest with the name of the pod. That of the first one is in effect while there is one.
    PutTwin {
        n: usize,
        v: usize,
    },
    RemoveTwin {
        n: usize,
    },
    Create {
        n: usize,
        v: usize,
    },
    Replace {
        n: usize,
        v: usize,
    },
    Patch {
        n: usize,
        v: usize,
        how: How,
    },
    Delete {
        n: usize,
        grace: usize,
    },
    /// A client writes several pods.
    WriteSeveral(Several),
    /// A client sends a write of a pod that may change nothing.
    Try {
        n: usize,
        trial: Trial,
    },
    /// A client replaces a pod, and goes away after so many milliseconds if there is no answer by then.
    Leave {
        n: usize,
        v: usize,
        after: usize,
    },
    /// A client begins a request.
    SendHalf(Half),
    /// A pod is bound to the node, or changed.
    Bind {
        n: usize,
        v: usize,
    },
    Unbind {
        n: usize,
    },
    /// A bound pod is changed to one that the level of the API server's pods does not allow.
    BindForbidden {
        n: usize,
    },
    /// A bound pod is one that another kubelet shows of a manifest.
    BindMirror {
        n: usize,
    },
    /// A bound pod has ended, as the API server shows it.
    End {
        n: usize,
    },
    /// A bound pod is being deleted, and stays until it is unbound.
    Terminate {
        n: usize,
    },
    /// A pod is put into the list at the URL, or changed there.
    PutUrl {
        n: usize,
        v: usize,
    },
    RemoveUrl {
        n: usize,
    },
    /// The agent is killed, and started again after so many seconds.
    Kill {
        down: usize,
    },
    /// A client replaces a pod, and the agent is killed before it has synced that, or while the sync fails.
    KillInSync {
        n: usize,
        v: usize,
        down: usize,
    },
    /// The agent is stopped, and started again after so many seconds.
    Stop {
        down: usize,
    },
    /// The settings change, and the agent reads them again: valid ones, or ones that are not.
    Reload(Option<Tuning>),
    /// The agent is stopped, and started with settings that lack this source.
    Reconfigure {
        without: Option<SourceName>,
    },
    /// The agent is stopped, or the power fails; pods are changed and removed while it is down.
    StopAndChange {
        n: usize,
        v: usize,
        reboots: bool,
    },
    /// The power fails, and comes back after so many seconds.
    PowerCut {
        down: usize,
    },
    /// The state is copied,
    StateBackup,
    /// and put back after the agent was killed, which is started again after so many seconds.
    StatePutBack {
        down: usize,
    },
    DiskFull(bool),
    DiskBroken(bool),
    SyncFails(bool),
    /// One in so many writes to the disk fails; none if it is 0.
    DiskFlaky {
        once_in: usize,
    },
    ManifestsUnreadable(bool),
    /// Work on threads takes up to so many milliseconds.
    Slow {
        ms: usize,
    },
    ApiDown(bool),
    /// The API server accepts requests and never answers.
    ApiHangs(bool),
    /// The API server stands still with all its connections.
    ApiFreezes(bool),
    /// The API server is one of another version.
    ApiChanges {
        knows_watch_list: bool,
        speaks_protobuf: bool,
    },
    ApiErrors(bool),
    /// The API server answers that the agent may not read pods.
    ApiForbids(bool),
    /// The data of the API server are saved,
    ApiBackup,
    /// and put back, with an earlier version.
    ApiRestore,
    BreakWatches,
    Compact,
    Bookmark,
    Url(Serves),
    SinkFails(bool),
    SinkHangs(bool),
    /// A consumer loses what it holds.
    SinkForgets,
    RuntimeFails(bool),
    RuntimeHangs(bool),
    /// No call for a pod of this number succeeds.
    RuntimeRefuses(Option<usize>),
    /// A pod of the runtime vanishes.
    LosePod,
    /// A container of the runtime is started again by it.
    Restart,
    /// The clients that follow the agent read nothing.
    ReadersStop(bool),
    /// The wall clock jumps by so many seconds.
    Jump {
        seconds: i64,
    },
}

impl Action {
    /// Whether the agent ends.
    fn ends_run(self) -> bool {
        use Action::{Kill, KillInSync, PowerCut, Reconfigure, StatePutBack, Stop, StopAndChange};
        let is_changed = matches!(self, StatePutBack { .. } | Reconfigure { .. } | StopAndChange { .. });
        is_changed || matches!(self, Kill { .. } | KillInSync { .. } | Stop { .. } | PowerCut { .. })
    }
}

/// Settings that take effect at a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How many pods can be posted.
    pub max_posted: usize,
    /// Whether the level of the API server's pods allows everything.
    pub allows_all: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { max_posted: NAMES, allows_all: false }
    }
}

/// An action, so many milliseconds after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub after: u64,
    pub action: Action,
}

/// What does not change in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    pub notify: Notify,
    /// Whether nothing runs the pods: a deletion has ended when the sinks know of it.
    pub has_no_runtime: bool,
    /// Whether the runtime changes no pod in place, and a kill waits for the grace of its pod: as podman's does.
    pub replaces_pods: bool,
    /// Whether the second pod of the manifests and that of the URL have the same UID.
    pub shares_uid: bool,
}

impl Setup {
    fn new(random: &mut Random) -> Self {
        Self {
            notify: *random.pick(&[
                Notify::Incremental,
                Notify::Incremental,
                Notify::Snapshot,
                Notify::SnapshotAndUpdates,
            ]),
            has_no_runtime: random.once_in(4),
            replaces_pods: random.once_in(2),
            shares_uid: random.once_in(3),
        }
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub seed: u64,
    pub setup: Setup,
    pub steps: Vec<Step>,
}

impl Script {
    /// The script of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let setup = Setup::new(&mut random);
        let is_long = random.once_in(100);
        // What a long run accumulates is lost to one that is restarted again and again.
        let is_one_run = is_long && random.once_in(2);
        let count = if is_long { LONG } else { 5 + random.below(STEPS - 5) };
        let steps = (0..count).map(|_| {
            // Many at once, some after a while, a few after minutes.
            let after = match random.below(8) {
                0..3 => 0,
                3..7 => random.below(2_000),
                _ => random.below(100_000),
            };
            Step { after: after as u64, action: action(&mut random) }
        });
        let steps = steps.filter(|step| !is_one_run || !step.action.ends_run()).collect();
        Self { seed, setup, steps }
    }

    /// A script that was found.
    pub fn of(seed: u64, steps: &[(u64, Action)]) -> Self {
        let steps = steps.iter().map(|&(after, action)| Step { after, action }).collect();
        Self { seed, setup: Setup::default(), steps }
    }

    pub fn with(self, setup: Setup) -> Self {
        Self { setup, ..self }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Script::of({}, &[", self.seed)?;
        self.steps.iter().try_for_each(|step| writeln!(f, "    ({}, {:?}),", step.after, step.action))?;
        write!(f, "]).with({:?})", self.setup)
    }
}

fn action(random: &mut Random) -> Action {
    let (n, v) = (random.below(NAMES), random.below(3));
    let is_on = random.once_in(2);
    match random.below(70) {
        0..4 => Action::PutFile { n, v },
        4 => Action::BreakFile { n },
        5..7 => Action::RemoveFile { n },
        7..11 => Action::Create { n, v },
        11..13 => Action::Replace { n, v },
        13..16 => Action::Delete { n, grace: random.below(4) },
        16..20 => Action::Bind { n, v },
        20..22 => Action::Unbind { n },
        22 => match (random.below(5), random.once_in(2)) {
            (down, true) => Action::KillInSync { n, v, down },
            (down, false) => Action::Kill { down },
        },
        23 => match random.below(3) {
            0 => Action::Stop { down: random.below(5) },
            _ => Action::StopAndChange { n, v, reboots: is_on },
        },
        24 => Action::PowerCut { down: random.below(60) },
        25 => Action::DiskFull(is_on),
        26 => match random.below(3) {
            0 => Action::DiskBroken(is_on),
            1 => Action::SyncFails(is_on),
            _ => Action::DiskFlaky { once_in: [0, 3, 10, 40][random.below(4)] },
        },
        27 => Action::ManifestsUnreadable(is_on),
        28 => Action::Slow { ms: [0, 5, 200, 3_000][random.below(4)] },
        29 => Action::ApiDown(is_on),
        30 => Action::ApiHangs(is_on),
        31 => Action::ApiErrors(is_on),
        32 => Action::BreakWatches,
        33 => Action::Compact,
        34 => Action::Bookmark,
        35 => Action::SinkFails(is_on),
        36 => Action::SinkHangs(is_on),
        37 => Action::RuntimeFails(is_on),
        38 => [Action::RuntimeHangs(is_on), Action::LosePod][random.below(2)],
        39..42 => Action::PutUrl { n, v },
        42 => Action::RemoveUrl { n },
        43..45 => Action::Url(serves(random)),
        45 => Action::Leave { n, v, after: random.below(20) },
        46 => Action::SendHalf([Half::Nothing, Half::Head, Half::Body][random.below(3)]),
        47 => Action::Terminate { n },
        48 => [Action::ApiBackup, Action::ApiForbids(is_on)][random.below(2)],
        49 => Action::ApiRestore,
        50 => Action::Jump { seconds: [-3_600, -5, 5, 3_600][random.below(4)] },
        51..53 => Action::PutTwin { n, v },
        53 => Action::RemoveTwin { n },
        54..56 => {
            Action::Patch { n, v, how: *random.pick(&[How::Merge, How::Strategic, How::Json, How::Apply]) }
        }
        56 => [Action::StateBackup, Action::StatePutBack { down: random.below(5) }][random.below(2)],
        57 if random.once_in(2) => Action::ApiFreezes(is_on),
        57 => Action::ApiChanges { knows_watch_list: is_on, speaks_protobuf: random.once_in(2) },
        58 => {
            [Action::RuntimeRefuses(Some(n)), Action::RuntimeRefuses(None), Action::Restart][random.below(3)]
        }
        59 => Action::ReadersStop(is_on),
        60 => Action::SinkForgets,
        61 => Action::Reconfigure { without: a_source_or_none(random) },
        62 => Action::WriteSeveral(several(v, random)),
        63..66 => Action::Try { n, trial: trial(v, random) },
        66 => Action::End { n },
        67..69 => Action::Reload(tuning(random)),
        _ => [Action::BindForbidden { n }, Action::BindMirror { n }][random.below(2)],
    }
}

fn several(v: usize, random: &mut Random) -> Several {
    [Several::Delete { v, grace: random.below(4) }, Several::Apply { v }, Several::Replace { v }]
        [random.below(3)]
}

fn trial(v: usize, random: &mut Random) -> Trial {
    use Trial::{Create, Delete, OldUid, OldVersion, Replace};
    [Create { v }, Replace { v }, Delete, OldVersion { v }, OldVersion { v }, OldUid, OldUid][random.below(7)]
}

fn a_source_or_none(random: &mut Random) -> Option<SourceName> {
    *random.pick(&[None, Some(SourceName::File), Some(SourceName::Url), Some(SourceName::Api)])
}

fn tuning(random: &mut Random) -> Option<Tuning> {
    let tuning = Tuning { max_posted: 1 + random.below(NAMES), allows_all: random.once_in(2) };
    (!random.once_in(5)).then_some(tuning)
}

fn serves(random: &mut Random) -> Serves {
    use Serves::{Broken, Empty, Errors, Half, Never, Nothing, Pods};
    [Pods, Pods, Nothing, Never, Errors, Empty, Half, Broken][random.below(8)]
}
