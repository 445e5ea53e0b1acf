//! Warnings about the ports of all containers of a pod.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::{
    super::{
        at::At,
        fields::{Object, list, number, text},
    },
    bounds::MAX_PAIRS,
    text::quoted,
};

/// The lists of containers in a spec.
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// A port of a container.
struct Port<'v> {
    /// The list of containers, the index in it, and the index of the port.
    place: (&'static str, usize, usize),
    name: &'v str,
    number: i64,
    protocol: &'v str,
    host: i64,
    address: &'v str,
}

/// The ports with the same number and protocol, by their index in the pod.
#[derive(Default)]
struct Alike<'v> {
    all: Vec<usize>,
    without_host: Vec<usize>,
    by_host: BTreeMap<(i64, &'v str), Vec<usize>>,
}

impl<'v> Alike<'v> {
    /// The ports that are in conflict with another one, in order, at most `most` of them.
    fn conflicts(&self, port: &Port<'v>, most: usize) -> Vec<usize> {
        if port.host == 0 {
            return self.all.iter().copied().take(most).collect();
        }
        let same = |address| self.by_host.get(&(port.host, address)).into_iter().flatten();
        let mut found: Vec<usize> = self.without_host.iter().copied().take(most).collect();
        if port.address.is_empty() {
            let of_host =
                self.by_host.range((port.host, "")..).take_while(|((host, _), _)| *host == port.host);
            found.extend(of_host.flat_map(|(_, ports)| ports).take(most));
        } else {
            found.extend(same(port.address).chain(same("")).take(most));
        }
        found.sort_unstable();
        found.truncate(most);
        found
    }

    fn insert(&mut self, index: usize, port: &Port<'v>) {
        self.all.push(index);
        if port.host == 0 {
            self.without_host.push(index);
        } else {
            self.by_host.entry((port.host, port.address)).or_default().push(index);
        }
    }
}

/// Warns of ports that contradict each other.
pub(super) fn warn(spec: &Object, at: &At<'_>) {
    let ports: Vec<Port<'_>> = CONTAINERS.into_iter().flat_map(|field| ports_of(spec, field)).collect();
    for port in &ports {
        if !port.address.is_empty() && port.host == 0 {
            warn_at(port, at, &|| {
                let Port { name, number, protocol, host, address, .. } = port;
                format!(
                    "hostIP set without hostPort: {{Name:{name} HostPort:{host} ContainerPort:{number} \
                    Protocol:{protocol} HostIP:{address}}}"
                )
            });
        }
    }
    conflicts(&ports, at);
    let mut named = HashMap::new();
    for port in ports.iter().filter(|port| !port.name.is_empty()) {
        let first: &Port<'_> = named.entry(port.name).or_insert(port);
        if first.place != port.place {
            warn_at(port, at, &|| {
                let (name, other) = (quoted(port.name), path(first, at));
                format!(
                    "duplicate port name {name} with {other}, services and probes that select ports by name will \
                    use {other}"
                )
            });
        }
    }
}

fn ports_of<'v>(spec: &'v Object, field: &'static str) -> impl Iterator<Item = Port<'v>> {
    let containers = list(spec, field).iter().enumerate();
    containers.filter_map(|(at, container)| Some((at, container.as_object()?))).flat_map(
        move |(at, container)| {
            let ports = list(container, "ports").iter().map(Value::as_object).enumerate();
            ports.filter_map(move |(index, port)| {
                let port = port?;
                Some(Port {
                    place: (field, at, index),
                    name: text(port, "name"),
                    number: number(port, "containerPort").unwrap_or_default(),
                    protocol: text(port, "protocol"),
                    host: number(port, "hostPort").unwrap_or_default(),
                    address: text(port, "hostIP"),
                })
            })
        },
    )
}

fn conflicts(ports: &[Port<'_>], at: &At<'_>) {
    let mut groups: HashMap<(i64, &str), Alike<'_>> = HashMap::new();
    let mut left = MAX_PAIRS;
    for (index, port) in ports.iter().enumerate() {
        let group = groups.entry((port.number, port.protocol)).or_default();
        let found = group.conflicts(port, left);
        left -= found.len();
        for other in found.into_iter().filter_map(|other| ports.get(other)) {
            let what = if (port.host, port.address) == (other.host, other.address) {
                "duplicate"
            } else if port.host == 0 || other.host == 0 {
                "overlapping"
            } else {
                "dangerously ambiguous"
            };
            warn_at(port, at, &|| format!("{what} port definition with {}", path(other, at)));
        }
        group.insert(index, port);
    }
}

fn warn_at(port: &Port<'_>, spec: &At<'_>, detail: &dyn Fn() -> String) {
    let (field, container, index) = port.place;
    spec.field(field).index(container).field("ports").index(index).warning(detail);
}

fn path(port: &Port<'_>, spec: &At<'_>) -> String {
    let (field, container, index) = port.place;
    spec.field(field).index(container).field("ports").index(index).path.to_string()
}
