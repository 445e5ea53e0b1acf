//! From a kubeconfig to a client: where the API server is, whom to trust with it, who this node is to it.
//!
//! What a client was made of is looked at again before each request: a file that
//! changed, a credential that runs out and an answer of 401 each lead to a new
//! client, made beside the runtime's threads. A client that may still be good
//! stays in use while no new one can be made: a file that is being replaced, or
//! a plugin that fails a minute before its last token ends, costs no connection.

mod certificate;
mod error;
mod exec;
mod failure;
mod file;
mod layers;
mod proxy;

use std::{error::Error, io, path::PathBuf, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use self::{
    certificate::{Found, Pair, tls},
    exec::Credential,
    file::{Place, Plan, Stamp, sendable, stamp},
};
pub use self::{
    error::ConnectError,
    failure::{describe_cause, describe_failure},
    proxy::Proxies,
};
use crate::{clock, error_chain};

/// How long connecting to one address may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// So long before it ends a credential is replaced; one that lives less than
/// twice as long, at half of its life.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);

/// Where a pod finds its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Where it stands how the API server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kubeconfig {
    /// In a file, as kubectl and the kubelet know it.
    File(PathBuf),
    /// In what a pod of the cluster finds in its place.
    InCluster(InCluster),
}

/// What a pod of the cluster finds in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InCluster {
    /// `KUBERNETES_SERVICE_HOST`: a name or an address.
    pub host: String,
    /// `KUBERNETES_SERVICE_PORT`.
    pub port: u16,
    /// The directory of its service account, with `ca.crt` and `token` in it.
    pub directory: PathBuf,
}

impl InCluster {
    /// With the service account where Kubernetes puts it.
    #[must_use]
    pub fn new(host: String, port: u16) -> Self {
        Self { host, port, directory: PathBuf::from(SERVICE_ACCOUNT) }
    }
}

/// Which server it is: what an earlier run's listing is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Makes clients.
pub struct Connector {
    kubeconfig: Kubeconfig,
    proxies: Proxies,
    made: Option<Made>,
    /// Whether another was asked for, and could not be made yet.
    stale: bool,
    /// Why no other could be made, if that was so the last time: it is said once.
    warned: Option<String>,
}

/// A client and what it was made of.
struct Made {
    connected: Connected,
    files: Vec<(PathBuf, Stamp)>,
    ends: Option<Ends>,
}

/// How long a credential is good.
#[derive(Clone, Copy)]
struct Ends {
    /// It is time for another.
    due: Timestamp,
    /// It is good for nothing any more.
    at: Timestamp,
}

impl Ends {
    fn new(now: Timestamp, at: Timestamp) -> Self {
        let half = now.duration_until(at) / 2;
        Self { due: at - half.min(MARGIN), at }
    }
}

impl Connector {
    /// Reads nothing yet.
    #[must_use]
    pub fn new(kubeconfig: Kubeconfig) -> Self {
        Self { kubeconfig, proxies: Proxies::default(), made: None, stale: false, warned: None }
    }

    /// The same with what the environment says about proxies.
    #[must_use]
    pub fn with_proxies(mut self, proxies: Proxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// Which server the kubeconfig names, whoever this is to it. Reads files; may block.
    ///
    /// # Errors
    /// If it cannot be read or understood.
    pub fn identity(&self) -> Result<Identity, ConnectError> {
        Place::read(&self.kubeconfig).map(|place| place.identity)
    }

    /// Whether a client could be made of what the files say now. Nobody is
    /// asked, no plugin is run. Reads files; may block.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self) -> Result<(), ConnectError> {
        let plan = Plan::read(&self.kubeconfig, &self.proxies)?;
        tls(&plan.place.trust, plan.pair.as_ref(), clock::now()).map(drop)
    }

    /// The client: the one from before, or a new one if there is none or
    /// something it was made of has changed.
    ///
    /// # Cancel safety
    /// Nothing is lost; a plugin that runs is killed.
    ///
    /// # Errors
    /// If none can be made and none from before may still be good; the next call tries again.
    pub async fn client(&mut self) -> Result<Connected, ConnectError> {
        if let Some(made) = self.made.as_ref().filter(|_| !self.stale) {
            let files: Vec<PathBuf> = made.files.iter().map(|(path, _)| path.clone()).collect();
            let seen = blocking(move || files.iter().map(|path| stamp(path)).collect::<Vec<_>>()).await?;
            let unchanged = made.files.iter().map(|(_, stamp)| stamp).eq(&seen);
            if unchanged && made.ends.is_none_or(|ends| clock::now() < ends.due) {
                return Ok(made.connected.clone());
            }
        }
        let error = match self.make().await {
            Ok(made) => {
                (self.warned, self.stale) = (None, false);
                return Ok(self.made.insert(made).connected.clone());
            }
            Err(error) => error,
        };
        let usable = |made: &&Made| made.ends.is_none_or(|ends| clock::now() < ends.at);
        let Some(made) = self.made.as_ref().filter(usable) else { return Err(error) };
        let why = error_chain::chain(&error);
        if self.warned.as_ref() != Some(&why) {
            tracing::warn!(
                source = "api",
                error = why,
                "the API server is asked with the credentials from before"
            );
            self.warned = Some(why);
        }
        Ok(made.connected.clone())
    }

    /// Has the next client made anew, and none used from before: the server did
    /// not know who this is.
    pub fn renew(&mut self) {
        self.made = None;
    }

    /// Has the next client made anew, of this kubeconfig, because somebody asked
    /// for it. As long as that is not possible the one from before is used.
    pub fn turn_to(&mut self, kubeconfig: Kubeconfig) {
        (self.kubeconfig, self.stale, self.warned) = (kubeconfig, true, None);
    }

    async fn make(&self) -> Result<Made, ConnectError> {
        let (kubeconfig, proxies) = (self.kubeconfig.clone(), self.proxies.clone());
        let mut plan = blocking(move || Plan::read(&kubeconfig, &proxies)).await??;
        let mut ends = None;
        if let Some(plugin) = plan.plugin.take() {
            let credential = plugin.run(clock::now()).await?;
            ends = credential.expires.map(|at| Ends::new(clock::now(), at));
            log_in(&mut plan, credential, plugin.name())?;
        }
        let (plan, tls) = blocking(move || {
            let tls = tls(&plan.place.trust, plan.pair.as_ref(), clock::now());
            (plan, tls)
        })
        .await?;
        let client = layers::client(&plan, tls?)?;
        Ok(Made {
            connected: Connected { client, identity: Arc::new(plan.place.identity) },
            files: plan.files,
            ends,
        })
    }
}

/// Puts what a plugin gave where the kubeconfig's own would be.
fn log_in(plan: &mut Plan, credential: Credential, plugin: &str) -> Result<(), ConnectError> {
    if let Some(token) = credential.token {
        if !sendable(token.expose_secret()) {
            let problem = "gave a token with characters in it that no token has".to_owned();
            return Err(ConnectError::Plugin { command: plugin.to_owned(), problem });
        }
        plan.login.token = Some(token);
    }
    if let Some((certificate, key)) = credential.pair {
        let found = |text: String| Found { bytes: text.into_bytes(), place: format!("the plugin {plugin}") };
        plan.pair = Some(Pair { certificate: found(certificate), key: found(key) });
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ConnectError> {
    spawn_blocking(work).await.map_err(ConnectError::Cut)
}

/// Whether it is TLS, so that newer certificates may help.
pub(super) fn is_about_credentials(error: &kube::Error) -> bool {
    // An I/O error says of what it holds what that one's source is, not what it is.
    failure::chain(error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>()?.get_ref())
        .any(<dyn Error + Send + Sync>::is::<rustls::Error>)
}
