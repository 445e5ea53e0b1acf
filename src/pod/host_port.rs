//! The ports of the node that a pod wants. Pure.

use std::fmt;

use serde_json::{Map, Value};

/// A port of the node that a container wants, as the kubelet counts them
/// (`GetHostPorts` of `pkg/scheduler/util`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// The number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: Box<str>,
    /// The address; empty for all addresses of the node.
    pub address: Box<str>,
}

impl HostPort {
    /// The ports that a pod wants: those of its containers and of the init containers that stay.
    /// The API's defaults have set them for a pod in the network of the node.
    pub(super) fn of(pod: &Map<String, Value>) -> Box<[Self]> {
        let Some(spec) = pod.get("spec") else { return Box::default() };
        let items = |list: &str| spec.get(list).and_then(Value::as_array).into_iter().flatten();
        let stays =
            |container: &&Value| container.get("restartPolicy").is_some_and(|policy| policy == "Always");
        let containers = items("initContainers").filter(stays).chain(items("containers"));
        let ports = containers.filter_map(|container| container.get("ports")?.as_array()).flatten();
        let mut ports: Vec<Self> = ports.filter_map(Self::read).collect();
        ports.sort_unstable();
        ports.dedup();
        ports.into()
    }

    fn read(port: &Value) -> Option<Self> {
        let text = |field: &str| port.get(field).and_then(Value::as_str).unwrap_or_default();
        let number = u16::try_from(port.get("hostPort")?.as_u64()?).ok().filter(|number| *number > 0)?;
        let protocol = Some(text("protocol")).filter(|protocol| !protocol.is_empty()).unwrap_or("TCP");
        let address = Some(text("hostIP")).filter(|address| *address != "0.0.0.0").unwrap_or_default();
        Some(Self { port: number, protocol: protocol.into(), address: address.into() })
    }

    /// The port on all addresses.
    #[must_use]
    pub fn everywhere(&self) -> Self {
        Self { address: Box::default(), ..self.clone() }
    }

    /// Whether number and protocol are the same.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.port, &self.protocol) == (other.port, &other.protocol)
    }
}

impl fmt::Display for HostPort {
    /// `80/TCP`, or `10.0.0.1:80/TCP`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, protocol, address } = self;
        if address.is_empty() {
            write!(f, "{port}/{protocol}")
        } else {
            write!(f, "{address}:{port}/{protocol}")
        }
    }
}
