//! What an error between this node and the API server means, and what to do about it.

use std::{error::Error, iter, sync::Arc};

use super::CONNECT_TIMEOUT;
use crate::{client::ClientError, error_chain};

/// A failed request as one line: what is wrong, and what to do about it. It says
/// "the API server" where its URL would stand; nothing in it is secret.
#[must_use]
pub fn describe_failure(error: &kube::Error) -> String {
    describe_cause(error)
}

/// The same for what a body broke with, or any other error.
#[must_use]
pub fn describe_cause(error: &(dyn Error + 'static)) -> String {
    let words: Vec<String> = chain(error).map(ToString::to_string).collect();
    let said = |word: &str| words.iter().any(|words| words.contains(word));
    if said("dns error") {
        let last = words.last().map_or("", |last| last.as_str());
        return format!(
            "the API server's name cannot be resolved ({last}); is it right in the kubeconfig, and does name resolution work on this node?"
        );
    }
    // What hyper-util's connectors say of themselves: their types are private.
    let proxied = said("tunnel error") || said("SOCKS error");
    let to: Arc<str> = if proxied { "the proxy to the API server" } else { "the API server" }.into();
    match ClientError::of(&to, CONNECT_TIMEOUT, error) {
        Some(known) => error_chain::chain(&known),
        None => error_chain::chain(error),
    }
}

/// An error and its causes.
pub(super) fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    iter::successors(Some(error), |error: &&'e (dyn Error + 'static)| {
        let error: &'e (dyn Error + 'static) = *error;
        error.source()
    })
}
