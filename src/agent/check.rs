//! `run --check`: whether a start or a reload would take what the settings name, with nothing touched.

use anyhow::Error;

use super::wiring;
use crate::{
    client, server,
    settings::{Settings, SinkSetting},
    sink::Jsonl,
    source::api::Connector,
};

/// Everything that is wrong with the files that the settings name: token,
/// certificates and keys, the kubeconfig and what it names, the sinks' files.
///
/// They are looked at as the agent does it, by whoever calls, and that is all:
/// nothing is listened on, connected to, locked, made or written, so it can be
/// asked beside an agent that runs. Manifests are no settings, and the state
/// directory is the running agent's. It blocks.
#[must_use]
pub fn check(settings: &Settings) -> Vec<Error> {
    let mut problems: Vec<Error> = server::check(&settings.server).into_iter().map(Error::from).collect();
    if let Some(url) = &settings.url {
        let checked = client::check(url.ca_file.as_deref(), wiring::identity(url).as_ref());
        problems.extend(checked.err().map(|error| Error::from(error).context("--manifest-url")));
    }
    if let Some(kubeconfig) = &settings.kubeconfig {
        let connector = Connector::new(wiring::kubeconfig(kubeconfig));
        let connector = connector.with_proxies(wiring::proxies(&settings.proxies));
        problems.extend(connector.check().err().map(Error::from));
    }
    for sink in &settings.sinks {
        if let SinkSetting::File(path) = sink {
            problems.extend(Jsonl::check(path).err().map(Error::from));
        }
    }
    problems
}
