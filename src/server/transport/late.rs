//! Addresses that are in use or not there yet, on which the server listens later.

use std::{mem, time::Duration};

use tokio::{sync::watch, time::sleep};
use tracing::{debug, warn};

use super::listen::{BindError, Listener};
use crate::{
    backoff::Backoff,
    error_chain::chain,
    host::Host,
    outage::Outage,
    server::{address::Listen, config::Config},
    source::SourceFailing,
};

/// The delay before an address is bound again; it doubles with each further failure.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// The addresses that are not bound yet.
#[derive(Default)]
pub(super) struct LateListeners {
    addresses: Vec<Listen>,
    settings: Config,
    outage: Outage,
    /// Why the last of them cannot be bound.
    pub(super) failing: watch::Sender<Option<SourceFailing>>,
}

impl LateListeners {
    pub(super) fn new(settings: Config) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Adds an address that cannot be bound now.
    pub(super) fn failed(&mut self, address: Listen, error: &BindError, host: &Host) {
        let error = chain(error);
        if self.outage.failed(&error, host.clock.now()) {
            warn!(error, "address unavailable; it is retried");
        } else {
            debug!(error, "address unavailable");
        }
        self.addresses.push(address);
        self.failing.send_replace(SourceFailing::of(&self.outage, false));
    }

    /// Binds the addresses, with retries, and serves each as soon as it is bound. Cancel-safe.
    pub(super) async fn bind(mut self, host: &Host, mut serve: impl FnMut(Listener)) {
        let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        while !self.addresses.is_empty() {
            sleep(backoff.next(host.random.fraction())).await;
            for address in mem::take(&mut self.addresses) {
                match Listener::bind(&address, &self.settings).await {
                    Ok(listener) => serve(listener),
                    Err(error) => self.failed(address, &error, host),
                }
            }
        }
        self.failing.send_replace(None);
    }
}
