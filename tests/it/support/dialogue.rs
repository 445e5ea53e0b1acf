//! Sends the same requests to a real kube-apiserver and to podmux, and compares the responses.

use std::{collections::HashMap, fmt::Write as _, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, header::AUTHORIZATION};
use jiff::Timestamp;
use podmux::client::{Client, ClientSettings};
use serde_json::{Map, Value, json};

use super::{kubernetes::Apiserver, stream::own_status};

/// Longer than any response takes on a machine under load.
const PATIENCE: Duration = Duration::from_mins(1);
/// Larger than any response of these tests, in bytes.
const LARGEST: usize = 16 << 20;
/// How many random letters `generateName` adds to a name (`apiserver/pkg/storage/names`).
const RANDOM_LETTERS: usize = 5;

/// A request and its response, for comparison.
struct Exchange {
    label: &'static str,
    request: String,
    /// The compared parts.
    shape: Value,
    /// The whole response.
    raw: String,
}

/// One of the two servers.
pub struct Side {
    client: Client,
    base: String,
    token: Option<String>,
    exchanges: Vec<Exchange>,
    /// The UIDs that the server generated, in the order of their first use.
    uids: Vec<String>,
    /// The resource versions of each pod, in the same order.
    versions: HashMap<String, Vec<String>>,
}

/// A response.
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub json: Value,
}

impl Answer {
    /// A string of an object's metadata.
    pub fn metadata(&self, field: &str) -> String {
        self.json["metadata"][field].as_str().unwrap_or_default().to_owned()
    }
}

impl Side {
    pub fn kubernetes(server: &Apiserver) -> Self {
        Self::new(&server.at.url, Some(&server.at.token), Some(&server.at.ca))
    }

    pub fn podmux(url: &str) -> Self {
        Self::new(url, None, None)
    }

    fn new(url: &str, token: Option<&String>, ca: Option<&std::path::PathBuf>) -> Self {
        let settings =
            ClientSettings { ca_file: ca.cloned(), timeout: PATIENCE, ..ClientSettings::default() };
        Self {
            client: Client::new(settings).unwrap(),
            base: url.to_owned(),
            token: token.cloned(),
            exchanges: Vec::new(),
            uids: Vec::new(),
            versions: HashMap::new(),
        }
    }

    /// Sends a request without a body. The request is a method and a path.
    pub async fn ask(&mut self, label: &'static str, request: &str) -> Answer {
        self.ask_with(label, request, &[], "").await
    }

    /// Sends a request with a JSON body.
    pub async fn send(&mut self, label: &'static str, request: &str, body: &Value) -> Answer {
        self.ask_with(label, request, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn ask_with(
        &mut self,
        label: &'static str,
        request: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        assert!(
            self.exchanges.iter().all(|other| other.label != label),
            "two requests have the label {label:?}"
        );
        let (response, text) = self.exchange(request, headers, body.into()).await;
        let raw = format!("{} {:?}\n{}", response.code, response.headers, text.trim_end());
        let shape = self.shape(&response, &text);
        self.exchanges.push(Exchange { label, request: request.to_owned(), shape, raw });
        response
    }

    /// Sends a request whose response is not compared.
    pub async fn aside(&mut self, request: &str, body: &Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.exchange(request, &json, body.to_string().into()).await.0
    }

    async fn exchange(&self, request: &str, headers: &[(&str, &str)], body: Bytes) -> (Answer, String) {
        let (method, path) = request.split_once(' ').unwrap();
        // The path is written unescaped.
        let path = path.replace(' ', "%20").replace('"', "%22").replace('>', "%3E");
        let path = path.replace('<', "%3C").replace('!', "%21").replace('{', "%7B").replace('}', "%7D");
        let mut request_builder = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request_builder = request_builder.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request_builder = request_builder.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = self.client.send(request_builder.body(body).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        // Only an apiserver answers with protobuf.
        let text = String::from_utf8_lossy(&body.whole(LARGEST).await.unwrap()).into_owned();
        let json = serde_json::from_str(&text).unwrap_or_default();
        (Answer { code: head.status.as_u16(), headers: head.headers, json }, text)
    }

    /// The compared parts of a response.
    fn shape(&mut self, response: &Answer, text: &str) -> Value {
        let header = |name: &str| {
            let values =
                response.headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned());
            let mut values: Vec<String> = values.collect();
            // Warnings have no order.
            values.sort();
            values
        };
        let media = header("content-type").join(",");
        let media = media.split(';').next().unwrap_or_default().to_owned();
        let body = match response.json["kind"].as_str() {
            Some("Status") => status(&response.json),
            Some("Pod" | "PartialObjectMetadata") => self.pod(&response.json),
            Some("PodList" | "PartialObjectMetadataList") => self.list(&response.json),
            Some("Table") => self.table(&response.json),
            _ if text.starts_with(r#"{"type":"#) => json!({"events": self.events(text)}),
            _ if response.json.is_null() => json!({"text": text}),
            _ => json!({"json": response.json}),
        };
        json!({"code": response.code, "type": media, "warnings": header("warning"), "body": body})
    }

    fn list(&mut self, list: &Value) -> Value {
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let names: Vec<Value> = items.iter().map(|pod| self.pod(pod)["metadata"]["name"].take()).collect();
        let metadata = &list["metadata"];
        json!({
            "kind": list["kind"],
            "apiVersion": list["apiVersion"],
            "items": names,
            "resourceVersion": metadata["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()),
            "continue": metadata["continue"].is_string(),
            "remainingItemCount": metadata["remainingItemCount"],
        })
    }

    /// The columns that both servers have, and the rows without ages.
    fn table(&mut self, table: &Value) -> Value {
        let common = |column: &Value| {
            !["Nominated Node", "Readiness Gates", "Source"].contains(&text(&column["name"]))
        };
        let columns = table["columnDefinitions"].as_array().map(|columns| {
            let columns = columns.iter().filter(|column| common(column));
            columns
                .map(|column| json!([column["name"], column["type"], column["format"], column["priority"]]))
                .collect::<Vec<_>>()
        });
        let rows = table["rows"].as_array().cloned().unwrap_or_default();
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| {
                let mut cells = row["cells"].as_array().cloned().unwrap_or_default();
                cells.truncate(7);
                let age = text(&cells[4]).to_owned();
                cells[4] = age
                    .trim_end_matches('s')
                    .parse::<u32>()
                    .map_or(age.clone(), |_| "some seconds".to_owned())
                    .into();
                let status = text(&cells[2]).replace("Wanted", "Pending");
                cells[2] = status.into();
                json!({"cells": cells, "object": self.pod(&row["object"]), "conditions": row["conditions"]})
            })
            .collect();
        let metadata = &table["metadata"];
        json!({
            "kind": table["kind"], "apiVersion": table["apiVersion"], "columns": columns, "rows": rows,
            "version": metadata["resourceVersion"].is_string(), "continue": metadata["continue"].is_string(),
            "remainingItemCount": metadata["remainingItemCount"],
        })
    }

    /// The events of a watch, without bookmarks that only the time makes.
    fn events(&mut self, text_of_all: &str) -> Vec<Value> {
        let mut events = Vec::new();
        for line in text_of_all.lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            let object = &event["object"];
            let is_mark = line.contains("k8s.io/initial-events-end");
            if event["type"] == "BOOKMARK" && !is_mark {
                continue;
            }
            let mut shape = match text(&object["kind"]) {
                "Status" => status(object),
                "Table" => self.table(object),
                _ => self.pod(object),
            };
            if is_mark {
                // Its version is of no pod.
                for path in ["/metadata/resourceVersion", "/rows/0/object/metadata/resourceVersion"] {
                    shape.pointer_mut(path).map(Value::take);
                }
            }
            events.push(json!({"type": event["type"], "object": shape}));
        }
        events
    }

    fn pod(&mut self, pod: &Value) -> Value {
        let mut pod = pod.clone();
        if let Some(metadata) = pod["metadata"].as_object_mut() {
            self.metadata(metadata);
        }
        if let Some(spec) = pod["spec"].as_object_mut() {
            without_admission(spec);
        }
        // podmux says that the agent runs no pods.
        let mut status = own_status(&pod);
        if let Some(status) = status.as_object_mut() {
            // The apiserver computes these from the spec.
            status.remove("qosClass");
            status.remove("observedGeneration");
            pod["status"] = status.clone().into();
        }
        pod
    }

    fn metadata(&mut self, metadata: &mut Map<String, Value>) {
        metadata.remove("managedFields");
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.retain(|key, _| !key.starts_with("kubernetes.io/config."));
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
        if let Some(Value::String(uid)) = metadata.get_mut("uid") {
            *uid = numbered(&mut self.uids, uid);
        }
        let uid = metadata.get("uid").cloned();
        if let Some(Value::String(version)) = metadata.get_mut("resourceVersion") {
            *version =
                numbered(self.versions.entry(uid.unwrap_or_default().to_string()).or_default(), version);
        }
        for field in ["creationTimestamp", "deletionTimestamp"] {
            if let Some(Value::String(time)) = metadata.get_mut(field) {
                *time = time_form(time).to_owned();
            }
        }
        let generated = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Some(Value::String(name)) = metadata.get_mut("name")
            && !generated.is_empty()
        {
            *name = generated_name(name, &generated);
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A generated name without its random letters, if it is one of this prefix.
fn generated_name(name: &str, prefix: &str) -> String {
    let random = name.get(name.len().saturating_sub(RANDOM_LETTERS)..).unwrap_or_default();
    let head = &name[..name.len() - random.len()];
    let lower = random.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if prefix.starts_with(head) && lower {
        return format!("{head}?????");
    }
    format!("{name}, which was not generated from {prefix}")
}

/// The number of a generated value, by the order of first use.
fn numbered(known: &mut Vec<String>, value: &str) -> String {
    let index = known.iter().position(|other| other == value).unwrap_or_else(|| {
        known.push(value.to_owned());
        known.len() - 1
    });
    format!("number {}", index + 1)
}

/// A placeholder for a time of the right form: whole seconds in UTC.
fn time_form(time: &str) -> &str {
    let whole = time.len() == "2026-01-02T03:04:05Z".len() && time.ends_with('Z');
    if whole && time.parse::<Timestamp>().is_ok() { "a time" } else { time }
}

/// Removes what the apiserver's admission adds to each pod: two tolerations and a priority.
fn without_admission(spec: &mut Map<String, Value>) {
    if let Some(Value::Array(tolerations)) = spec.get_mut("tolerations") {
        let added = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
        tolerations.retain(|toleration| !added.contains(&toleration["key"].as_str().unwrap_or_default()));
        if tolerations.is_empty() {
            spec.remove("tolerations");
        }
    }
    if spec.get("priority") == Some(&json!(0)) {
        spec.remove("priority");
    }
    if spec.get("preemptionPolicy") == Some(&json!("PreemptLowerPriority")) {
        spec.remove("preemptionPolicy");
    }
}

/// A `Status` without its texts, with its causes sorted.
fn status(status: &Value) -> Value {
    let details = &status["details"];
    let mut causes: Vec<(String, String)> = details["causes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|cause| {
            let text = |field: &str| cause[field].as_str().unwrap_or_default().to_owned();
            (text("field"), text("reason"))
        })
        .collect();
    causes.sort();
    causes.dedup();
    json!({
        "kind": "Status",
        "apiVersion": status["apiVersion"],
        "status": status["status"],
        "reason": status["reason"],
        "code": status["code"],
        "details": {
            "name": details["name"], "kind": details["kind"], "causes": causes,
            "retryAfterSeconds": details["retryAfterSeconds"],
        },
    })
}

/// A deliberate difference: the label, the difference and the reason. The difference is
/// podmux's code and reason (`409 Conflict`, without a reason if there is no `Status`), or
/// the differing fields if these are equal.
pub type Deliberate = (&'static str, &'static str, &'static str);

/// Fails unless the responses are equal but for the deliberate differences, which must exist.
pub fn compare(kubernetes: &Side, podmux: &Side, deliberate: &[Deliberate]) {
    let mut problems = String::new();
    for (theirs, ours) in kubernetes.exchanges.iter().zip(&podmux.exchanges) {
        assert_eq!(theirs.label, ours.label, "the two sides got different requests");
        let expected = deliberate.iter().find(|(label, ..)| *label == ours.label);
        let problem = match expected {
            None if theirs.shape != ours.shape => differences("", &theirs.shape, &ours.shape),
            Some(_) if theirs.shape == ours.shape => Some("the responses no longer differ".to_owned()),
            Some((_, what, why)) if *what != summary(&theirs.shape, &ours.shape) => {
                let how = differences("", &theirs.shape, &ours.shape).unwrap_or_default();
                let is = summary(&theirs.shape, &ours.shape);
                Some(format!("expected the difference {what:?} ({why}), found {is:?}:\n{how}"))
            }
            _ => None,
        };
        if let Some(problem) = problem {
            write!(
                problems,
                "### {}\n{}\n{problem}\n\nkube-apiserver: {}\n\npodmux: {}\n\n",
                ours.label, ours.request, theirs.raw, ours.raw
            )
            .unwrap();
        }
    }
    for (label, ..) in deliberate {
        assert!(
            podmux.exchanges.iter().any(|exchange| exchange.label == *label),
            "no request has the label {label:?}"
        );
    }
    assert_eq!(kubernetes.exchanges.len(), podmux.exchanges.len(), "one side got more requests");
    assert!(problems.is_empty(), "{problems}");
}

fn summary(theirs: &Value, ours: &Value) -> String {
    let response = |shape: &Value| {
        let reason = shape["body"]["reason"].as_str().unwrap_or_default();
        format!("{} {reason}", shape["code"]).trim_end().to_owned()
    };
    if response(theirs) != response(ours) {
        return response(ours);
    }
    let places = differences("", theirs, ours).unwrap_or_default();
    let places = places.lines().filter_map(|line| line.split('`').nth(1));
    places.map(|place| place.trim_start_matches(".body")).collect::<Vec<_>>().join(" ")
}

/// All fields in which two values differ.
fn differences(path: &str, theirs: &Value, ours: &Value) -> Option<String> {
    if theirs == ours {
        return None;
    }
    if let (Value::Object(theirs), Value::Object(ours)) = (theirs, ours) {
        let fields = theirs.keys().chain(ours.keys().filter(|key| !theirs.contains_key(*key)));
        let places: Vec<String> = fields
            .filter_map(|field| {
                let (theirs, ours) = (theirs.get(field), ours.get(field));
                let missing = Value::Null;
                differences(&format!("{path}.{field}"), theirs.unwrap_or(&missing), ours.unwrap_or(&missing))
            })
            .collect();
        return Some(places.join("\n"));
    }
    Some(format!("- `{path}`: {theirs} from kube-apiserver, {ours} from podmux"))
}
