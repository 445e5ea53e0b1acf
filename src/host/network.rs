//! Connections to other machines.

use std::{fmt, io, sync::Arc};

use tokio::io::DuplexStream;

/// Connects to an address, `HOST:PORT`.
pub(crate) type Dial = dyn Fn(&str) -> io::Result<DuplexStream> + Send + Sync;

/// How sources and sinks connect to servers. Cheap to clone; the default is the machine's network.
#[derive(Clone, Default)]
pub struct Network(Option<Arc<Dial>>);

impl Network {
    /// A network in this process: the function connects to an address, `HOST:PORT`.
    pub fn simulated(dial: impl Fn(&str) -> io::Result<DuplexStream> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(dial)))
    }

    /// The function that connects, if the machine's network is not used.
    pub(crate) fn dial(&self) -> Option<Arc<Dial>> {
        self.0.clone()
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("simulated", &self.0.is_some()).finish()
    }
}
