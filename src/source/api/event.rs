//! What a watch's events and a list's items say.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{reflector::Version, store::Object};
use crate::{
    error_chain::chain,
    pod::{PodKey, Prepared},
};

/// The annotation of the bookmark after which a `WatchList` has told everything.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// An event of a watch.
#[derive(Debug)]
pub(super) enum Event<'t> {
    /// A pod is there, or is another now; and the version of this moment, if it can be read.
    Changed(Object, Option<Version>),
    /// A pod is gone.
    Deleted(Option<PodKey>, Option<Version>),
    /// Nothing happened up to this version.
    Bookmark { version: Version, ends_initial_events: bool },
    /// The text of a `Status`.
    Error(&'t [u8]),
    /// Of a type that a later API has.
    Unknown(String),
}

#[derive(Deserialize)]
struct Wire<'t> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'t, str>,
    #[serde(borrow)]
    object: &'t RawValue,
}

/// Of an object that cannot be decoded, what may still be read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Outline {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Loose,
    namespace: Loose,
    resource_version: Loose,
    annotations: serde_json::Value,
}

/// A text, or something else that does not matter.
#[derive(Default)]
struct Loose(String);

impl<'de> Deserialize<'de> for Loose {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(from)?;
        Ok(Self(value.as_str().unwrap_or_default().to_owned()))
    }
}

impl Metadata {
    fn of(text: &str) -> Self {
        serde_json::from_str::<Outline>(text).unwrap_or_default().metadata
    }

    fn key(&self) -> Option<PodKey> {
        let Self { name, namespace, .. } = self;
        (!name.0.is_empty() && !namespace.0.is_empty()).then(|| PodKey::new(&namespace.0, &name.0))
    }

    fn version(&self) -> Option<Version> {
        (!self.resource_version.0.is_empty()).then(|| self.resource_version.0.as_str().into())
    }
}

impl<'t> Event<'t> {
    /// Reads one event.
    ///
    /// # Errors
    /// If this is no event of a watch, so that nothing after it can be trusted either.
    pub(super) fn read(text: &'t str) -> Result<Self, String> {
        let wire = serde_json::from_str(text);
        let Wire { kind, object } =
            wire.map_err(|error| format!("no event of a watch: {}", chain(&error)))?;
        let object = object.get();
        match &*kind {
            "ADDED" | "MODIFIED" => {
                let (object, version) = read_object(object);
                Ok(Self::Changed(object, version))
            }
            "DELETED" => {
                let metadata = Metadata::of(object);
                Ok(Self::Deleted(metadata.key(), metadata.version()))
            }
            "BOOKMARK" => {
                let metadata = Metadata::of(object);
                let ends_initial_events = metadata.annotations[INITIAL_EVENTS_END] == "true";
                let version = metadata.version().ok_or("a bookmark without a resourceVersion")?;
                Ok(Self::Bookmark { version, ends_initial_events })
            }
            "ERROR" => Ok(Self::Error(object.as_bytes())),
            kind => Ok(Self::Unknown(kind.to_owned())),
        }
    }
}

/// An item of a list, or the object of an event: a pod, or why it is none.
pub(super) fn read_object(text: &str) -> (Object, Option<Version>) {
    match Prepared::from_server(text.as_bytes()) {
        Ok(pod) => {
            let version =
                pod.metadata("resourceVersion").and_then(|version| version.as_str()).map(Version::from);
            (Object::Pod(Box::new(pod)), version)
        }
        Err(error) => {
            let why = error.problem.to_string();
            (Object::Bad { key: error.key, why }, Metadata::of(text).version())
        }
    }
}
