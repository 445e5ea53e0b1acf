//! Clients that write pods, and know what they were answered.

use std::collections::BTreeMap;

use axum::{Extension, Router, body::Body};
use http::Request;
use http_body_util::BodyExt as _;
use podmux::{
    pod::SourceName,
    server::{ConnectionStats, Limits, MAX_WATCHERS, Watchers, read_bodies},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{
    script::Action,
    truth::{Answer, Image, Truth, image},
};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The router as the transport serves it.
pub fn served(router: Router) -> Router {
    read_bodies(router, &Limits::default(), ConnectionStats::default())
        .layer(Extension(Watchers::new(MAX_WATCHERS)))
}

/// The code and the body of an answer.
pub async fn ask(router: &Router, method: &str, path: &str, body: &str) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).header("host", "podmux");
    let request = request.header("content-type", "application/json").body(Body::from(body.to_owned()));
    let answer = router.clone().oneshot(request.unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
    (code, String::from_utf8_lossy(&body).into_owned())
}

/// The pods that the API lists; none if it answers with an error.
pub async fn listed(router: &Router) -> BTreeMap<String, Value> {
    let (_, body) = ask(router, "GET", "/api/v1/pods", "").await;
    let list: Value = serde_json::from_str(&body).unwrap_or_default();
    list["items"].as_array().into_iter().flatten().map(|pod| (key(pod), pod.clone())).collect()
}

/// `namespace/name`.
pub fn key(pod: &Value) -> String {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}

/// A pod that is posted.
pub fn posted(n: usize, v: usize) -> String {
    let containers = json!([{"name": "c", "image": image(v)}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("h{n}"), "namespace": "default"},
           "spec": {"containers": containers}})
    .to_string()
}

/// A write of a pod.
pub struct Write {
    pub n: usize,
    method: &'static str,
    path: String,
    body: String,
    writes: Image,
}

impl Write {
    /// The write of an action, if it is one.
    pub fn of(action: Action) -> Option<Self> {
        Some(match action {
            Action::Create { n, v } => {
                Self { n, method: "POST", path: PODS.to_owned(), body: posted(n, v), writes: Some(v) }
            }
            Action::Replace { n, v } => {
                Self { n, method: "PUT", path: format!("{PODS}/h{n}"), body: posted(n, v), writes: Some(v) }
            }
            Action::Delete { n, grace } => {
                let path = format!("{PODS}/h{n}?gracePeriodSeconds={grace}");
                Self { n, method: "DELETE", path, body: String::new(), writes: None }
            }
            _ => return None,
        })
    }

    pub fn removes(&self) -> bool {
        self.writes.is_none()
    }

    /// Sends it. `dead` ends when the agent is killed, so that no answer comes. Returns what is wrong with the answer.
    pub async fn send(
        &self,
        router: &Router,
        dead: impl Future<Output = ()>,
        truth: &Truth,
    ) -> Option<String> {
        let before = truth.possible(SourceName::Http, self.n);
        truth.begins(self.n, self.removes());
        let answered = tokio::select! {
            biased;
            () = dead => None,
            answered = ask(router, self.method, &self.path, &self.body) => Some(answered),
        };
        let answer = match &answered {
            Some((200..=202, _)) => Answer::Acknowledged,
            Some((400..500, _)) => Answer::Refused,
            Some((_, body)) if body.contains("nothing was changed") => Answer::Refused,
            _ => Answer::Unknown,
        };
        truth.ends(self.n, self.removes(), self.writes, answer);
        let (code, body) = answered?;
        // Only one client writes a name.
        let is_wrong = code == 404 && !before.contains(&None)
            || code == 409
                && self.method == "POST"
                && before == [None].into()
                && !body.contains("being deleted")
            || (500..600).contains(&code) && code != 503 && !body.contains("not stored")
            || matches!(code, 400 | 403 | 415 | 422);
        is_wrong.then(|| {
            format!("{} {}: {code} {body}, although it was one of {before:?}", self.method, self.path)
        })
    }
}
