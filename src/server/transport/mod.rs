//! The transport: listeners, TLS, connections, limits, callers. It binds all addresses before it serves one,
//! and stops without cutting answers off.

pub(super) mod auth;
mod connection;
pub(super) mod credentials;
mod hands;
mod intake;
pub(super) mod limits;
pub(super) mod listen;
mod slots;
mod socket;
pub(super) mod stats;

use std::{io, sync::Arc, time::Duration};

use axum::{Router, extract::DefaultBodyLimit};
use tokio::{sync::watch, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{
    connection::Shared,
    credentials::{CredentialError, CredentialFiles, Credentials, Stamp},
    hands::{Hand, Hands},
    intake::Intake,
    limits::Limits,
    listen::{BindError, Listener},
    slots::Slots,
    stats::{ConnectionStats, Refusal},
};
use crate::{
    pod::NodeName,
    server::{address::Listen, config::Config, passed::PassedSocket},
};

/// How long nothing is accepted after the system had no means for a connection:
/// it would say so at once again.
const RESPITE: Duration = Duration::from_millis(100);

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Token or certificates cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
}

/// A server that listens and does not answer yet: clients wait in the kernel.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    addresses: Vec<Listen>,
    node: NodeName,
    limits: Limits,
    /// Where token and certificates are.
    files: (watch::Sender<CredentialFiles>, watch::Receiver<CredentialFiles>),
    stamp: Stamp,
    credentials: watch::Sender<Arc<Credentials>>,
    stats: ConnectionStats,
    finished: CancellationToken,
}

/// Has the files of token and certificates read again at once. Cheap to clone; it
/// does nothing for a server that has ended.
#[derive(Clone, Debug)]
pub struct Reread(watch::Sender<CredentialFiles>);

impl Reread {
    /// Reads those that are named here, whether they have changed or not. What
    /// cannot be used leaves everything as it was, and the log says so.
    pub fn now(&self, settings: &Config) {
        self.0.send_replace(CredentialFiles::new(settings));
    }
}

impl Server {
    /// Reads token and certificates, and listens on all addresses or on none,
    /// beside the sockets that were passed.
    ///
    /// # Errors
    /// The first file that cannot be used, or the first address that cannot be
    /// listened on, and how to mend that.
    pub async fn bind(
        settings: &Config,
        passed: Vec<PassedSocket>,
        node: NodeName,
        limits: Limits,
    ) -> Result<Self, StartError> {
        let files = CredentialFiles::new(settings);
        let (stamp, credentials) = files.read()?;
        let mut listeners = passed.into_iter().map(Listener::passed).collect::<Result<Vec<_>, _>>()?;
        for address in &settings.listen {
            listeners.push(Listener::bind(address).await?);
        }
        let limits = Limits { connections: listen::room_for(limits.connections), ..limits };
        Ok(Self {
            addresses: listeners.iter().map(|listener| listener.address.clone()).collect(),
            listeners,
            node,
            limits,
            files: watch::channel(files),
            stamp,
            credentials: watch::Sender::new(Arc::new(credentials)),
            stats: ConnectionStats::default(),
            finished: CancellationToken::new(),
        })
    }

    /// Where it listens; ports that were left to the system are known.
    #[must_use]
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }

    /// The counters of what it does.
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        self.stats.clone()
    }

    /// The handle by which it reads its files again.
    #[must_use]
    pub fn reread(&self) -> Reread {
        Reread(self.files.0.clone())
    }

    /// Is cancelled when what was in hand when the server was asked to finish is
    /// done: see [`Server::run`].
    #[must_use]
    pub fn finished(&self) -> CancellationToken {
        self.finished.clone()
    }

    /// Answers requests until it is told not to, in two steps.
    ///
    /// When `finish` is cancelled, the sockets that were passed are left alone:
    /// whoever connects to them waits in the kernel for the next process. Their
    /// connections are finished: a request that has begun is answered, one that
    /// has not been read yet too if it comes soon, and then the connection ends.
    /// Our own sockets are served as before. When all requests that had begun by
    /// then are answered, on whichever socket, [`Server::finished`] is cancelled;
    /// streams without an end are not waited for.
    ///
    /// When `stop` is cancelled, nothing new is taken. Requests that have begun are
    /// then answered to their end, for as long as [`Limits::drain`] says; streams
    /// without an end have to be ended by whoever feeds them.
    ///
    /// # Cancel safety
    /// If the future is dropped, every connection is cut off.
    pub async fn run(self, router: Router, finish: CancellationToken, stop: CancellationToken) {
        let Self { listeners, node, limits, files, stamp, credentials, stats, .. } = self;
        let slots = Slots::new(limits.connections);
        let (hands, finishing) = Hands::new(finish.clone());
        let shared = Arc::new(Shared {
            // Every body is read before it gets there, and held to the limit.
            router: router.layer(DefaultBodyLimit::disable()),
            node,
            credentials: credentials.subscribe(),
            intake: Intake::new(&limits),
            stats,
            stop: stop.clone(),
            hands,
            limits: limits.clone(),
        });
        let mut accepting = JoinSet::new();
        for listener in listeners {
            let how = if listener.passed { "listening, passed by systemd" } else { "listening" };
            info!(address = %listener.address, "{how}");
            let hand = shared.hands.take().filter(|_| listener.passed);
            accepting.spawn(accept(listener, hand, slots.clone(), shared.clone()));
        }
        let finishing = async {
            finishing.done(&shared.hands, &finish).await;
            self.finished.cancel();
        };
        let fresh = credentials::keep_fresh(files.1, stamp, credentials, limits.reread);
        tokio::select! {
            _ = async { tokio::join!(fresh, finishing) } => {}
            () = stop.cancelled() => {}
        }
        while let Some(ended) = accepting.join_next().await {
            if let Err(error) = ended {
                warn!(%error, "a listener has failed");
            }
        }
    }
}

/// Accepts connections until the server is to stop, or to finish if this socket
/// was passed; then waits for those that are left.
async fn accept(listener: Listener, hand: Option<Hand>, slots: Arc<Slots>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut short = false;
    let enough = || async {
        match &hand {
            Some(hand) => hand.finish.cancelled().await,
            None => shared.stop.cancelled().await,
        }
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = enough() => break,
            accepted = listener.accept() => accepted,
        };
        // Those that have ended since; there are never more of them than slots.
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok(incoming) => {
                short = false;
                // Who was accepted is in our hands, even if we are to finish now.
                let Some((slot, other_went)) = shared.stop.run_until_cancelled(slots.take()).await else {
                    break;
                };
                if other_went {
                    shared.stats.refuse(Refusal::Room);
                }
                connections.spawn(connection::serve(incoming, slot, hand.clone(), shared.clone()));
            }
            // The client has gone before it was accepted: that is its own affair.
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                if !short {
                    warn!(%error, "no connection can be accepted");
                }
                short = true;
                sleep(RESPITE).await;
            }
        }
    }
    // From here on a client that connects is refused, and does not wait for
    // nothing; unless the socket was passed, and it waits for the next process.
    drop((listener, hand));
    wait_for(&mut connections, &shared).await;
}

/// Waits for connections that end by and by, until the server has stopped for too long.
async fn wait_for(connections: &mut JoinSet<()>, shared: &Shared) {
    let all = async { while connections.join_next().await.is_some() {} };
    let too_late = async {
        shared.stop.cancelled().await;
        sleep(shared.limits.drain).await;
    };
    tokio::select! {
        () = all => return,
        () = too_late => {}
    }
    warn!(connections = connections.len(), "requests did not end in time; they are cut off");
}

fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, InvalidInput, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | InvalidInput | NotConnected)
}
