//! Decodes the events of a watch and the items of a list in protobuf.

use super::{
    reflector::Version,
    watch_event::{INITIAL_EVENTS_END, Object, WatchEvent},
};
use crate::{
    manifest::protobuf::{self, Envelope, Fields, WireValue},
    pod::{PodKey, Prepared},
};

/// What is read of the metadata of an object that may not be decodable.
#[derive(Default)]
struct Outline {
    name: String,
    namespace: String,
    uid: String,
    version: String,
    ends_initial_events: bool,
}

impl Outline {
    /// Reads the metadata of a pod's message, as far as it is valid.
    fn of(pod: &[u8]) -> Self {
        let mut outline = Self::default();
        for metadata in texts(pod).filter(|(number, _)| *number == 1).map(|(_, value)| value) {
            for (number, value) in texts(metadata) {
                let text = || String::from_utf8_lossy(value).into_owned();
                match number {
                    1 => outline.name = text(),
                    3 => outline.namespace = text(),
                    5 => outline.uid = text(),
                    6 => outline.version = text(),
                    12 => {
                        let mut entry = texts(value);
                        let is_mark = entry.next() == Some((1, INITIAL_EVENTS_END.as_bytes()));
                        outline.ends_initial_events |= is_mark && entry.next() == Some((2, b"true"));
                    }
                    _ => {}
                }
            }
        }
        outline
    }

    fn key(&self) -> Option<PodKey> {
        let namespace = if self.namespace.is_empty() { "default" } else { &self.namespace };
        (!self.name.is_empty()).then(|| PodKey::new(namespace, &self.name))
    }

    fn undecodable(self, why: String) -> Object {
        Object::Undecodable { key: self.key(), uid: self.uid, why }
    }

    fn version(&self) -> Option<Version> {
        (!self.version.is_empty()).then(|| Version::from(self.version.as_str()))
    }
}

/// The fields of a message that are texts or messages, up to the first broken one.
fn texts(message: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    Fields::new(message).map_while(Result::ok).filter_map(|(number, value)| match value {
        WireValue::Bytes(bytes) => Some((number, bytes)),
        _ => None,
    })
}

/// Decodes the message of a pod.
pub(super) fn decode_pod(message: &[u8]) -> (Object, Option<Version>) {
    let outline = Outline::of(message);
    let version = outline.version();
    let object = match Prepared::from_server_protobuf(message) {
        Ok(pod) => Object::Pod(Box::new(pod)),
        Err(error) => outline.undecodable(error.problem.to_string()),
    };
    (object, version)
}

/// Decodes the object of an event, which should be a pod.
fn decode_object(envelope: &Envelope<'_>) -> (Object, Option<Version>) {
    if !matches!((&*envelope.api_version, &*envelope.kind), ("v1" | "", "Pod" | "")) {
        let Envelope { api_version, kind, message } = envelope;
        let outline = Outline::of(message);
        let version = outline.version();
        let why = format!("{api_version:?} {kind:?} is given; \"v1\" \"Pod\" is expected");
        return (outline.undecodable(why), version);
    }
    decode_pod(envelope.message)
}

/// Decodes one event.
///
/// # Errors
/// If the message is not an event of a watch, so that what follows cannot be trusted.
pub(super) fn decode(message: &[u8]) -> Result<WatchEvent, String> {
    let malformed = |why: String| format!("not an event of a watch: {why}");
    let event = protobuf::WatchEvent::read(message).map_err(|error| malformed(error.to_string()))?;
    let envelope = Envelope::open(event.object).map_err(|error| malformed(error.to_string()));
    match &*event.kind {
        "ADDED" | "MODIFIED" => {
            let (object, version) = decode_object(&envelope?);
            Ok(WatchEvent::Changed(object, version))
        }
        "DELETED" => {
            let (object, version) = decode_object(&envelope?);
            Ok(WatchEvent::Deleted(object.key().cloned(), version))
        }
        "BOOKMARK" => {
            let outline = Outline::of(envelope?.message);
            let version = outline.version().ok_or("a bookmark without a resourceVersion")?;
            Ok(WatchEvent::Bookmark { version, ends_initial_events: outline.ends_initial_events })
        }
        "ERROR" => {
            envelope?;
            let status = protobuf::decode(event.object, "Status").unwrap_or_default();
            Ok(WatchEvent::Error(status.to_string().into_bytes()))
        }
        "" => Err(malformed("it has no type".to_owned())),
        kind => Ok(WatchEvent::Unknown(kind.to_owned())),
    }
}
