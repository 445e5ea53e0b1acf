//! The output of a container, as podman sends it.

use std::{fmt::Write as _, ops::Range, pin::pin};

use http::StatusCode;
use jiff::Timestamp;
use tokio::{sync::mpsc, time::timeout};

use super::{
    api::{Api, ApiError, LONGEST_READ},
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
    let labels = api.inspect(id).await?.config.labels;
    let is = |name: &str, value: &str| labels.get(name).is_some_and(|label| label == value);
    if !is("podmux.instance", instance) || !is("podmux.uid", &log.uid) {
        let message = format!("container {id} is not of this pod");
        return Err(ApiError::Refused(StatusCode::NOT_FOUND, message));
    }
    // To follow the last 0 lines is to follow what is new.
    let is_only_new = log.follow && log.tail == Some(0);
    let since = if is_only_new { Some(clock.now()) } else { log.since };
    if output.send(Vec::new()).await.is_err() {
        return Ok(());
    }
    let (mut wanted, mut query) = (0..u64::MAX, query(log.follow, log.timestamps, since));
    if let Some(tail) = log.tail.filter(|tail| !is_only_new && *tail <= MOST_LINES) {
        // podman 4.3 scrambles a line that it has stored in parts, if it is asked for the last lines.
        let whole = self::query(false, log.timestamps, since);
        let counted = Box::pin(send_lines(api, id, log, &whole, u64::MAX..u64::MAX, output));
        if let Ok(counted) = timeout(LONGEST_READ, counted).await {
            let first = counted?.saturating_sub(tail);
            wanted = first..if log.follow { u64::MAX } else { first.saturating_add(tail) };
        } else {
            // Writing to memory cannot fail.
            let _ = write!(query, "&tail={tail}");
        }
    }
    Box::pin(send_lines(api, id, log, &query, wanted, output)).await.map(drop)
}

/// Sends the lines with these numbers. Returns how many there are, if it has come to the end.
async fn send_lines(
    api: &Api,
    id: &str,
    log: &LogRequest,
    query: &str,
    wanted: Range<u64>,
    output: &mpsc::Sender<Vec<u8>>,
) -> Result<u64, ApiError> {
    // podman sends the head of the response with the first output.
    let mut body = alive(api, id, log.follow, api.logs(id, query)).await??;
    let (mut frames, mut number, mut is_open) = (Frames::with_times(log.timestamps), 0, false);
    while let Some(part) = alive(api, id, log.follow, body.chunk()).await? {
        let text = frames.text(&part.map_err(ApiError::Client)?);
        let mut chunk = Vec::new();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if wanted.contains(&number) {
                chunk.extend_from_slice(line);
            }
            is_open = !line.ends_with(b"\n");
            number += u64::from(!is_open);
        }
        if !chunk.is_empty() && output.send(chunk).await.is_err() || number >= wanted.end {
            break;
        }
    }
    Ok(number + u64::from(is_open))
}

fn query(follow: bool, timestamps: bool, since: Option<Timestamp>) -> String {
    let mut query = format!("stdout=true&stderr=true&follow={follow}&timestamps={timestamps}");
    if let Some(since) = since {
        // Writing to memory cannot fail.
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
