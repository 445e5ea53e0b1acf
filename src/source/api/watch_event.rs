//! Decodes the events of a watch and the items of a list.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::reflector::Version;
use crate::{
    error_chain::chain,
    pod::{PodKey, Prepared},
};

/// The annotation of the bookmark that ends the initial events of a `WatchList`.
pub(super) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// An object of the server.
#[derive(Debug)]
pub(super) enum Object {
    /// A pod.
    Pod(Box<Prepared>),
    /// An object that should be a pod and cannot be decoded. The UID is empty if it cannot be read.
    Undecodable { key: Option<PodKey>, uid: String, why: String },
}

impl Object {
    /// The key, if it can be read.
    pub(super) fn key(&self) -> Option<&PodKey> {
        match self {
            Self::Pod(pod) => Some(pod.key()),
            Self::Undecodable { key, .. } => key.as_ref(),
        }
    }

    /// The UID; empty if it cannot be read.
    pub(super) fn uid(&self) -> &str {
        match self {
            Self::Pod(pod) => pod.uid(),
            Self::Undecodable { uid, .. } => uid,
        }
    }
}

/// An event of a watch.
#[derive(Debug)]
pub(super) enum WatchEvent {
    /// A pod was added or changed; with the object's resource version, if it can be read.
    Changed(Object, Option<Version>),
    /// A pod was deleted.
    Deleted(Option<PodKey>, Option<Version>),
    /// Nothing else has happened up to this version.
    Bookmark { version: Version, ends_initial_events: bool },
    /// The JSON of a `Status`.
    Error(Vec<u8>),
    /// An event of a type that a later API defines.
    Unknown(String),
}

#[derive(Deserialize)]
struct EventText<'t> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'t, str>,
    #[serde(borrow)]
    object: &'t RawValue,
}

/// What is read of an object that may not be decodable.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectOutline {
    metadata: Value,
}

fn metadata(text: &str) -> Value {
    serde_json::from_str::<ObjectOutline>(text).unwrap_or_default().metadata
}

/// The resource version in the metadata of an object, if it can be read.
fn version_of(metadata: &Value) -> Option<Version> {
    metadata["resourceVersion"].as_str().filter(|version| !version.is_empty()).map(Version::from)
}

impl WatchEvent {
    /// Decodes one event.
    ///
    /// # Errors
    /// If the text is not an event of a watch, so that what follows cannot be trusted.
    pub(super) fn decode(text: &str) -> Result<Self, String> {
        let EventText { kind, object } = serde_json::from_str(text)
            .map_err(|error| format!("not an event of a watch: {}", chain(&error)))?;
        let object = object.get();
        match &*kind {
            "ADDED" | "MODIFIED" => {
                let (object, version) = decode_object(object);
                Ok(Self::Changed(object, version))
            }
            "DELETED" => {
                let (object, version) = decode_object(object);
                Ok(Self::Deleted(object.key().cloned(), version))
            }
            "BOOKMARK" => {
                let metadata = metadata(object);
                let ends_initial_events = metadata["annotations"][INITIAL_EVENTS_END] == "true";
                let version = version_of(&metadata).ok_or("a bookmark without a resourceVersion")?;
                Ok(Self::Bookmark { version, ends_initial_events })
            }
            "ERROR" => Ok(Self::Error(object.as_bytes().to_vec())),
            kind => Ok(Self::Unknown(kind.to_owned())),
        }
    }
}

/// Decodes an item of a list, or the object of an event.
pub(super) fn decode_object(text: &str) -> (Object, Option<Version>) {
    match Prepared::from_server(text.as_bytes()) {
        Ok(pod) => {
            let version = pod.object().get("metadata").and_then(version_of);
            (Object::Pod(Box::new(pod)), version)
        }
        Err(error) => {
            let (why, metadata) = (error.problem.to_string(), metadata(text));
            let uid = metadata["uid"].as_str().unwrap_or_default().to_owned();
            (Object::Undecodable { key: error.key, uid, why }, version_of(&metadata))
        }
    }
}
