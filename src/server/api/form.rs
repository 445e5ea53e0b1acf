//! The forms in which pods are answered: as they are, their metadata alone, or a table as kubectl prints it.

use std::iter;

use bytes::Bytes;
use http::{StatusCode, header::ACCEPT};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    age::age,
    history::SeenPod,
    pod::SourceName,
    pod_columns::PodColumns,
    server::{context::Params, overlay::Edits, status::ApiError},
};

/// The form of pods in a response, from `Accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// The object as it is: `v1.Pod`.
    Pod,
    /// `PartialObjectMetadata`.
    Metadata,
    /// `Table`.
    Table(Included),
}

/// What a row of a table has of its pod: `includeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Included {
    Nothing,
    Metadata,
    Object,
}

/// A pod to be answered.
pub(crate) struct ReadPod<'p> {
    pub(crate) seen: &'p SeenPod,
    /// Whether the agent runs pods.
    pub(crate) has_runtime: bool,
    /// The `resourceVersion`, unless the text has it.
    pub(crate) version: Option<u64>,
    pub(crate) now: Timestamp,
}

/// A column of a table: its name, format, priority (above 0 for wide tables only) and description.
pub(super) type Column = (&'static str, &'static str, u8, &'static str);

/// The columns of a table of pods.
const COLUMNS: [Column; 8] = [
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

impl Form {
    /// The best form that the client accepts, of pods or, if `is_list`, of lists of them.
    ///
    /// # Errors
    /// 406 if the client accepts none; 400 if `includeObject` is invalid.
    pub(crate) fn new(params: &Params, is_list: bool) -> Result<Self, ApiError> {
        let included = match params.option("includeObject") {
            "" | "Metadata" => Some(Included::Metadata),
            "None" => Some(Included::Nothing),
            "Object" => Some(Included::Object),
            _ => None,
        };
        let accepted = params.headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
        let ranges =
            accepted.flat_map(|value| value.split(',')).map(str::trim).filter(|range| !range.is_empty());
        let mut ranges: Vec<Range<'_>> = ranges.map(Range::new).collect();
        if ranges.is_empty() {
            return Ok(Self::Pod);
        }
        // Of equal ones the first is the best.
        ranges.sort_by(|a, b| b.quality.total_cmp(&a.quality));
        let form = ranges.iter().filter(|range| range.quality > 0.0).find_map(|range| range.form(is_list));
        match (form, included) {
            (Some(Self::Table(_)), Some(included)) => Ok(Self::Table(included)),
            (Some(Self::Table(_)), None) => Err(ApiError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {:?}: must be 'Metadata', 'Object', 'None', or empty",
                params.option("includeObject")
            ))),
            (Some(form), _) => Ok(form),
            (None, _) => {
                let message = "only the following media types are accepted: application/json";
                Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message))
            }
        }
    }

    /// The beginning of a list of pods with this metadata. The pods follow, separated by commas, then `]}`.
    pub(crate) fn pod_list_head(self, metadata: &str) -> String {
        self.list_head(metadata, "Pod", &COLUMNS)
    }

    /// The beginning of a list of objects of a kind.
    pub(crate) fn list_head(self, metadata: &str, kind: &str, columns: &[Column]) -> String {
        let (kind, version) = match self {
            Self::Pod => (kind, "v1"),
            Self::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1"),
            Self::Table(_) => return table_head(metadata, Some(columns)),
        };
        format!(r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{metadata},"items":["#)
    }

    /// A pod of a list.
    pub(crate) fn item(self, pod: &ReadPod<'_>) -> Vec<Bytes> {
        match self {
            Self::Pod => pod.text(),
            Self::Metadata => pod.metadata(),
            Self::Table(included) => pod.row(included),
        }
    }

    /// A pod that is not in a list. The first table of a stream has columns.
    pub(crate) fn object(self, pod: &ReadPod<'_>, has_columns: bool) -> Vec<Bytes> {
        if !matches!(self, Self::Table(_)) {
            return self.item(pod);
        }
        let version = pod.version.or_else(|| pod.seen.entry.pod().resource_version()).unwrap_or_default();
        let columns = has_columns.then_some(&COLUMNS[..]);
        let head = table_head(&format!(r#"{{"resourceVersion":"{version}"}}"#), columns);
        iter::once(head.into()).chain(self.item(pod)).chain([Bytes::from_static(b"]}")]).collect()
    }

    /// The object of a bookmark: a pod with a resourceVersion alone, and with a mark at the end of the
    /// initial events.
    pub(crate) fn bookmark(self, version: u64, ends_initial_events: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if ends_initial_events {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let partial =
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": null}, "status": {}});
        let object = match self {
            Self::Pod => pod,
            Self::Metadata => partial,
            Self::Table(_) => {
                let cells = cells(&pod, None, Timestamp::UNIX_EPOCH);
                let head = table_head(&format!(r#"{{"resourceVersion":"{version}"}}"#), None);
                return format!("{head}{}]}}", json!({"cells": cells, "object": partial})).into();
            }
        };
        object.to_string().into()
    }
}

/// One range of `Accept`, such as `application/json;as=Table;v=v1;g=meta.k8s.io;q=0.5`.
struct Range<'a> {
    media_type: &'a str,
    target: [&'a str; 3],
    quality: f64,
}

impl<'a> Range<'a> {
    fn new(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let mut range = Self { media_type: parts.next().unwrap_or_default(), target: [""; 3], quality: 1.0 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "as" => range.target[0] = value,
                "v" => range.target[1] = value,
                "g" => range.target[2] = value,
                "q" => range.quality = value.parse().unwrap_or(1.0),
                _ => {}
            }
        }
        range
    }

    /// The form, if there is such a one.
    fn form(&self, is_list: bool) -> Option<Form> {
        if !["application/json", "application/*", "*/*"].contains(&self.media_type) {
            return None;
        }
        match self.target {
            ["", ..] => Some(Form::Pod),
            ["Table", "v1", "meta.k8s.io"] => Some(Form::Table(Included::Metadata)),
            ["PartialObjectMetadata", "v1", "meta.k8s.io"] if !is_list => Some(Form::Metadata),
            ["PartialObjectMetadataList", "v1", "meta.k8s.io"] if is_list => Some(Form::Metadata),
            _ => None,
        }
    }
}

/// The beginning of a table, up to its rows.
pub(super) fn table_head(metadata: &str, columns: Option<&[Column]>) -> String {
    let column = |(name, format, priority, description): &Column| json!({"name": name, "type": "string", "format": format, "description": description, "priority": priority});
    let columns = columns.map(|columns| columns.iter().map(column).collect::<Vec<_>>());
    format!(
        r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"columnDefinitions":{},"rows":["#,
        json!(columns)
    )
}

impl ReadPod<'_> {
    fn edits(&self) -> Edits {
        Edits::new(self.seen.entry.pod(), self.seen.status.as_ref(), self.has_runtime, self.version)
    }

    /// The pod in pieces, without copying its text.
    fn text(&self) -> Vec<Bytes> {
        let text = Bytes::from_owner(self.seen.entry.pod().text().clone());
        self.edits().apply(&text, 0..text.len())
    }

    fn metadata(&self) -> Vec<Bytes> {
        let pod = self.seen.entry.pod();
        let text = Bytes::from_owner(pod.text().clone());
        let range = pod.metadata_range().unwrap_or_default();
        let head = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#;
        let metadata = self.edits().apply(&text, range);
        iter::once(Bytes::from_static(head)).chain(metadata).chain([Bytes::from_static(b"}")]).collect()
    }

    /// A row as kube-apiserver has it (`pkg/printers/internalversion/printers.go`, `printPod`).
    fn row(&self, included: Included) -> Vec<Bytes> {
        let pod: Value = serde_json::from_slice(&self.text().concat()).unwrap_or_default();
        let cells = cells(&pod, Some(self.seen.entry.source()), self.now);
        let conditions = match pod["status"]["phase"].as_str() {
            Some("Succeeded") => completed("Succeeded", "The pod has completed successfully."),
            Some("Failed") => completed("Failed", "The pod failed."),
            _ => String::new(),
        };
        let head = format!(r#"{{"cells":{},{conditions}"object":"#, json!(cells));
        let object = match included {
            Included::Nothing => vec![Bytes::from_static(b"null")],
            Included::Metadata => self.metadata(),
            Included::Object => self.text(),
        };
        iter::once(head.into()).chain(object).chain([Bytes::from_static(b"}")]).collect()
    }
}

fn completed(reason: &str, message: &str) -> String {
    let condition = json!({"type": "Completed", "status": "True", "reason": reason, "message": message});
    format!(r#""conditions":[{condition}],"#)
}

/// The cells of a pod, in the order of [`COLUMNS`].
fn cells(pod: &Value, source: Option<SourceName>, now: Timestamp) -> [String; COLUMNS.len()] {
    let (metadata, status) = (&pod["metadata"], &pod["status"]);
    let PodColumns { ready, status: shown, restarts } = PodColumns::of(pod, now);
    let created = metadata["creationTimestamp"].as_str().and_then(|time| time.parse().ok());
    let ip = status["podIPs"][0]["ip"].as_str().or(status["podIP"].as_str());
    let or_none = |text: Option<&str>| text.filter(|text| !text.is_empty()).unwrap_or("<none>").to_owned();
    [
        metadata["name"].as_str().unwrap_or_default().to_owned(),
        ready,
        shown,
        restarts,
        age(created, now),
        or_none(ip),
        or_none(pod["spec"]["nodeName"].as_str()),
        or_none(source.map(SourceName::as_str)),
    ]
}
