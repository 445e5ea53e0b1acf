//! Pods that an API server has bound to this node: a reflector and its UndeltaStore.
//!
//! The kubelet's `pkg/kubelet/config/apiserver.go` with client-go's Reflector
//! (`tools/cache/reflector.go`) and `UndeltaStore` behind it.

#[doc(hidden)]
pub mod answer;
mod backoff;
mod connect;
mod event;
#[doc(hidden)]
pub mod frames;
mod kept;
mod metrics;
#[doc(hidden)]
pub mod reflector;
mod request;
mod store;
mod teller;

use std::{pin::pin, time::Duration};

use http::{StatusCode, header::CONTENT_ENCODING};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::{Client, client::Body};
use serde_json::Value;
use tokio::{
    sync::watch as level,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::{
    answer::Refusal,
    event::Event,
    frames::{Frames, ListEnd, Piece, Shape},
    kept::Kept,
    reflector::{Deed, End, Reflector, Request, Verdict},
    store::{Object, UndeltaStore},
    teller::Teller,
};

use self::metrics::Tally;
pub use self::{
    connect::{
        ConnectError, Connected, Connector, Identity, InCluster, Kubeconfig, Proxies, describe_cause,
        describe_failure,
    },
    metrics::ReflectorMetrics,
};
use super::{dice, last_good::LastGood, status::SourceStatus};
use crate::{clock, error_chain::chain, mux::SourceChannel, pod::NodeName};

/// How long the head of an answer may take: the API server itself gives up on a
/// request after a minute.
const HEAD: Duration = Duration::from_secs(65);
/// How much of a refusal is read, and for how long.
const MAX_REFUSAL: usize = 64 << 10;
const REFUSAL: Duration = Duration::from_secs(10);
/// What tells one cluster from another,
const KUBE_SYSTEM: &str = "/api/v1/namespaces/kube-system";
/// and how long it is waited for.
const RECOGNITION: Duration = Duration::from_secs(5);

/// The apiserver source's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How the API server is reached.
    pub kubeconfig: Kubeconfig,
    /// The proxies that lead to it.
    pub proxies: Proxies,
}

/// What the source is asked for while it runs.
#[derive(Clone, Debug)]
struct Asked {
    times: u64,
    config: Config,
}

/// The apiserver source from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ApiHandle {
    asked: level::Sender<Asked>,
    status: level::Receiver<SourceStatus>,
    metrics: ReflectorMetrics,
}

impl ApiHandle {
    /// Asks for a fresh listing now, with credentials read anew (SIGHUP).
    pub fn rescan(&self) {
        self.asked.send_modify(|asked| asked.times += 1);
    }

    /// Asks for a fresh listing with these settings. The previous ones stay in effect
    /// until these can be used.
    pub fn retune(&self, config: Config) {
        self.asked.send_modify(|asked| {
            asked.times += 1;
            asked.config = config;
        });
    }

    /// The status of the source. Closed when the source has ended.
    #[must_use]
    pub fn status(&self) -> level::Receiver<SourceStatus> {
        self.status.clone()
    }

    /// What the reflector counts.
    #[must_use]
    pub fn metrics(&self) -> ReflectorMetrics {
        self.metrics.clone()
    }
}

/// The source of pods that an API server has bound to this node.
pub struct ApiSource {
    config: Config,
    node: NodeName,
    connector: Connector,
    /// Whom it spoke to last, or whose listing was restored.
    server: Option<Identity>,
    /// The UID of that one's kube-system namespace, if it is known,
    cluster: Option<String>,
    /// and whether it was asked for in this run.
    is_recognised: bool,
    reflector: Reflector,
    store: UndeltaStore,
    teller: Teller,
    metrics: ReflectorMetrics,
    tally: Tally,
    asked: level::Receiver<Asked>,
}

impl ApiSource {
    /// A source that reflects the node's pods into a channel. It does nothing before it is run.
    #[must_use]
    pub fn new(config: Config, node: NodeName, channel: SourceChannel) -> (Self, ApiHandle) {
        let status = SourceStatus { reflector: Some(teller::idle()), ..SourceStatus::default() };
        let (status, seen) = level::channel(status);
        let (ask, asked) = level::channel(Asked { times: 0, config: config.clone() });
        let metrics = ReflectorMetrics::default();
        let handle = ApiHandle { asked: ask, status: seen, metrics: metrics.clone() };
        let source = Self {
            connector: Connector::new(config.kubeconfig.clone()).with_proxies(config.proxies.clone()),
            server: None,
            cluster: None,
            is_recognised: false,
            reflector: Reflector::new(None, Instant::now()),
            store: UndeltaStore::new(node.clone(), channel),
            teller: Teller::new(status),
            metrics,
            tally: Tally::default(),
            asked,
            config,
            node,
        };
        (source, handle)
    }

    /// The same with what was good in an earlier run, which is pushed at once,
    /// and kept up to date from now on.
    ///
    /// A listing of another server or of another node is not taken. It reads the
    /// kubeconfig, so it may block.
    #[must_use]
    pub fn with_last_good(mut self, last_good: LastGood) -> Self {
        let mut good = last_good.whole();
        let named = self.connector.identity();
        match (&named, &self.config.kubeconfig) {
            (Ok(server), _) => self.teller.target(&server.url),
            (Err(_), Kubeconfig::File(path)) => self.teller.target(&path.display().to_string()),
            (Err(_), Kubeconfig::InCluster(_)) => {}
        }
        let Some(kept) = good.restored_about().and_then(Kept::read) else {
            good.forget_all();
            self.store.keep(good);
            return self;
        };
        if let Ok(server) = named
            && server != kept.server
        {
            let (before, now) = (&kept.server.url, &server.url);
            warn!(
                source = "api",
                before, now, "the pods that were kept are those of another API server: they are not restored"
            );
            good.forget_all();
            self.store.keep(good);
            return self;
        }
        let (pods, version) = (self.store.restore(good), kept.version());
        let of = kept.live().map(|live| format!("{live:.3}"));
        info!(source = "api", pods, of, "restored: these pods are wanted until the API server tells more");
        self.teller.target(&kept.server.url);
        self.teller.restored(kept.live(), Some(version.clone()));
        self.reflector = Reflector::new(Some(version), Instant::now());
        (self.server, self.cluster) = (Some(kept.server), kept.cluster);
        self
    }

    /// Lists, watches and pushes until `stop` is cancelled. Nothing but what was
    /// restored is pushed before the first complete listing.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.work()).await;
        if self.reflector.is_synced() && self.reflector.was_accepted() {
            // What is known is true now.
            let kept = self.kept();
            self.store.note(kept.as_ref());
        }
        self.store.finish().await;
    }

    async fn work(&mut self) {
        loop {
            let next = sleep_until(self.reflector.next_at());
            let end = match meanwhile(&mut self.asked, &mut self.store, next).await {
                Some(()) => self.attempt().await,
                None => End::Asked,
            };
            self.ended(&end);
        }
    }

    /// One request, from its making to its end.
    async fn attempt(&mut self) -> End {
        self.teller.phase("connecting", self.detail());
        let connecting = self.connector.client();
        let connected = match meanwhile(&mut self.asked, &mut self.store, connecting).await {
            Some(Ok(connected)) => connected,
            Some(Err(error @ ConnectError::Plugin { .. })) => return End::NoCredential(chain(&error)),
            Some(Err(error)) => return End::NoClient(chain(&error)),
            None => return End::Asked,
        };
        self.meet(&connected.identity);
        if let Err(end) = self.recognise(&connected.client).await {
            return end;
        }
        let asked = self.reflector.next(Instant::now(), dice());
        debug!(source = "api", request = ?asked, "asking the API server");
        let request = match request::http(&asked, &self.node) {
            Ok(request) => request,
            Err(error) => return End::NoClient(chain(&error)),
        };
        match asked {
            Request::Watch { .. } => self.tally.watch(&self.metrics),
            Request::Probe { .. } => {}
            _ if self.reflector.goes_on() => {}
            Request::WatchList { .. } | Request::List { .. } => self.tally.list(&self.metrics),
        }
        let sending = timeout(HEAD, connected.client.send(request));
        let answer = match meanwhile(&mut self.asked, &mut self.store, sending).await {
            Some(Ok(Ok(answer))) => answer,
            Some(Ok(Err(error))) => return self.unsent(&error),
            Some(Err(_)) => return End::Silent,
            None => return End::Asked,
        };
        if answer.status() != StatusCode::OK {
            return self.refused(answer).await;
        }
        if let Some(encoding) = answer.headers().get(CONTENT_ENCODING) {
            return End::Garbage(format!("the answer is encoded ({encoding:?}), which nobody asked for"));
        }
        self.read(asked, answer.into_body()).await
    }

    /// Reads why an answer is no 200.
    async fn refused(&mut self, answer: http::Response<Body>) -> End {
        let (head, body) = answer.into_parts();
        let reading = timeout(REFUSAL, Limited::new(body, MAX_REFUSAL).collect());
        let body = match meanwhile(&mut self.asked, &mut self.store, reading).await {
            Some(Ok(Ok(body))) => body.to_bytes(),
            Some(Ok(Err(error))) if error.downcast_ref::<LengthLimitError>().is_none() => {
                return End::Broken(chain(&*error));
            }
            Some(_) => bytes::Bytes::new(),
            None => return End::Asked,
        };
        if head.status == StatusCode::UNAUTHORIZED {
            // There may be a newer token.
            self.connector.renew();
        }
        End::Refused(Refusal::of_answer(head.status, &head.headers, &body))
    }

    /// Reads an answer to its end.
    async fn read(&mut self, asked: Request, body: Body) -> End {
        self.reflector.accepted(Instant::now());
        let is_probe = matches!(asked, Request::Probe { .. });
        let is_list = is_probe || matches!(asked, Request::List { .. });
        if !self.reflector.is_synced() && !self.reflector.goes_on() {
            self.store.begin();
        }
        if self.reflector.is_synced() {
            let kept = self.kept();
            self.store.note(kept.as_ref());
        }
        if !is_probe {
            self.tell_phase();
        }
        let mut frames = Frames::new(if is_list { Shape::List } else { Shape::Events });
        let mut body = pin!(body);
        let mut is_complete = false;
        loop {
            let patience = self.reflector.patience();
            let until = self.reflector.well_at().map_or(patience, |well| well.min(patience));
            let until = if until <= Instant::now() { patience } else { until };
            let chunk = timeout_at(until, body.frame());
            let data = match meanwhile(&mut self.asked, &mut self.store, chunk).await {
                Some(Ok(Some(Ok(frame)))) => frame.into_data().unwrap_or_default(),
                // Whatever comes after a list: it is complete.
                Some(_) if is_complete => return End::Listed,
                Some(Ok(Some(Err(error)))) => return End::Broken(connect::describe_cause(&error)),
                Some(Ok(None)) => match frames.finish() {
                    Ok(()) => return End::Closed,
                    Err(error) => return End::Broken(error.to_string()),
                },
                Some(Err(_)) if Instant::now() >= patience => return End::Silent,
                Some(Err(_)) => {
                    // The watch stands.
                    self.teller.well(self.store.len());
                    continue;
                }
                None => return End::Asked,
            };
            self.reflector.heard(Instant::now());
            frames.push(&data);
            loop {
                let taken = match frames.next() {
                    // It has no items, and nobody has use for any.
                    Ok(Some(Piece::Object(_))) if is_probe => Ok(()),
                    Ok(Some(Piece::Object(text))) if is_list => {
                        self.item(&text);
                        Ok(())
                    }
                    Ok(Some(Piece::Object(text))) => self.event(&text).await,
                    Ok(Some(Piece::End(end))) => {
                        is_complete = true;
                        self.listed(&end).await
                    }
                    Ok(None) => break,
                    Err(error) => Err(End::Garbage(error.to_string())),
                };
                if let Err(end) = taken {
                    return end;
                }
            }
        }
    }

    /// Takes an item of a list.
    fn item(&mut self, text: &[u8]) {
        let (object, _) = event::read_object(&String::from_utf8_lossy(text));
        self.count(&object);
        self.store.collect(object);
    }

    /// A list, or a page of it, is complete.
    async fn listed(&mut self, end: &ListEnd) -> Result<(), End> {
        if !matches!(&*end.kind, "PodList" | "List") || end.resource_version.is_empty() {
            let what =
                format!("a list of pods with a resourceVersion was asked for, and {:?} came", end.kind);
            return Err(End::Garbage(what));
        }
        let deed = self.reflector.page(end.resource_version.as_str().into(), &end.continue_token);
        self.follow(deed, false).await;
        Ok(())
    }

    /// Takes an event of a watch.
    async fn event(&mut self, text: &[u8]) -> Result<(), End> {
        // As in Go, what is not UTF-8 becomes U+FFFD.
        let text = String::from_utf8_lossy(text);
        let is_synced = self.reflector.is_synced();
        let event = match Event::read(&text) {
            Ok(event) => event,
            // It might have been a deletion: nothing after it can be relied on.
            Err(why) if is_synced => return Err(End::Garbage(why)),
            Err(why) => Event::Changed(Object::Bad { key: None, why }, None),
        };
        match event {
            Event::Error(status) => return Err(End::Error(Refusal::of_event(status))),
            Event::Unknown(kind) => {
                debug!(source = "api", kind, "an event of a type that is not known");
                self.metrics.error("undecodable");
            }
            Event::Bookmark { version, ends_initial_events } => {
                let deed = self.reflector.bookmark(version, ends_initial_events);
                self.follow(deed, true).await;
            }
            Event::Changed(object, version) => {
                self.count(&object);
                self.reflector.event(version);
                if is_synced {
                    let kept = self.kept();
                    self.store.apply(object, kept.as_ref()).await;
                } else {
                    self.store.collect(object);
                }
            }
            Event::Deleted(None, _) => {
                let what = "a DELETED event does not say of which pod it is";
                return Err(End::Garbage(what.to_owned()));
            }
            Event::Deleted(Some(key), version) => {
                self.tally.items += 1;
                self.reflector.event(version);
                if is_synced {
                    let kept = self.kept();
                    self.store.delete(&key, kept.as_ref()).await;
                } else {
                    self.store.uncollect(&key);
                }
            }
        }
        if self.reflector.is_synced() {
            self.teller.heard(self.reflector.version());
            self.teller.live(self.store.len());
        }
        Ok(())
    }

    /// Does what the reflector says with what was collected.
    async fn follow(&mut self, deed: Deed, is_watch: bool) {
        if deed == Deed::None {
            return;
        }
        self.tally.listed(&self.metrics, is_watch);
        let kept = self.kept();
        self.store.replace(kept.as_ref()).await;
        self.teller.heard(self.reflector.version());
        self.teller.well(self.store.len());
        self.tell_phase();
        debug!(source = "api", pods = self.store.len(), version = ?self.reflector.version(), "the listing is complete");
    }

    /// Draws the conclusions from the end of a request.
    fn ended(&mut self, end: &End) {
        if *end == End::Asked {
            let kubeconfig = self.asked.borrow().config.kubeconfig.clone();
            self.connector.turn_to(kubeconfig);
        }
        let kind = kind(end, self.reflector.was_accepted());
        let verdict = self.reflector.ended(end, Instant::now(), dice());
        self.tally.ended(&self.metrics, *end == End::Closed && verdict != Verdict::Well);
        if verdict != Verdict::Well {
            self.metrics.error(kind);
        }
        let text = told(end);
        match verdict {
            Verdict::Well => {}
            Verdict::Usual => info!(source = "api", error = %text, "the API server is asked anew"),
            Verdict::NoWatchList => {
                info!(source = "api", error = %text, "the API server does not stream listings: lists are used");
            }
            Verdict::Failing => {
                let quotes = matches!(end, End::Garbage(_) | End::NoCredential(_));
                self.teller.failing(&text, quotes, self.store.len(), self.reflector.next_at());
                return;
            }
        }
        if self.reflector.next_at() > Instant::now() {
            self.teller.waits(self.reflector.next_at());
        }
    }

    /// Looks whether the server is the one that it was.
    fn meet(&mut self, identity: &Identity) {
        if self.server.as_ref() == Some(identity) {
            return;
        }
        if let Some(before) = &self.server {
            warn!(
                source = "api",
                before = before.url,
                now = identity.url,
                "this is another API server: everything is listed anew"
            );
            self.reflector.forget();
        }
        self.teller.target(&identity.url);
        (self.server, self.cluster, self.is_recognised) = (Some(identity.clone()), None, false);
    }

    /// Asks whether the cluster is the one that it was, until it is told: a server's
    /// URL and CA may outlive it. Who may not read that is not told.
    async fn recognise(&mut self, client: &Client) -> Result<(), End> {
        if self.is_recognised || self.reflector.goes_on() {
            return Ok(());
        }
        let request = http::Request::get(KUBE_SYSTEM).body(Body::empty());
        let request = request.map_err(|error| End::NoClient(chain(&error)))?;
        let asking = timeout(RECOGNITION, async {
            let answer = client.send(request).await?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_REFUSAL).collect().await;
            Ok((status, body.map(http_body_util::Collected::to_bytes).unwrap_or_default()))
        });
        let (status, body) = match meanwhile(&mut self.asked, &mut self.store, asking).await {
            Some(Ok(Ok(told))) => told,
            Some(Ok(Err(error))) => return Err(self.unsent(&error)),
            Some(Err(_)) => (StatusCode::REQUEST_TIMEOUT, bytes::Bytes::new()),
            None => return Err(End::Asked),
        };
        // Whom the server does not know yet, or has no time for, asks again before the next request.
        self.is_recognised = status != StatusCode::UNAUTHORIZED && !status.is_server_error();
        let namespace = Some(body).filter(|_| status == StatusCode::OK);
        let namespace: Option<Value> = namespace.and_then(|body| serde_json::from_slice(&body).ok());
        let cluster = namespace.and_then(|namespace| Some(namespace["metadata"]["uid"].as_str()?.to_owned()));
        if let (Some(before), Some(now)) = (&self.cluster, &cluster)
            && before != now
        {
            warn!(
                source = "api",
                before,
                now,
                "this is another cluster (its kube-system namespace has another UID): everything is listed anew"
            );
            self.reflector.forget();
        }
        self.cluster = cluster.or(self.cluster.take());
        Ok(())
    }

    /// A request did not reach the server, or its answer did not come.
    fn unsent(&mut self, error: &kube::Error) -> End {
        if connect::is_about_credentials(error) {
            self.connector.renew();
        }
        End::Broken(connect::describe_failure(error))
    }

    /// What the listing is, for the next start.
    fn kept(&self) -> Option<Kept> {
        let version = self.reflector.version()?;
        Some(Kept::new(self.server.clone()?, self.cluster.clone(), version, clock::now()))
    }

    fn count(&mut self, object: &Object) {
        self.tally.items += 1;
        if matches!(object, Object::Bad { .. }) {
            self.metrics.error("undecodable");
        }
    }

    fn tell_phase(&self) {
        let phase = if self.reflector.is_synced() { "watching" } else { "listing" };
        self.teller.phase(phase, self.detail());
    }

    /// How it works just now, for reading.
    fn detail(&self) -> String {
        let mut parts = vec![format!("pods of node {}", self.node)];
        match self.store.mirrors() {
            0 => {}
            1 => parts.push("1 mirror pod withheld".to_owned()),
            mirrors => parts.push(format!("{mirrors} mirror pods withheld")),
        }
        if let Some(trouble) = self.store.trouble() {
            parts.push(format!("what is good cannot be kept for the next start: {trouble}"));
        }
        parts.join("; ")
    }
}

/// Waits for something, and keeps the last good on its way meanwhile. Nothing if
/// a fresh listing is asked for before.
async fn meanwhile<T>(
    asked: &mut level::Receiver<Asked>,
    store: &mut UndeltaStore,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            Ok(()) = asked.changed() => return None,
            () = store.write() => {}
            done = &mut work => return Some(done),
        }
    }
}

/// An end in words.
fn told(end: &End) -> String {
    match end {
        End::Listed | End::Closed | End::Asked => "the server closed it".to_owned(),
        End::Refused(refusal) => format!("the API server refused: {refusal}"),
        End::Error(refusal) => format!("the API server ended the watch: {refusal}"),
        End::Garbage(why) => format!("{why}; is this the API server's URL?"),
        End::Broken(why) | End::NoClient(why) | End::NoCredential(why) => why.clone(),
        End::Silent => "the API server has said nothing for too long".to_owned(),
    }
}

/// An end in a word, for the metrics.
fn kind(end: &End, accepted: bool) -> &'static str {
    match end {
        End::Refused(refusal) | End::Error(refusal) if refusal.is_stale() => "expired",
        End::Refused(_) => "http",
        End::Error(_) => "error-event",
        End::Broken(_) if accepted => "broken",
        End::Broken(_) => "connect",
        End::Garbage(_) => "garbage",
        End::Silent => "silent",
        End::NoClient(_) | End::NoCredential(_) => "kubeconfig",
        End::Closed | End::Listed | End::Asked => "short-watch",
    }
}
