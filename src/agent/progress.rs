//! What takes time before pods run, on the last line of a terminal: the pulls of images.

use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{runtime::Observed, supervise::BoxError, telemetry::ProgressLine};

/// Shows what is observed until the agent stops.
pub(super) async fn show(
    line: ProgressLine,
    mut observed: watch::Receiver<Observed>,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    let mut shown = String::new();
    loop {
        let text = summary(&observed.borrow_and_update());
        if text != shown {
            line.show(&text);
            shown = text;
        }
        let changed = stop.run_until_cancelled(observed.changed()).await;
        if !matches!(changed, Some(Ok(()))) {
            break;
        }
    }
    line.show("");
    // The workers may end first.
    stop.cancelled().await;
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
