//! Warnings about certificates that the settings name.

use crate::{certificate_files::CertificateFiles, host::Host, settings::Settings};

/// `run --check`: warnings about the certificates that the settings name and that are not valid now. It blocks. An
/// agent logs them where it reads them.
#[must_use]
pub fn warnings(settings: &Settings) -> Vec<String> {
    let client = settings.url.as_ref().and_then(|url| url.client_certificate.as_ref());
    let named =
        [("--tls-cert-file", settings.server.tls.as_ref()), ("--manifest-url-client-cert-file", client)];
    let problem = |(flag, files): (&str, Option<&CertificateFiles>)| {
        Some(format!("{flag}: {}", files?.invalid_now(&Host::default())?))
    };
    named.into_iter().filter_map(problem).collect()
}
