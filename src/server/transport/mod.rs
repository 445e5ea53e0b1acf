//! The transport: listeners, TLS, connections, limits and authentication.
//!
//! It binds its addresses before it serves one, retries those that are in use or not there yet, and
//! completes responses before it stops.

mod activity;
pub(super) mod auth;
mod client_certificate;
mod connection;
pub(super) mod credential_error;
pub(super) mod credentials;
mod generated;
mod late;
pub(super) mod limits;
pub(super) mod listen;
pub(super) mod request_body;

use std::{io, sync::Arc, time::Duration};

use axum::{Extension, Router};
use rustix::process::geteuid;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use self::{
    auth::Peer,
    connection::Shared,
    credential_error::CredentialError,
    credentials::{CredentialReader, Reloader},
    late::LateListeners,
    limits::Limits,
    listen::{BindError, ByteStream, Listener},
};
use super::{
    slots::Slots,
    stats::{ConnectionStats, RejectReason},
};
use crate::{
    host::Host,
    outage::Outage,
    pod::NodeName,
    server::{address::Listen, config::Config, passed::PassedSocket},
    source::SourceFailing,
};

/// The delay after a failed accept: without file descriptors the next one fails as well.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);
/// The user that all users without a mapping look like in a user namespace (`PrivateUsers=`).
const OVERFLOW_UID: u32 = 65534;

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
pub struct Server {
    listeners: Vec<Listener>,
    late: LateListeners,
    /// The addresses of both, in the order of the settings.
    all: Vec<Listen>,
    node: NodeName,
    limits: Limits,
    files: watch::Sender<Config>,
    reloader: Reloader,
    stats: ConnectionStats,
    drained: CancellationToken,
    host: Host,
}

/// Reloads the token and the certificates. Cheap to clone; without effect after the server has
/// ended.
#[derive(Clone, Debug)]
pub struct CredentialReload(watch::Sender<Config>);

impl CredentialReload {
    /// Reads the files of these settings, changed or not. An error is logged and leaves the
    /// previous token or certificates in effect.
    pub fn now(&self, settings: &Config) {
        self.0.send_replace(settings.clone());
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
        let (files, current) = watch::channel(settings.clone());
        let stats = ConnectionStats::default();
        let reloader = Reloader::new(current, stats.clone())?;
        let mut listeners = passed.into_iter().map(Listener::passed).collect::<Result<Vec<_>, _>>()?;
        let mut all: Vec<_> = listeners.iter().map(|listener| listener.address.clone()).collect();
        let mut late = LateListeners::new(settings.clone());
        for address in &settings.listen {
            match Listener::bind(address, settings).await {
                Ok(listener) => {
                    all.push(listener.address.clone());
                    listeners.push(listener);
                }
                Err(error) if error.may_pass => {
                    all.push(address.clone());
                    late.failed(address.clone(), &error, &Host::default());
                }
                Err(error) => return Err(error.into()),
            }
        }
        // Each listener has as many slots.
        let count = all.len().max(1);
        let connections = listen::connection_limit(limits.connections * count) / count;
        let limits = Limits { connections: connections.max(1), ..limits };
        Ok(Self {
            listeners,
            late,
            all,
            node,
            limits,
            files,
            reloader,
            stats,
            drained: CancellationToken::new(),
            host: Host::default(),
        })
    }

    /// Uses another clock, disk, threads and network. Clients in this process come in place of the sockets.
    #[must_use]
    pub fn on(mut self, host: Host) -> Self {
        if let Some((clients, address)) = host.network.take_clients().zip(self.addresses().pop()) {
            self.listeners = vec![Listener::simulated(clients, address)];
        }
        Self { host, ..self }
    }

    /// The addresses, with the actual ports.
    pub fn addresses(&self) -> Vec<Listen> {
        self.listeners.iter().map(|listener| listener.address.clone()).collect()
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
        CredentialReload(self.files.clone())
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
        // Those that are bound come first.
        let addresses = [self.addresses(), self.all.clone()].concat();
        let reader = CredentialReader::new(self.reloader.files.clone(), &addresses);
        let Self { listeners, late, node, limits, mut reloader, stats, host, .. } = self;
        let (credentials, interval) = (reloader.credentials.subscribe(), limits.reload);
        // What is not given is made before the first request.
        reloader.update(&host, false).await;
        let router = request_body::read_bodies(router, &limits, stats.clone()).layer(Extension(reader));
        let begun = TaskTracker::new();
        let mut accepting = JoinSet::new();
        let mut serve = |listener: Listener| {
            let how = if listener.passed { "listening, passed by systemd" } else { "listening" };
            info!(address = %listener.address, "{how}");
            let has_users = matches!(listener.address, Listen::Unix(_));
            let shared = Arc::new(Shared {
                router: router.clone(),
                node: node.clone(),
                credentials: credentials.clone(),
                stats: stats.clone(),
                stop: stop.clone(),
                drain: drain.clone(),
                begun: begun.clone(),
                passed: listener.passed,
                slots: Slots::new(limits.connections, has_users),
                watchers: Slots::new(limits.watchers, has_users),
                limits: limits.clone(),
                clock: host.clock.clone(),
            });
            accepting.spawn(accept(listener, shared));
        };
        listeners.into_iter().for_each(&mut serve);
        let late = drain.run_until_cancelled(late.bind(&host, serve));
        let draining = async {
            drain.cancelled().await;
            begun.close();
            begun.wait().await;
            self.drained.cancel();
        };
        tokio::select! {
            _ = async { tokio::join!(reloader.run(&host, interval), draining, late) } => {}
            () = stop.cancelled() => {}
        }
        while let Some(ended) = accepting.join_next().await {
            if let Err(error) = ended {
                warn!(%error, "listener failed");
            }
        }
    }
}

/// Accepts connections until the server stops, or drains if the socket is passed; then waits for
/// the connections.
async fn accept(listener: Listener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut outage = Outage::default();
    let accepting = shared.passed.then(|| shared.begun.token());
    // The connections of other users that wait for a slot: behind them in the kernel may be one
    // with a reserved slot.
    let places = Arc::new(Semaphore::new(shared.slots.reserved()));
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.drained() => break,
            () = shared.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok(incoming) => {
                outage.recovered();
                admit(incoming, &shared, &places, &mut connections).await;
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
    drop((listener, accepting));
    wait_for(&mut connections, &shared).await;
}

/// Serves a connection with a slot, also if the drain begins now. Without a free one it waits here,
/// and later ones wait in the kernel; only those of other users wait aside, or are closed.
async fn admit(
    incoming: (Box<dyn ByteStream>, Peer),
    shared: &Arc<Shared>,
    places: &Arc<Semaphore>,
    connections: &mut JoinSet<()>,
) {
    let (privileged, steps_aside) = match incoming.1 {
        Peer::Unix(uid) => (is_privileged(uid), !is_privileged(uid)),
        Peer::Tcp(_) => (false, false),
    };
    let begun = shared.passed.then(|| shared.begun.token());
    let own = shared.clone();
    let mut slot = shared.slots.try_acquire(privileged);
    let mut place = None;
    if slot.is_none() {
        shared.stats.reject(RejectReason::Full);
        if steps_aside {
            place = places.clone().try_acquire_owned().ok();
        } else {
            slot = shared.slot(privileged).await;
        }
    }
    connections.spawn(async move {
        if place.is_some() {
            slot = own.slot(privileged).await;
            drop(place);
        }
        if let Some(slot) = slot {
            connection::serve(incoming, privileged, slot, begun, own).await;
        }
    });
}

/// Whether a user has the reserved slots: root and the agent's own.
fn is_privileged(uid: u32) -> bool {
    uid == 0 || (uid == geteuid().as_raw() && uid != OVERFLOW_UID)
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
