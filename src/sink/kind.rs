//! What a kind of sink has to offer, and how a sink is opened with its delivery.

use std::{io, path::PathBuf, pin::Pin, sync::Arc};

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
    mux::Updates,
};

/// Why a sink cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened for appending.
    #[error("cannot write updates to {} (choose a file that can be created or appended to)", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// The path is a named pipe without a reader.
    #[error("the named pipe {} has no reader (start its reader first)", .0.display())]
    NoReader(PathBuf),
    /// Stdout cannot be used.
    #[error("cannot write updates to stdout")]
    Stdout(#[source] io::Error),
}

/// A kind of sink.
pub(super) struct Kind {
    /// The first part of its settings: `jsonl`.
    pub(super) name: &'static str,
    /// How it is written, the forms separated by `|`: `jsonl|jsonl=PATH`. A `PATH` in a
    /// config file is relative to that file.
    pub(super) syntax: &'static str,
    /// Whether this can be its target, the part behind the `=`.
    pub(super) accepts: fn(target: Option<&str>) -> Result<(), String>,
    /// Whether it could be opened, as far as that can be known without opening it. It blocks.
    pub(super) check: fn(target: Option<&str>) -> Result<(), OpenError>,
    /// Opens it.
    pub(super) open: fn(target: Option<&str>, Opening) -> Result<OpenSink, OpenError>,
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
pub(super) struct Opening {
    pub(super) name: String,
    pub(super) updates: Updates,
    /// The numbers of a stream that continues the one of an earlier run.
    pub(super) sequence: Sequence,
    pub(super) acknowledged: Acknowledged,
    pub(super) host: Host,
}

impl Opening {
    /// The delivery to a sink, with these numbers.
    pub(super) fn deliver(
        self,
        sink: impl Sink + 'static,
        numbers: impl Numbers + 'static,
        reload: impl Fn() + Send + Sync + 'static,
    ) -> OpenSink {
        let (delivery, status) = Delivery::new(self.name, sink, self.updates);
        let delivery = delivery.numbered(numbers).reporting(&self.acknowledged).on(self.host);
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
