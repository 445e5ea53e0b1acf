//! The server itself: it binds all addresses before it serves one, and stops without cutting answers off.

use std::{io, sync::Arc, time::Duration};

use axum::{Router, extract::DefaultBodyLimit};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    connection::{self, Shared},
    credentials::{self, CredentialError, CredentialFiles, Credentials, Stamp},
    intake::Intake,
    limits::Limits,
    listen::{self, BindError, Listener},
    slots::Slots,
    stats::{ConnectionStats, Refusal},
};
use crate::{
    pod::NodeName,
    settings::{Listen, ServerSettings},
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
    /// The system does not say where a socket listens.
    #[error("a socket that listens has no address")]
    Address(#[source] io::Error),
}

/// A server that listens and does not answer yet: clients wait in the kernel.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    addresses: Vec<Listen>,
    node: NodeName,
    limits: Limits,
    files: CredentialFiles,
    stamp: Stamp,
    credentials: watch::Sender<Arc<Credentials>>,
    reread: Arc<Notify>,
    stats: ConnectionStats,
}

/// Has the files of token and certificates read again at once. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reread(Arc<Notify>);

impl Reread {
    /// Reads them, whether they have changed or not.
    pub fn now(&self) {
        self.0.notify_one();
    }
}

impl Server {
    /// Reads token and certificates, and listens on all addresses or on none.
    ///
    /// # Errors
    /// The first file that cannot be used, or the first address that cannot be
    /// listened on, and how to mend that.
    pub async fn bind(settings: &ServerSettings, node: NodeName, limits: Limits) -> Result<Self, StartError> {
        let files = CredentialFiles::new(settings);
        let (stamp, credentials) = files.read()?;
        let mut listeners = Vec::new();
        for address in &settings.listen {
            listeners.push(Listener::bind(address).await?);
        }
        let addresses = listeners.iter().map(Listener::address).collect::<Result<_, _>>();
        let limits = Limits { connections: listen::room_for(limits.connections), ..limits };
        Ok(Self {
            listeners,
            addresses: addresses.map_err(StartError::Address)?,
            node,
            limits,
            files,
            stamp,
            credentials: watch::Sender::new(Arc::new(credentials)),
            reread: Arc::default(),
            stats: ConnectionStats::default(),
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
        Reread(self.reread.clone())
    }

    /// Answers requests until `stop` is cancelled. Requests that have begun are
    /// then answered to their end, for as long as [`Limits::drain`] says; streams
    /// without an end have to be ended by whoever feeds them.
    ///
    /// # Cancel safety
    /// If the future is dropped, every connection is cut off.
    pub async fn run(self, router: Router, stop: CancellationToken) {
        let Self { listeners, addresses, node, limits, files, stamp, credentials, reread, stats } = self;
        for address in &addresses {
            info!(%address, "listening");
        }
        let slots = Slots::new(limits.connections);
        let shared = Arc::new(Shared {
            // Every body is read before it gets there, and held to the limit.
            router: router.layer(DefaultBodyLimit::disable()),
            node,
            credentials: credentials.subscribe(),
            intake: Intake::new(&limits),
            stats,
            stop: stop.clone(),
            limits: limits.clone(),
        });
        let mut accepting = JoinSet::new();
        for listener in listeners {
            accepting.spawn(accept(listener, slots.clone(), shared.clone()));
        }
        let fresh = credentials::keep_fresh(files, stamp, credentials, reread, limits.reread);
        tokio::select! {
            () = fresh => {}
            () = stop.cancelled() => {}
        }
        while let Some(ended) = accepting.join_next().await {
            if let Err(error) = ended {
                warn!(%error, "a listener has failed");
            }
        }
    }
}

/// Accepts connections until the server is to stop, then waits for those that are left.
async fn accept(listener: Listener, slots: Arc<Slots>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut short = false;
    loop {
        let next = async {
            let incoming = listener.accept().await?;
            Ok::<_, io::Error>((incoming, slots.take().await))
        };
        let accepted = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            accepted = next => accepted,
        };
        // Those that have ended since; there are never more of them than slots.
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((incoming, (slot, other_went))) => {
                short = false;
                if other_went {
                    shared.stats.refuse(Refusal::Room);
                }
                connections.spawn(connection::serve(incoming, slot, shared.clone()));
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
    // From here on a client that connects is refused, and does not wait for nothing.
    drop(listener);
    let drained = timeout(shared.limits.drain, async { while connections.join_next().await.is_some() {} });
    if drained.await.is_err() {
        warn!(connections = connections.len(), "requests did not end in time; they are cut off");
    }
}

fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, InvalidInput, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | InvalidInput | NotConnected)
}
