//! The pod: its key, its prepared form, and its immutable state with the JSON text inside.

use std::{fmt, ops::Range, sync::Arc};

use jiff::Timestamp;
#[cfg(feature = "typed")]
use k8s_openapi::api::core::v1 as core;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    Digest, HostPort, NodeName, SourceName,
    digest::{append, canonical},
    identity,
};

/// A JSON object.
pub(crate) type Object = Map<String, Value>;

/// The annotation with the name of a pod's source.
pub const SOURCE: &str = "kubernetes.io/config.source";
/// The annotation with the time at which the source first published the pod.
pub const SEEN: &str = "kubernetes.io/config.seen";
/// The annotation of a mirror pod, which reflects a pod of another source.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// The key of a pod on a node: `namespace/name`, ordered as that text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey(Arc<str>);

impl PodKey {
    /// Makes the key of a namespace and a name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// `namespace/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A pod's UID; empty if the pod has none.
pub type Uid = Arc<str>;

/// Why a JSON text or value is not a pod.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// The text is not JSON.
    #[error("not JSON")]
    Json(#[source] serde_json::Error),
    /// The text is JSON, but not an object of `apiVersion: v1`, `kind: Pod`.
    #[error("not a v1 Pod")]
    NotAPod,
    /// A required field is missing or is not a string.
    #[error("{0}: must be a non-empty string")]
    Field(&'static str),
    /// A field does not fit the typed form of a pod.
    #[error("not a pod of the supported API version")]
    Typed(#[source] serde_json::Error),
}

/// A pod that is ready for a [`Listing`](super::Listing): a JSON object in canonical form (keys
/// sorted, no nulls, no managedFields) with a name, without the annotations of its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    object: Object,
    key: PodKey,
}

impl Prepared {
    /// Reads a `v1.Pod` from JSON text that podmux wrote. Unknown fields are kept, and
    /// fields are not checked for their type: use [`Prepared::from_server`] for
    /// the answers of an API server.
    ///
    /// # Errors
    /// If the text is not JSON, is not a Pod or has no name.
    pub fn from_json(text: &[u8]) -> Result<Self, PodError> {
        Self::from_value(serde_json::from_slice(text).map_err(PodError::Json)?)
    }

    /// Reads a `v1.Pod` from a JSON value. `apiVersion` and `kind` may be absent, as in
    /// the items of a PodList; an absent namespace becomes `default`.
    ///
    /// # Errors
    /// If the value is not a Pod or has no name.
    pub fn from_value(value: Value) -> Result<Self, PodError> {
        let Value::Object(mut object) = value else { return Err(PodError::NotAPod) };
        for (field, expected) in [("apiVersion", "v1"), ("kind", "Pod")] {
            match object.get(field) {
                None | Some(Value::Null) => drop(object.insert(field.to_owned(), expected.into())),
                Some(Value::String(text)) if text == expected => {}
                Some(_) => return Err(PodError::NotAPod),
            }
        }
        object.values_mut().for_each(drop_nulls);
        let Some(Value::Object(metadata)) = object.get_mut("metadata") else {
            return Err(PodError::Field("metadata.name"));
        };
        metadata.remove("managedFields");
        let name = match metadata.get("name") {
            Some(Value::String(name)) if !name.is_empty() => name.clone(),
            _ => return Err(PodError::Field("metadata.name")),
        };
        let namespace = match metadata.get("namespace") {
            Some(Value::String(namespace)) if !namespace.is_empty() => namespace.clone(),
            None | Some(Value::String(_)) => "default".to_owned(),
            Some(_) => return Err(PodError::Field("metadata.namespace")),
        };
        let key = PodKey::new(&namespace, &name);
        metadata.insert("namespace".to_owned(), namespace.into());
        Ok(Self { object, key })
    }

    /// Wraps an object that is already in canonical form, with the key of its metadata.
    pub(crate) fn from_canonical(object: Object, key: PodKey) -> Self {
        Self { object, key }
    }

    /// The pod's key.
    pub fn key(&self) -> &PodKey {
        &self.key
    }

    /// The pod's UID; empty if it has none.
    pub fn uid(&self) -> &str {
        self.object.get("metadata").and_then(|metadata| metadata.get("uid")?.as_str()).unwrap_or_default()
    }

    /// A field of the metadata.
    pub fn metadata(&self, field: &str) -> Option<&Value> {
        self.object.get("metadata")?.get(field)
    }

    /// The value of an annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata("annotations")?.get(name)?.as_str()
    }

    /// Sets or removes an annotation.
    pub fn set_annotation(&mut self, name: &str, value: Option<&str>) {
        let Some(Value::Object(metadata)) = self.object.get_mut("metadata") else { return };
        let annotations = metadata.entry("annotations").or_insert_with(|| Map::new().into());
        if let Value::Object(annotations) = annotations {
            set(annotations, name, value.map(Value::from));
        }
    }

    /// Sets the status to `phase: Pending`.
    pub fn reset_status(&mut self) {
        let status = Object::from_iter([("phase".to_owned(), "Pending".into())]);
        self.object.insert("status".to_owned(), status.into());
    }

    /// Binds the pod to a node: `spec.nodeName`.
    pub fn set_node(&mut self, node: &NodeName) {
        if let Some(Value::Object(spec)) = self.object.get_mut("spec") {
            spec.insert("nodeName".to_owned(), node.as_str().into());
        }
    }

    /// Sets or removes a field of the metadata.
    ///
    /// # Panics
    /// If it is the name or the namespace, which are the key.
    pub fn set_metadata(&mut self, field: &str, value: Option<Value>) {
        assert!(field != "name" && field != "namespace", "the key cannot be changed");
        if let Some(Value::Object(metadata)) = self.object.get_mut("metadata") {
            set(metadata, field, value);
        }
    }

    /// The pod as a JSON object, without the annotations of its source.
    pub fn object(&self) -> &Map<String, Value> {
        &self.object
    }

    /// The pod as published by a source that first published it at the time `seen`.
    #[must_use]
    pub fn published_by(self, source: SourceName, seen: Timestamp) -> Pod {
        self.into_pod(source, &seen.to_string())
    }

    /// Adds the annotations of the source. `seen` is RFC 3339 in UTC.
    pub(super) fn into_pod(mut self, source: SourceName, seen: &str) -> Pod {
        self.set_annotation(SOURCE, Some(source.annotation()));
        self.set_annotation(SEEN, Some(seen));
        Pod::freeze(&self.object, self.key, source)
    }
}

fn set(object: &mut Object, field: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(object.insert(field.to_owned(), value)),
        None => drop(object.remove(field)),
    }
}

/// Removes nulls: as in Go, a null field is an absent field.
pub(crate) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// One immutable state of a pod.
///
/// It holds the pod as canonical JSON text and the few fields that the merge reads. The
/// typed struct would need fourteen times the memory, and sinks only copy the text. Two
/// states are compared by their digests.
#[derive(Clone, PartialEq)]
pub struct Pod {
    key: PodKey,
    uid: Uid,
    has_derived_uid: bool,
    priority: i32,
    is_for_linux: bool,
    has_ended: bool,
    creation: Option<Box<str>>,
    deletion: Option<Box<str>>,
    grace: Option<i64>,
    seen: Option<Box<str>>,
    labels: Box<[(Box<str>, Box<str>)]>,
    host_ports: Box<[HostPort]>,
    digest: Digest,
    status_digest: Digest,
    text: Arc<[u8]>,
}

impl Pod {
    fn freeze(object: &Object, key: PodKey, source: SourceName) -> Self {
        let empty = Object::new();
        let part = |name| object.get(name).and_then(Value::as_object).unwrap_or(&empty);
        let (metadata, spec) = (part("metadata"), part("spec"));
        let map = |name| metadata.get(name).and_then(Value::as_object).unwrap_or(&empty);
        let field = |name| metadata.get(name).and_then(Value::as_str).map(Box::from);
        let (text, spec_range, status_range) = write(object);
        let phase = part("status").get("phase").and_then(Value::as_str);
        let has_ended = matches!(phase, Some("Succeeded" | "Failed"));
        let uid = metadata.get("uid").and_then(Value::as_str).unwrap_or_default();
        let node = spec.get("nodeName").and_then(Value::as_str).unwrap_or_default();
        let priority = spec.get("priority").and_then(|priority| priority.as_i64()?.try_into().ok());
        let system = spec.get("os").and_then(|os| os.get("name"));
        let derived = identity::uid(source, node, key.namespace(), key.name());
        let labels = metadata.get("labels").map(canonical).unwrap_or_default();
        let deletion: Option<Box<str>> = field("deletionTimestamp");
        let grace = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64);
        let ignored = [SOURCE, SEEN, MIRROR];
        let mut annotations = Vec::new();
        for annotation in map("annotations").iter().filter(|(name, _)| !ignored.contains(&name.as_str())) {
            append(&mut annotations, &annotation);
        }
        Self {
            uid: uid.into(),
            has_derived_uid: *derived.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == *uid,
            priority: priority.unwrap_or_default(),
            is_for_linux: system.is_none_or(|system| system == "linux"),
            has_ended,
            creation: field("creationTimestamp"),
            seen: map("annotations").get(SEEN).and_then(Value::as_str).map(Box::from),
            labels: map("labels")
                .iter()
                .filter_map(|(name, value)| Some((name.as_str().into(), value.as_str()?.into())))
                .collect(),
            digest: Digest::of(&[
                &text[spec_range],
                &labels,
                &annotations,
                deletion.as_deref().unwrap_or_default().as_bytes(),
                grace.map(|seconds| seconds.to_string()).unwrap_or_default().as_bytes(),
            ]),
            status_digest: Digest::of(&[&text[status_range]]),
            host_ports: if has_ended { Box::default() } else { HostPort::of(object) },
            deletion,
            grace,
            text: text.into(),
            key,
        }
    }

    /// `namespace/name`.
    pub fn key(&self) -> &PodKey {
        &self.key
    }

    /// The UID; empty if the pod has none.
    pub fn uid(&self) -> &Uid {
        &self.uid
    }

    /// Whether the UID is the one that podmux derives for the pod, and not one of a manifest or an API server.
    pub(crate) fn has_derived_uid(&self) -> bool {
        self.has_derived_uid
    }

    /// `spec.priority`, 0 if absent.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Whether it is for nodes with Linux: `spec.os.name` is absent or `linux`.
    pub fn is_for_linux(&self) -> bool {
        self.is_for_linux
    }

    /// Whether its own status says that it has ended: the phase is `Succeeded` or `Failed`. Only an API server says so.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether it is to run: it is not being deleted, and has not ended.
    pub fn is_to_run(&self) -> bool {
        self.deletion.is_none() && !self.has_ended
    }

    /// `metadata.creationTimestamp`, RFC 3339.
    pub fn creation_timestamp(&self) -> Option<&str> {
        self.creation.as_deref()
    }

    /// `metadata.deletionTimestamp`, RFC 3339; present while the pod is being deleted gracefully.
    pub fn deletion_timestamp(&self) -> Option<&str> {
        self.deletion.as_deref()
    }

    /// `metadata.deletionGracePeriodSeconds`.
    pub fn deletion_grace_period_seconds(&self) -> Option<i64> {
        self.grace
    }

    /// `metadata.labels`, sorted by name.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&self.labels[found].1)
    }

    /// The ports of the node that it wants, in order. One that has ended wants none.
    pub fn host_ports(&self) -> &[HostPort] {
        &self.host_ports
    }

    /// The digest of everything whose change is an UPDATE: spec, labels, annotations except
    /// `kubernetes.io/config.{source,seen,mirror}`, deletion time and deletion grace period.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The digest of the status.
    pub fn status_digest(&self) -> Digest {
        self.status_digest
    }

    /// The whole pod as canonical JSON: a `v1.Pod` with `apiVersion` and `kind`,
    /// keys sorted, no nulls, no managedFields.
    pub fn text(&self) -> &Arc<[u8]> {
        &self.text
    }

    /// Decodes the pod as k8s-openapi's typed struct, without fields that its API version
    /// does not have.
    ///
    /// # Errors
    /// If a field does not fit its type.
    #[cfg(feature = "typed")]
    pub fn typed(&self) -> Result<core::Pod, PodError> {
        serde_json::from_slice(&self.text).map_err(PodError::Typed)
    }

    /// `kubernetes.io/config.seen`: when the source first published the pod.
    pub(crate) fn seen(&self) -> Option<&str> {
        self.seen.as_deref()
    }
}

impl fmt::Debug for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.key, self.uid)
    }
}

/// Writes the object. Returns the text and the ranges of the spec and the status in it.
/// The range is empty if the field is absent or an empty object: the API's types do not
/// distinguish these.
fn write(object: &Object) -> (Vec<u8>, Range<usize>, Range<usize>) {
    let (mut text, mut spec, mut status) = (Vec::with_capacity(4096), 0..0, 0..0);
    for (name, value) in object {
        text.push(if text.is_empty() { b'{' } else { b',' });
        append(&mut text, name);
        text.push(b':');
        let begin = text.len();
        append(&mut text, value);
        let full = value.as_object().is_some_and(|map| !map.is_empty());
        match name.as_str() {
            "spec" if full => spec = begin..text.len(),
            "status" if full => status = begin..text.len(),
            _ => {}
        }
    }
    text.push(b'}');
    (text, spec, status)
}
