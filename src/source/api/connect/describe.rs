//! Explains errors between this node and the API server, and what to do about them.

use std::{error::Error, sync::Arc};

use super::http_client::CONNECT_TIMEOUT;
use crate::{
    client::{ClientError, causes},
    error_chain,
};

/// A failed request on one line: what is wrong, and what to do about it. It says "the API
/// server" in place of its URL, and contains nothing secret.
pub fn describe_failure(error: &kube::Error) -> String {
    describe_cause(error)
}

/// The same for a body that broke, or for any other error.
pub fn describe_cause(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = causes(error).map(ToString::to_string).collect();
    let contains = |text: &str| texts.iter().any(|cause| cause.contains(text));
    if contains("dns error") {
        let last = texts.last().map_or("", |last| last.as_str());
        return format!(
            "cannot resolve the name of the API server ({last}); is it right in the kubeconfig, and does name resolution work on this node?"
        );
    }
    // The error types of hyper-util's proxy connectors are private; only their text identifies them.
    let is_proxy = contains("tunnel error") || contains("SOCKS error");
    let to: Arc<str> = if is_proxy { "the proxy to the API server" } else { "the API server" }.into();
    match ClientError::from_hyper(&to, CONNECT_TIMEOUT, error) {
        Some(known) => error_chain::chain(&known),
        None => error_chain::chain(error),
    }
}

/// Whether TLS failed, so that newer certificates may help.
pub(crate) fn is_about_credentials(error: &kube::Error) -> bool {
    causes(error).any(<dyn Error>::is::<rustls::Error>)
}
