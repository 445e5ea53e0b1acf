//! Clients that write pods, and know what they were answered.

use std::collections::BTreeMap;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use podmux::{host::Clients, pod::SourceName};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::mpsc,
    task::spawn_local,
    time::{Duration, Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    node::world,
    run::{labels, spec, want_port},
    script::{Action, NAMES},
    truth::{self, Answer, Image, Truth, image, is_contended, name},
};

const PODS: &str = "/api/v1/namespaces/default/pods";
/// The bytes on their way in a connection.
const BUFFERED: usize = 4 * 1024;
/// A request whose client has gone away is performed in this time, or never.
const PERFORMED: Duration = Duration::from_mins(2);
/// A request is answered in this time, however slow the disk is.
const ANSWERED: Duration = Duration::from_mins(5);
/// Pods can be written so long after a fault of the disk, whatever is wrong with the sources.
const AVAILABLE: Duration = Duration::from_mins(6);
/// How many pods a write of several has.
const WRITTEN: usize = 2;
/// A connection on which a request does not come to its end is closed in this time.
const CLOSED: Duration = Duration::from_mins(1);

/// The address of a run of the agent. Cheap to clone.
#[derive(Clone)]
pub struct Address(mpsc::UnboundedSender<DuplexStream>);

impl Address {
    /// An address, and the connections of its clients.
    pub fn new() -> (Self, Clients) {
        let (connect, clients) = mpsc::unbounded_channel();
        (Self(connect), clients)
    }

    /// A connection, which is closed if the agent does not run.
    fn connect(&self) -> DuplexStream {
        let (ours, theirs) = duplex(BUFFERED);
        let _ = self.0.send(theirs);
        ours
    }

    /// Sends a request over a connection of its own. None if the connection ends before the answer.
    pub async fn request(&self, request: Request<String>) -> Option<Response<Incoming>> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(self.connect())).await.ok()?;
        spawn_local(connection);
        sender.send_request(request).await.ok()
    }

    /// Sends this much of a request, and says if the connection is not closed for it.
    pub async fn send_half(&self, half: Half) -> Option<String> {
        let mut connection = self.connect();
        connection.write_all(half.text().as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        let closed = timeout(CLOSED, connection.read_to_end(&mut answer)).await;
        let is_open = closed.is_err();
        is_open.then(|| format!("a connection with {half:?} of a request is open after {CLOSED:?}"))
    }
}

/// How much of a request a client sends, and then nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Nothing,
    Head,
    Body,
}

impl Half {
    fn text(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Head => "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nhost: pod",
            Self::Body => {
                "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nhost: podmux\r\n\
                 content-type: application/json\r\ncontent-length: 400\r\n\r\n{\"apiVersion\": \"v1\", "
            }
        }
    }
}

/// The code and the body of an answer; 0 if the connection ends before its end, or it takes too long.
pub async fn ask(agent: &Address, method: &str, path: &str, body: &str) -> (u16, String) {
    ask_with(agent, method, path, body, "application/json").await
}

async fn ask_with(agent: &Address, method: &str, path: &str, body: &str, kind: &str) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).header("host", "podmux");
    let request = request.header("content-type", kind).body(body.to_owned()).unwrap();
    let answered = timeout(ANSWERED, async {
        let answer = agent.request(request).await?;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.ok()?;
        Some((code, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    });
    answered.await.ok().flatten().unwrap_or_default()
}

/// The pods that the API lists; none if it answers with an error.
pub async fn listed(agent: &Address) -> BTreeMap<String, Value> {
    objects(agent, "/api/v1/pods").await
}

/// What is listed at a path; nothing if that is not known.
pub async fn objects(agent: &Address, path: &str) -> BTreeMap<String, Value> {
    let (code, body) = ask(agent, "GET", path, "").await;
    if !matches!(code, 0 | 200 | 503) {
        world().broken.add(format!("GET {path}: {code} {body}"));
    }
    let list: Value = serde_json::from_str(&body).unwrap_or_default();
    list["items"].as_array().into_iter().flatten().map(|pod| (key(pod), pod.clone())).collect()
}

/// `namespace/name`.
pub fn key(pod: &Value) -> String {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}

pub fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

/// A pod that is posted.
pub fn posted(n: usize, v: usize) -> String {
    let metadata = json!({"name": name(SourceName::Http, n), "namespace": "default", "labels": labels(v)});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec(v)});
    want_port(&mut pod, v);
    pod.to_string()
}

/// The answer to a dry run that creates a pod with a name that no other has.
pub async fn create_another(agent: &Address) -> (u16, String) {
    let pod = posted(0, 0).replace(&name(SourceName::Http, 0), "another");
    ask(agent, "POST", &format!("{PODS}?dryRun=All"), &pod).await
}

/// How a client patches a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Merge,
    Strategic,
    Json,
    Apply,
}

impl How {
    fn kind(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Json => "application/json-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }

    fn body(self, n: usize, v: usize) -> String {
        match self {
            Self::Merge | Self::Strategic => {
                let spec = json!({"containers": [{"name": "c", "image": image(v)}]});
                json!({"metadata": {"labels": labels(v)}, "spec": spec}).to_string()
            }
            Self::Json => json!([
                {"op": "replace", "path": "/spec/containers/0/image", "value": image(v)},
                {"op": "add", "path": "/metadata/labels", "value": labels(v)},
            ])
            .to_string(),
            Self::Apply => posted(n, v),
        }
    }
}

/// A write of a pod.
pub struct Write {
    pub n: usize,
    method: &'static str,
    path: String,
    body: String,
    kind: &'static str,
    writes: Image,
    /// When its client goes away, whether there is an answer or not.
    leaves: Option<Duration>,
}

impl Write {
    /// The write of an action, if it is one.
    pub fn of(action: Action) -> Option<Self> {
        let (leaves, pod) = (None, |n| format!("{PODS}/{}", name(SourceName::Http, n)));
        let kind = "application/json";
        Some(match action {
            Action::Create { n, v } => {
                let path = PODS.to_owned();
                Self { n, method: "POST", path, body: posted(n, v), kind, writes: Some(v), leaves }
            }
            Action::Replace { n, v } => {
                Self { n, method: "PUT", path: pod(n), body: posted(n, v), kind, writes: Some(v), leaves }
            }
            Action::Patch { n, v, how } => {
                let path = format!("{}?fieldManager=simulation&force=true", pod(n));
                let path = if how == How::Apply { path } else { pod(n) };
                let (body, kind) = (how.body(n, v), how.kind());
                Self { n, method: "PATCH", path, body, kind, writes: Some(v), leaves }
            }
            Action::Delete { n, grace } => {
                let path = format!("{}?gracePeriodSeconds={grace}", pod(n));
                Self { n, method: "DELETE", path, body: String::new(), kind, writes: None, leaves }
            }
            Action::Leave { n, v, after } => {
                let leaves = Some(Duration::from_millis(after as u64));
                Self { n, method: "PUT", path: pod(n), body: posted(n, v), kind, writes: Some(v), leaves }
            }
            _ => return None,
        })
    }

    pub fn removes(&self) -> bool {
        self.writes.is_none()
    }

    /// The answer. None if the client goes away before it; then the request is performed or never will be.
    async fn ask(&self, agent: &Address) -> Option<(u16, String)> {
        let answer = ask_with(agent, self.method, &self.path, &self.body, self.kind);
        let Some(leaves) = self.leaves else { return Some(answer.await) };
        if let Ok(answered) = timeout(leaves, answer).await {
            return Some(answered);
        }
        sleep(PERFORMED).await;
        None
    }

    /// Sends it. `dead` ends when the agent is killed, so that no answer comes; one that is `stopping` accepts no
    /// connection. Returns what is wrong with the answer.
    pub async fn send(
        &self,
        agent: &Address,
        dead: impl Future<Output = ()>,
        stopping: &CancellationToken,
        truth: &Truth,
    ) -> Option<String> {
        let before = truth.possible(SourceName::Http, self.n);
        let begun = Instant::now();
        truth.begins(self.n, self.removes(), self.writes);
        let answered = tokio::select! {
            biased;
            () = dead => None,
            answered = self.ask(agent) => answered,
        };
        let answer = match &answered {
            Some((200..=202, _)) => Answer::Acknowledged,
            Some((400..500, _)) => Answer::Refused,
            Some((_, body)) if body.contains("nothing was changed") => Answer::Refused,
            _ => Answer::Unknown,
        };
        truth.ends(self.n, self.removes(), self.writes, answer);
        let (code, body) = answered?;
        if answer == Answer::Acknowledged {
            truth.shown(self.n, &serde_json::from_str(&body).unwrap_or_default());
        }
        let (least, most) = truth.limits_since(begun);
        let is_created = answer == Answer::Acknowledged && self.method == "POST";
        if is_created && truth.posted_beside(Some(self.n)).0 >= most {
            return Some(format!(
                "{} {}: {code}, and no more than {most} can be posted",
                self.method, self.path
            ));
        }
        // Only one client writes a name.
        let is_wrong = is_no_answer(code, &body, stopping)
            || code == 404 && !before.contains(&None)
            || code == 409
                && (self.method != "POST" || before == [None].into())
                && !body.contains("being deleted")
            || code == 403
                && !(body.contains("it is held by") && is_contended(self.n))
                && !(body.contains("exceeded quota") && least < NAMES && self.method != "PUT");
        is_wrong.then(|| {
            format!("{} {}: {code} {body}, although it was one of {before:?}", self.method, self.path)
        })
    }
}

/// Whether a client gets no answer, or one that no write of the run should have.
fn is_no_answer(code: u16, body: &str, stopping: &CancellationToken) -> bool {
    let is_stopping = stopping.is_cancelled();
    code == 0 && !is_stopping
        || code == 503 && !is_stopping && world().is_quiet_for(AVAILABLE)
        || (500..600).contains(&code) && code != 503 && !body.contains("not stored")
        || matches!(code, 400 | 415 | 422)
}

/// A write of a pod that may change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// These are dry runs.
    Create {
        v: usize,
    },
    Replace {
        v: usize,
    },
    Delete,
    /// Replaces an earlier version of the pod.
    OldVersion {
        v: usize,
    },
    /// Deletes an earlier pod of the name.
    OldUid,
}

impl Trial {
    /// The method, the path and the body; none if no earlier one is known.
    fn request(self, n: usize, truth: &Truth) -> Option<(&'static str, String, String)> {
        let path = format!("{PODS}/{}", name(SourceName::Http, n));
        Some(match self {
            Self::Create { v } => ("POST", format!("{PODS}?dryRun=All"), posted(n, v)),
            Self::Replace { v } => ("PUT", format!("{path}?dryRun=All"), posted(n, v)),
            Self::Delete => ("DELETE", format!("{path}?dryRun=All"), String::new()),
            Self::OldVersion { v } => {
                let mut pod: Value = serde_json::from_str(&posted(n, v)).unwrap();
                pod["metadata"]["resourceVersion"] = truth.old_version(n)?.into();
                ("PUT", path, pod.to_string())
            }
            Self::OldUid => {
                let uid = truth.old_uid(n)?;
                ("DELETE", path, json!({"preconditions": {"uid": uid}}).to_string())
            }
        })
    }

    /// Sends it as [`Write::send`] does.
    pub async fn send(
        self,
        n: usize,
        agent: &Address,
        dead: impl Future<Output = ()>,
        stopping: &CancellationToken,
        truth: &Truth,
    ) -> Option<String> {
        let before = truth.possible(SourceName::Http, n);
        let (method, path, body) = self.request(n, truth)?;
        let (code, body) = tokio::select! {
            biased;
            () = dead => None,
            answered = ask(agent, method, &path, &body) => Some(answered),
        }?;
        let is_done = (200..300).contains(&code);
        let is_wrong = match self {
            Self::OldVersion { .. } | Self::OldUid => is_done,
            Self::Create { .. } => is_done && !before.contains(&None),
            Self::Replace { .. } => {
                is_done && before == [None].into() || code == 404 && !before.contains(&None)
            }
            Self::Delete => code == 404 && !before.contains(&None),
        };
        (is_wrong || is_no_answer(code, &body, stopping))
            .then(|| format!("{self:?} of {n}: {code} {body}, although it was one of {before:?}"))
    }
}

/// A write of several pods by one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Several {
    /// Deletes the posted pods that run `v`.
    Delete { v: usize, grace: usize },
    /// Creates or replaces the first two.
    Apply { v: usize },
    /// Creates or replaces the first two, and deletes all others.
    Replace { v: usize },
}

impl Several {
    /// The method, the path and the body.
    fn request(self) -> (&'static str, String, String) {
        let list = |v| {
            let pods: Vec<Value> =
                (0..WRITTEN).map(|n| serde_json::from_str(&posted(n, v)).unwrap()).collect();
            json!({"apiVersion": "v1", "kind": "PodList", "items": pods}).to_string()
        };
        match self {
            Self::Delete { v, grace } => {
                let path = format!("{PODS}?labelSelector=v%3D{v}&gracePeriodSeconds={grace}");
                ("DELETE", path, String::new())
            }
            Self::Apply { v } => ("POST", "/pods".to_owned(), list(v)),
            Self::Replace { v } => ("PUT", "/pods".to_owned(), list(v)),
        }
    }

    /// What it makes of a pod; none if it does not concern it.
    fn makes(self, n: usize) -> Option<Image> {
        match self {
            Self::Apply { v } | Self::Replace { v } if n < WRITTEN => Some(Some(v)),
            Self::Apply { .. } => None,
            Self::Delete { .. } | Self::Replace { .. } => Some(None),
        }
    }

    /// Sends it as [`Write::send`] does. No other write is on its way meanwhile.
    pub async fn send(
        self,
        agent: &Address,
        dead: impl Future<Output = ()>,
        stopping: &CancellationToken,
        truth: &Truth,
    ) -> Option<String> {
        let ((method, path, body), begun) = (self.request(), Instant::now());
        let made: Vec<(usize, Image)> = (0..NAMES).filter_map(|n| Some((n, self.makes(n)?))).collect();
        for (n, image) in &made {
            truth.begins(*n, image.is_none(), *image);
        }
        let answered = tokio::select! {
            biased;
            () = dead => None,
            answered = ask(agent, method, &path, &body) => Some(answered),
        };
        for (n, image) in made {
            truth.ends(n, image.is_none(), image, self.answer(n, answered.as_ref(), truth));
        }
        let (code, body) = answered?;
        let is_full = code == 403 && body.contains("exceeded quota") && truth.limits_since(begun).0 < NAMES;
        let is_refused = (is_full || code == 409 && body.contains("being deleted")) && method != "DELETE";
        let is_wrong = code == 0 && !stopping.is_cancelled()
            || !matches!(code, 0 | 200..=202 | 503) && !is_refused && !body.contains("not stored");
        is_wrong.then(|| format!("{method} {path}: {code} {body}"))
    }

    /// How it ended for a pod.
    fn answer(self, n: usize, answered: Option<&(u16, String)>, truth: &Truth) -> Answer {
        let is_selected = |body: &str| {
            let list: Value = serde_json::from_str(body).unwrap_or_default();
            let name = truth::key(SourceName::Http, n);
            list["items"].as_array().into_iter().flatten().any(|pod| key(pod) == name)
        };
        match (self, answered) {
            (Self::Delete { .. }, Some((200, body))) if !is_selected(body) => Answer::Refused,
            (_, Some((200..=202, _))) => Answer::Acknowledged,
            (_, Some((400..500, _))) => Answer::Refused,
            (_, Some((_, body))) if body.contains("nothing was changed") => Answer::Refused,
            (Self::Delete { v, .. }, _) if !truth.possible(SourceName::Http, n).contains(&Some(v)) => {
                Answer::Refused
            }
            _ => Answer::Unknown,
        }
    }
}
