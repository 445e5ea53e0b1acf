//! The probes of a pod's containers: whether each has started, is ready, and is alive.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Request,
    header::{ACCEPT, HOST, USER_AGENT},
};
use jiff::Timestamp;
use serde_json::Value;
use tokio::{
    net::TcpStream,
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    api::Api,
    context::lock,
    plan::Seen,
    spec::{Container, Translation, items},
};
use crate::{
    client::{Client, ClientError, ClientSettings, Redirects, escaped_path},
    error_chain::chain,
    host::Host,
};

/// How long podman may take to start the command of a probe, in addition to the probe's own time limit: a new process
/// of its runtime does it.
const START_OF_COMMAND: Duration = Duration::from_secs(1);
/// How much of the body of a response is read, as with the kubelet.
const LONGEST_BODY: usize = 10 << 10;
/// It begins as the kubelet's, by which servers tell probes from other requests.
const AGENT: &str = concat!("kube-probe/podmux-", env!("CARGO_PKG_VERSION"));

/// What the probes of a pod have found.
#[derive(Debug)]
pub(super) struct Probing {
    pub(super) probes: Vec<Probe>,
    /// By the container's start and the index of the probe.
    found: Mutex<HashMap<(String, usize), Found>>,
    changed: watch::Sender<()>,
}

/// A probe of a container.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) container: String,
    pub(super) kind: Kind,
    handler: Value,
    initial_delay: Duration,
    period: Duration,
    pub(super) timeout: Duration,
    successes: u64,
    failures: u64,
    pub(super) grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// The results of a probe for one container.
#[derive(Debug)]
struct Found {
    /// Whether it has passed, by its thresholds.
    has_passed: bool,
    /// How often the last result was found in a row.
    last: bool,
    count: u64,
    next: Instant,
}

impl Probing {
    pub(super) fn new(pod: &Translation) -> Self {
        let of = |container: &Container| {
            let name = container.name.clone();
            let probes = container.probes.clone();
            probes.into_iter().map(move |(field, probe)| Probe::new(&name, field, probe, pod.grace))
        };
        let probes = pod.containers.iter().flat_map(of).collect();
        Self { probes, found: Mutex::default(), changed: watch::Sender::default() }
    }

    /// Whether a running container has started, and is ready, by its probes.
    pub(super) fn result(&self, seen: &Seen) -> (bool, bool) {
        let found = lock(&self.found);
        let has_started = self.has_passed(&found, seen, Kind::Startup);
        (has_started, has_started && self.has_passed(&found, seen, Kind::Readiness))
    }

    /// Whether the probes of a kind have passed for a running container.
    fn has_passed(&self, found: &HashMap<(String, usize), Found>, seen: &Seen, kind: Kind) -> bool {
        self.probes.iter().enumerate().all(|(index, probe)| {
            let is_of = probe.container == seen.name && probe.kind == kind;
            !is_of || found.get(&(seen.start(), index)).is_some_and(|found| found.has_passed)
        })
    }

    /// Takes over that a running container has started, and is ready, by the probes of an earlier agent.
    pub(super) fn restore(&self, seen: &Seen, is_ready: bool) {
        let mut found = lock(&self.found);
        for (index, probe) in self.probes.iter().enumerate() {
            let has_passed = probe.kind == Kind::Startup || probe.kind == Kind::Readiness && is_ready;
            if has_passed && probe.container == seen.name {
                let passed = Found { has_passed, last: true, count: 0, next: Instant::now() };
                found.insert((seen.start(), index), passed);
            }
        }
    }

    /// Has every probe look for when it is due.
    pub(super) fn changed(&self) {
        self.changed.send_replace(());
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

impl Probe {
    fn new(container: &str, field: &str, probe: Value, grace: Duration) -> Self {
        let seconds = |field: &str| probe[field].as_u64().map(Duration::from_secs);
        let count =
            |field: &str, default| probe[field].as_u64().filter(|count| *count > 0).unwrap_or(default);
        Self {
            container: container.to_owned(),
            kind: match field {
                "startupProbe" => Kind::Startup,
                "livenessProbe" => Kind::Liveness,
                _ => Kind::Readiness,
            },
            initial_delay: seconds("initialDelaySeconds").unwrap_or_default(),
            period: seconds("periodSeconds").unwrap_or(Duration::from_secs(10)).max(Duration::from_secs(1)),
            timeout: seconds("timeoutSeconds").unwrap_or_default().max(Duration::from_secs(1)),
            successes: count("successThreshold", 1),
            failures: count("failureThreshold", 3),
            grace: seconds("terminationGracePeriodSeconds").unwrap_or(grace),
            handler: probe,
        }
    }

    /// How long one run may take. An HTTP request has a limit of its own.
    pub(super) fn time_limit(&self) -> Duration {
        let is_of_tcp = self.handler["tcpSocket"].is_object();
        if is_of_tcp { self.timeout } else { self.timeout + START_OF_COMMAND }
    }

    pub(super) fn is_command(&self) -> bool {
        self.handler["exec"].is_object()
    }

    /// Whether a probe passes, or why not; none if that cannot be found out. It ends by itself: the time limit is the
    /// caller's.
    pub(super) async fn run(
        &self,
        api: &Api,
        machine: &Host,
        container: &Container,
        id: String,
        address: Option<String>,
    ) -> Option<Result<(), String>> {
        let handler = &self.handler;
        if self.is_command() {
            let command = &handler["exec"]["command"];
            // podman runs a health check without a trace, but has one for each container.
            let test = container.body["healthconfig"]["Test"].as_array()?;
            let is_health_check = command.as_array().is_some_and(|command| test[1..] == **command);
            let run =
                if is_health_check { api.check_health(&id).await } else { api.exec(&id, command).await };
            return run.ok();
        }
        let action = if handler["httpGet"].is_object() { &handler["httpGet"] } else { &handler["tcpSocket"] };
        let host = action["host"].as_str().filter(|host| !host.is_empty()).or(address.as_deref())?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        // As with the kubelet, a port that no container has is no failure.
        let address = format!("{host}:{}", action["port"].as_u64()?);
        if handler["tcpSocket"].is_object() {
            let connected = TcpStream::connect(&address).await;
            return Some(
                connected.map(drop).map_err(|error| format!("cannot connect to {address}: {error}")),
            );
        }
        self.get(machine, &address, action).await
    }

    /// Sends an HTTP request. As with the kubelet (`pkg/probe/http`), certificates are not verified, a redirect to
    /// another host is not followed, so it is a success, and a body that cannot be read says nothing.
    async fn get(&self, machine: &Host, address: &str, action: &Value) -> Option<Result<(), String>> {
        let Some(request) = Self::request(address, action) else {
            return Some(Err("its request is not valid HTTP".to_owned()));
        };
        let settings = ClientSettings {
            timeout: self.timeout,
            connect_timeout: self.timeout,
            redirects: Redirects::SameHost,
            accepts_any_server: true,
            ..ClientSettings::default()
        };
        let until = Instant::now() + self.timeout;
        let sent = async { Client::on(machine, settings)?.send(request).await };
        let response = match sent.await {
            Ok(response) => response,
            Err(error) => return Some(Err(chain(&error))),
        };
        let (status, mut body) = (response.status(), response.into_body());
        // A server may end if its writes fail.
        let read = async {
            let mut length = 0;
            while length < LONGEST_BODY
                && let Some(chunk) = body.chunk().await
            {
                length += chunk?.len();
            }
            Ok::<_, ClientError>(())
        };
        timeout_at(until, read).await.ok()?.ok()?;
        let is_success = (200..400).contains(&status.as_u16());
        Some(if is_success { Ok(()) } else { Err(format!("{address} answered {status}")) })
    }

    fn request(address: &str, action: &Value) -> Option<Request<Bytes>> {
        let scheme = if action["scheme"] == "HTTPS" { "https" } else { "http" };
        let path = escaped_path(action["path"].as_str().unwrap_or_default().trim_start_matches('/'));
        let mut request = Request::get(format!("{scheme}://{address}/{path}"));
        for header in items(&action["httpHeaders"]) {
            request = request.header(header["name"].as_str()?, header["value"].as_str().unwrap_or_default());
        }
        let headers = request.headers_mut()?;
        for (name, value) in [(USER_AGENT, AGENT), (ACCEPT, "*/*")] {
            headers.entry(name).or_insert(HeaderValue::from_static(value));
        }
        // An empty one is not sent, as with the kubelet.
        for name in [USER_AGENT, ACCEPT, HOST] {
            if headers.get(&name).is_some_and(HeaderValue::is_empty) {
                headers.remove(name);
            }
        }
        request.body(Bytes::new()).ok()
    }
}

impl Probing {
    /// When a probe is due next, and of which of the running containers.
    pub(super) fn due(&self, index: usize, running: &[&Seen], time: Timestamp) -> Option<(Instant, Seen)> {
        let (now, probe) = (Instant::now(), &self.probes[index]);
        let mut found = lock(&self.found);
        found.retain(|(start, _), _| running.iter().any(|seen| seen.start() == *start));
        let seen = running.iter().find(|seen| seen.name == probe.container)?;
        if (probe.kind == Kind::Startup) == self.has_passed(&found, seen, Kind::Startup) {
            return None;
        }
        let entry = found.entry((seen.start(), index)).or_insert_with(|| {
            let age = seen.started.map(|started| time.duration_since(started));
            let age = age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default();
            // podman lists the start in whole seconds.
            let next = now + probe.initial_delay.saturating_sub(age.saturating_sub(Duration::from_secs(1)));
            // A container is alive until the contrary is found.
            Found { has_passed: probe.kind == Kind::Liveness, last: true, count: 0, next }
        });
        Some((entry.next, (*seen).clone()))
    }

    /// Notes a result. Returns whether the probe has passed now, and whether that is news.
    pub(super) fn note(&self, index: usize, seen: &Seen, passed: Option<bool>) -> Option<(bool, bool)> {
        let probe = &self.probes[index];
        let mut found = lock(&self.found);
        let found = found.get_mut(&(seen.start(), index))?;
        // A run that takes long does not put off the next one.
        found.next = (found.next + probe.period).max(Instant::now());
        let passed = passed?;
        found.count = if found.last == passed { found.count + 1 } else { 1 };
        found.last = passed;
        let threshold = if passed { probe.successes } else { probe.failures };
        if found.count < threshold {
            return Some((found.has_passed, false));
        }
        // A container that has never been ready needs a reason, too.
        let is_first = found.count == threshold;
        let is_news = found.has_passed != passed || (!passed && (is_first || probe.kind != Kind::Readiness));
        found.has_passed = passed;
        Some((passed, is_news))
    }
}
