//! The pod as the heart sees it: small, immutable, its JSON text inside.

use std::{fmt, ops::Range, sync::Arc};

use jiff::Timestamp;
#[cfg(feature = "typed")]
use k8s_openapi::api::core::v1 as core;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Digest, NodeName, SourceName};

/// The annotation that says which source a pod is of.
pub const SOURCE: &str = "kubernetes.io/config.source";
/// The annotation that says when its source first saw a pod.
pub const SEEN: &str = "kubernetes.io/config.seen";
/// The annotation of a pod that only mirrors one of another source.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// `namespace/name`, the key of a pod on a node. Ordered as that text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey(Arc<str>);

impl PodKey {
    /// The key of a pod in a namespace.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// `namespace/name`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A pod's UID. Empty if it has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Arc<str>);

impl Uid {
    /// The UID as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pod has no UID.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Why a JSON object cannot be a pod.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// The text is not JSON.
    #[error("not JSON")]
    Json(#[source] serde_json::Error),
    /// The text is JSON, but not an object of `apiVersion: v1`, `kind: Pod`.
    #[error("not a v1 Pod")]
    NotAPod,
    /// A field that must be there is not, or is of another type.
    #[error("{0}: a text is required")]
    Field(&'static str),
    /// The typed form was asked for, and a field does not fit it.
    #[error("not a pod of the API version that this program knows")]
    Typed(#[source] serde_json::Error),
}

/// A pod on its way into a [`Listing`](super::Listing): a JSON object in canonical form (keys
/// sorted, no nulls, no managedFields), named, but not yet stamped with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    object: Map<String, Value>,
    key: PodKey,
}

impl Prepared {
    /// Takes a `v1.Pod` as JSON text, as this program wrote it. Fields that it
    /// does not know are kept. No field's type is looked at: what an API server
    /// gives is read with [`Prepared::from_server`].
    ///
    /// # Errors
    /// If the text is not JSON, is no Pod or has no name.
    pub fn from_json(text: &[u8]) -> Result<Self, PodError> {
        Self::from_value(serde_json::from_slice(text).map_err(PodError::Json)?)
    }

    /// Takes a `v1.Pod` as a JSON value. `apiVersion` and `kind` may be absent,
    /// as they are in the items of a PodList; a namespace that is absent is `default`.
    ///
    /// # Errors
    /// If it is no Pod or has no name.
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

    /// Takes an object that is in canonical form already, under the key of its metadata.
    pub(crate) fn from_canonical(object: Map<String, Value>, key: PodKey) -> Self {
        Self { object, key }
    }

    /// The pod's key.
    #[must_use]
    pub fn key(&self) -> &PodKey {
        &self.key
    }

    /// The pod's UID; empty if it has none.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.object.get("metadata").and_then(|metadata| metadata.get("uid")?.as_str()).unwrap_or_default()
    }

    /// A field of the metadata.
    #[must_use]
    pub fn metadata(&self, field: &str) -> Option<&Value> {
        self.object.get("metadata")?.get(field)
    }

    /// The value of an annotation.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata("annotations")?.get(name)?.as_str()
    }

    /// Sets an annotation, or takes it away.
    pub fn set_annotation(&mut self, name: &str, value: Option<&str>) {
        let Some(Value::Object(metadata)) = self.object.get_mut("metadata") else { return };
        let annotations = metadata.entry("annotations").or_insert_with(|| Map::new().into());
        if let Value::Object(annotations) = annotations {
            match value {
                Some(value) => drop(annotations.insert(name.to_owned(), value.into())),
                None => drop(annotations.remove(name)),
            }
        }
    }

    /// Sets the status to that of a pod that nobody has begun to run.
    pub fn reset_status(&mut self) {
        let status = Map::from_iter([("phase".to_owned(), "Pending".into())]);
        self.object.insert("status".to_owned(), status.into());
    }

    /// Binds the pod to a node: `spec.nodeName`.
    pub fn set_node(&mut self, node: &NodeName) {
        if let Some(Value::Object(spec)) = self.object.get_mut("spec") {
            spec.insert("nodeName".to_owned(), node.as_str().into());
        }
    }

    /// Sets a field of the metadata, or takes it away. Not for its name
    /// and namespace: they are the key.
    pub fn set_metadata(&mut self, field: &str, value: Option<Value>) {
        debug_assert!(field != "name" && field != "namespace", "the key stays");
        if let Some(Value::Object(metadata)) = self.object.get_mut("metadata") {
            match value {
                Some(value) => drop(metadata.insert(field.to_owned(), value)),
                None => drop(metadata.remove(field)),
            }
        }
    }

    /// The pod as a JSON object, without the source's marks.
    #[must_use]
    pub fn object(&self) -> &Map<String, Value> {
        &self.object
    }

    /// The pod as a source tells it that saw it first at this time.
    #[must_use]
    pub fn told_by(&self, source: SourceName, seen: Timestamp) -> Pod {
        self.clone().stamp(source, &seen_now(seen))
    }

    /// Puts the source's marks in and freezes the pod.
    pub(super) fn stamp(mut self, source: SourceName, seen: &str) -> Pod {
        if let Some(Value::Object(metadata)) = self.object.get_mut("metadata") {
            let annotations = metadata.entry("annotations").or_insert_with(|| Map::new().into());
            if let Value::Object(annotations) = annotations {
                annotations.insert(SOURCE.to_owned(), source.annotation().into());
                annotations.insert(SEEN.to_owned(), seen.into());
            }
        }
        Pod::freeze(&self.object, self.key)
    }
}

/// In Go a JSON null is the absent value; so it is here.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// One state of a pod, immutable.
///
/// It holds the pod as one canonical JSON text and beside it the few fields
/// that the heart reads, so that a sink copies the text and nobody carries the
/// fourteen times larger typed struct. Two states are compared by two digests.
#[derive(Clone, PartialEq)]
pub struct Pod {
    key: PodKey,
    uid: Uid,
    priority: i32,
    creation: Option<Box<str>>,
    deletion: Option<Box<str>>,
    grace: Option<i64>,
    seen: Option<Box<str>>,
    labels: Box<[(Box<str>, Box<str>)]>,
    digest: Digest,
    status_digest: Digest,
    text: Arc<[u8]>,
}

impl Pod {
    /// Reads a pod back from a text that [`Pod::text`] gave.
    ///
    /// # Errors
    /// If the text is no such text.
    pub fn from_text(text: &[u8]) -> Result<Self, PodError> {
        let prepared = Prepared::from_json(text)?;
        Ok(Self::freeze(&prepared.object, prepared.key))
    }

    fn freeze(object: &Map<String, Value>, key: PodKey) -> Self {
        let empty = Map::new();
        let metadata = object.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
        let map = |name| metadata.get(name).and_then(Value::as_object).unwrap_or(&empty);
        let field = |name| metadata.get(name).and_then(Value::as_str).map(Box::from);
        let (text, spec, status) = write(object);
        let labels = metadata.get("labels").map(canonical).unwrap_or_default();
        let deletion: Option<Box<str>> = field("deletionTimestamp");
        let grace = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64);
        let marks = [SOURCE, SEEN, MIRROR];
        let mut annotations = Vec::new();
        for annotation in map("annotations").iter().filter(|(name, _)| !marks.contains(&name.as_str())) {
            append(&mut annotations, &annotation);
        }
        Self {
            uid: metadata.get("uid").and_then(Value::as_str).unwrap_or_default().into(),
            priority: object
                .get("spec")
                .and_then(|spec| spec.get("priority")?.as_i64()?.try_into().ok())
                .unwrap_or_default(),
            creation: field("creationTimestamp"),
            seen: map("annotations").get(SEEN).and_then(Value::as_str).map(Box::from),
            labels: map("labels")
                .iter()
                .filter_map(|(name, value)| Some((name.as_str().into(), value.as_str()?.into())))
                .collect(),
            digest: Digest::of(&[
                &text[spec],
                &labels,
                &annotations,
                deletion.as_deref().unwrap_or_default().as_bytes(),
                grace.map(|seconds| seconds.to_string()).unwrap_or_default().as_bytes(),
            ]),
            status_digest: Digest::of(&[&text[status]]),
            deletion,
            grace,
            text: text.into(),
            key,
        }
    }

    /// `namespace/name`.
    #[must_use]
    pub fn key(&self) -> &PodKey {
        &self.key
    }

    /// The UID; empty if the pod has none.
    #[must_use]
    pub fn uid(&self) -> &Uid {
        &self.uid
    }

    /// `spec.priority`, 0 if absent.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// `metadata.creationTimestamp`, RFC 3339.
    #[must_use]
    pub fn creation_timestamp(&self) -> Option<&str> {
        self.creation.as_deref()
    }

    /// `metadata.deletionTimestamp`, RFC 3339: there if the pod is being deleted gracefully.
    #[must_use]
    pub fn deletion_timestamp(&self) -> Option<&str> {
        self.deletion.as_deref()
    }

    /// `metadata.deletionGracePeriodSeconds`.
    #[must_use]
    pub fn deletion_grace_period_seconds(&self) -> Option<i64> {
        self.grace
    }

    /// `metadata.labels`, sorted by name.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The digest of all that makes an UPDATE: spec, labels, annotations but for
    /// `kubernetes.io/config.{source,seen,mirror}`, deletion time and grace.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The digest of the status.
    #[must_use]
    pub fn status_digest(&self) -> Digest {
        self.status_digest
    }

    /// The whole pod as canonical JSON: a `v1.Pod` with `apiVersion` and `kind`,
    /// keys sorted, no nulls, no managedFields.
    #[must_use]
    pub fn text(&self) -> &Arc<[u8]> {
        &self.text
    }

    /// The value of an annotation.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<String> {
        let mut value: Value = serde_json::from_slice(&self.text).ok()?;
        match value.pointer_mut("/metadata/annotations")?.get_mut(name)?.take() {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The pod as k8s-openapi's typed struct. Made on each call, and large:
    /// fields that its API version does not know are lost.
    ///
    /// # Errors
    /// If a field does not fit its type.
    #[cfg(feature = "typed")]
    pub fn typed(&self) -> Result<core::Pod, PodError> {
        serde_json::from_slice(&self.text).map_err(PodError::Typed)
    }

    /// When the pod was first seen by its source: `kubernetes.io/config.seen`.
    pub(super) fn seen(&self) -> Option<&str> {
        self.seen.as_deref()
    }
}

impl fmt::Debug for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.key, self.uid)
    }
}

/// A JSON value as canonical text.
pub(super) fn canonical(value: &impl Serialize) -> Vec<u8> {
    let mut text = Vec::new();
    append(&mut text, value);
    text
}

fn append(text: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // Writing to memory cannot fail: the keys are texts and the numbers finite.
    let _ = serde_json::to_writer(text, value);
}

/// Writes the object once and says where in the text its spec and its status
/// stand (an empty range if they are absent or an empty object: the API's types
/// do not tell these apart).
fn write(object: &Map<String, Value>) -> (Vec<u8>, Range<usize>, Range<usize>) {
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

/// How `kubernetes.io/config.seen` is written: RFC 3339 in UTC, nanoseconds as far as they are there.
pub(super) fn seen_now(now: Timestamp) -> String {
    now.to_string()
}
