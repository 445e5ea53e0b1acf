//! The requests to podman: its libpod REST API over a Unix socket.

use std::{
    collections::BTreeMap,
    future::pending,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header::CONTENT_TYPE};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::timeout};

use super::{context::Config, frames::Frames};
use crate::{
    client::{Body, Client, ClientError, ClientSettings, Lines, escaped},
    host::Host,
};

/// The version of the API that is used. Later versions of podman serve it too.
const API: &str = "http://podman/v4.3.0/libpod";
/// The oldest version that has it.
const OLDEST: (u64, u64) = (4, 3);
/// The longest response that is read, in bytes: an inspected container has some 10 KiB.
const LONGEST: usize = 64 << 20;
/// How long the whole output of a container is read for its last lines. Then podman is asked for these.
pub(super) const LONGEST_READ: Duration = Duration::from_secs(5);
/// The lines of output and the bytes of them that stand for a termination message, as with the kubelet.
const MESSAGE_LINES: usize = 80;
const MESSAGE_BYTES: usize = 2048;
/// The longest words of a refusal that are shown, in bytes.
pub(super) const LONGEST_WORDS: usize = 4096;
/// The longest output of a failed command that is shown, in bytes.
const MOST_SHOWN: usize = 1024;
/// The longest line of a stream, in bytes. An event has the labels of a container.
const LONGEST_LINE: usize = 1 << 20;
/// How long the output of a container is waited for: without an end.
const LONGEST_LOG: Duration = Duration::from_hours(24 * 365);
/// How many times the time limit of a query a request has that changes something.
const CHANGE: u32 = 4;
/// How many requests are sent at once. Those come in addition whose end a container decides on: waits for its end,
/// commands in containers, pulls and the events.
const AT_ONCE: usize = 8;
/// How many seconds after the start of a container podman may note that start. A short one has ended before that.
const START_DELAY: i64 = 60;
/// The shortest grace, as with the kubelet.
const SHORTEST_GRACE: Duration = Duration::from_secs(2);
/// The longest grace that a stop waits for.
pub(super) const LONGEST_GRACE: Duration = Duration::from_hours(24);
/// podman's words for a container that cannot get a signal because it does not run.
const NOT_RUNNING: &str = "container state improper";

/// Why podman did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// There was no response.
    #[error("podman does not answer")]
    Client(#[source] ClientError),
    /// podman refused, with its words.
    #[error("{1}")]
    Refused(StatusCode, String),
    /// The response is not what podman sends.
    #[error("podman sent something unexpected for {0}")]
    Unexpected(String, #[source] serde_json::Error),
    /// Something else listens at the socket.
    #[error("{0} is not a socket of podman: {1} (start podman.socket, or set --sink podman=SOCKET)")]
    NotPodman(Arc<str>, String),
    /// podman is too old.
    #[error("podman at {0} has version {1}, but 4.3 or later is needed: upgrade podman")]
    TooOld(Arc<str>, String),
    /// What was created is not there.
    #[error("pod {0} was removed while it was created")]
    Vanished(String),
    /// A response has stopped in the middle.
    #[error("podman at {0} has sent nothing more for {1:?}")]
    Silent(Arc<str>, Duration),
    /// The pod wants a user namespace of its own.
    #[error(
        "podmux gives no pod of podman a user namespace of its own: remove spec.hostUsers, and set runAsNonRoot or runAsUser"
    )]
    HostUsers,
    /// Earlier requests have not ended.
    #[error("podman at {0} has not answered earlier requests within {1:?}")]
    Busy(Arc<str>, Duration),
}

/// podman at a socket.
#[derive(Debug)]
pub(super) struct Api {
    client: Client,
    pub(super) socket: Arc<str>,
    pub(super) timeout: Duration,
    /// Whether the version is known to be right. It is asked for again after an outage: podman may have been
    /// replaced.
    is_known: AtomicBool,
    permits: Semaphore,
}

/// podman's words about a request that it refuses.
#[derive(Deserialize)]
struct Refusal {
    message: String,
}

/// What podman says in a body that is a refusal.
pub(super) fn refusal(body: &[u8]) -> Option<String> {
    let mut words = serde_json::from_slice::<Refusal>(body).ok()?.message;
    words.truncate(words.floor_char_boundary(LONGEST_WORDS));
    Some(words)
}

type Labels = BTreeMap<String, String>;

/// A pod, as podman lists it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListedPod {
    pub(super) id: String,
    pub(super) name: String,
    /// Empty if it has no infra container.
    #[serde(default)]
    pub(super) infra_id: String,
    pub(super) created: Option<Timestamp>,
    #[serde(default, deserialize_with = "or_none")]
    pub(super) labels: Labels,
}

/// A container, as podman lists it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListedContainer {
    pub(super) id: String,
    #[serde(default)]
    pub(super) pod: String,
    pub(super) is_infra: bool,
    pub(super) state: String,
    pub(super) exit_code: i32,
    /// Its process; 0 if it does not run.
    #[serde(default)]
    pub(super) pid: i64,
    /// Seconds since 1970; far in the past if it did not start.
    pub(super) started_at: i64,
    pub(super) exited_at: i64,
    pub(super) image: String,
    #[serde(rename = "ImageID")]
    pub(super) image_id: String,
    #[serde(default, deserialize_with = "or_none")]
    pub(super) labels: Labels,
}

impl ListedPod {
    /// A label; empty if it has none.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

impl ListedContainer {
    /// A label; empty if it has none.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    pub(super) fn started(&self) -> Option<Timestamp> {
        Timestamp::from_second(self.started_at).ok().filter(|at| at.as_second() > 0)
    }

    pub(super) fn runs(&self) -> bool {
        matches!(&*self.state, "running" | "paused" | "stopping")
    }

    /// Whether it has ended with the machine, by the boot of the machine and the time of that. Its times count: podman's words for
    /// its state differ between versions.
    ///
    /// It was started and does not run, and podman has noted no end of it; or it was started in an earlier boot, and its
    /// end was noted in this one, or is that of an earlier start. What was made in this boot was not started in an earlier
    /// one, whatever its times are: the clock may have been set right since. Or it counts as created: podman has forgotten
    /// at the start of the machine how it ended, because it had not cleaned up after it.
    pub(super) fn is_lost(&self, Config { boot, booted, .. }: &Config) -> bool {
        let booted = booted.map_or(i64::MIN, Timestamp::as_second);
        let ended_later = booted <= self.exited_at;
        let ended_before = self.exited_at.saturating_add(START_DELAY) < self.started_at;
        let is_of_this_boot = !boot.is_empty() && self.label("podmux.boot") == *boot;
        let is_of_earlier_boot = self.started_at < booted && !is_of_this_boot;
        let has_no_end = self.exited_at <= 0 || is_of_earlier_boot && (ended_later || ended_before);
        self.started_at > 0 && !self.runs() && (has_no_end || self.state == "created")
    }
}

/// A volume, as far as it is read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Volume {
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_none")]
    pub(super) labels: Labels,
    /// Those of one in memory; empty for one on disk.
    #[serde(default, deserialize_with = "or_none")]
    pub(super) options: Labels,
    pub(super) mountpoint: PathBuf,
}

/// Labels or options, of which podman writes `null` if there are none.
fn or_none<'de, D: Deserializer<'de>>(labels: D) -> Result<Labels, D::Error> {
    Option::deserialize(labels).map(Option::unwrap_or_default)
}

/// An inspected container.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InspectedContainer {
    pub(super) state: InspectedState,
    pub(super) config: InspectedConfig,
    pub(super) network_settings: Option<NetworkSettings>,
}

/// What became of an inspected container.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InspectedState {
    #[serde(default)]
    pub(super) status: String,
    #[serde(rename = "OOMKilled")]
    pub(super) oom_killed: bool,
    #[serde(default)]
    pub(super) error: String,
}

/// What an inspected container was made of.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InspectedConfig {
    /// A number, or a name in later versions.
    #[serde(default)]
    stop_signal: Option<Value>,
    /// The user that it runs as: its own, or that of its image.
    #[serde(default)]
    pub(super) user: String,
    #[serde(default, deserialize_with = "or_none")]
    pub(super) labels: Labels,
}

/// The addresses of an inspected container.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NetworkSettings {
    #[serde(rename = "IPAddress", default)]
    ip_address: String,
    #[serde(rename = "GlobalIPv6Address", default)]
    global_ipv6_address: String,
    #[serde(default)]
    networks: Option<BTreeMap<String, Value>>,
}

impl NetworkSettings {
    /// The addresses, IPv4 first.
    pub(super) fn addresses(&self) -> Vec<String> {
        let networks = self.networks.iter().flat_map(BTreeMap::values);
        let of = |field| move |network: &Value| network[field].as_str().map(str::to_owned);
        let v4 = networks.clone().filter_map(of("IPAddress"));
        let v6 = networks.filter_map(of("GlobalIPv6Address"));
        let own = [self.ip_address.clone(), self.global_ipv6_address.clone()];
        let mut all: Vec<String> = Vec::new();
        for address in v4.chain(v6).chain(own) {
            if !address.is_empty() && !all.contains(&address) {
                all.push(address);
            }
        }
        all
    }
}

/// An event of podman.
#[derive(Debug, Deserialize)]
pub(super) struct Event {
    #[serde(rename = "Type")]
    pub(super) kind: String,
    #[serde(rename = "Actor")]
    pub(super) actor: Actor,
}

/// What an event happened to.
#[derive(Debug, Deserialize)]
pub(super) struct Actor {
    #[serde(rename = "Attributes", default)]
    pub(super) attributes: BTreeMap<String, String>,
}

impl Api {
    /// podman at a socket. It connects to nothing.
    pub(super) fn new(socket: &Path, timeout: Duration, host: &Host) -> Result<Self, ClientError> {
        let settings = ClientSettings { socket: Some(socket.into()), timeout, ..ClientSettings::default() };
        let client = Client::on(host, settings)?;
        let (is_known, permits) = (AtomicBool::new(false), Semaphore::new(AT_ONCE));
        Ok(Self { client, socket: socket.to_string_lossy().into(), timeout, is_known, permits })
    }

    /// Whether podman answers and is of a version that can be used.
    pub(super) async fn check(&self) -> Result<(), ApiError> {
        if self.is_known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let request = request(Method::GET, "http://podman/libpod/_ping", Bytes::new());
        let response = self.client.send(request).await.map_err(ApiError::Client)?;
        let version = response.headers().get("libpod-api-version").and_then(|value| value.to_str().ok());
        let Some(version) = version.filter(|_| response.status().is_success()) else {
            let what = format!("GET /libpod/_ping is answered with {}", describe(&response));
            return Err(ApiError::NotPodman(self.socket.clone(), what));
        };
        let mut numbers = version.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
        if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
            return Err(ApiError::TooOld(self.socket.clone(), version.to_owned()));
        }
        self.is_known.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<http::Response<Body>, ApiError> {
        self.check().await?;
        let request = request(method, &format!("{API}/{path}"), body);
        let sent = self.client.send_within(request, within).await;
        let response = sent.map_err(|error| {
            self.is_known.store(false, Ordering::Relaxed);
            ApiError::Client(error)
        })?;
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Ok(response);
        }
        let body = whole(response).await?;
        Err(ApiError::Refused(status, refusal(&body).unwrap_or_else(|| status.to_string())))
    }

    /// A call whose response is read as a whole.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<Bytes, ApiError> {
        let permit = timeout(within, self.permits.acquire()).await;
        let _permit = permit.map_err(|_| ApiError::Busy(self.socket.clone(), within))?;
        whole(self.send(method, path, body, within).await?).await
    }

    /// A call that changes something.
    async fn change(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ApiError> {
        self.call(method, path, body, CHANGE * self.timeout).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let body = self.call(Method::GET, path, Bytes::new(), self.timeout).await?;
        decoded(path, &body)
    }

    /// The same without a wait for other requests: that would count as time of a probe's command.
    async fn get_at_once<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let body = whole(self.send(Method::GET, path, Bytes::new(), self.timeout).await?).await?;
        decoded(path, &body)
    }

    /// A list. podman writes `null` for an empty one.
    async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ApiError> {
        self.get(path).await.map(Option::unwrap_or_default)
    }

    /// Creates something. Returns its id.
    pub(super) async fn create(&self, what: &str, body: &Value) -> Result<String, ApiError> {
        let path = format!("{what}/create");
        let body = self.change(Method::POST, &path, json(body)).await?;
        let created: Value = decoded(&path, &body)?;
        Ok(created["Id"].as_str().unwrap_or_default().to_owned())
    }

    /// Removes a pod, a container or a volume that is not used. It may be gone already.
    pub(super) async fn remove(&self, what: &str, name: &str) -> Result<(), ApiError> {
        // A container goes with the volumes that its image asks for, and so does a pod of podman by itself.
        let query = if what == "volumes" { "" } else { "?force=true&volumes=true" };
        let path = format!("{what}/{}{query}", escaped(name));
        found(self.change(Method::DELETE, &path, Bytes::new()).await).map(drop)
    }

    /// Prepares the start of a container. podman sets the owner and mode of its new volumes at this moment.
    pub(super) async fn init(&self, container: &str) -> Result<(), ApiError> {
        let path = format!("containers/{container}/init");
        self.change(Method::POST, &path, Bytes::new()).await.map(drop)
    }

    pub(super) async fn start(&self, container: &str) -> Result<(), ApiError> {
        let path = format!("containers/{container}/start");
        self.change(Method::POST, &path, Bytes::new()).await.map(drop)
    }

    /// Stops a container: its signal, and SIGKILL after the grace.
    ///
    /// podman's own stop is not used for the grace: podman does only a few stops and removals at once (`--max-workers`),
    /// so a few long graces would hold up all others.
    pub(super) async fn stop(&self, container: &str, grace: Duration) -> Result<(), ApiError> {
        if self.signal(container).await? { self.end(container, grace).await } else { Ok(()) }
    }

    /// Sends a container the signal that stops it. Returns whether it ran. One that is paused goes on before.
    pub(super) async fn signal(&self, container: &str) -> Result<bool, ApiError> {
        let inspected = match self.inspect(container).await {
            // Its storage may be lost.
            Err(ApiError::Refused(..)) => None,
            inspected => Some(inspected?),
        };
        if inspected.as_ref().is_some_and(|inspected| inspected.state.status == "paused") {
            let unpause = format!("containers/{container}/unpause");
            self.change(Method::POST, &unpause, Bytes::new()).await?;
        }
        let signal = inspected.and_then(|inspected| inspected.config.stop_signal);
        let signal = signal.map_or("15".to_owned(), |signal| signal.to_string().replace('"', ""));
        let path = format!("containers/{container}/kill?signal={}", escaped(&signal));
        match self.change(Method::POST, &path, Bytes::new()).await {
            Err(ApiError::Refused(StatusCode::NOT_FOUND, _)) => Ok(false),
            Err(ApiError::Refused(_, words)) if words.contains(NOT_RUNNING) => Ok(false),
            sent => sent.map(|_| true),
        }
    }

    /// Waits for the end of a container that has got its signal, and sends SIGKILL after the grace.
    pub(super) async fn end(&self, container: &str, grace: Duration) -> Result<(), ApiError> {
        let path = format!("containers/{container}/wait?condition=exited");
        let waited = self.send(Method::POST, &path, Bytes::new(), 2 * LONGEST_GRACE);
        let ended = async {
            match waited.await {
                // Its conmon was killed, so podman does not notice its end.
                Err(ApiError::Refused(status, _)) if status != StatusCode::NOT_FOUND => pending().await,
                ended => found(ended).map(drop),
            }
        };
        if let Ok(ended) = timeout(grace.clamp(SHORTEST_GRACE, LONGEST_GRACE), ended).await {
            return ended;
        }
        let path = format!("containers/{container}/stop?timeout=0");
        found(self.change(Method::POST, &path, Bytes::new()).await).map(drop)
    }

    /// The pods with a label: `podmux.uid`, or `podmux.uid=…`.
    pub(super) async fn pods(&self, label: &str) -> Result<Vec<ListedPod>, ApiError> {
        self.list(&format!("pods/json?filters={}", filter("label", label))).await
    }

    /// The pods of a UID. podman takes a label without a value for one with any value.
    pub(super) async fn pods_of(&self, uid: &str) -> Result<Vec<ListedPod>, ApiError> {
        let mut pods = self.pods(&format!("podmux.uid={uid}")).await?;
        pods.retain(|pod| pod.label("podmux.uid") == uid);
        Ok(pods)
    }

    /// The containers of a pod, or all that have a label.
    pub(super) async fn containers(
        &self,
        by: &'static str,
        value: &str,
    ) -> Result<Vec<ListedContainer>, ApiError> {
        self.list(&format!("containers/json?all=true&filters={}", filter(by, value))).await
    }

    pub(super) async fn inspect(&self, container: &str) -> Result<InspectedContainer, ApiError> {
        self.get(&format!("containers/{container}/json")).await
    }

    /// The image of this name, if it is there.
    pub(super) async fn image(&self, name: &str) -> Result<Option<Value>, ApiError> {
        found(self.get(&format!("images/{}/json", escaped(name))).await)
    }

    /// The volumes with a label, or with a name that matches a regular expression. podman looks each of them up, and fails
    /// if it cannot, for example because the plugin of one is down: so none is asked for that is not needed. If one was
    /// removed meanwhile, it is asked once more.
    pub(super) async fn volumes(&self, by: &'static str, value: &str) -> Result<Vec<Volume>, ApiError> {
        let path = format!("volumes/json?filters={}", filter(by, value));
        match self.list(&path).await {
            Err(ApiError::Refused(_, words)) if words.contains("no such volume") => self.list(&path).await,
            listed => listed,
        }
    }

    /// Sets the mode and the time of the directory at a path in a container that was not started.
    pub(super) async fn set_mode(
        &self,
        container: &str,
        path: &str,
        mode: u32,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let path = format!("containers/{container}/archive?path={}", escaped(path));
        let archive = directory_archive(mode, now);
        self.change(Method::PUT, &path, archive).await.map(drop)
    }

    /// Pulls an image. Returns the lines of its progress.
    pub(super) async fn pull(&self, image: &str) -> Result<Lines, ApiError> {
        let path = format!("images/pull?policy=always&reference={}", escaped(image));
        // The head of the response comes with the first progress.
        let response = self.send(Method::POST, &path, Bytes::new(), CHANGE * self.timeout).await?;
        Ok(response.into_body().lines(LONGEST_LINE))
    }

    /// The events from now on that may matter to pods.
    pub(super) async fn events(&self) -> Result<Lines, ApiError> {
        let filters = json!({
            "type": ["container", "pod", "image"],
            "event": ["start", "died", "remove", "pull", "tag", "import", "loadfromarchive"],
        });
        let path = format!("events?stream=true&filters={}", escaped(&filters.to_string()));
        // podman sends the head of the response at once.
        let response = self.send(Method::GET, &path, Bytes::new(), self.timeout).await?;
        Ok(response.into_body().lines(LONGEST_LINE))
    }

    /// The last lines of a container's output, as far as they stand for a termination message.
    pub(super) async fn last_lines(&self, container: &str) -> String {
        // podman 4.3 scrambles a line that it has stored in parts, if it is asked for the last lines.
        let tail = format!("&tail={MESSAGE_LINES}");
        for (limit, tail) in [(LONGEST_READ, ""), (self.timeout, &*tail)] {
            if let Ok(Ok(end)) = timeout(limit, self.end_of_logs(container, tail)).await {
                let end = &end[end.ceil_char_boundary(end.len().saturating_sub(MESSAGE_BYTES))..];
                let first = end.lines().count().saturating_sub(MESSAGE_LINES);
                return end.split_inclusive('\n').skip(first).collect();
            }
        }
        String::new()
    }

    async fn end_of_logs(&self, container: &str, tail: &str) -> Result<String, ApiError> {
        let _permit = self.permits.acquire().await;
        let mut body = self.logs(container, &format!("stdout=true&stderr=true{tail}")).await?;
        let (mut frames, mut end) = (Frames::default(), Vec::new());
        while let Some(part) = body.chunk().await {
            end.extend(frames.text(&part.map_err(ApiError::Client)?));
            // It may begin in the middle of a character.
            end.drain(..end.len().saturating_sub(2 * MESSAGE_BYTES));
        }
        Ok(String::from_utf8_lossy(&end).into_owned())
    }

    /// Runs the command of a container's health check. Returns its output if it has failed.
    pub(super) async fn check_health(&self, container: &str) -> Result<Result<(), String>, ApiError> {
        let path = format!("containers/{container}/healthcheck");
        let body = whole(self.send(Method::GET, &path, Bytes::new(), LONGEST_GRACE).await?).await?;
        let result: Value = decoded(&path, &body)?;
        if result["Status"] == "healthy" {
            return Ok(Ok(()));
        }
        let inspected: Value = self.get_at_once(&format!("containers/{container}/json")).await?;
        let log = inspected["State"]["Health"]["Log"].as_array();
        let last = log.and_then(|log| log.last()).unwrap_or(&Value::Null);
        Ok(Err(failed(&last["ExitCode"], last["Output"].as_str().unwrap_or_default())))
    }

    /// The output of a container, in frames. The head of the response comes with the first output, so there is no
    /// time limit.
    pub(super) async fn logs(&self, container: &str, query: &str) -> Result<Body, ApiError> {
        let path = format!("containers/{}/logs?{query}", escaped(container));
        self.send(Method::GET, &path, Bytes::new(), LONGEST_LOG).await.map(http::Response::into_body)
    }

    /// Runs a command in a container. Returns its output if it has failed. podman keeps two processes for each run for
    /// five minutes.
    pub(super) async fn exec(
        &self,
        container: &str,
        command: &Value,
    ) -> Result<Result<(), String>, ApiError> {
        let body = json!({"Cmd": command, "AttachStdout": true, "AttachStderr": true});
        let path = format!("containers/{container}/exec");
        let created = whole(self.send(Method::POST, &path, json(&body), self.timeout).await?).await?;
        let created: Value = decoded(&path, &created)?;
        let id = created["Id"].as_str().unwrap_or_default();
        let (path, start) = (format!("exec/{id}/start"), json(&json!({"Detach": false})));
        let mut body = self.send(Method::POST, &path, start, LONGEST_GRACE).await?.into_body();
        let mut output = Vec::new();
        while let Some(part) = body.chunk().await {
            let part = part.map_err(ApiError::Client)?;
            output.extend_from_slice(&part[..part.len().min(MOST_SHOWN.saturating_sub(output.len()))]);
        }
        let after: Value = self.get_at_once(&format!("exec/{id}/json")).await?;
        let text = Frames::default().text(&output);
        let failure = failed(&after["ExitCode"], &String::from_utf8_lossy(&text));
        Ok(if after["ExitCode"] == 0 { Ok(()) } else { Err(failure) })
    }
}

/// Why a command has failed.
fn failed(code: &Value, output: &str) -> String {
    let shown = &output[..output.floor_char_boundary(MOST_SHOWN)];
    let colon = if shown.trim().is_empty() { "" } else { ": " };
    format!("exit code {code}{colon}{}", shown.trim())
}

fn request(method: Method, uri: &str, body: Bytes) -> Request<Bytes> {
    let is_json = method == Method::POST && !body.is_empty();
    let mut request = Request::new(body);
    // Every part of it is escaped.
    (*request.method_mut(), *request.uri_mut()) = (method, uri.parse().unwrap_or_default());
    if is_json {
        let json = http::HeaderValue::from_static("application/json");
        *request.headers_mut() = HeaderMap::from_iter([(CONTENT_TYPE, json)]);
    }
    request
}

/// The body of a response.
async fn whole(response: http::Response<Body>) -> Result<Bytes, ApiError> {
    response.into_body().whole(LONGEST).await.map_err(ApiError::Client)
}

fn json(body: &Value) -> Bytes {
    body.to_string().into()
}

fn decoded<T: DeserializeOwned>(path: &str, body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::Unexpected(path.to_owned(), error))
}

fn filter(by: &str, value: &str) -> String {
    escaped(&json!({by: [value]}).to_string())
}

fn describe<T>(response: &http::Response<T>) -> String {
    let server = response.headers().get("server").and_then(|value| value.to_str().ok());
    format!("{} by {}", response.status(), server.unwrap_or("an unknown server"))
}

/// The answer about something that may be gone; none if it is.
pub(super) fn found<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Err(ApiError::Refused(StatusCode::NOT_FOUND, _)) => Ok(None),
        other => other.map(Some),
    }
}

/// A tar archive with the directory `./` of this mode and time.
fn directory_archive(mode: u32, time: Timestamp) -> Bytes {
    let mut head = [0_u8; 512];
    let mut field = |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    field(0, "./");
    field(100, &format!("{mode:07o}"));
    for (at, digits) in [(108, 7), (116, 7), (124, 11)] {
        field(at, &"0".repeat(digits));
    }
    field(136, &format!("{:011o}", time.as_second().clamp(0, (1 << 33) - 1)));
    // The checksum is that of the head with spaces in its place.
    field(148, "        ");
    field(156, "5");
    field(257, "ustar\x0000");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    // Two empty blocks end an archive.
    [&head[..], &[0; 1024]].concat().into()
}
