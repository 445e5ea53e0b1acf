//! Scripts that found a fault of the agent, each with the promise that was broken.

use super::{
    manifest_url::Serves,
    run::fails,
    script::{
        Action::{
            ApiBackup, ApiRestore, Bind, BreakWatches, Create, Delete, DiskBroken, DiskFlaky, DiskFull, Jump,
            Kill, Leave, LosePod, ManifestsUnreadable, PowerCut, PutFile, PutTwin, RemoveFile, Slow, Stop,
            Url,
        },
        Script, Setup,
    },
};

/// While the disk is full a list shows a pod that has no number yet, and the pod goes before there are numbers.
#[test]
fn a_client_of_a_watch_forgets_a_pod_that_came_and_went_without_a_number() {
    let steps = [
        (9_475, Kill { down: 0 }),
        (86_967, DiskFull(true)),
        (0, Create { n: 0, v: 0 }),
        (0, Stop { down: 2 }),
        (63_720, Delete { n: 0, grace: 0 }),
    ];
    assert_eq!(fails(&Script::of(734, &steps)), None);
}

/// The disk fails to store the end of a deletion, and takes longer for that than the delay before the next attempt.
#[test]
fn a_deleted_pod_goes_although_its_end_could_not_be_stored_for_seconds() {
    let steps = [
        (0, Stop { down: 4 }),
        (18_458, DiskFull(true)),
        (8_501, Create { n: 0, v: 1 }),
        (0, Delete { n: 0, grace: 3 }),
        (234, Slow { ms: 3_000 }),
        (3_137, ManifestsUnreadable(true)),
    ];
    assert_eq!(fails(&Script::of(2_122, &steps)), None);
}

/// A start with a full disk, while the clock is set back: its numbers are those that the next run begins with.
#[test]
fn a_client_that_was_given_the_last_number_of_earlier_runs_begins_again() {
    let steps = [
        (1_484_783, Bind { n: 2, v: 0 }),
        (1_540, DiskFull(true)),
        (226_862, Jump { seconds: -3_600 }),
        (30_191, Stop { down: 1 }),
        (115_098, Slow { ms: 5 }),
        (549_533, PowerCut { down: 36 }),
        (4_114, DiskFull(false)),
        (93_818, Kill { down: 3 }),
    ];
    assert_eq!(fails(&Script::of(17, &steps)), None);
}

/// The API server is restored between a probe, which the one before it answers, and the watch, in which nothing comes.
#[test]
fn pods_that_an_api_server_has_forgotten_go_also_if_it_was_restored_just_before_a_watch() {
    let steps = [
        (3_380_555, BreakWatches),
        (898_923, Create { n: 2, v: 0 }),
        (281_043, Slow { ms: 3_000 }),
        (2_017, Create { n: 0, v: 2 }),
        (67_367, ApiBackup),
        (1_253, Leave { n: 3, v: 2, after: 3 }),
        (254, Url(Serves::Half)),
        (99_864, Bind { n: 0, v: 2 }),
        (0, Bind { n: 3, v: 2 }),
        (0, Url(Serves::Never)),
        (280_576, BreakWatches),
        (2_835, ApiRestore),
    ];
    assert_eq!(fails(&Script::of(1_538_573, &steps)), None);
}

/// A pod whose version at its API server changes while no number can be had was shown with that version, for ever.
#[test]
fn a_client_of_a_watch_is_given_no_version_of_the_api_server() {
    let steps = [
        (49_336, Stop { down: 1 }),
        (497, Bind { n: 2, v: 2 }),
        (713, DiskFlaky { once_in: 10 }),
        (84_727, PutFile { n: 3, v: 1 }),
        (668, Stop { down: 3 }),
        (1_084, Bind { n: 2, v: 2 }),
    ];
    assert_eq!(fails(&Script::of(1_646_975, &steps)), None);
}

/// The disk is away, so that the state still has a manifest that is gone. Another one has the name of its pod by then.
#[test]
fn a_start_replaces_no_pod_by_that_of_a_manifest_that_is_gone() {
    let steps = [
        (0, PutFile { n: 2, v: 1 }),
        (0, PutTwin { n: 2, v: 0 }),
        (60_000, DiskBroken(true)),
        (0, RemoveFile { n: 2 }),
        (10_000, LosePod),
        (70_000, DiskBroken(false)),
        (0, Kill { down: 0 }),
    ];
    let setup = Setup { replaces_pods: true, ..Setup::default() };
    assert_eq!(fails(&Script::of(415_857, &steps).with(setup)), None);
}
