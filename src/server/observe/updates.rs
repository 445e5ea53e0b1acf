//! `GET /updates`: the update stream as lines of JSON or as server-sent events.

use std::{convert::Infallible, iter, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt as _};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
};
use tokio::time::timeout;

use crate::server::{
    api::form::{Range, ranges},
    body::{Chunks, Endless},
    context::{Context, Params, from_history},
    slots::Watchers,
    status::ApiError,
};
use crate::{history::Watcher, pod::SequencedUpdate};

/// The longest silence of an event stream. Proxies and browsers close connections that are
/// silent for a minute.
pub const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The id of the run, which is not the same in two runs.
const RUN: HeaderName = HeaderName::from_static("podmux-run");

/// The format of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamFormat {
    /// A line of JSON for each update, as the `jsonl` sink writes it.
    Lines,
    /// Server-sent events.
    Events,
}

impl StreamFormat {
    fn of(headers: &HeaderMap) -> Self {
        let is_events = |range: &Range<'_>| range.media_type.eq_ignore_ascii_case("text/event-stream");
        if ranges(headers, ACCEPT).iter().any(is_events) { Self::Events } else { Self::Lines }
    }

    const fn media_type(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::Events => "text/event-stream",
        }
    }

    /// The chunks of an update of a run.
    fn update(self, update: &SequencedUpdate, run: &str) -> Chunks {
        let (before, after) = match self {
            Self::Lines => (String::new(), ""),
            Self::Events => (format!("id: {run}-{}\nevent: {}\ndata: ", update.seq, update.update.op), "\n"),
        };
        // The pieces of the line, which keep the update alive instead of borrowing from it.
        let head = update.line().next().map(std::borrow::Cow::into_owned).unwrap_or_default();
        let pods = update.update.pods.clone();
        let pod = move |index: usize| {
            let comma = if index == 0 { "" } else { "," };
            [Bytes::from(comma), Bytes::from_owner(pods[index].text().clone())]
        };
        Chunks::new(
            [Bytes::from(before), Bytes::from(head)]
                .into_iter()
                .chain((0..update.update.pods.len()).flat_map(pod))
                .chain([Bytes::from_static(b"]}\n"), Bytes::from_static(after.as_bytes())]),
        )
    }
}

/// Streams the updates from a number on. Without a number the stream begins with a SET for each
/// source, as soon as the source has synced. So does that of a client which is so slow that the
/// history no longer has its next update.
///
/// A client of an event stream reconnects by itself and sends the id of the last event in
/// `Last-Event-ID`. It gives up for good after an error, so it begins again where others get 410.
pub(crate) async fn watch(
    State(server): State<Arc<Context>>,
    Extension(watchers): Extension<Watchers>,
    params: Params,
) -> Result<Response, ApiError> {
    let format = StreamFormat::of(&params.headers);
    params.allow(&["from"])?;
    let from = from(&params)?;
    let slot = watchers.slot()?;
    let history = &server.view.history;
    // A client of lines that connects again too early tries again. One of an event stream would give up.
    if format == StreamFormat::Lines && history.has_ended() {
        return Err(ApiError::stopping());
    }
    let run = history.run().clone();
    let is_of_this_run = |from: &Position| from.run.as_ref().is_none_or(|of| **of == *run);
    let watcher =
        match from.as_ref().map(|from| history.watch(from.seq).ok().filter(|_| is_of_this_run(from))) {
            Some(Some(watcher)) => watcher,
            Some(None) if format == StreamFormat::Lines => return Err(expired(&params)),
            _ => from_history(history.watch_all()).await?,
        };
    let open = (slot, server.view.connections.watching());
    let chunks = chunks(watcher, run.clone(), format).map(move |chunk| {
        let _held_by_the_stream = &open;
        Ok::<_, Infallible>(chunk)
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(format.media_type())),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (RUN, HeaderValue::from_str(&run).map_err(|_| ApiError::internal())?),
    ];
    Ok((headers, Extension(Endless), Body::from_stream(chunks)).into_response())
}

/// Where a stream begins.
struct Position {
    /// The run that has given out the number, if the client says it.
    run: Option<String>,
    /// The number of the first update, or one after the last update that the client has.
    seq: u64,
}

/// The first update that the client wants. `Last-Event-ID` wins over the query: a client that
/// reconnects sends its first query again.
fn from(params: &Params) -> Result<Option<Position>, ApiError> {
    let parse = |text: &str| {
        let (run, seq) = text.rsplit_once('-').map_or((None, text), |(run, seq)| (Some(run), seq));
        if run == Some("") {
            return None;
        }
        Some(Position { run: run.map(str::to_owned), seq: seq.parse().ok()? })
    };
    let Some(last) = params.headers.get("last-event-id").filter(|last| !last.is_empty()) else {
        return match params.option("from") {
            "" => Ok(None),
            text => parse(text).map(Some).ok_or_else(|| {
                let message =
                    format!("invalid from {text:?}: must be N or RUN-N, where N is the last seq plus one");
                ApiError::bad_request(message)
            }),
        };
    };
    let last = last.to_str().ok().and_then(|last| parse(last.trim()));
    let last =
        last.ok_or_else(|| ApiError::bad_request("invalid Last-Event-ID: must be the id of an event"))?;
    Ok(Some(Position { seq: last.seq.saturating_add(1), ..last }))
}

fn expired(params: &Params) -> ApiError {
    let message = format!(
        "this run of the agent does not hold update {}: start again with GET /updates without from, \
         which begins with a SET for each source",
        params.option("from"),
    );
    ApiError::new(StatusCode::GONE, "Expired", message)
}

/// The chunks of the stream. It receives the next update when the client has read the previous
/// one, so that nothing is buffered. Of an event stream it waits for [`KEEP_ALIVE`] at most.
fn chunks(watcher: Watcher, run: Arc<str>, format: StreamFormat) -> impl Stream<Item = Bytes> {
    // The first update says of which run it is.
    let first = Some(run.clone());
    let updates = stream::unfold((watcher, first), move |(mut watcher, first)| {
        let run = run.clone();
        async move {
            let next = match format {
                StreamFormat::Lines => Ok(watcher.next().await),
                StreamFormat::Events => timeout(KEEP_ALIVE, watcher.next()).await,
            };
            match next {
                Ok(Some(update)) if first.is_some() => {
                    let update = SequencedUpdate { run: first, ..(*update).clone() };
                    Some((format.update(&update, &run), (watcher, None)))
                }
                Ok(Some(update)) => Some((format.update(&update, &run), (watcher, None))),
                Ok(None) => None,
                Err(_) => {
                    let comment = Bytes::from_static(b": nothing new\n\n");
                    Some((Chunks::new(iter::once(comment)), (watcher, first)))
                }
            }
        }
    });
    updates.flat_map(stream::iter)
}
