//! How everybody is doing, and when that changes.

use std::{
    future::{pending, poll_fn},
    pin::Pin,
    task::Poll,
};

use tokio::sync::watch;

use crate::{pod::SourceName, server::SinkStatus, source::SourceStatus, storage::Merged};

type Change<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A watch channel whose values are seen as a `T`.
pub(super) struct Level<T>(Box<dyn Look<T>>);

impl<T> Level<T> {
    pub(super) fn new<S: 'static>(from: watch::Receiver<S>, show: impl Fn(&S) -> T + 'static) -> Self {
        Self(Box::new(Shown { from, show, ended: false }))
    }

    /// How it is now.
    pub(super) fn now(&mut self) -> T {
        self.0.now()
    }

    /// Whether whoever told it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.0.has_ended()
    }
}

trait Look<T> {
    fn now(&mut self) -> T;
    fn has_ended(&self) -> bool;
    fn changed(&mut self) -> Change<'_>;
}

struct Shown<S, F> {
    from: watch::Receiver<S>,
    show: F,
    /// Whether its end was noticed.
    ended: bool,
}

impl<S, T, F: Fn(&S) -> T> Look<T> for Shown<S, F> {
    fn now(&mut self) -> T {
        (self.show)(&self.from.borrow_and_update())
    }

    fn has_ended(&self) -> bool {
        self.from.has_changed().is_err()
    }

    fn changed(&mut self) -> Change<'_> {
        Box::pin(async {
            if self.ended {
                pending::<()>().await;
            }
            self.ended = self.from.changed().await.is_err();
        })
    }
}

/// What there is to look at.
pub(super) struct Levels {
    pub(super) merged: Level<Merged>,
    pub(super) sources: Vec<(SourceName, Level<SourceStatus>)>,
    pub(super) sinks: Vec<Level<SinkStatus>>,
}

impl Levels {
    /// Waits until one of them changes or ends. Cancel-safe, as long as
    /// everything is looked at before the next call.
    pub(super) async fn changed(&mut self) {
        let Self { merged, sources, sinks } = self;
        let mut changes: Vec<Change<'_>> = vec![merged.0.changed()];
        changes.extend(sources.iter_mut().map(|(_, source)| source.0.changed()));
        changes.extend(sinks.iter_mut().map(|sink| sink.0.changed()));
        poll_fn(|context| {
            // All are polled: those who stay silent must know whom to wake.
            let told = changes
                .iter_mut()
                .filter_map(|change| change.as_mut().poll(context).is_ready().then_some(()));
            if told.count() > 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
