//! What a kind of sink has to offer, and how a sink is opened with its delivery.

use std::{io, path::PathBuf, pin::Pin, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    contract::Sink,
    delivery::{Acknowledged, Delivery, DeliveryError},
    numbers::Numbers,
    status::SinkStatus,
};
use crate::{db::Sequence, mux::Updates};

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
    pub(super) durable: Sequence,
    pub(super) acknowledged: Acknowledged,
}

impl Opening {
    /// The delivery to a sink that starts from nothing in each run: its numbers begin at 1.
    pub(super) fn fresh(
        self,
        sink: impl Sink + 'static,
        reload: impl Fn() + Send + Sync + 'static,
    ) -> OpenSink {
        let Self { name, updates, durable: _, acknowledged } = self;
        open(Delivery::new(name, sink, updates), &acknowledged, reload)
    }

    /// The delivery to a sink that continues the stream of an earlier run.
    pub(super) fn continued(
        self,
        sink: impl Sink + 'static,
        reload: impl Fn() + Send + Sync + 'static,
    ) -> OpenSink {
        let Self { name, updates, durable, acknowledged } = self;
        let (delivery, status) = Delivery::new(name, sink, updates);
        open((delivery.numbered(durable), status), &acknowledged, reload)
    }
}

fn open<S: Sink + 'static, N: Numbers + 'static>(
    (delivery, status): (Delivery<S, N>, watch::Receiver<SinkStatus>),
    acknowledged: &Acknowledged,
    reload: impl Fn() + Send + Sync + 'static,
) -> OpenSink {
    let delivery = delivery.reporting(acknowledged);
    OpenSink { status, run: Box::new(|stop| Box::pin(delivery.run(stop))), reload: Arc::new(reload) }
}
