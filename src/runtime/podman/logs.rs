//! The output of a container, as podman sends it.

use std::{fmt::Write as _, pin::pin};

use http::StatusCode;
use tokio::{sync::mpsc, time::timeout};

use super::{
    api::{Api, ApiError},
    frames::Frames,
};
use crate::{host::Clock, runtime::contract::LogRequest};

/// The most last lines that podman is asked for: it reserves memory for each of them.
const MOST_LINES: u64 = 1_000_000;
/// How podman's `containerID` begins in a status.
pub(super) const SCHEME: &str = "podman://";

/// Sends the output of a container to a channel, until the output ends or the receiver is dropped.
pub(super) async fn send(
    api: &Api,
    log: &LogRequest,
    instance: &str,
    clock: &Clock,
    output: mpsc::Sender<Vec<u8>>,
) -> Result<(), ApiError> {
    tokio::select! {
        biased;
        () = output.closed() => Ok(()),
        sent = read(api, log, instance, clock, &output) => sent,
    }
}

async fn read(
    api: &Api,
    log: &LogRequest,
    instance: &str,
    clock: &Clock,
    output: &mpsc::Sender<Vec<u8>>,
) -> Result<(), ApiError> {
    let id = log.container_id.strip_prefix(SCHEME).unwrap_or(&log.container_id);
    let labels = api.inspect(id).await?.config.labels.unwrap_or_default();
    let is = |name: &str, value: &str| labels.get(name).is_some_and(|label| label == value);
    if !is("podmux.instance", instance) || !is("podmux.uid", &log.uid) {
        let message = format!("container {id} is not of this pod");
        return Err(ApiError::Refused(StatusCode::NOT_FOUND, message));
    }
    let query = query(log, clock);
    if output.send(Vec::new()).await.is_err() {
        return Ok(());
    }
    // podman sends the head of the response with the first output.
    let mut body = alive(api, id, log.follow, api.logs(id, &query)).await??;
    let mut frames = Frames::with_times(log.timestamps);
    while let Some(part) = alive(api, id, log.follow, body.chunk()).await? {
        let text = frames.text(&part.map_err(ApiError::Client)?);
        if !text.is_empty() && output.send(text).await.is_err() {
            break;
        }
    }
    Ok(())
}

fn query(log: &LogRequest, clock: &Clock) -> String {
    let mut query = format!("stdout=true&stderr=true&follow={}&timestamps={}", log.follow, log.timestamps);
    // To follow the last 0 lines is to podman to follow all.
    let is_only_new = log.follow && log.tail == Some(0);
    let since = if is_only_new { Some(clock.now()) } else { log.since };
    if let Some(tail) = log.tail.filter(|tail| !is_only_new && *tail <= MOST_LINES) {
        // Writing to memory cannot fail.
        let _ = write!(query, "&tail={tail}");
    }
    if let Some(since) = since {
        let _ = write!(query, "&since={}.{:09}", since.as_second().max(0), since.subsec_nanosecond().max(0));
    }
    query
}

/// Waits for podman. A followed container may be silent for as long as it likes, so podman is asked now and then
/// whether it still answers.
async fn alive<T>(
    api: &Api,
    container: &str,
    may_be_silent: bool,
    future: impl Future<Output = T>,
) -> Result<T, ApiError> {
    let mut future = pin!(future);
    loop {
        match timeout(api.timeout, &mut future).await {
            Ok(done) => return Ok(done),
            Err(_) if may_be_silent => drop(api.inspect(container).await?),
            Err(_) => return Err(ApiError::Silent(api.socket.clone(), api.timeout)),
        }
    }
}
