//! Creates, binds, changes and deletes pods at a real kube-apiserver.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    thread,
};

use serde_json::{Value, json};

use super::{
    kubeconfig::config,
    kubernetes::{Apiserver, At, Tls},
    plain::Answer,
    relay::Relay,
    stream::own_status,
};

const JSON: &str = "application/json";
/// The media type of a patch that replaces the fields that it names.
const MERGE: &str = "application/merge-patch+json";

/// Why a request failed.
#[derive(Debug)]
#[allow(dead_code, reason = "they are shown when a test fails")]
pub enum Failure {
    /// There was no response; the request may have succeeded.
    Unanswered(io::Error),
    /// The code and the Status of an error.
    Rejected(u16, String),
}

type Response = Result<Value, Failure>;

/// A client of a cluster admin. It connects when needed, and again after a failure.
pub struct Admin<'a> {
    at: &'a At,
    connection: Option<Tls>,
}

impl<'a> Admin<'a> {
    pub fn of(apiserver: &'a Apiserver) -> Self {
        Self { at: &apiserver.at, connection: None }
    }

    fn ask(&mut self, request: &str, media: &str, body: &Value) -> io::Result<Answer> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.at.connect(&self.at.token)?,
        };
        let (method, path) = request.split_once(' ').unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = connection.ask_as(method, path, media, body.as_bytes())?;
        self.connection = Some(connection);
        Ok(answer)
    }

    fn send(&mut self, request: &str, media: &str, body: &Value) -> Response {
        let answer = self.ask(request, media, body).map_err(Failure::Unanswered)?;
        if !(200..300).contains(&answer.code) {
            return Err(Failure::Rejected(answer.code, answer.text()));
        }
        // A server that is killed leaves an incomplete response.
        serde_json::from_slice(&answer.body).map_err(|error| Failure::Unanswered(error.into()))
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.send(&format!("GET {path}"), JSON, &Value::Null)
    }

    pub fn post(&mut self, path: &str, object: &Value) -> Response {
        self.send(&format!("POST {path}"), JSON, object)
    }

    pub fn remove(&mut self, path: &str) -> Response {
        self.send(&format!("DELETE {path}"), JSON, &Value::Null)
    }

    pub fn namespace(&mut self, name: &str) {
        self.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).unwrap();
    }

    /// Creates a pod and returns it.
    pub fn create(&mut self, pod: &Value) -> Response {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap();
        self.post(&format!("/api/v1/namespaces/{namespace}/pods"), pod)
    }

    pub fn read(&mut self, key: &str) -> Response {
        self.get(&path(key))
    }

    /// Binds a pod as a scheduler does and returns it.
    pub fn bind(&mut self, key: &str, node: &str) -> Response {
        let (_, name) = key.split_once('/').unwrap();
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target,
        });
        self.post(&format!("{}/binding", path(key)), &binding)?;
        self.read(key)
    }

    /// Patches a pod and returns it.
    pub fn patch(&mut self, key: &str, patch: &Value) -> Response {
        self.send(&format!("PATCH {}", path(key)), MERGE, patch)
    }

    /// Patches a pod's status and returns the pod.
    pub fn patch_status(&mut self, key: &str, status: &Value) -> Response {
        self.send(&format!("PATCH {}/status", path(key)), MERGE, &json!({"status": status}))
    }

    /// Deletes a pod with a grace period in seconds (0: at once) and returns it.
    pub fn delete(&mut self, key: &str, grace: u32) -> Response {
        self.send(&format!("DELETE {}?gracePeriodSeconds={grace}", path(key)), JSON, &Value::Null)
    }

    /// The server's pods of a node, with mirror pods, by `namespace/name`.
    pub fn pods_of(&mut self, node: &str) -> BTreeMap<String, Value> {
        let list = self.get(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")).unwrap();
        by_key(list["items"].as_array().unwrap())
    }

    /// How many requests for pods of all namespaces had this verb and this status code.
    pub fn request_count(&mut self, verb: &str, code: u16) -> u64 {
        let metrics = self.ask("GET /metrics", JSON, &Value::Null).unwrap().text();
        let labels = [
            "resource=\"pods\"".to_owned(),
            "scope=\"cluster\"".to_owned(),
            format!("verb=\"{verb}\""),
            format!("code=\"{code}\""),
        ];
        let counts = metrics.lines().filter(|line| {
            line.starts_with("apiserver_request_total{") && labels.iter().all(|label| line.contains(label))
        });
        counts.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }
}

/// Creates pods on a node.
pub fn create_all(apiserver: &Apiserver, keys: &[String], node: &str) {
    const WRITERS: usize = 4;
    thread::scope(|scope| {
        for keys in keys.chunks(keys.len().div_ceil(WRITERS)) {
            scope.spawn(move || {
                let mut admin = Admin::of(apiserver);
                for key in keys {
                    admin.create(&bound(key, node)).unwrap();
                }
            });
        }
    });
}

/// The path of a pod, from its `namespace/name`.
fn path(key: &str) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// A pod that is not bound, from its `namespace/name`.
pub fn pod(key: &str) -> Value {
    let (namespace, name) = key.split_once('/').unwrap();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    })
}

/// A pod that is created for a node.
pub fn bound(key: &str, node: &str) -> Value {
    let mut pod = pod(key);
    pod["spec"]["nodeName"] = node.into();
    pod
}

pub fn key(pod: &Value) -> String {
    let word = |field: &str| pod["metadata"][field].as_str().unwrap();
    format!("{}/{}", word("namespace"), word("name"))
}

/// Pods by `namespace/name`, in the form that is compared.
pub fn by_key(pods: &[Value]) -> BTreeMap<String, Value> {
    pods.iter().map(|pod| (key(pod), own(pod))).collect()
}

/// A pod without what podmux adds or drops.
fn own(pod: &Value) -> Value {
    let mut pod = without_nulls(pod);
    if !pod["status"].is_null() {
        pod["status"] = own_status(&pod);
    }
    // The items of a list have no type.
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    let metadata = pod["metadata"].as_object_mut().unwrap();
    metadata.remove("managedFields");
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.retain(|name, _| !matches!(&**name, podmux::pod::SOURCE | podmux::pod::SEEN));
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    pod
}

/// In Go a null is the same as no value.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            fields.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// The fields of pods whose change gives an update.
pub fn compared(pods: &BTreeMap<String, Value>) -> BTreeMap<&str, Value> {
    const METADATA: [&str; 7] = [
        "namespace",
        "name",
        "uid",
        "labels",
        "annotations",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ];
    let fields = |pod: &Value| {
        let metadata = METADATA.map(|field| pod["metadata"][field].clone());
        json!([metadata, pod["spec"], pod["status"]])
    };
    pods.iter().map(|(key, pod)| (&**key, fields(pod))).collect()
}

/// A kubeconfig for a cluster behind a relay, with these credentials.
pub fn relayed(directory: &Path, at: &At, user: &Value) -> (Relay, PathBuf) {
    let relay = Relay::to(at.url.trim_start_matches("https://"));
    let cluster = json!({"server": format!("https://{}", relay.address), "certificate-authority": at.ca});
    (relay, kubeconfig(directory, &cluster, user))
}

/// Writes a kubeconfig with one cluster and one user.
pub fn kubeconfig(directory: &Path, cluster: &Value, user: &Value) -> PathBuf {
    let path = directory.join("kubeconfig");
    fs::write(&path, config(cluster, user).to_string()).unwrap();
    path
}
