//! The server of the URL that the agent polls, without a port.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::pending,
    io, mem,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use futures::stream;
use http::{
    Request, Response,
    header::{ETAG, IF_NONE_MATCH},
};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use podmux::pod::SourceName;
use serde_json::json;
use tokio::io::{DuplexStream, duplex};
use tokio_util::sync::CancellationToken;

use super::{network::BUFFERED, run::static_pod};

/// The address of the server, and what the agent polls.
pub const ADDRESS: &str = "manifests:8080";
pub const URL: &str = "http://manifests:8080/pods";

/// How the server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Serves {
    /// All pods, or that nothing has changed.
    #[default]
    Pods,
    /// No connection.
    Nothing,
    /// No answer.
    Never,
    Errors,
    /// An empty body, which is no list without pods.
    Empty,
    /// The first half of the pods as if it were all, as of a file that is being written.
    Half,
    /// The first half of the pods; then the connection breaks.
    Broken,
}

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// The server. Cheap to clone.
#[derive(Clone, Default)]
pub struct ManifestUrl(Arc<Mutex<State>>);

#[derive(Clone, Default)]
struct State {
    pods: BTreeMap<usize, usize>,
    serves: Serves,
    /// Ends all connections.
    stop: CancellationToken,
}

impl ManifestUrl {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn put(&self, n: usize, v: usize) {
        self.state().pods.insert(n, v);
    }

    pub fn remove(&self, n: usize) {
        self.state().pods.remove(&n);
    }

    pub fn works(&self) -> bool {
        self.state().serves == Serves::Pods
    }

    pub fn serve(&self, serves: Serves) {
        let mut state = self.state();
        state.serves = serves;
        // What is on its way for ever ends as a broken connection does.
        mem::take(&mut state.stop).cancel();
    }

    /// A connection to it.
    pub fn dial(&self) -> io::Result<DuplexStream> {
        let stop = self.state().stop.clone();
        if self.state().serves == Serves::Nothing {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = duplex(BUFFERED);
        let server = self.clone();
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            let service = service_fn(|request| server.answer(request));
            // The agent may have been killed.
            drop(http1::Builder::new().serve_connection(TokioIo::new(ours), service).await);
        }));
        Ok(theirs)
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Answer, Infallible> {
        let State { pods, serves, .. } = self.state().clone();
        let items: Vec<_> = pods.iter().map(|(n, v)| static_pod(SourceName::Url, *n, *v)).collect();
        let text = json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string();
        let half = text[..text.len() / 2].to_owned();
        let tag = format!("\"{pods:?}\"");
        let is_known = request.headers().get(IF_NONE_MATCH).is_some_and(|known| known == &*tag);
        let whole = |code: u16, body: String| {
            let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
            Response::builder().status(code).header(ETAG, &tag).body(body).unwrap()
        };
        Ok(match serves {
            Serves::Pods if is_known => whole(304, String::new()),
            Serves::Pods => whole(200, text),
            Serves::Nothing | Serves::Never => pending().await,
            Serves::Errors => whole(503, "not now".to_owned()),
            Serves::Empty => whole(200, String::new()),
            Serves::Half => whole(200, half),
            Serves::Broken => {
                let parts = [Ok(Frame::data(Bytes::from(half))), Err(io::ErrorKind::BrokenPipe.into())];
                Response::new(StreamBody::new(stream::iter(parts)).boxed_unsync())
            }
        })
    }
}
