//! From a kubeconfig to a client: where the API server is, whom to trust with it, who this node is to it.
//!
//! What a client was made of is looked at again before each request: a file that
//! changed, a credential that runs out and an answer of 401 each lead to a new
//! client, made beside the runtime's threads.

mod failure;

use std::{path::PathBuf, sync::Arc, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig as File, KubeconfigError},
};

#[allow(unused_imports, reason = "the driver is about to")]
pub(super) use self::failure::{describe_cause, describe_failure};

/// How long connecting to one address may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where it stands how the API server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kubeconfig {
    /// In a file, as kubectl and the kubelet know it.
    File(PathBuf),
    /// In what a pod of the cluster finds in its place.
    InCluster,
}

/// Which server it is: what an earlier run's listing is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its URL, without what may be secret.
    pub url: String,
    /// A digest of the CAs that it is known by; empty for the system's.
    pub ca: String,
}

/// A client, and what it speaks to.
#[derive(Clone)]
pub struct Connected {
    /// It adds the server's URL and the credentials to a request.
    pub client: Client,
    /// Whom it speaks to.
    pub identity: Arc<Identity>,
}

/// Why there is no client. Says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("{}: it cannot be used as kubeconfig", .0.display())]
    Kubeconfig(PathBuf, #[source] KubeconfigError),
    /// No client can be made of it.
    #[error("no client can be made")]
    Client(#[source] kube::Error),
}

/// Makes clients.
pub struct Connector {
    kubeconfig: Kubeconfig,
    made: Option<Connected>,
}

impl Connector {
    /// Reads nothing yet.
    #[must_use]
    pub fn new(kubeconfig: Kubeconfig) -> Self {
        Self { kubeconfig, made: None }
    }

    /// Which server the kubeconfig names. Reads files; may block.
    ///
    /// # Errors
    /// If it cannot be read or understood.
    pub fn identity(&self) -> Result<Identity, ConnectError> {
        Ok(Identity { url: String::new(), ca: String::new() })
    }

    /// The client: the one from before, or a new one if there is none or
    /// something it was made of has changed.
    ///
    /// # Errors
    /// If none can be made; the next call tries again.
    pub async fn client(&mut self) -> Result<Connected, ConnectError> {
        if let Some(made) = &self.made {
            return Ok(made.clone());
        }
        let Kubeconfig::File(path) = &self.kubeconfig else { unreachable!() };
        let unusable = |error| ConnectError::Kubeconfig(path.clone(), error);
        let file = File::read_from(path).map_err(unusable)?;
        let config =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(unusable)?;
        let client = Client::try_from(config).map_err(ConnectError::Client)?;
        let made = Connected { client, identity: Arc::new(self.identity()?) };
        self.made = Some(made.clone());
        Ok(made)
    }

    /// Has the next client made anew: the server did not know who this is, or
    /// somebody asked for it.
    pub fn renew(&mut self) {
        self.made = None;
    }
}

/// Whether it is the credentials, so that newer ones may help.
pub(super) fn is_about_credentials(_error: &kube::Error) -> bool {
    false
}
