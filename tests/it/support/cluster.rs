//! What a cluster does to its pods, at a real apiserver: they are made, bound, changed and deleted.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    thread,
};

use serde_json::{Value, json};

use super::{
    kubernetes::{Apiserver, At, Tls},
    plain::Answer,
    relay::Relay,
};

const JSON: &str = "application/json";
/// The media type of a patch that replaces the fields that it names.
const MERGE: &str = "application/merge-patch+json";

/// Why something was not done, or perhaps was.
#[derive(Debug)]
#[allow(dead_code, reason = "they are there to be read when a test fails")]
pub enum Failure {
    /// Nobody answered. Whether it was done is not known.
    Unanswered(io::Error),
    /// A code and a Status.
    Refused(u16, String),
}

type Done = Result<Value, Failure>;

/// Somebody who may do everything. One connection, made when it is needed and
/// made anew after a failure.
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

    fn does(&mut self, request: &str, media: &str, body: &Value) -> Done {
        let answer = self.ask(request, media, body).map_err(Failure::Unanswered)?;
        if !(200..300).contains(&answer.code) {
            return Err(Failure::Refused(answer.code, answer.text()));
        }
        // Who is killed in the middle of an answer leaves half of it.
        serde_json::from_slice(&answer.body).map_err(|error| Failure::Unanswered(error.into()))
    }

    pub fn get(&mut self, path: &str) -> Done {
        self.does(&format!("GET {path}"), JSON, &Value::Null)
    }

    pub fn post(&mut self, path: &str, object: &Value) -> Done {
        self.does(&format!("POST {path}"), JSON, object)
    }

    pub fn remove(&mut self, path: &str) -> Done {
        self.does(&format!("DELETE {path}"), JSON, &Value::Null)
    }

    pub fn namespace(&mut self, name: &str) {
        self.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).unwrap();
    }

    /// The pod as it was made.
    pub fn create(&mut self, pod: &Value) -> Done {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap();
        self.post(&format!("/api/v1/namespaces/{namespace}/pods"), pod)
    }

    pub fn read(&mut self, key: &str) -> Done {
        self.get(&path(key))
    }

    /// What a scheduler does. The pod as it is after that.
    pub fn bind(&mut self, key: &str, node: &str) -> Done {
        let (_, name) = key.split_once('/').unwrap();
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target,
        });
        self.post(&format!("{}/binding", path(key)), &binding)?;
        self.read(key)
    }

    /// The pod as it is after that.
    pub fn patch(&mut self, key: &str, patch: &Value) -> Done {
        self.does(&format!("PATCH {}", path(key)), MERGE, patch)
    }

    /// The pod as it is after that.
    pub fn patch_status(&mut self, key: &str, status: &Value) -> Done {
        self.does(&format!("PATCH {}/status", path(key)), MERGE, &json!({"status": status}))
    }

    /// With a grace in seconds; with 0 it is gone at once. The pod as it was last.
    pub fn delete(&mut self, key: &str, grace: u32) -> Done {
        self.does(&format!("DELETE {}?gracePeriodSeconds={grace}", path(key)), JSON, &Value::Null)
    }

    /// What the server has for a node at this moment, mirror pods too, by `namespace/name`.
    pub fn pods_of(&mut self, node: &str) -> BTreeMap<String, Value> {
        let list = self.get(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")).unwrap();
        by_key(list["items"].as_array().unwrap())
    }

    /// How often the server was asked this about pods of all namespaces, and answered with this code.
    pub fn asked(&mut self, verb: &str, code: u16) -> u64 {
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

/// Makes as many pods as there are keys, on a node.
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

/// A pod's path from its `namespace/name`.
fn path(key: &str) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// A pod from its `namespace/name`, which no node has yet.
pub fn pod(key: &str) -> Value {
    let (namespace, name) = key.split_once('/').unwrap();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    })
}

/// A pod that is made for a node.
pub fn bound(key: &str, node: &str) -> Value {
    let mut pod = pod(key);
    pod["spec"]["nodeName"] = node.into();
    pod
}

pub fn key(pod: &Value) -> String {
    let word = |field: &str| pod["metadata"][field].as_str().unwrap();
    format!("{}/{}", word("namespace"), word("name"))
}

/// Pods by `namespace/name`, as far as they are the server's own.
pub fn by_key(pods: &[Value]) -> BTreeMap<String, Value> {
    pods.iter().map(|pod| (key(pod), own(pod))).collect()
}

/// A pod without what podmux adds to the server's, and what it leaves away.
fn own(pod: &Value) -> Value {
    let mut pod = without_nulls(pod);
    // The items of a list do not say what they are.
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

/// To Go a null is what is not there.
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

/// Pods as far as a change of them is told by podmux.
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
    let told = |pod: &Value| {
        let metadata = METADATA.map(|field| pod["metadata"][field].clone());
        json!([metadata, pod["spec"], pod["status"]])
    };
    pods.iter().map(|(key, pod)| (&**key, told(pod))).collect()
}

/// A kubeconfig of a cluster behind a relay, for whoever this is.
pub fn relayed(directory: &Path, at: &At, user: &Value) -> (Relay, PathBuf) {
    let relay = Relay::to(at.url.trim_start_matches("https://"));
    let cluster = json!({"server": format!("https://{}", relay.address), "certificate-authority": at.ca});
    (relay, kubeconfig(directory, &cluster, user))
}

/// A kubeconfig of one cluster and one user.
pub fn kubeconfig(directory: &Path, cluster: &Value, user: &Value) -> PathBuf {
    let path = directory.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    fs::write(&path, config.to_string()).unwrap();
    path
}
