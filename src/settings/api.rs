//! The api source's settings: how the API server is reached.

use std::{fmt, path::PathBuf};

use super::{Environment, Key, Layers, SettingsError, read_path};

/// The word that is said in place of a path; a file of that name is `./in-cluster`.
pub(super) const IN_CLUSTER: &str = "in-cluster";
/// The variables that tell a pod where its API server is.
const SERVICE: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];

/// Where it stands how the API server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kubeconfig {
    /// In a file, as kubectl and the kubelet know it.
    File(PathBuf),
    /// In what a pod of the cluster finds in its place.
    InCluster {
        /// A name or an address.
        host: String,
        /// A TCP port.
        port: u16,
    },
}

/// What the environment says about proxies, as Go's programs read it; empty is
/// as good as unsaid.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxySettings {
    /// For servers with TLS: `HTTPS_PROXY`.
    pub https: String,
    /// For servers without: `HTTP_PROXY`.
    pub http: String,
    /// Which servers are asked without: `NO_PROXY`.
    pub no: String,
}

impl fmt::Debug for ProxySettings {
    /// Without the URLs: there may be passwords in them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxySettings").field("no", &self.no).finish_non_exhaustive()
    }
}

pub(super) fn read(layers: &Layers<'_>) -> Result<Option<Kubeconfig>, SettingsError> {
    layers.one(Key::Kubeconfig, |text| {
        if text == IN_CLUSTER {
            in_cluster(layers.environment)
        } else {
            read_path(text).map(Kubeconfig::File)
        }
    })
}

fn in_cluster(environment: &Environment) -> Result<Kubeconfig, String> {
    let [host, port] = SERVICE.map(|name| environment.get(name).filter(|value| !value.is_empty()));
    let port = port.map(|port| port.parse::<u16>());
    match (host, port) {
        (Some(host), Some(Ok(port))) => Ok(Kubeconfig::InCluster { host: host.clone(), port }),
        (Some(_), Some(Err(_))) => Err(format!("{} is no port", SERVICE[1])),
        _ => Err(format!(
            "{IN_CLUSTER} needs {} and {}, which Kubernetes sets in a pod; give the path of a kubeconfig elsewhere (a file of that name is ./{IN_CLUSTER})",
            SERVICE[0], SERVICE[1]
        )),
    }
}

/// Each variable in capitals, or else in small letters.
pub(super) fn proxies(environment: &Environment) -> ProxySettings {
    let said = |name: &str| {
        let value = |name: &str| environment.get(name).filter(|value| !value.is_empty()).cloned();
        value(name).or_else(|| value(&name.to_lowercase())).unwrap_or_default()
    };
    ProxySettings { https: said("HTTPS_PROXY"), http: said("HTTP_PROXY"), no: said("NO_PROXY") }
}
