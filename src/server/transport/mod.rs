//! The transport: listeners, TLS, connections, limits and authentication.
//!
//! It binds its addresses before it serves one, retries those that are in use or not there yet, and
//! completes responses before it stops.

pub(super) mod auth;
mod connection;
pub(super) mod credential_error;
pub(super) mod credentials;
mod drain;
mod generated;
mod late;
pub(super) mod limits;
pub(super) mod listen;
mod request_body;
mod slots;
mod socket;

use std::{io, sync::Arc, time::Duration};

use axum::{Extension, Router, extract::DefaultBodyLimit};
use tokio::{sync::watch, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{
    connection::Shared,
    credential_error::CredentialError,
    credentials::{CredentialFiles, CredentialReader, Credentials, Reloader, Stamps},
    drain::{DrainGuard, DrainGuards},
    late::LateListeners,
    limits::Limits,
    listen::{BindError, Listener},
    request_body::BodyReader,
    slots::Slots,
};
use super::stats::{ConnectionStats, RejectReason};
use crate::{
    host::{Disk, Host},
    outage::Outage,
    pod::NodeName,
    server::{address::Listen, config::Config, passed::PassedSocket},
    source::SourceFailing,
};

/// The delay after a failed accept: without file descriptors the next one fails as well.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The server cannot listen on an address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The token or the certificates are invalid.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
}

/// A server that is bound and does not accept connections yet: clients wait in the kernel.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    addresses: Vec<Listen>,
    late: LateListeners,
    node: NodeName,
    limits: Limits,
    files: (watch::Sender<CredentialFiles>, watch::Receiver<CredentialFiles>),
    stamps: Stamps,
    credentials: watch::Sender<Arc<Credentials>>,
    stats: ConnectionStats,
    drained: CancellationToken,
    host: Host,
}

/// Reloads the token and the certificates. Cheap to clone; without effect after the server has
/// ended.
#[derive(Clone, Debug)]
pub struct CredentialReload(watch::Sender<CredentialFiles>);

impl CredentialReload {
    /// Reads the files of these settings, changed or not. An error is logged and leaves the
    /// previous credentials in effect.
    pub fn now(&self, settings: &Config) {
        self.0.send_replace(CredentialFiles::new(settings));
    }
}

impl Server {
    /// Reads the token and the certificates that are given, and binds all addresses beside the
    /// passed sockets. [`run`](Self::run) makes what is not given. An address that is in use or not
    /// there yet is bound later, while the others are served.
    ///
    /// # Errors
    /// The first invalid file, or the first address on which it can never listen.
    pub async fn bind(
        settings: &Config,
        passed: Vec<PassedSocket>,
        node: NodeName,
        limits: Limits,
    ) -> Result<Self, StartError> {
        let files = CredentialFiles::new(settings);
        let (stamps, credentials) = files.read_given(&Disk::default())?;
        let mut listeners = passed.into_iter().map(Listener::passed).collect::<Result<Vec<_>, _>>()?;
        let mut late = LateListeners::new(settings.default_socket.clone());
        for address in &settings.listen {
            match Listener::bind(address, settings.default_socket.as_deref()).await {
                Ok(listener) => listeners.push(listener),
                Err(error) if error.may_pass() => late.failed(address.clone(), &error, &Host::default()),
                Err(error) => return Err(error.into()),
            }
        }
        let limits = Limits { connections: listen::connection_limit(limits.connections), ..limits };
        Ok(Self {
            addresses: listeners.iter().map(|listener| listener.address.clone()).collect(),
            listeners,
            late,
            node,
            limits,
            files: watch::channel(files),
            stamps,
            credentials: watch::Sender::new(Arc::new(credentials)),
            stats: ConnectionStats::default(),
            drained: CancellationToken::new(),
            host: Host::default(),
        })
    }

    /// Uses another clock, disk and threads.
    #[must_use]
    pub fn on(self, host: Host) -> Self {
        Self { host, ..self }
    }

    /// The addresses, with the actual ports.
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }

    /// Why it cannot listen on some address, while that is so.
    pub fn failing(&self) -> watch::Receiver<Option<SourceFailing>> {
        self.late.failing.subscribe()
    }

    /// The server's counters.
    pub fn stats(&self) -> ConnectionStats {
        self.stats.clone()
    }

    /// The handle that reloads the token and the certificates.
    pub fn credential_reload(&self) -> CredentialReload {
        CredentialReload(self.files.0.clone())
    }

    /// Cancelled when the drain is complete: see [`Server::run`].
    pub fn drained(&self) -> CancellationToken {
        self.drained.clone()
    }

    /// Answers requests until it is stopped, in two steps.
    ///
    /// When `drain` is cancelled, passed sockets are not accepted from any more: their clients
    /// wait in the kernel for the next process. Their connections end after the requests that
    /// were sent already are answered. The server's own sockets are served as before. When all
    /// requests that had begun on any socket are answered, [`Server::drained`] is cancelled;
    /// endless streams are not waited for.
    ///
    /// When `stop` is cancelled, nothing is accepted any more, and requests that have begun are
    /// answered within [`Limits::drain`]. The sources of endless streams must end them.
    ///
    /// # Cancel safety
    /// If the future is dropped, all connections are closed.
    pub async fn run(self, router: Router, drain: CancellationToken, stop: CancellationToken) {
        let Self { listeners, late, node, limits, files, stamps, credentials, stats, host, .. } = self;
        let slots = Slots::new(limits.connections);
        let (subscriber, interval) = (credentials.subscribe(), limits.reload);
        let reader = CredentialReader::new(files.1.clone(), &self.addresses);
        let mut reloader = Reloader::new(files.1, stamps, credentials, &host);
        // What is not given is made before the first request.
        reloader.update(false).await;
        let (guards, waiter) = DrainGuards::new(drain.clone());
        let shared = Arc::new(Shared {
            // `BodyReader` limits bodies.
            router: router.layer(DefaultBodyLimit::disable()).layer(Extension(reader)),
            node,
            credentials: subscriber,
            bodies: BodyReader::new(&limits),
            stats,
            stop: stop.clone(),
            guards,
            limits: limits.clone(),
            clock: host.clock.clone(),
        });
        let mut accepting = JoinSet::new();
        let mut serve = |listener: Listener| {
            let how = if listener.passed { "listening, passed by systemd" } else { "listening" };
            info!(address = %listener.address, "{how}");
            let guard = shared.guards.get().filter(|_| listener.passed);
            accepting.spawn(accept(listener, guard, slots.clone(), shared.clone()));
        };
        listeners.into_iter().for_each(&mut serve);
        let late = drain.run_until_cancelled(late.bind(&host, serve));
        let draining = async {
            waiter.drained(&shared.guards, &drain).await;
            self.drained.cancel();
        };
        tokio::select! {
            _ = async { tokio::join!(reloader.run(interval), draining, late) } => {}
            () = stop.cancelled() => {}
        }
        while let Some(ended) = accepting.join_next().await {
            if let Err(error) = ended {
                warn!(%error, "listener failed");
            }
        }
    }
}

/// Accepts connections until the server stops, or drains if it has a guard; then waits for the
/// connections.
async fn accept(listener: Listener, guard: Option<DrainGuard>, slots: Arc<Slots>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut outage = Outage::default();
    let end = || async {
        match &guard {
            Some(guard) => guard.drain.cancelled().await,
            None => shared.stop.cancelled().await,
        }
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = end() => break,
            accepted = listener.accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok(incoming) => {
                outage.recovered();
                // An accepted connection is served even if the drain begins now.
                let Some((slot, evicted)) = shared.stop.run_until_cancelled(slots.acquire()).await else {
                    break;
                };
                if evicted {
                    shared.stats.reject(RejectReason::Evicted);
                }
                connections.spawn(connection::serve(incoming, slot, guard.clone(), shared.clone()));
            }
            Err(error) if is_client_error(&error) => {}
            Err(error) => {
                if outage.failed(&error.to_string(), shared.clock.now()) {
                    warn!(%error, "cannot accept connections");
                }
                sleep(ACCEPT_DELAY).await;
            }
        }
    }
    // From here on new connections are refused; on a passed socket they wait for the next
    // process.
    drop((listener, guard));
    wait_for(&mut connections, &shared).await;
}

/// Waits for the connections to end, after the server has stopped for [`Limits::drain`] at most.
async fn wait_for(connections: &mut JoinSet<()>, shared: &Shared) {
    let all = async { while connections.join_next().await.is_some() {} };
    let deadline = async {
        shared.stop.cancelled().await;
        sleep(shared.limits.drain).await;
    };
    tokio::select! {
        () = all => return,
        () = deadline => {}
    }
    warn!(connections = connections.len(), "connections did not end in time and are closed");
}

/// Whether a connection failed because its client closed it before it was accepted.
fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, InvalidInput, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | InvalidInput | NotConnected)
}
