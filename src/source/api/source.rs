//! The task of the apiserver source.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Collected, Limited};
use jiff::Timestamp;
use kube::{Client, client::Body};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    config::{Config, Kubeconfig},
    connect::{Connector, ServerIdentity, describe_failure, is_about_credentials},
    json_splitter::{BodyShape, ListEnd, Part},
    list_watch::http_request,
    metrics::{ReflectorMetrics, RequestMetrics},
    protobuf_splitter::is_protobuf,
    reflector::{Reflector, Request, RequestEnd, RequestResult, Version},
    splitter::Splitter,
    status_error::StatusError,
    undelta_store::UndeltaStore,
    watch_event::{Object, WatchEvent},
};
use crate::{
    client::content_coding,
    error_chain::chain,
    host::Host,
    mux::SourceChannel,
    pod::NodeName,
    source::{
        ReflectorStatus,
        control::{Handle, Output, Requests},
        last_good::LastGood,
    },
};

/// The time limit for the head of a response. The API server itself ends a request after a
/// minute.
const HEAD_TIMEOUT: Duration = Duration::from_secs(65);
/// How much of an error's body is read, in bytes, and for how long.
const MAX_ERROR_BODY: usize = 64 << 10;
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The namespace whose UID identifies a cluster, and the time limit for reading it.
const KUBE_SYSTEM: &str = "/api/v1/namespaces/kube-system";
const KUBE_SYSTEM_TIMEOUT: Duration = Duration::from_secs(5);

/// What is stored about a listing beside its pods. The names of its fields are those in the
/// state directory.
#[derive(Serialize, Deserialize)]
struct ListingInfo {
    /// The server that the listing is from.
    server: ServerIdentity,
    /// The UID of the cluster's kube-system namespace, if this node may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    /// The resource version of the listing.
    version: String,
    /// When the listing was last known to be current.
    live: String,
}

/// Controls an [`ApiSource`] that runs. A rescan relists, with credentials that are read again. The
/// previous kubeconfig stays in use while a new one is invalid. The proxies need a restart.
pub type ApiHandle = Handle<Config>;

/// The source of the pods that an API server has bound to this node.
pub struct ApiSource {
    node: NodeName,
    connector: Connector,
    /// The server of the last connection, or of the restored listing.
    server: Option<ServerIdentity>,
    /// The UID of its kube-system namespace, if this is known.
    cluster: Option<String>,
    /// Whether that UID was requested since another cluster may have taken the place of this one.
    is_cluster_checked: bool,
    reflector: Reflector,
    store: UndeltaStore,
    metrics: RequestMetrics,
    requests: watch::Receiver<Requests<Config>>,
    /// The number of requested scans that have begun.
    rescans: u64,
    /// Whether protobuf is asked for. It is no longer after a response in it that is malformed, or after 406.
    protobuf: bool,
}

impl ApiSource {
    /// A source that publishes the node's pods in a channel. It does nothing before
    /// [`run`](Self::run).
    pub fn new(config: Config, node: NodeName, channel: SourceChannel) -> (Self, ApiHandle) {
        let connector = Connector::new(config.kubeconfig.clone()).with_proxies(config.proxies.clone());
        let level = config.pod_security;
        let (output, handle, requests) =
            Output::new(String::new(), String::new(), config, node.clone(), channel);
        let reflector = ReflectorStatus { phase: "waiting", ..ReflectorStatus::default() };
        output.show(|status| status.reflector = Some(reflector));
        let source = Self {
            connector,
            server: None,
            cluster: None,
            is_cluster_checked: false,
            reflector: Reflector::new(None, Instant::now()),
            store: UndeltaStore::new(node.clone(), output, level),
            metrics: RequestMetrics::default(),
            requests,
            rescans: 0,
            protobuf: true,
            node,
        };
        (source, handle)
    }

    /// The metrics of the reflector.
    pub fn metrics(&self) -> ReflectorMetrics {
        self.metrics.metrics.clone()
    }

    /// Uses another machine's clock, random numbers, threads and disk.
    #[must_use]
    pub fn on(mut self, host: Host) -> Self {
        self.connector = self.connector.on(host.clone());
        self.store.output.host = host;
        self
    }

    /// Publishes the last-known-good listing at once, and stores listings from now on.
    ///
    /// A listing of another server or of another node is discarded. It reads the
    /// kubeconfig, so it may block.
    #[must_use]
    pub fn with_last_good(mut self, last_good: LastGood) -> Self {
        let mut last_good = last_good.atomic();
        let configured = self.connector.identity();
        match (&configured, &self.requests.borrow().config.kubeconfig) {
            (Ok(server), _) => self.store.output.set_target(&server.url),
            (Err(_), Kubeconfig::File(path)) => self.store.output.set_target(&path.display().to_string()),
            (Err(_), Kubeconfig::InCluster(_)) => {}
        }
        let stored = last_good.restored_details();
        let mut stored: Option<ListingInfo> = stored.and_then(|stored| serde_json::from_value(stored).ok());
        if let (Some(ListingInfo { server: before, .. }), Ok(now)) = (&stored, &configured)
            && before != now
        {
            let (before, now) = (&before.url, now.instead_of(before));
            warn!(source = "api", before, now, "stored listing discarded: it is from another API server");
            stored = None;
        }
        let Some(stored) = stored else {
            last_good.clear();
            // Nothing is left to restore.
            self.store.output.restore(last_good, |_, _| true);
            return self;
        };
        let (pods, version) = (self.store.restore(last_good), Version::from(stored.version));
        let live: Option<Timestamp> = stored.live.parse().ok();
        let of = live.map(|live| format!("{live:.3}"));
        info!(source = "api", pods, of, "listing restored");
        self.store.output.set_target(&stored.server.url);
        self.store.output.set_restored(live, Some(version.clone()));
        self.reflector = Reflector::new(Some(version), Instant::now());
        (self.server, self.cluster) = (Some(stored.server), stored.cluster);
        self
    }

    /// Lists, watches and publishes until `stop` is cancelled. Before the first complete
    /// listing it publishes nothing but the restored one.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(Box::pin(self.reflect())).await;
        if self.reflector.is_synced() && self.reflector.was_accepted() {
            self.note_current();
        }
        self.store.output.finish().await;
    }

    async fn reflect(&mut self) {
        let mut requests = self.requests.clone();
        loop {
            let end = tokio::select! {
                biased;
                Ok(()) = requests.changed() => RequestEnd::RelistRequested,
                end = self.request() => end.unwrap_or_else(|end| end),
            };
            self.request_ended(&end);
        }
    }

    /// Waits for the time of the next request, makes it and reads its response. Cancel-safe:
    /// changes are published at once, and a listing that is being collected can be abandoned.
    ///
    /// # Errors
    /// The end of a request that was not made.
    async fn request(&mut self) -> Result<RequestEnd, RequestEnd> {
        let next = sleep_until(self.reflector.next_at());
        self.store.output.save_during(next).await;
        self.report_phase("connecting");
        let connected = self.store.output.save_during(self.connector.client()).await;
        let connected = connected.map_err(|error| RequestEnd::NoClient(chain(&error)))?;
        self.check_server(&connected.identity);
        self.check_cluster(&connected.client).await?;
        let request = self.reflector.next(Instant::now(), self.store.output.host.random.fraction());
        debug!(source = "api", ?request, "sending a request to the API server");
        let http_request = http_request(&request, &self.node, self.protobuf);
        let http_request = http_request.map_err(|error| RequestEnd::NoClient(chain(&error)))?;
        match request {
            Request::Watch { .. } => self.metrics.watch_started(),
            Request::Probe { .. } => {}
            _ if self.reflector.is_continuing() => {}
            Request::WatchList { .. } | Request::List { .. } => self.metrics.list_started(),
        }
        let sending = timeout(HEAD_TIMEOUT, connected.client.send(http_request));
        let response = match self.store.output.save_during(sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Ok(self.send_failed(&error)),
            Err(_) => return Ok(RequestEnd::Silent),
        };
        if response.status() != StatusCode::OK {
            return Ok(self.read_error(response).await);
        }
        if content_coding(response.headers()).is_some() {
            let why = "the response is encoded, but no encoding was requested";
            return Ok(RequestEnd::Malformed(why.to_owned()));
        }
        let is_protobuf = is_protobuf(response.headers());
        let end = self.read(&request, is_protobuf, response.into_body()).await;
        if is_protobuf && matches!(end, RequestEnd::Malformed(_)) {
            self.protobuf = false;
        }
        Ok(end)
    }

    /// Reads a response whose status is not 200.
    async fn read_error(&mut self, response: http::Response<Body>) -> RequestEnd {
        let (head, body) = response.into_parts();
        let reading = timeout(ERROR_BODY_TIMEOUT, Limited::new(body, MAX_ERROR_BODY).collect());
        // The status counts without a body, too: a proxy may cut its error page off.
        let body = match self.store.output.save_during(reading).await {
            Ok(Ok(body)) => body.to_bytes(),
            _ => Bytes::new(),
        };
        if head.status == StatusCode::UNAUTHORIZED {
            // There may be a newer token.
            self.connector.renew();
        }
        if head.status == StatusCode::NOT_ACCEPTABLE {
            self.protobuf = false;
        }
        RequestEnd::Rejected(StatusError::from_response(head.status, &head.headers, &body))
    }

    /// Reads the body of a response to its end.
    async fn read(&mut self, request: &Request, is_protobuf: bool, body: Body) -> RequestEnd {
        self.reflector.accepted(Instant::now());
        if self.reflector.is_synced() {
            self.note_current();
        } else if !self.reflector.is_continuing() {
            self.store.collected.clear();
        }
        if !matches!(request, Request::Probe { .. }) {
            self.report_phase(if self.reflector.is_synced() { "watching" } else { "listing" });
        }
        let is_list = matches!(request, Request::Probe { .. } | Request::List { .. });
        let shape = if is_list { BodyShape::List } else { BodyShape::Events };
        let mut parts = Splitter::new(is_protobuf, shape);
        let mut body = pin!(body);
        let mut is_complete = false;
        loop {
            let deadline = self.reflector.deadline();
            let until = self.reflector.healthy_at().map_or(deadline, |healthy| healthy.min(deadline));
            let until = if until <= Instant::now() { deadline } else { until };
            let chunk = timeout_at(until, body.frame());
            let data = match self.store.output.save_during(chunk).await {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                // Whatever follows a complete list does not matter.
                _ if is_complete => return RequestEnd::Listed,
                Ok(Some(Err(error))) => return RequestEnd::Broken(describe_failure(&error)),
                Ok(None) => match parts.finish() {
                    Ok(()) if !self.reflector.is_synced() => {
                        let why = "the API server closed the watch before its initial events were complete";
                        return RequestEnd::Broken(why.to_owned());
                    }
                    Ok(()) => return RequestEnd::Closed,
                    Err(error) => return RequestEnd::Broken(error.to_string()),
                },
                Err(_) if Instant::now() >= deadline => return RequestEnd::Silent,
                Err(_) => {
                    self.store.output.live();
                    continue;
                }
            };
            self.reflector.received(Instant::now());
            parts.push(&data);
            loop {
                let handled = match parts.next() {
                    Ok(Some(Part::Object(part))) => self.object(request, &parts, &part).await,
                    Ok(Some(Part::End(end))) => {
                        is_complete = true;
                        self.list_ended(&end).await
                    }
                    Ok(None) => break,
                    Err(error) => Err(RequestEnd::Malformed(error.to_string())),
                };
                if let Err(end) = handled {
                    return end;
                }
            }
        }
    }

    /// Handles an item of a list or an event of a watch.
    async fn object(&mut self, request: &Request, parts: &Splitter, part: &[u8]) -> Result<(), RequestEnd> {
        match request {
            // A probe selects no pods.
            Request::Probe { .. } => Ok(()),
            Request::List { .. } => {
                let (object, _) = parts.item(part);
                self.count(&object);
                self.store.collect(object);
                Ok(())
            }
            Request::WatchList { .. } | Request::Watch { .. } => self.event(parts.event(part)).await,
        }
    }

    /// Handles the end of a list, or of a page of one.
    async fn list_ended(&mut self, end: &ListEnd) -> Result<(), RequestEnd> {
        if !matches!(&*end.kind, "PodList" | "List") || end.resource_version.is_empty() {
            let error = format!("expected a PodList with a resourceVersion, received {:?}", end.kind);
            return Err(RequestEnd::Malformed(error));
        }
        if self.reflector.page(end.resource_version.as_str().into(), &end.continue_token) {
            self.listing_completed(false).await;
        }
        Ok(())
    }

    /// Handles an event of a watch.
    async fn event(&mut self, event: Result<WatchEvent, String>) -> Result<(), RequestEnd> {
        let (is_synced, mirrors) = (self.reflector.is_synced(), self.store.mirrors.len());
        let event = match event {
            Ok(event) => event,
            // It may have been a deletion, so the listing would be wrong from here on.
            Err(why) if is_synced => return Err(RequestEnd::Malformed(why)),
            Err(why) => WatchEvent::Changed(Object::Undecodable { key: None, uid: String::new(), why }, None),
        };
        match event {
            WatchEvent::Error(status) => {
                return Err(RequestEnd::ErrorEvent(StatusError::from_event(&status)));
            }
            WatchEvent::Unknown(kind) => {
                debug!(source = "api", kind, "event of an unknown type ignored");
                self.metrics.metrics.error("undecodable");
            }
            WatchEvent::Bookmark { version, ends_initial_events } => {
                if self.reflector.bookmark(version, ends_initial_events) {
                    self.listing_completed(true).await;
                }
            }
            WatchEvent::Changed(object, version) => {
                self.count(&object);
                self.reflector.event(version);
                if is_synced {
                    self.store.apply(object, self.listing_info()).await;
                } else {
                    self.store.collect(object);
                }
            }
            WatchEvent::Deleted(None, _) => {
                return Err(RequestEnd::Malformed("a DELETED event does not name its pod".to_owned()));
            }
            WatchEvent::Deleted(Some(key), version) => {
                self.metrics.items += 1;
                self.reflector.event(version);
                if is_synced {
                    self.store.delete(&key, self.listing_info()).await;
                } else {
                    self.store.uncollect(&key);
                }
            }
        }
        if self.reflector.is_synced() {
            self.received();
            if self.store.mirrors.len() != mirrors {
                self.report_phase("watching");
            }
        }
        Ok(())
    }

    /// Notes an event, a bookmark or a complete listing.
    fn received(&mut self) {
        self.store.output.received(self.reflector.version());
        if self.reflector.is_healthy(Instant::now()) {
            self.store.output.live();
        }
    }

    /// Publishes the collected listing.
    async fn listing_completed(&mut self, is_watch: bool) {
        self.metrics.list_completed(is_watch);
        self.store.replace(self.listing_info()).await;
        self.received();
        self.report_phase("watching");
        if self.rescans > self.store.output.rescanned() {
            self.store.output.channel.merged().await;
            self.store.output.answer(self.rescans);
        }
        debug!(source = "api", pods = self.store.output.pods(), version = ?self.reflector.version(), "listing complete");
    }

    fn request_ended(&mut self, end: &RequestEnd) {
        if *end == RequestEnd::RelistRequested {
            let Requests { rescans, config } = self.requests.borrow().clone();
            self.connector.switch_to(config.kubeconfig);
            (self.store.level, self.rescans) = (config.pod_security, rescans);
        }
        let (kind, error) = end.describe(self.reflector.was_accepted());
        let result = self.reflector.end(end, Instant::now(), self.store.output.host.random.fraction());
        let is_healthy = result == RequestResult::Healthy;
        // After the end of a watch, or without an answer of the server's, the next one may be another cluster's.
        self.is_cluster_checked &= is_healthy && *end != RequestEnd::Closed
            || matches!(end, RequestEnd::Rejected(error) if !error.is_temporary());
        self.metrics.request_ended(*end == RequestEnd::Closed && !is_healthy);
        if !is_healthy {
            self.metrics.metrics.error(kind);
        }
        match result {
            RequestResult::Healthy => {}
            RequestResult::Interrupted => info!(source = "api", %error, "watch interrupted"),
            RequestResult::ListFallback => {
                info!(source = "api", %error, "WatchList is not supported by the server, using lists");
            }
            RequestResult::Failing => {
                let quotes = matches!(end, RequestEnd::Malformed(_));
                let next = self.store.output.set_waiting(self.reflector.next_at());
                self.store.output.failed("source failed", &error, quotes, Some(next));
                self.store.output.answer(self.rescans);
                return;
            }
        }
        if self.reflector.next_at() > Instant::now() {
            self.store.output.set_waiting(self.reflector.next_at());
        }
    }

    /// Relists if the kubeconfig leads to another server than before.
    fn check_server(&mut self, identity: &ServerIdentity) {
        if self.server.as_ref() == Some(identity) {
            return;
        }
        if let Some(before) = &self.server {
            let (before, now) = (&before.url, identity.instead_of(before));
            warn!(source = "api", before, now, "API server changed, relisting");
            self.reflector.forget_version();
        }
        self.store.output.set_target(&identity.url);
        (self.server, self.cluster, self.is_cluster_checked) = (Some(identity.clone()), None, false);
    }

    /// Relists if the server has another cluster than before: a cluster can be replaced by
    /// one with the same URL and CA. A node that may not read the namespace cannot notice.
    async fn check_cluster(&mut self, client: &Client) -> Result<(), RequestEnd> {
        if self.is_cluster_checked || self.reflector.is_continuing() {
            return Ok(());
        }
        let request = http::Request::get(KUBE_SYSTEM).body(Body::empty());
        let request = request.map_err(|error| RequestEnd::NoClient(chain(&error)))?;
        let sending = timeout(KUBE_SYSTEM_TIMEOUT, async {
            let response = client.send(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ERROR_BODY).collect().await;
            Ok::<_, kube::Error>((status, body.map(Collected::to_bytes).unwrap_or_default()))
        });
        let (status, body) = match self.store.output.save_during(sending).await {
            Ok(Ok(response)) => response,
            // The request for the pods shows whether the server answers at all.
            Ok(Err(_)) | Err(_) => (StatusCode::REQUEST_TIMEOUT, Bytes::new()),
        };
        let is_no_answer = matches!(
            status,
            StatusCode::UNAUTHORIZED | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
        );
        // Then it is checked again before the next request.
        self.is_cluster_checked = !is_no_answer && !status.is_server_error();
        let namespace = Some(body).filter(|_| status == StatusCode::OK);
        let namespace: Option<Value> = namespace.and_then(|body| serde_json::from_slice(&body).ok());
        let cluster = namespace.and_then(|namespace| Some(namespace["metadata"]["uid"].as_str()?.to_owned()));
        if let (Some(before), Some(now)) = (&self.cluster, &cluster)
            && before != now
        {
            warn!(
                source = "api",
                before, now, "cluster changed (its kube-system namespace has another UID), relisting"
            );
            self.reflector.forget_version();
        }
        self.cluster = cluster.or(self.cluster.take());
        Ok(())
    }

    /// The request did not reach the server, or no response arrived.
    fn send_failed(&mut self, error: &kube::Error) -> RequestEnd {
        if is_about_credentials(error) {
            self.connector.renew();
        }
        RequestEnd::Broken(describe_failure(error))
    }

    /// What is stored about the listing, which is current at this moment.
    fn listing_info(&self) -> Option<Value> {
        let (server, cluster) = (self.server.clone()?, self.cluster.clone());
        let (version, live) =
            (self.reflector.version()?.to_string(), self.store.output.host.clock.now().to_string());
        serde_json::to_value(ListingInfo { server, cluster, version, live }).ok()
    }

    /// Stores that the listing is current at this moment.
    fn note_current(&mut self) {
        if let Some(info) = self.listing_info() {
            self.store.output.last_good.set_details(info);
        }
    }

    fn count(&mut self, object: &Object) {
        self.metrics.items += 1;
        if matches!(object, Object::Undecodable { .. }) {
            self.metrics.metrics.error("undecodable");
        }
    }

    fn report_phase(&mut self, phase: &'static str) {
        let withheld = match self.store.mirrors.len() {
            0 => String::new(),
            1 => "; 1 mirror pod withheld".to_owned(),
            mirrors => format!("; {mirrors} mirror pods withheld"),
        };
        self.store.output.set_phase(phase, format!("pods of node {}{withheld}", self.node));
    }
}
