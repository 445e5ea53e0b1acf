//! Warnings about certificates that the settings name.

use tracing::warn;

use crate::{host::Host, settings::Settings};

/// `run --check`: warnings about the certificates that the settings name and that are not valid now. It blocks.
#[must_use]
pub fn warnings(settings: &Settings) -> Vec<String> {
    let server = settings.server.tls.as_ref().and_then(|files| files.invalid_now(&Host::default()));
    let server = server.map(|problem| format!("--tls-cert-file: {problem}"));
    server.into_iter().chain(client_warning(settings, &Host::default())).collect()
}

/// Logs that the URL's client certificate is not valid now. The server logs its own certificate, and the api source
/// fails with an expired one.
pub(super) async fn warn_of_client_certificate(settings: &Settings, host: &Host) {
    let (named, on) = (settings.clone(), host.clone());
    let read = host.threads.blocking(move || client_warning(&named, &on)).await;
    // A panic is in the log already.
    if let Ok(Some(warning)) = read {
        warn!("{warning}");
    }
}

fn client_warning(settings: &Settings, host: &Host) -> Option<String> {
    let problem = settings.url.as_ref()?.client_certificate.as_ref()?.invalid_now(host)?;
    Some(format!("--manifest-url-client-cert-file: {problem}"))
}
