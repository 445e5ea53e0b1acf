//! The index of the node's ports that pods want, and which pods want the same one. Pure.

use imbl::{OrdSet, ordset::DiffItem};

use crate::pod::{Entry, HostPort, PodKey};

/// A port that two pods want. Both run; at most one of them can bind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConflict<'m> {
    /// A pod that wants the port.
    pub pod: &'m PodKey,
    /// Its port.
    pub port: &'m HostPort,
    /// The first other pod that wants it.
    pub other: &'m PodKey,
}

impl PortConflict<'_> {
    /// For people: what is wrong, and what to do.
    pub fn message(&self) -> String {
        let Self { port, other, .. } = self;
        format!(
            "host port {port} is also wanted by the pod {other}: only one of them can bind it; change hostPort or \
             hostIP in one of them"
        )
    }
}

/// The wanted ports in the order of number, protocol and address, each with its pod. All addresses come first.
///
/// A persistent set: a clone is O(1), and a comparison costs as much as the difference.
#[derive(Clone, Debug, Default)]
pub struct HostPorts(OrdSet<(HostPort, PodKey)>);

impl HostPorts {
    /// Replaces the ports of a pod. O(ports × log n).
    pub(super) fn replace(&mut self, key: &PodKey, old: Option<&Entry>, new: Option<&Entry>) {
        let ports = |entry: Option<&Entry>| entry.map_or(&[][..], |entry| entry.pod().host_ports()).to_vec();
        let (old, new) = (ports(old), ports(new));
        for port in old.iter().filter(|port| new.binary_search(port).is_err()) {
            self.0.remove(&(port.clone(), key.clone()));
        }
        for port in new.into_iter().filter(|port| old.binary_search(port).is_err()) {
            self.0.insert((port, key.clone()));
        }
    }

    /// The ports that an earlier index does not have. O(differences × log n).
    pub fn added_since<'m>(&'m self, before: &'m Self) -> impl Iterator<Item = (&'m HostPort, &'m PodKey)> {
        before.0.diff(&self.0).filter_map(|change| match change {
            DiffItem::Add((port, pod)) => Some((port, pod)),
            DiffItem::Remove(_) => None,
        })
    }

    /// The ports of other pods that cannot be bound together with this one of a pod.
    pub fn overlapping<'m>(
        &'m self,
        port: &'m HostPort,
        pod: &'m PodKey,
    ) -> impl Iterator<Item = (&'m HostPort, &'m PodKey)> {
        // All addresses overlap with each, and come first.
        let own = (!port.address.is_empty())
            .then(|| self.starting_at(port.clone()).take_while(move |(other, _)| **other == *port));
        let everywhere = self.starting_at(port.everywhere()).take_while(move |(other, _)| {
            other.is_like(port) && (port.address.is_empty() || other.address.is_empty())
        });
        everywhere.chain(own.into_iter().flatten()).filter(move |(_, other)| *other != pod)
    }

    /// The conflict of a pod about a port, if there is one. O(log n).
    pub fn conflict<'m>(&'m self, port: &'m HostPort, pod: &'m PodKey) -> Option<PortConflict<'m>> {
        self.overlapping(port, pod).next().map(|(_, other)| PortConflict { pod, port, other })
    }

    /// All conflicts.
    pub fn conflicts(&self) -> impl Iterator<Item = PortConflict<'_>> {
        self.0.iter().filter_map(|(port, pod)| self.conflict(port, pod))
    }

    /// The ports from this one on.
    fn starting_at(&self, port: HostPort) -> impl Iterator<Item = (&HostPort, &PodKey)> {
        // No key of a pod is less.
        let first = (port, PodKey::new("", ""));
        self.0.range(first..).map(|(port, pod)| (port, pod))
    }
}
