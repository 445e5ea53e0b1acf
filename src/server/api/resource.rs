//! The resources that clients list, get and watch: how an object of each is read, selected and shown in tables.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json, value::RawValue};

use crate::{
    age::age,
    events::Event,
    history::{Journaled, SeenPod},
    pod::{Pod, PodKey, SourceName},
    pod_columns::{PodColumns, text},
    server::overlay::Edits,
};

/// What selectors read of an object.
pub(crate) trait Selectable {
    /// The value of a label.
    fn label(&self, key: &str) -> Option<&str>;
    /// The value of a field that its resource has for selectors; empty if it is absent.
    fn field(&self, name: &str) -> String;
}

/// A column of a table: name, format, priority and description. Those with a priority above 0 are for wide tables.
pub(crate) type Column = (&'static str, &'static str, u8, &'static str);

/// The field of a pod with the name of its source, for selectors.
const SOURCE_FIELD: &str = "podmux.dev/source";

/// How an object is read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// Whether the agent runs pods.
    pub(crate) has_runtime: bool,
    /// The `resourceVersion`, unless the object has it.
    pub(crate) version: Option<u64>,
    pub(crate) now: Timestamp,
}

/// An object of a resource.
pub(crate) trait Resource: Journaled + Selectable {
    /// The kind.
    const KIND: &'static str;
    /// The columns of a table.
    const COLUMNS: &'static [Column];
    /// Whether it is answered in protobuf, too.
    const HAS_PROTOBUF: bool;
    /// The fields for selectors.
    const FIELDS: &'static [&'static str];

    /// The namespace and the name.
    fn key(&self) -> &PodKey;
    /// The `resourceVersion` that the object has by itself, or 0.
    fn version(&self) -> u64;
    /// The object as JSON, in pieces.
    fn text(&self, reading: Reading) -> Vec<Bytes>;
    /// Its metadata as JSON, in pieces.
    fn metadata(&self, reading: Reading) -> Vec<Bytes>;
    /// An object without a value, for bookmarks.
    fn empty() -> Value;
    /// The cells of a row. A bookmark's row is of no object.
    fn cells(text: &Value, object: Option<&Self>, now: Timestamp) -> Vec<Value>;
    /// The field `conditions` of a row, with a comma after it, if there is one.
    fn conditions(_text: &Value) -> String {
        String::new()
    }
}

/// A field such as `status.podIP` of an observed status.
fn observed_field(observed: Option<&Value>, name: &str) -> Option<String> {
    let value = observed?.get(name.strip_prefix("status.")?)?;
    Some(value.as_str().unwrap_or_default().to_owned())
}

/// A field such as `spec.nodeName` of a pod's text.
fn field(pod: &Pod, name: &str) -> Option<String> {
    type Fields<'t> = BTreeMap<String, &'t RawValue>;
    let (part, name) = name.split_once('.')?;
    let parts: Fields<'_> = serde_json::from_slice(pod.text()).ok()?;
    let fields: Fields<'_> = serde_json::from_str(parts.get(part)?.get()).ok()?;
    match serde_json::from_str(fields.get(name)?.get()).ok()? {
        Value::String(text) => Some(text),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

impl Selectable for SeenPod {
    fn label(&self, key: &str) -> Option<&str> {
        self.entry.pod().label(key)
    }

    fn field(&self, name: &str) -> String {
        let pod = self.entry.pod();
        match name {
            "metadata.name" => pod.key().name().to_owned(),
            "metadata.namespace" => pod.key().namespace().to_owned(),
            SOURCE_FIELD => self.entry.source().as_str().to_owned(),
            "spec.host" => self.field("spec.nodeName"),
            name => {
                let observed = observed_field(self.status.as_deref(), name);
                observed.or_else(|| field(pod, name)).unwrap_or_else(|| match name {
                    "spec.hostNetwork" => "false".to_owned(),
                    _ => String::new(),
                })
            }
        }
    }
}

impl Resource for SeenPod {
    const KIND: &'static str = "Pod";
    const HAS_PROTOBUF: bool = true;
    const COLUMNS: &'static [Column] = &[
        ("Name", "name", 0, "The name of the pod, unique in its namespace."),
        ("Ready", "", 0, "How many containers are ready, and how many there are."),
        ("Status", "", 0, "What happens to the pod: its phase, or the reason for it."),
        ("Restarts", "", 0, "How often containers were restarted, and when last."),
        (
            "Age",
            "",
            0,
            "The time since the pod was created, or since its source published it for the first time.",
        ),
        ("IP", "", 1, "The address of the pod."),
        ("Node", "", 1, "The node of the pod."),
        ("Source", "", 1, "The source of the pod: file, http, url or api."),
    ];
    // `pkg/apis/core/v1/conversion.go`, `AddFieldLabelConversionsForPod`; and the source, whose annotation is the same
    // for two sources.
    const FIELDS: &'static [&'static str] = &[
        "metadata.name",
        "metadata.namespace",
        "spec.nodeName",
        "spec.host",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
        SOURCE_FIELD,
    ];

    fn key(&self) -> &PodKey {
        self.entry.pod().key()
    }

    fn version(&self) -> u64 {
        self.entry.pod().resource_version().unwrap_or_default()
    }

    fn text(&self, reading: Reading) -> Vec<Bytes> {
        let text = Bytes::from_owner(self.entry.pod().text().clone());
        edits(self, reading).apply(&text, 0..text.len())
    }

    fn metadata(&self, reading: Reading) -> Vec<Bytes> {
        let pod = self.entry.pod();
        let text = Bytes::from_owner(pod.text().clone());
        edits(self, reading).apply(&text, pod.metadata_range().unwrap_or_default())
    }

    fn empty() -> Value {
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {}, "spec": {"containers": null}, "status": {}})
    }

    fn cells(pod: &Value, object: Option<&Self>, now: Timestamp) -> Vec<Value> {
        let (metadata, status) = (&pod["metadata"], &pod["status"]);
        let PodColumns { ready, status: shown, restarts } = PodColumns::of(pod, now);
        let created = metadata["creationTimestamp"].as_str().and_then(|time| time.parse().ok());
        let ip = status["podIPs"][0]["ip"].as_str().or(status["podIP"].as_str());
        let or_none =
            |text: Option<&str>| text.filter(|text| !text.is_empty()).unwrap_or("<none>").to_owned();
        let cells = [
            metadata["name"].as_str().unwrap_or_default().to_owned(),
            ready,
            shown,
            restarts,
            age(created, now),
            or_none(ip),
            or_none(pod["spec"]["nodeName"].as_str()),
            or_none(object.map(|seen| SourceName::as_str(seen.entry.source()))),
        ];
        cells.map(Value::from).into()
    }

    fn conditions(pod: &Value) -> String {
        let (reason, message) = match pod["status"]["phase"].as_str() {
            Some("Succeeded") => ("Succeeded", "The pod has completed successfully."),
            Some("Failed") => ("Failed", "The pod failed."),
            _ => return String::new(),
        };
        let condition = json!({"type": "Completed", "status": "True", "reason": reason, "message": message});
        format!(r#""conditions":[{condition}],"#)
    }
}

fn edits(seen: &SeenPod, reading: Reading) -> Edits {
    Edits::new(seen.entry.pod(), seen.status.as_ref(), reading.has_runtime, reading.version)
}

/// An event is a few hundred bytes, so that it is encoded for each reader.
impl Selectable for Arc<Event> {
    fn label(&self, _: &str) -> Option<&str> {
        None
    }

    fn field(&self, name: &str) -> String {
        Event::field(self, name).to_owned()
    }
}

/// The event with the version that it is read with.
fn read_at(event: &Event, reading: Reading) -> Cow<'_, Event> {
    reading.version.map_or(Cow::Borrowed(event), |version| Cow::Owned(event.at_version(version)))
}

impl Resource for Arc<Event> {
    const KIND: &'static str = "Event";
    const HAS_PROTOBUF: bool = false;
    const COLUMNS: &'static [Column] = &[
        ("Last Seen", "", 0, "The time since the event was observed last."),
        ("Type", "", 0, "Normal or Warning."),
        ("Reason", "", 0, "One word for programs."),
        ("Object", "", 0, "The pod or the node that the event is about."),
        ("Subobject", "", 1, "The container that the event is about, if it is one."),
        ("Source", "", 1, "The component that reports the event, and its node."),
        ("Message", "", 0, "What has happened."),
        ("First Seen", "", 1, "The time since the event was observed for the first time."),
        ("Count", "", 1, "How often the event was observed."),
        ("Name", "name", 1, "The name of the event, unique in its namespace."),
    ];
    const FIELDS: &'static [&'static str] = &[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
        "metadata.name",
        "metadata.namespace",
    ];

    fn key(&self) -> &PodKey {
        Event::key(self)
    }

    fn version(&self) -> u64 {
        self.number()
    }

    fn text(&self, reading: Reading) -> Vec<Bytes> {
        vec![read_at(self, reading).to_json().into()]
    }

    fn metadata(&self, reading: Reading) -> Vec<Bytes> {
        vec![read_at(self, reading).metadata_json().into()]
    }

    fn empty() -> Value {
        json!({
            "kind": "Event", "apiVersion": "v1", "metadata": {}, "involvedObject": {}, "source": {},
            "firstTimestamp": null, "lastTimestamp": null, "eventTime": null,
            "reportingComponent": "", "reportingInstance": "",
        })
    }

    fn cells(event: &Value, _: Option<&Self>, now: Timestamp) -> Vec<Value> {
        let since = |time: &Value| age(time.as_str().and_then(|time| time.parse().ok()), now);
        let involved = &event["involvedObject"];
        let source = ["component", "host"].map(|part| text(&event["source"][part]));
        vec![
            since(&event["lastTimestamp"]).into(),
            text(&event["type"]).into(),
            text(&event["reason"]).into(),
            format!("{}/{}", text(&involved["kind"]).to_lowercase(), text(&involved["name"])).into(),
            text(&involved["fieldPath"]).into(),
            source.join(", ").into(),
            text(&event["message"]).into(),
            since(&event["firstTimestamp"]).into(),
            event["count"].clone(),
            text(&event["metadata"]["name"]).into(),
        ]
    }
}
