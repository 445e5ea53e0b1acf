//! A `v1.Event`, and what it says. Pure.

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::{
    history::Journaled,
    pod::{NodeName, PodKey},
    storage::Merged,
};

/// The component that reports events.
const COMPONENT: &str = "podmux";
/// The longest message in bytes, as the API bounds the note of an event.
const MAX_MESSAGE: usize = 1024;
/// The longest name of an object.
const MAX_NAME: usize = 253;

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Involved {
    /// `Pod` or `Node`.
    pub kind: &'static str,
    /// The namespace of a pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The UID, if it is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    api_version: &'static str,
    /// The container, such as `spec.containers{web}`, if it is about one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

impl Involved {
    /// A pod. The UID may be empty.
    pub fn pod(key: &PodKey, uid: &str) -> Self {
        Self::new("Pod", key.namespace(), key.name(), uid)
    }

    /// The pod that is read under a key, so that clients find the event with the pod.
    pub(super) fn merged(merged: &Merged, key: &PodKey) -> Self {
        Self::pod(key, merged.get(key).map_or("", |entry| entry.pod().uid()))
    }

    /// The node, whose UID is its name, as for the kubelet.
    pub fn node(node: &NodeName) -> Self {
        Self::new("Node", "", node.as_str(), node.as_str())
    }

    fn new(kind: &'static str, namespace: &str, name: &str, uid: &str) -> Self {
        let [namespace, name, uid] = [namespace, name, uid].map(str::to_owned);
        Self { kind, namespace, name, uid, api_version: "v1", field_path: String::new() }
    }

    /// A container in a list of the pod's spec.
    #[must_use]
    pub fn container(self, list: &str, name: &str) -> Self {
        Self { field_path: format!("spec.{list}{{{name}}}"), ..self }
    }
}

/// Something that has happened, and that an event reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What it is about.
    pub involved: Involved,
    /// Whether it is a warning.
    pub is_warning: bool,
    /// One word for programs.
    pub reason: String,
    /// What has happened, for people.
    pub message: String,
}

impl Fact {
    /// A fact. A message that is too long is cut.
    pub fn new(involved: Involved, is_warning: bool, reason: &str, mut message: String) -> Self {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Self { involved, is_warning, reason: reason.to_owned(), message }
    }

    pub(super) fn kind(&self) -> &'static str {
        if self.is_warning { "Warning" } else { "Normal" }
    }
}

/// How often and since when something was observed, and the event that reports it.
#[derive(Clone, Debug, Default)]
pub(super) struct Observation {
    pub(super) name: String,
    pub(super) first: Timestamp,
    pub(super) count: u32,
}

/// A `v1.Event`.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub struct Event {
    api_version: &'static str,
    metadata: Metadata,
    involved_object: Involved,
    /// One word for programs.
    reason: String,
    /// What has happened, for people.
    message: String,
    source: EventSource,
    #[serde(serialize_with = "seconds")]
    first_timestamp: Timestamp,
    #[serde(serialize_with = "seconds")]
    last_timestamp: Timestamp,
    count: u32,
    r#type: &'static str,
    /// Always null: the API's newer form of events has it.
    #[serde(rename = "eventTime")]
    at: (),
    reporting_component: &'static str,
    reporting_instance: String,
    #[serde(skip)]
    key: PodKey,
    #[serde(skip)]
    number: u64,
    #[serde(skip)]
    size: usize,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    #[serde(serialize_with = "seconds")]
    creation_timestamp: Timestamp,
}

#[derive(Clone, Debug, Serialize)]
struct EventSource {
    component: &'static str,
    host: String,
}

impl Event {
    /// The event of a fact that is observed now, with this number.
    pub(super) fn new(
        node: &NodeName,
        fact: Fact,
        observation: Observation,
        now: Timestamp,
        number: u64,
    ) -> Self {
        let Observation { name, first, count } = observation;
        let kind = fact.kind();
        let host = node.as_str().to_owned();
        // Events of objects without a namespace are in this one.
        let namespace = if fact.involved.namespace.is_empty() { "default" } else { &fact.involved.namespace };
        let key = PodKey::new(namespace, &name);
        let uid = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{host}/{key}").as_bytes()).to_string();
        let metadata = Metadata {
            name,
            namespace: namespace.to_owned(),
            uid,
            resource_version: number.to_string(),
            creation_timestamp: first,
        };
        let Fact { involved, reason, message, .. } = fact;
        let mut event = Self {
            api_version: "v1",
            metadata,
            involved_object: involved,
            reason,
            message,
            source: EventSource { component: COMPONENT, host: host.clone() },
            first_timestamp: first,
            last_timestamp: now,
            count,
            r#type: kind,
            at: (),
            reporting_component: COMPONENT,
            reporting_instance: host,
            key,
            number,
            size: 0,
        };
        event.size = event.to_json().len();
        event
    }

    /// The event at another version: that of its removal.
    #[must_use]
    pub fn at_version(&self, version: u64) -> Self {
        let metadata = Metadata { resource_version: version.to_string(), ..self.metadata.clone() };
        Self { metadata, ..self.clone() }
    }

    /// The object as JSON.
    pub fn to_json(&self) -> String {
        // Writing texts and numbers to memory cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Its metadata as JSON.
    pub fn metadata_json(&self) -> String {
        serde_json::to_string(&self.metadata).unwrap_or_default()
    }

    /// The value of a field for selectors; empty if it is absent.
    pub fn field(&self, name: &str) -> &str {
        let involved = &self.involved_object;
        match name {
            "involvedObject.kind" => involved.kind,
            "involvedObject.namespace" => &involved.namespace,
            "involvedObject.name" => &involved.name,
            "involvedObject.uid" => &involved.uid,
            "involvedObject.apiVersion" => involved.api_version,
            "involvedObject.fieldPath" => &involved.field_path,
            "reason" => &self.reason,
            "reportingComponent" | "source" => self.reporting_component,
            "type" => self.r#type,
            "metadata.name" => self.key.name(),
            "metadata.namespace" => self.key.namespace(),
            _ => "",
        }
    }

    /// Its namespace and name.
    pub fn key(&self) -> &PodKey {
        &self.key
    }

    /// The number of its last change: its resourceVersion.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Journaled for std::sync::Arc<Event> {
    fn size(&self) -> usize {
        self.size
    }
}

/// The name of the first event of a fact, made of the name of the object and a number, as client-go makes it.
pub(super) fn event_name(involved: &Involved, number: u64) -> String {
    let name = format!("{}.{number:x}", involved.name);
    if name.len() > MAX_NAME { format!("{number:x}") } else { name }
}

fn seconds<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.0}"))
}
