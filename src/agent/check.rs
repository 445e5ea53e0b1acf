//! `run --check`: whether the files that the settings name are valid, without touching anything.

use anyhow::Error;

use crate::{client, server, settings::Settings, source::api::Connector};

/// All errors in the files that the settings name: token, certificates and keys, the
/// kubeconfig and its files, the files of the sinks.
///
/// It only reads. It listens on nothing, connects to nothing, locks, creates and writes
/// nothing, so it can run beside an agent. Manifests and the state directory are not checked.
/// It blocks.
pub fn check(settings: &Settings) -> Vec<Error> {
    let mut problems: Vec<Error> = server::check(&settings.server).into_iter().map(Error::from).collect();
    if let Some(url) = &settings.url {
        let checked = client::check(url.ca_file.as_deref(), url.client_certificate.as_ref());
        problems.extend(checked.err().map(|error| Error::from(error).context("--manifest-url")));
    }
    if let Some(api) = settings.api.clone() {
        let connector = Connector::new(api.kubeconfig).with_proxies(api.proxies);
        problems.extend(connector.check().err().map(Error::from));
    }
    problems.extend(settings.sinks.iter().filter_map(|sink| sink.check().err()).map(Error::from));
    problems
}
