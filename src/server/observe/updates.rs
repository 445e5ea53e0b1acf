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
    HeaderMap, HeaderValue, StatusCode,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
};
use tokio::time::timeout;

use crate::server::{
    body::{Chunks, Endless, items},
    context::{Context, Params, from_history},
    slots::{MAX_WATCHERS, Watchers},
    status::ApiError,
};
use crate::{
    history::{Gone, Watcher},
    pod::SequencedUpdate,
};

/// The longest silence of an event stream. Proxies and browsers close connections that are
/// silent for a minute.
pub const KEEP_ALIVE: Duration = Duration::from_secs(20);

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
        let accepted = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
        let events = |range: &str| {
            range
                .split(';')
                .next()
                .is_some_and(|range| range.trim().eq_ignore_ascii_case("text/event-stream"))
        };
        if accepted.flat_map(|value| value.split(',')).any(events) { Self::Events } else { Self::Lines }
    }

    const fn media_type(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::Events => "text/event-stream",
        }
    }

    /// The chunks of an update.
    fn update(self, update: &Arc<SequencedUpdate>) -> Chunks {
        let (before, after) = match self {
            Self::Lines => (String::new(), ""),
            Self::Events => (format!("id: {}\nevent: {}\ndata: ", update.seq, update.update.op), "\n"),
        };
        // The pieces of the line, which keep the update alive instead of borrowing from it.
        let head = update.line().next().map(std::borrow::Cow::into_owned).unwrap_or_default();
        let pods = update.update.pods.clone();
        let count = pods.len();
        Chunks::new(
            [Bytes::from(before), Bytes::from(head)]
                .into_iter()
                .chain(items((0..count).map(move |index| pods[index].clone())))
                .chain([Bytes::from_static(b"]}\n"), Bytes::from_static(after.as_bytes())]),
        )
    }

    /// The chunks of an error, which ends the stream.
    fn error(self, error: &ApiError) -> Chunks {
        let (before, after) = match self {
            Self::Lines => ("", "\n"),
            Self::Events => ("event: error\ndata: ", "\n\n"),
        };
        let json = error.to_json();
        Chunks::new([Bytes::from(before), Bytes::from(json), Bytes::from(after)].into_iter())
    }
}

/// Streams the updates from a number on. Without a number the stream begins with a SET of all
/// pods.
///
/// A client of an event stream reconnects by itself and sends the number of the last event in
/// `Last-Event-ID`. If a client is so slow that the history no longer has its next update, the
/// stream ends with a `Status` of 410.
pub(crate) async fn watch(
    State(server): State<Arc<Context>>,
    Extension(watchers): Extension<Watchers>,
    params: Params,
) -> Result<Response, ApiError> {
    let format = StreamFormat::of(&params.headers);
    let from = from(&params)?;
    let slot = watchers.try_acquire().ok_or_else(|| {
        let message = format!("too many clients watch /updates (at most {MAX_WATCHERS}): retry later");
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(5)
    })?;
    let history = &server.view.history;
    let watcher = match from {
        Some(from) => history.watch(from).map_err(|gone| expired(&gone))?,
        None => from_history(history.watch_all()).await?,
    };
    let open = (slot, server.view.connections.watching());
    let chunks = chunks(watcher, format).map(move |chunk| {
        let _held_by_the_stream = &open;
        Ok::<_, Infallible>(chunk)
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(format.media_type())),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, Extension(Endless), Body::from_stream(chunks)).into_response())
}

/// The number of the first update that the client wants. `Last-Event-ID` wins over the query:
/// a client that reconnects sends its first query again.
fn from(params: &Params) -> Result<Option<u64>, ApiError> {
    let Some(last) = params.headers.get("last-event-id").filter(|last| !last.is_empty()) else {
        return params.number("from");
    };
    let last = last.to_str().ok().and_then(|last| last.trim().parse::<u64>().ok());
    let last =
        last.ok_or_else(|| ApiError::bad_request("invalid Last-Event-ID: must be the id of an event"))?;
    Ok(Some(last.saturating_add(1)))
}

fn expired(gone: &Gone) -> ApiError {
    let message = format!("{gone}: start again with GET /updates without from, which begins with a SET");
    ApiError::new(StatusCode::GONE, "Expired", message)
}

/// The chunks of the stream. It receives the next update when the client has read the previous
/// one, so that nothing is buffered. Of an event stream it waits for [`KEEP_ALIVE`] at most.
fn chunks(watcher: Watcher, format: StreamFormat) -> impl Stream<Item = Bytes> {
    // Without a watcher, the stream ends.
    let updates = stream::unfold(Some(watcher), move |watcher| async move {
        let mut watcher = watcher?;
        let next = match format {
            StreamFormat::Lines => Ok(watcher.next().await),
            StreamFormat::Events => timeout(KEEP_ALIVE, watcher.next()).await,
        };
        match next {
            Ok(Ok(Some(update))) => Some((format.update(&update), Some(watcher))),
            Ok(Ok(None)) => None,
            Ok(Err(gone)) => Some((format.error(&expired(&gone)), None)),
            Err(_) => {
                let comment = Bytes::from_static(b": nothing new\n\n");
                Some((Chunks::new(iter::once(comment)), Some(watcher)))
            }
        }
    });
    updates.flat_map(stream::iter)
}
