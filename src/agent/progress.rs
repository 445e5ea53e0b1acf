//! What takes time before pods run, on the last line of a terminal: long scans, and the pulls of images.

use std::pin::Pin;

use futures_util::future::select_all;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::sources::Statuses;
use crate::{history::changed, runtime::Observed, supervise::BoxError, telemetry::ProgressLine};

/// Shows how far scans are and what is observed until the agent stops.
pub(super) async fn show(
    line: ProgressLine,
    mut observed: Option<watch::Receiver<Observed>>,
    mut sources: Statuses,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    let mut shown = String::new();
    loop {
        let scan = sources.iter_mut().filter_map(|(name, status)| {
            let scanning = status.borrow_and_update().scanning?;
            Some(format!("source {name} {scanning}"))
        });
        // Each one is marked as seen.
        let scan = scan.collect::<Vec<_>>().join(", ");
        let pull = observed.as_mut().map(|observed| summary(&observed.borrow_and_update()));
        let text = if scan.is_empty() { pull.unwrap_or_default() } else { scan };
        if text != shown {
            line.show(&text);
            shown = text;
        }
        let mut changes: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> =
            vec![Box::pin(changed(observed.as_mut()))];
        changes.extend(sources.iter_mut().map(|(_, status)| Box::pin(changed(Some(status))) as _));
        if stop.run_until_cancelled(select_all(changes)).await.is_none() {
            break;
        }
    }
    line.show("");
    Ok(())
}

/// What is done about the first pod that is not started yet, and how many others there are.
fn summary(observed: &Observed) -> String {
    let mut all = observed.iter().filter_map(|(key, pod)| Some((key, creating(&pod.status)?)));
    let Some((key, message)) = all.next() else { return String::new() };
    match all.count() {
        0 => format!("{key}: {message}"),
        others => format!("{key}: {message} (and {others} more)"),
    }
}

/// What is done about the first container that is being created, if its status says so.
fn creating(status: &Value) -> Option<&str> {
    let lists = ["initContainerStatuses", "containerStatuses"].into_iter();
    let mut all = lists.flat_map(|list| status[list].as_array().into_iter().flatten());
    all.find_map(|container| {
        let waiting = &container["state"]["waiting"];
        let is_created = matches!(waiting["reason"].as_str(), Some("ContainerCreating" | "PodInitializing"));
        waiting["message"].as_str().filter(|_| is_created)
    })
}
