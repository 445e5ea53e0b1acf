//! What the agent sends `podmux top`: a watch of the pods, the update stream, and the sources and the open pod, which
//! are read again and again. Each connects again by itself.

use std::{convert::Infallible, pin::pin, time::Duration};

use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};

use super::{
    details::details,
    model::{Columns, Key, News, Pod, Source, Update, key},
};
use crate::{
    backoff::Backoff,
    cli::{
        connection::{Connection, TABLE, pod_path, with_query},
        failure::Failure,
        get::stream::{FIRST_DELAY, LONGEST_DELAY, Link, UpdateStream, next_event},
    },
    host::{Clock, Random},
};

/// How often the sources and the open pod are read.
const INTERVAL: Duration = Duration::from_secs(2);
const PODS: &str = "/api/v1/pods";

/// Why the agent is not reached, for each of the requests.
pub(super) type Lost = [Option<String>; 4];

/// The place of each request in [`Lost`].
#[derive(Clone, Copy)]
enum Request {
    Pods,
    Updates,
    Sources,
    Open,
}

/// The first list of pods: without it nothing is shown.
pub(super) struct First {
    pub(super) pods: Vec<Pod>,
    columns: Columns,
    /// The resourceVersion of the list.
    version: String,
}

impl First {
    pub(super) async fn list(connection: &Connection) -> Result<Self, Failure> {
        let mut columns = Columns::default();
        let (pods, version) = list(connection, &mut columns).await?;
        Ok(Self { pods, columns, version })
    }
}

/// The connection to the agent, and where its news go.
pub(super) struct Feed<'a> {
    pub(super) connection: &'a Connection,
    pub(super) random: &'a Random,
    pub(super) clock: &'a Clock,
    pub(super) news: mpsc::Sender<News>,
    pub(super) lost: watch::Sender<Lost>,
}

impl Feed<'_> {
    /// Sends all news. It ends with an error that would stay.
    pub(super) async fn run(&self, first: First, open: watch::Receiver<Option<Key>>) -> Failure {
        let First { columns, version, .. } = first;
        let failed = tokio::select! {
            failed = self.pods(columns, version.clone()) => failed,
            failed = self.updates(&version) => failed,
            failed = self.sources() => failed,
            failed = self.open(open) => failed,
        };
        match failed {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    async fn pods(&self, mut columns: Columns, version: String) -> Result<Infallible, Failure> {
        let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        let mut version = Some(version);
        loop {
            let end = self.watch(&mut columns, &mut version, &mut backoff).await;
            self.note(Request::Pods, end)?;
            sleep(backoff.next(self.random.fraction())).await;
        }
    }

    /// Lists the pods if the last watch cannot be continued, then watches them.
    async fn watch(
        &self,
        columns: &mut Columns,
        version: &mut Option<String>,
        backoff: &mut Backoff,
    ) -> Result<(), Failure> {
        if version.is_none() {
            let (pods, listed) = list(self.connection, columns).await?;
            self.send(News::Pods(pods)).await;
            *version = Some(listed);
        }
        let from = version.clone().unwrap_or_default();
        let query = [("watch", "1"), ("allowWatchBookmarks", "1"), ("resourceVersion", &*from)];
        let mut lines = self.connection.lines(&with_query(PODS, &query), TABLE).await?;
        self.reached(Request::Pods);
        while let Some((kind, object)) = next_event(&mut lines, version, backoff).await? {
            match &*kind {
                "BOOKMARK" => {}
                "DELETED" => {
                    for row in object["rows"].as_array().into_iter().flatten() {
                        self.send(News::Removed(key(row))).await;
                    }
                }
                _ => {
                    columns.learn(&object);
                    for pod in columns.pods(&object) {
                        self.send(News::Stored(pod)).await;
                    }
                }
            }
        }
        Ok(())
    }

    /// Follows the update stream from the list of pods on, or with all pods if that is not held any more.
    async fn updates(&self, version: &str) -> Result<Infallible, Failure> {
        let report = |link: Link<'_>| match link {
            Link::Lost(failure) => self.lost(Request::Updates, failure),
            Link::Continues | Link::StartsAgain => self.reached(Request::Updates),
        };
        let mut from =
            version.parse().ok().and_then(|version: u64| version.checked_add(1)).map(|from| from.to_string());
        let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        loop {
            match UpdateStream::open(self.connection, self.random, from.clone(), &report).await {
                Ok(mut stream) => {
                    self.reached(Request::Updates);
                    loop {
                        if let Some(update) = Update::read(&stream.next().await?) {
                            self.send(News::Updated(update)).await;
                        }
                    }
                }
                Err(Failure::Server(status)) if status.code == 410 => from = None,
                end => self.note(Request::Updates, end.map(drop))?,
            }
            sleep(backoff.next(self.random.fraction())).await;
        }
    }

    async fn sources(&self) -> Result<Infallible, Failure> {
        loop {
            let sources = self.connection.get("/sources").await;
            if let Ok(sources) = &sources {
                self.send(News::Sources(Source::all(sources, self.clock.now()))).await;
            }
            self.note(Request::Sources, sources.map(drop))?;
            sleep(INTERVAL).await;
        }
    }

    /// Reads the open pod and its events.
    async fn open(&self, mut open: watch::Receiver<Option<Key>>) -> Result<Infallible, Failure> {
        loop {
            let key = open.borrow_and_update().clone();
            let read = match &key {
                Some(key) => self.details(key).await,
                None => Ok(()),
            };
            self.note(Request::Open, read)?;
            let mut rest = pin!(sleep(INTERVAL));
            tokio::select! {
                Ok(()) = open.changed() => {}
                () = &mut rest, if key.is_some() => {}
                else => rest.await,
            }
        }
    }

    async fn details(&self, key: &Key) -> Result<(), Failure> {
        let lines = match self.connection.get(&pod_path(&key.0, &key.1)).await {
            Ok(pod) => {
                let events = self.connection.events_of(&pod).await?;
                Some(details(&pod, &events, self.clock.now()))
            }
            Err(failure) if failure.is_not_found() => None,
            Err(failure) => return Err(failure),
        };
        self.send(News::Opened(key.clone(), lines)).await;
        Ok(())
    }

    async fn send(&self, news: News) {
        // The receiver is dropped at the end of the program.
        let _ = self.news.send(news).await;
    }

    /// Notes how a request has ended. An error that would stay is returned.
    fn note(&self, request: Request, end: Result<(), Failure>) -> Result<(), Failure> {
        match end {
            Ok(()) => self.reached(request),
            Err(failure) if failure.is_lasting() => return Err(failure),
            Err(failure) => self.lost(request, &failure),
        }
        Ok(())
    }

    fn reached(&self, request: Request) {
        self.lost.send_if_modified(|lost| lost[request as usize].take().is_some());
    }

    fn lost(&self, request: Request, failure: &Failure) {
        self.lost.send_modify(|lost| lost[request as usize] = Some(failure.to_string()));
    }
}

/// Lists all pods, page by page.
async fn list(connection: &Connection, columns: &mut Columns) -> Result<(Vec<Pod>, String), Failure> {
    let mut pods = Vec::new();
    let read = |page: Value, _| {
        columns.learn(&page);
        Ok(columns.pods(&page))
    };
    let version = connection.pages(PODS, &[], TABLE, &mut pods, read).await?;
    Ok((pods, version))
}
