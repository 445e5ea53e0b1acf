//! `GET /updates`: the update stream, as lines of JSON or as server-sent events.

use std::{
    convert::Infallible,
    iter,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
    time::Duration,
};

use axum::{
    Extension,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
};
use hyper::body::Frame;
use tokio::{sync::OwnedSemaphorePermit, time::sleep};

use crate::server::{
    body::{Chunks, Endless, items},
    context::{Context, Params, answered},
    status::ApiError,
};
use crate::{
    history::{Gone, Watcher},
    pod::SequencedUpdate,
};

/// How many may watch at a time. Each costs a connection and the update that it
/// is being told.
pub const MAX_WATCHERS: usize = 256;
/// How long an event stream is silent at most: less than the minute after which
/// proxies and browsers give a connection up.
pub const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// How the stream is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A line of JSON each, as the `jsonl` sink writes them.
    Lines,
    /// Server-sent events, as browsers read them.
    Events,
}

impl Form {
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

    /// An update in pieces.
    fn update(self, update: &Arc<SequencedUpdate>) -> Chunks {
        let (before, after) = match self {
            Self::Lines => (String::new(), ""),
            Self::Events => (format!("id: {}\nevent: {}\ndata: ", update.seq, update.update.op), "\n"),
        };
        // The line's own pieces, but with the update instead of borrowing from it.
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

    /// The end of a stream that cannot go on.
    fn error(self, error: &ApiError) -> Chunks {
        let (before, after) = match self {
            Self::Lines => ("", "\n"),
            Self::Events => ("event: error\ndata: ", "\n\n"),
        };
        let json = error.to_json();
        Chunks::new([Bytes::from(before), Bytes::from(json), Bytes::from(after)].into_iter())
    }
}

/// Streams the updates from a number on, or, without one, a SET of everything
/// and then all that comes.
///
/// An event stream that was broken goes on by itself: its reader says in
/// `Last-Event-ID` what it heard last. A reader that is so slow that the history
/// has gone on without it is told a `Status` (of 410) as the last line or event.
pub(in crate::server) async fn watch(
    State(server): State<Arc<Context>>,
    asked: Params,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let form = Form::of(&headers);
    let from = from(&asked, &headers)?;
    let permit = server.watchers.clone().try_acquire_owned().map_err(|_| {
        let message = format!("{MAX_WATCHERS} watch the updates already; try again later");
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(5)
    })?;
    let history = &server.view.history;
    let watcher = match from {
        Some(from) => history.watch(from).map_err(|gone| expired(&gone))?,
        None => answered(history.watch_all()).await?,
    };
    let body = Body::new(Stream { form, state: waiting(watcher, form), _permit: permit });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(form.media_type())),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, Extension(Endless), body).into_response())
}

/// Where a reader wants to begin. What an event stream's reader has heard counts
/// more than what its address says: that was for its beginning.
fn from(asked: &Params, headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(last) = headers.get("last-event-id").filter(|last| !last.is_empty()) else {
        return asked.number("from");
    };
    let last = last.to_str().ok().and_then(|last| last.trim().parse::<u64>().ok());
    let last =
        last.ok_or_else(|| ApiError::bad_request("invalid Last-Event-ID: the id of an event is expected"))?;
    Ok(Some(last.saturating_add(1)))
}

fn expired(gone: &Gone) -> ApiError {
    let message = format!("{gone}; start over: GET /updates without from begins with a SET of everything");
    ApiError::new(StatusCode::GONE, "Expired", message)
}

/// What a watcher was waiting for.
enum Heard {
    Update(Arc<SequencedUpdate>),
    Silence,
    End,
    Lost(Gone),
}

enum Stage {
    Waiting(Pin<Box<dyn Future<Output = (Watcher, Heard)> + Send>>),
    /// With the watcher, unless this is the last it is told.
    Telling(Option<Watcher>, Chunks),
    Ended,
}

/// Waits for the next update, and only for so long if silence is to be broken.
fn waiting(mut watcher: Watcher, form: Form) -> Stage {
    Stage::Waiting(Box::pin(async move {
        let next = async {
            match watcher.next().await {
                Ok(Some(update)) => Heard::Update(update),
                Ok(None) => Heard::End,
                Err(gone) => Heard::Lost(gone),
            }
        };
        let heard = match form {
            Form::Lines => next.await,
            Form::Events => tokio::select! {
                biased;
                heard = next => heard,
                () = sleep(KEEP_ALIVE) => Heard::Silence,
            },
        };
        (watcher, heard)
    }))
}

/// The body of a stream. It asks for the next update when its reader has taken
/// the one before, so that nothing waits in between.
struct Stream {
    form: Form,
    state: Stage,
    _permit: OwnedSemaphorePermit,
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            let form = self.form;
            match &mut self.state {
                Stage::Waiting(next) => {
                    let (watcher, heard) = ready!(next.as_mut().poll(context));
                    self.state = match heard {
                        Heard::Update(update) => Stage::Telling(Some(watcher), form.update(&update)),
                        Heard::Silence => {
                            let comment = Bytes::from_static(b": nothing new\n\n");
                            Stage::Telling(Some(watcher), Chunks::new(iter::once(comment)))
                        }
                        Heard::End => Stage::Ended,
                        Heard::Lost(gone) => Stage::Telling(None, form.error(&expired(&gone))),
                    };
                }
                Stage::Telling(watcher, chunks) => match chunks.next() {
                    Some(chunk) => return Poll::Ready(Some(Ok(Frame::data(chunk)))),
                    None => {
                        self.state = watcher.take().map_or(Stage::Ended, |watcher| waiting(watcher, form));
                    }
                },
                Stage::Ended => return Poll::Ready(None),
            }
        }
    }
}
