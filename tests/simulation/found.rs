//! Scripts that found a fault of the agent, each with the promise that was broken.

use super::{
    run::fails,
    script::{
        Action::{Create, Delete, DiskFull, Kill, Stop},
        Script,
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
