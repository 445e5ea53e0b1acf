//! The settings of the apiserver source.

use std::{fmt, path::PathBuf};

use crate::pod::SecurityLevel;

/// Where Kubernetes puts the service account of a pod.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The apiserver source's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How the API server is reached.
    pub kubeconfig: Kubeconfig,
    /// The proxies that lead to it.
    pub proxies: Proxies,
    /// The level that the pods may not exceed.
    pub pod_security: SecurityLevel,
}

/// How the API server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kubeconfig {
    /// As a file says, which kubectl and the kubelet can read, too.
    File(PathBuf),
    /// With the service account of the pod that podmux runs in.
    InCluster(InCluster),
}

/// The API server and the service account of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InCluster {
    /// `KUBERNETES_SERVICE_HOST`: a name or an address.
    pub host: String,
    /// `KUBERNETES_SERVICE_PORT`.
    pub port: u16,
    /// The directory of the service account, which contains `ca.crt` and `token`.
    pub directory: PathBuf,
}

impl InCluster {
    /// With the service account where Kubernetes puts it.
    pub fn new(host: String, port: u16) -> Self {
        Self { host, port, directory: PathBuf::from(SERVICE_ACCOUNT) }
    }
}

/// The environment's settings of proxies. An empty value is the same as none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// `HTTPS_PROXY`: the proxy for servers with TLS.
    pub https: String,
    /// `HTTP_PROXY`: the proxy for servers without TLS.
    pub http: String,
    /// `NO_PROXY`: the servers that are reached directly.
    pub no: String,
}

impl fmt::Debug for Proxies {
    /// Without the URLs, which may contain passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxies").field("no", &self.no).finish_non_exhaustive()
    }
}
