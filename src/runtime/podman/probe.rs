//! The probes of a pod's containers: whether each has started, is ready, and is alive.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use bytes::Bytes;
use http::Request;
use serde_json::Value;
use tokio::{
    net::TcpStream,
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};
use tracing::info;

use super::{
    Podman,
    api::Api,
    lock,
    plan::{Seen, State},
    spec::Translation,
    supervise::Supervised,
};
use crate::client::{Client, ClientSettings};

/// What the probes of a pod have found.
#[derive(Debug)]
pub(super) struct Probing {
    probes: Vec<Probe>,
    /// By the container's id and the index of the probe.
    found: Mutex<HashMap<(String, usize), Found>>,
    changed: Notify,
}

/// A probe of a container.
#[derive(Clone, Debug)]
struct Probe {
    container: String,
    kind: Kind,
    handler: Value,
    initial_delay: Duration,
    period: Duration,
    timeout: Duration,
    successes: u64,
    failures: u64,
    grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Startup,
    Liveness,
    Readiness,
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
        let of = |container: &super::Container| {
            let name = container.name.clone();
            let probes = container.probes.clone();
            probes.into_iter().map(move |(field, probe)| Probe::new(&name, field, probe, pod.grace))
        };
        let probes = pod.containers.iter().flat_map(of).collect();
        Self { probes, found: Mutex::default(), changed: Notify::new() }
    }

    /// Whether a running container has started, and is ready, by its probes.
    pub(super) fn result(&self, seen: &Seen) -> (bool, bool) {
        let has_passed = |kind| {
            self.probes.iter().enumerate().all(|(index, probe)| {
                let is_of = probe.container == seen.name && probe.kind == kind;
                !is_of
                    || lock(&self.found).get(&(seen.id.clone(), index)).is_some_and(|found| found.has_passed)
            })
        };
        let has_started = has_passed(Kind::Startup);
        (has_started, has_started && has_passed(Kind::Readiness))
    }

    pub(super) fn containers_changed(&self) {
        self.changed.notify_one();
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
}

impl Podman {
    /// Probes the running containers of a pod.
    pub(super) async fn probe(&self, api: &Api, pod: &Supervised) {
        let probing = &pod.probing;
        loop {
            let due = self.due(pod);
            let Some((at, index, seen)) = due else {
                probing.changed.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = probing.changed.notified() => continue,
                () = sleep_until(at) => {}
            }
            let probe = &probing.probes[index];
            let passed = self.try_probe(api, pod, probe, &seen).await;
            let Some((has_passed, is_news)) = probing.note(index, &seen, passed) else { continue };
            if is_news && !has_passed && probe.kind != Kind::Readiness {
                let kind = if probe.kind == Kind::Startup { "startup" } else { "liveness" };
                info!(container = probe.container, kind, "probe failed; container stopped");
                // Its end is an event, and the container is started again by the pod's restartPolicy.
                let _ = api.stop(&seen.id, probe.grace).await;
            }
            if is_news {
                self.publish(pod);
                pod.wake.notify_one();
            }
        }
    }

    /// The next probe: when, which one, and of which container.
    fn due(&self, pod: &Supervised) -> Option<(Instant, usize, Seen)> {
        let (memory, now) = (lock(&pod.memory), Instant::now());
        let running: Vec<&Seen> =
            memory.seen.containers.iter().filter(|seen| seen.state == State::Running).collect();
        let mut found = lock(&pod.probing.found);
        found.retain(|(id, _), _| running.iter().any(|seen| seen.id == *id));
        let has_started = |found: &HashMap<(String, usize), Found>, seen: &Seen| {
            pod.probing.probes.iter().enumerate().all(|(index, probe)| {
                probe.container != seen.name
                    || probe.kind != Kind::Startup
                    || found.get(&(seen.id.clone(), index)).is_some_and(|found| found.has_passed)
            })
        };
        let mut next: Option<(Instant, usize, Seen)> = None;
        for (index, probe) in pod.probing.probes.iter().enumerate() {
            for seen in running.iter().filter(|seen| seen.name == probe.container) {
                if (probe.kind == Kind::Startup) == has_started(&found, seen) {
                    continue;
                }
                let entry = found.entry((seen.id.clone(), index)).or_insert_with(|| {
                    let age =
                        seen.started.map(|started| self.config.host.clock.now().duration_since(started));
                    let age = age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default();
                    let next = now + probe.initial_delay.saturating_sub(age);
                    // A container is alive until the contrary is found.
                    Found { has_passed: probe.kind == Kind::Liveness, last: true, count: 0, next }
                });
                if next.as_ref().is_none_or(|next| entry.next < next.0) {
                    next = Some((entry.next, index, (*seen).clone()));
                }
            }
        }
        next
    }

    /// Whether a probe passes; none if that cannot be found out.
    async fn try_probe(&self, api: &Api, pod: &Supervised, probe: &Probe, seen: &Seen) -> Option<bool> {
        let handler = &probe.handler;
        if handler["exec"].is_object() {
            let run = api.exec(&seen.id, &handler["exec"]["command"], probe.timeout).await;
            return Some(run.is_ok_and(|(code, _)| code == 0));
        }
        let own = if pod.translation.host_network {
            lock(&self.address).as_deref().unwrap_or("127.0.0.1").to_owned()
        } else {
            // A pod of a user without root has no address that the node reaches.
            lock(&pod.memory).seen.addresses.first()?.clone()
        };
        let action = if handler["httpGet"].is_object() { &handler["httpGet"] } else { &handler["tcpSocket"] };
        let host = action["host"].as_str().filter(|host| !host.is_empty()).unwrap_or(&own);
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let address = format!("{host}:{}", action["port"]);
        if handler["tcpSocket"].is_object() {
            return Some(matches!(timeout(probe.timeout, TcpStream::connect(address)).await, Ok(Ok(_))));
        }
        let path = action["path"].as_str().unwrap_or_default().trim_start_matches('/');
        let request = Request::get(format!("http://{address}/{path}")).body(Bytes::new()).ok()?;
        let settings = ClientSettings {
            timeout: probe.timeout,
            connect_timeout: probe.timeout,
            ..ClientSettings::default()
        };
        let client = Client::on(&self.config.host, settings).ok()?;
        let response = client.send(request).await;
        // As with the kubelet, a redirect is a success.
        Some(response.is_ok_and(|response| (200..400).contains(&response.status().as_u16())))
    }
}

impl Probing {
    /// Notes a result. Returns whether the probe has passed now, and whether that is news.
    fn note(&self, index: usize, seen: &Seen, passed: Option<bool>) -> Option<(bool, bool)> {
        let probe = &self.probes[index];
        let mut found = lock(&self.found);
        let found = found.get_mut(&(seen.id.clone(), index))?;
        found.next = Instant::now() + probe.period;
        let passed = passed?;
        found.count = if found.last == passed { found.count + 1 } else { 1 };
        found.last = passed;
        let threshold = if passed { probe.successes } else { probe.failures };
        if found.count < threshold {
            return Some((found.has_passed, false));
        }
        let is_news = found.has_passed != passed || (!passed && probe.kind != Kind::Readiness);
        found.has_passed = passed;
        Some((passed, is_news))
    }
}
