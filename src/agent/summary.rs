//! What a person sees on a terminal once the agent has started: its sources, sinks, state and addresses.

use std::time::Duration;

use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::sources::Statuses;
use crate::{
    grouped::counted,
    pod::SourceName,
    server::{self, Listen},
    settings::Settings,
    source::SourceStatus,
    storage::{Merged, SourceState},
    supervise::BoxError,
    telemetry::ProgressLine,
};

/// How long the summary waits for the sources. It then shows what is known.
const PATIENCE: Duration = Duration::from_secs(3);

/// Prints the summary, when all sources are known or have had some seconds.
pub(super) async fn show(
    line: ProgressLine,
    settings: Settings,
    merged: watch::Receiver<Merged>,
    sources: Statuses,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    tokio::select! {
        biased;
        summary = summary(&settings, merged, &sources) => line.print(&summary),
        () = stop.cancelled() => {}
    }
    stop.cancelled().await;
    Ok(())
}

async fn summary(settings: &Settings, mut merged: watch::Receiver<Merged>, sources: &Statuses) -> String {
    let is_known =
        |merged: &Merged| sources.iter().all(|(name, _)| merged.state(*name) != Some(SourceState::Waiting));
    let _ = timeout(PATIENCE, merged.wait_for(is_known)).await;
    let merged = merged.borrow().clone();
    let mut lines = vec![format!("podmux {} on node {}", env!("CARGO_PKG_VERSION"), settings.node_name)];
    let mut line = |name: &str, value: &str| lines.push(format!("  {name:<12}{value}"));
    for (name, status) in sources {
        let status = status.borrow().clone();
        let found = found(&merged, *name, &status);
        let target = if status.target.is_empty() { String::new() } else { format!("{}: ", status.target) };
        line(&format!("source {name}"), &format!("{target}{found}"));
    }
    for sink in settings.sinks.iter().chain(settings.runtime.iter().map(|runtime| &runtime.kind)) {
        line("sink", &sink.to_string());
    }
    let state = settings.state_dir.as_ref().map(|path| path.display().to_string());
    line("state", state.as_deref().unwrap_or("none: nothing survives a restart"));
    let passed = settings.server.passed.iter().map(|passed| &passed.address);
    let addresses: Vec<&Listen> = settings.server.listen.iter().chain(passed).collect();
    for address in &addresses {
        line("listen", &address.to_string());
    }
    let flag = server_flag(&addresses, &settings.server);
    let hint = flag.map(|flag| format!("In another terminal: podmux get pods -A{flag}. "));
    lines.push(format!("{}Ctrl-C stops the agent.\n", hint.unwrap_or_default()));
    lines.join("\n")
}

/// What a command needs to reach the agent, if that has an address. The default socket needs no flag.
fn server_flag(addresses: &[&Listen], server: &server::Config) -> Option<String> {
    let is_unix = |address: &&&Listen| matches!(address, Listen::Unix(_));
    let scheme = if server.anonymous { "http" } else { "https" };
    match *addresses.iter().find(is_unix).or(addresses.first())? {
        Listen::Unix(path) if server.default_socket.as_ref() == Some(path) => Some(String::new()),
        Listen::Unix(path) => Some(format!(" --server unix:{}", path.display())),
        Listen::Tcp(address) => Some(format!(" --server {scheme}://{address}")),
    }
}

/// How many pods of a source are known, and how many are rejected.
fn found(merged: &Merged, name: SourceName, status: &SourceStatus) -> String {
    if status.failing.is_some() {
        return "failing, see podmux get sources".to_owned();
    }
    if let Some(scanning) = status.scanning {
        return scanning.to_string();
    }
    let Some(listing) = merged.listing(name) else { return "not known yet".to_owned() };
    let pods = counted(listing.len(), "pod");
    match merged.rejections().filter(|rejection| rejection.source == name).count() {
        0 => pods,
        rejected => format!("{pods}, {rejected} rejected, see podmux get sources"),
    }
}
