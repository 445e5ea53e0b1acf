//! The reloads so far, from the task that reloads to the service manager.

use tokio::sync::watch;

/// The number of reloads, and the result of the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct Reloads {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) failure: Option<ReloadFailure>,
}

/// Why the last reload failed.
#[derive(Clone, Debug)]
pub(super) enum ReloadFailure {
    /// The settings are invalid; the previous ones stay in effect.
    Settings(String),
    /// A file that they name is invalid; its previous content stays in effect.
    File(String),
}

/// Reports reloads.
pub(super) struct ReloadReporter(watch::Sender<Reloads>);

impl ReloadReporter {
    pub(super) fn new() -> (Self, watch::Receiver<Reloads>) {
        let (reporter, reloads) = watch::channel(Reloads::default());
        (Self(reporter), reloads)
    }

    pub(super) fn begun(&self) {
        self.0.send_modify(|reloads| reloads.begun += 1);
    }

    pub(super) fn ended(&self, failure: Option<ReloadFailure>) {
        self.0.send_modify(|reloads| {
            reloads.ended = reloads.begun;
            reloads.failure = failure;
        });
    }
}
