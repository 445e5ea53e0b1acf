//! Connections to other machines, and from clients.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{io::DuplexStream, sync::mpsc};

/// Connects to an address, `HOST:PORT`.
pub(crate) type Dial = dyn Fn(&str) -> io::Result<DuplexStream> + Send + Sync;

/// The connections of clients, in a network in this process.
pub type Clients = mpsc::UnboundedReceiver<DuplexStream>;

/// How sources and sinks connect to servers, and clients to the agent. Cheap to clone; the default is the machine's
/// network.
#[derive(Clone, Default)]
pub struct Network {
    dial: Option<Arc<Dial>>,
    clients: Option<Arc<Mutex<Option<Clients>>>>,
}

impl Network {
    /// A network in this process: the function connects to an address, `HOST:PORT`.
    pub fn simulated(dial: impl Fn(&str) -> io::Result<DuplexStream> + Send + Sync + 'static) -> Self {
        Self { dial: Some(Arc::new(dial)), clients: None }
    }

    /// A network in which the agent also serves these clients, as users of this process.
    #[must_use]
    pub fn with_clients(self, clients: Clients) -> Self {
        Self { clients: Some(Arc::new(Mutex::new(Some(clients)))), ..self }
    }

    /// The function that connects, if the machine's network is not used.
    pub(crate) fn dial(&self) -> Option<Arc<Dial>> {
        self.dial.clone()
    }

    /// The clients in this process, for the first server that asks.
    pub(crate) fn take_clients(&self) -> Option<Clients> {
        self.clients.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("simulated", &self.dial.is_some()).finish_non_exhaustive()
    }
}
