//! The facts about ports of the node that two pods want. Pure.

use super::event::{Fact, Involved};
use crate::storage::{Merged, PortConflict};

/// The most pods of which one change makes facts, besides the changed pod: they all want one port.
const MAX_OTHERS: usize = 100;

/// The facts about each pod that has a conflict since `before`. O(differences × log n).
pub(super) fn port_conflicts(before: &Merged, after: &Merged, facts: &mut Vec<Fact>) {
    let (earlier, now) = (before.host_ports(), after.host_ports());
    for (port, pod) in now.added_since(earlier) {
        let Some(conflict) = now.conflict(port, pod) else { continue };
        facts.push(fact(after, &conflict));
        // Those that had no conflict about their port have one now.
        let others = earlier.overlapping(port, pod).take(MAX_OTHERS);
        for (theirs, other) in others.filter(|(theirs, other)| earlier.conflict(theirs, other).is_none()) {
            if after.get(other).is_some_and(|entry| entry.pod().host_ports().binary_search(theirs).is_ok()) {
                facts.push(fact(after, &PortConflict { pod: other, port: theirs, other: pod }));
            }
        }
    }
}

fn fact(merged: &Merged, conflict: &PortConflict<'_>) -> Fact {
    let involved = Involved::merged(merged, conflict.pod);
    Fact::new(involved, true, "HostPortConflict", conflict.message())
}
