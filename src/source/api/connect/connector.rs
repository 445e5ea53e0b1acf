//! Makes clients, and remakes them when what they were made from changes.

use std::{mem, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use kube::Client;

use super::{
    error::ConnectError,
    http_client,
    kubeconfig_file::{ClientPlan, FileStamps, ServerIdentity, ServerPlan},
    tls::tls,
};
use crate::{
    error_chain::chain,
    host::Host,
    outage::Outage,
    source::api::config::{Kubeconfig, Proxies},
};

/// A credential is renewed this long before it expires; one that is valid for less than
/// twice this, after half of that.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_secs(60);

/// A client and its server.
#[derive(Clone)]
pub struct Connected {
    /// The client, which adds the server's URL and the credentials to a request.
    pub client: Client,
    /// The server.
    pub identity: Arc<ServerIdentity>,
}

/// Makes clients for the API server of a kubeconfig.
pub struct Connector {
    kubeconfig: Kubeconfig,
    proxies: Proxies,
    host: Host,
    made: Option<MadeClient>,
    /// Whether a new client is wanted even if nothing has changed.
    is_stale: bool,
    /// Whether the log says that credentials are withheld.
    has_warned: bool,
    outage: Outage,
}

/// A client and what it was made from.
struct MadeClient {
    connected: Connected,
    files: FileStamps,
    validity: Option<Validity>,
}

/// How long a credential is valid.
#[derive(Clone, Copy)]
struct Validity {
    renew_at: Timestamp,
    expires_at: Timestamp,
}

impl Validity {
    fn new(now: Timestamp, expires_at: Timestamp) -> Self {
        let half = now.duration_until(expires_at) / 2;
        Self { renew_at: expires_at - half.min(RENEW_BEFORE), expires_at }
    }
}

impl Connector {
    /// A connector that has read nothing yet.
    pub fn new(kubeconfig: Kubeconfig) -> Self {
        let (proxies, host, outage) = (Proxies::default(), Host::default(), Outage::default());
        Self { kubeconfig, proxies, host, made: None, is_stale: false, has_warned: false, outage }
    }

    /// Uses another machine's clock, threads and disk.
    #[must_use]
    pub fn on(mut self, host: Host) -> Self {
        self.host = host;
        self
    }

    /// Uses the environment's proxies.
    #[must_use]
    pub fn with_proxies(mut self, proxies: Proxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// The server that the kubeconfig names. Reads files; may block.
    ///
    /// # Errors
    /// If the kubeconfig cannot be read or is invalid.
    pub fn identity(&self) -> Result<ServerIdentity, ConnectError> {
        ServerPlan::read(&self.kubeconfig, &self.host.disk).map(|server| server.identity)
    }

    /// Whether a client can be made of the files. It connects to nothing and runs no
    /// plugin. Reads files; may block.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid.
    pub fn check(&self) -> Result<(), ConnectError> {
        let plan = ClientPlan::read(&self.kubeconfig, &self.proxies, &self.host.disk)?;
        tls(&plan.server.trust, plan.certificate.as_ref(), self.host.clock.now()).map(drop)
    }

    /// The client: the previous one, or a new one if there is none or if something that it
    /// was made from has changed.
    ///
    /// # Cancel safety
    /// Nothing is lost; a running plugin is killed.
    ///
    /// # Errors
    /// If no client can be made and the previous one is not valid. The next call retries.
    pub async fn client(&mut self) -> Result<Connected, ConnectError> {
        if let Some(made) = self.made.as_ref().filter(|_| !self.is_stale) {
            let (files, disk) = (made.files.clone(), self.host.disk.clone());
            let is_unchanged = move || files.iter().all(|(path, before)| disk.stamp(path).ok() == *before);
            let is_unchanged = blocking(&self.host, is_unchanged).await?;
            if is_unchanged && made.validity.is_none_or(|validity| self.host.clock.now() < validity.renew_at)
            {
                return Ok(made.connected.clone());
            }
        }
        let error = match self.make().await {
            Ok(made) => {
                self.is_stale = false;
                self.outage.recovered();
                return Ok(self.made.insert(made).connected.clone());
            }
            Err(error) => error,
        };
        let now = self.host.clock.now();
        let is_valid = |made: &&MadeClient| made.validity.is_none_or(|validity| now < validity.expires_at);
        let Some(made) = self.made.as_ref().filter(is_valid) else { return Err(error) };
        let text = chain(&error);
        if self.outage.failed(&text, now) {
            tracing::warn!(
                source = "api",
                error = text,
                "new credentials rejected, the previous ones stay in use"
            );
        }
        Ok(made.connected.clone())
    }

    /// Drops the client, because the server rejected its credentials.
    pub fn renew(&mut self) {
        self.made = None;
    }

    /// Makes the next client from this kubeconfig. The previous client stays in use while
    /// that fails.
    pub fn switch_to(&mut self, kubeconfig: Kubeconfig) {
        (self.kubeconfig, self.is_stale, self.has_warned) = (kubeconfig, true, false);
        self.outage.recovered();
    }

    async fn make(&mut self) -> Result<MadeClient, ConnectError> {
        let (kubeconfig, proxies, disk) =
            (self.kubeconfig.clone(), self.proxies.clone(), self.host.disk.clone());
        let mut plan = blocking(&self.host, move || ClientPlan::read(&kubeconfig, &proxies, &disk)).await??;
        if plan.withholds && !mem::replace(&mut self.has_warned, true) {
            let path = &plan.server.identity.url;
            tracing::warn!(source = "api", path, "credentials not used: the API server's URL is http");
        }
        let mut validity = None;
        if let Some(plugin) = plan.plugin.take() {
            let credential = plugin.run(self.host.clock.now()).await?;
            validity = credential.expires.map(|at| Validity::new(self.host.clock.now(), at));
            (plan.login.token, plan.certificate) = (credential.token, credential.certificate);
        }
        let now = self.host.clock.now();
        let (plan, tls) = blocking(&self.host, move || {
            let tls = tls(&plan.server.trust, plan.certificate.as_ref(), now);
            (plan, tls)
        })
        .await?;
        let client = http_client::client(&plan, tls?, &self.host.network)?;
        let connected = Connected { client, identity: Arc::new(plan.server.identity) };
        Ok(MadeClient { connected, files: plan.files, validity })
    }
}

async fn blocking<T: Send + 'static>(
    host: &Host,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ConnectError> {
    host.threads.blocking(work).await.map_err(ConnectError::Cancelled)
}
