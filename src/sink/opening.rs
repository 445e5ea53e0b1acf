//! How a built-in sink is opened with its delivery.

use std::{pin::Pin, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    contract::Sink,
    delivery::{Acknowledged, Delivery, DeliveryError, SinkStatus},
    numbers::Numbers,
};
use crate::{
    db::{DbError, Sequence},
    host::Host,
    kind::{Given, Kind, OpenError},
    mux::Updates,
};

/// A kind of sink.
pub struct SinkKind {
    /// How it is written in the settings.
    pub kind: Kind,
    /// Opens it. It blocks.
    pub open: fn(&Given, Opening) -> Result<OpenSink, OpenError>,
}

type Running = Pin<Box<dyn Future<Output = Result<(), DeliveryError>> + Send>>;

/// A sink that is open, and its delivery.
pub struct OpenSink {
    /// The status of the sink.
    pub status: watch::Receiver<SinkStatus>,
    /// Runs the delivery: see [`Delivery::run`].
    pub run: Box<dyn FnOnce(CancellationToken) -> Running + Send>,
    /// Called at each reload of the settings.
    pub reload: Arc<dyn Fn() + Send + Sync>,
}

/// What the delivery to a sink needs beside the sink.
pub struct Opening {
    /// The name of the sink.
    pub name: String,
    /// Which agent this is, in a stream that continues the one of an earlier run.
    pub instance: Arc<str>,
    /// What it receives.
    pub updates: Updates,
    /// The numbers of a stream that continues the one of an earlier run.
    pub sequence: Sequence,
    /// Where it is shown what the sink has acknowledged.
    pub acknowledged: Acknowledged,
    /// The machine.
    pub host: Host,
}

impl Opening {
    /// The delivery to a sink, with these numbers.
    pub fn deliver(
        self,
        sink: impl Sink + 'static,
        numbers: impl Numbers + 'static,
        reload: impl Fn() + Send + Sync + 'static,
    ) -> OpenSink {
        let (delivery, status) = Delivery::numbered(self.name, sink, self.updates, numbers);
        let delivery = delivery.reporting(&self.acknowledged).on(self.host);
        OpenSink { status, run: Box::new(|stop| Box::pin(delivery.run(stop))), reload: Arc::new(reload) }
    }
}

/// The numbers of a stream that continues the one of an earlier run.
impl Numbers for Sequence {
    type Error = DbError;

    async fn reserve(&mut self) -> Result<(), DbError> {
        Self::reserve(self).await
    }

    fn next(&mut self) -> u64 {
        self.take()
    }

    fn run(&self) -> Option<Arc<str>> {
        Some(Self::run(self).clone())
    }
}
