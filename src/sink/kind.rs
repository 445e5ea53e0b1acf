//! What a kind of sink has to offer, and how a sink is opened with its delivery.

use std::{collections::BTreeMap, error::Error, io, path::PathBuf, pin::Pin, sync::Arc};

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
    #[error("the named pipe {} has no reader (start its reader)", .0.display())]
    NoReader(PathBuf),
    /// Stdout cannot be used.
    #[error("cannot write updates to stdout")]
    Stdout(#[source] io::Error),
    /// A file of the sink's options cannot be used.
    #[error("cannot open the sink {0}")]
    Options(String, #[source] Box<dyn Error + Send + Sync>),
}

impl OpenError {
    /// Whether it may pass without a change of the settings: a reader that starts later, or a disk that
    /// is full, read-only or broken.
    pub(super) fn may_pass(&self) -> bool {
        use rustix::io::Errno;
        let disk = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO].map(Errno::raw_os_error);
        match self {
            Self::NoReader(_) => true,
            Self::File(_, error) => error.raw_os_error().is_some_and(|code| disk.contains(&code)),
            Self::Stdout(_) | Self::Options(..) => false,
        }
    }
}

/// An option of a kind of sink: `,NAME=VALUE` behind its target, or a field of its object.
pub(super) struct SinkOption {
    /// `token-file`; the field is `tokenFile`.
    pub(super) name: &'static str,
    /// The syntax of its value. A `FILE` in a config file is relative to that file.
    pub(super) value: &'static str,
    /// What it does, in one line.
    pub(super) help: &'static str,
}

/// The target and the options of a sink, as the settings give them.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) target: Option<String>,
    pub(super) options: BTreeMap<&'static str, String>,
}

impl Given {
    /// The path of an option.
    pub(super) fn path(&self, option: &str) -> Option<PathBuf> {
        self.options.get(option).map(PathBuf::from)
    }
}

/// A kind of sink.
pub(super) struct Kind {
    /// The first part of its settings: `jsonl`.
    pub(super) name: &'static str,
    /// How it is written without options, the forms separated by `|`: `jsonl|jsonl=PATH`. A `PATH`
    /// in a config file is relative to that file.
    pub(super) syntax: &'static str,
    pub(super) options: &'static [SinkOption],
    /// Its target for people: without what may be secret.
    pub(super) shown: fn(target: &str) -> String,
    /// Whether these can be its target and its options. The error repeats nothing that may be secret.
    pub(super) accepts: fn(&Given) -> Result<(), String>,
    /// Whether it could be opened, as far as that can be known without opening it. It blocks.
    pub(super) check: fn(&Given, &Host) -> Result<(), OpenError>,
    /// Opens it. It blocks.
    pub(super) open: fn(&Given, Opening) -> Result<OpenSink, OpenError>,
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
    /// Which agent this is, in a stream that continues the one of an earlier run.
    pub(super) instance: Arc<str>,
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
